//! The metrics of a process that shares its journal with others. With a file they are not there.

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};
use std::time::Duration;

/// The metrics of a process that shares its journal with others. With a file they are not there.
#[derive(Clone)]
pub struct ClusterMetrics {
    /// `workflow_cluster_active`: 1 if this process is active, 0 if it stands by.
    active: IntGaugeVec,
    /// `workflow_cluster_takeovers_total`: how often this process has taken over.
    takeovers: IntCounterVec,
    /// `workflow_cluster_beat_age_seconds`: how long ago the active process beat.
    beat_age: IntGaugeVec,
}

impl ClusterMetrics {
    /// Creates the metrics, and registers them.
    #[allow(
        clippy::unwrap_used,
        reason = "names are constants, registered once per registry; each start tests them"
    )]
    pub(super) fn new(registry: &Registry) -> ClusterMetrics {
        let new_gauge =
            |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &[]).unwrap();
        let takeovers = Opts::new(
            "workflow_cluster_takeovers_total",
            "how often this process has taken over from one that did not beat any more",
        );
        let metrics = ClusterMetrics {
            active: new_gauge("workflow_cluster_active", "1: active, 0: stands by"),
            takeovers: IntCounterVec::new(takeovers, &[]).unwrap(),
            beat_age: new_gauge(
                "workflow_cluster_beat_age_seconds",
                "how long ago the active process beat, as this one has seen it",
            ),
        };
        registry.register(Box::new(metrics.active.clone())).unwrap();
        registry.register(Box::new(metrics.takeovers.clone())).unwrap();
        registry.register(Box::new(metrics.beat_age.clone())).unwrap();
        metrics
    }

    /// Sets the gauges. `beat_age` is `None` if no beat was seen yet.
    pub(crate) fn set(&self, is_active: bool, beat_age: Option<Duration>) {
        self.active.with_label_values::<&str>(&[]).set(i64::from(is_active));
        if let Some(age) = beat_age {
            let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
            self.beat_age.with_label_values::<&str>(&[]).set(seconds);
        }
    }

    /// Counts that this process has become active, which is a takeover if the process before did
    /// not beat any more.
    pub fn record_activation(&self, is_takeover: bool) {
        self.takeovers.with_label_values::<&str>(&[]).inc_by(u64::from(is_takeover));
    }
}
