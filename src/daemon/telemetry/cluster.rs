//! The metrics of a process that shares its journal with others. With a file they are not there.

use super::registrar::MetricRegistrar;
use prometheus::{IntCounterVec, IntGaugeVec};
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
    pub(super) fn new(register: &MetricRegistrar) -> ClusterMetrics {
        ClusterMetrics {
            active: register.gauge_vec(
                "cluster_active",
                "1: this process is active; 0: it stands by",
                &[],
            ),
            takeovers: register.counter_vec(
                "cluster_takeovers_total",
                "how often this process has become active in place of one that did not beat \
                 any more",
                &[],
            ),
            beat_age: register.gauge_vec(
                "cluster_beat_age_seconds",
                "how long ago the active process beat, as this one has seen it: of its own \
                 beat, or at a standby",
                &[],
            ),
        }
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
