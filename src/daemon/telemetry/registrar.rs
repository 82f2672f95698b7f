//! Creates metrics and registers them, with the buckets of their histograms.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};
use std::cell::RefCell;

/// Returns the upper bounds of histogram buckets in seconds: three per decade, 10 µs to 500 s.
pub(super) fn seconds_buckets() -> Vec<f64> {
    (0..8)
        .flat_map(|exponent| [1.0, 2.5, 5.0].map(|factor| factor * 1e-5 * 10f64.powi(exponent)))
        .collect()
}

/// Returns the upper bounds of histogram buckets for counts: the powers of two up to 32,768.
pub(super) fn count_buckets() -> Vec<f64> {
    (0..16).map(|exponent| f64::from(1u32 << exponent)).collect()
}

/// What a metric is called, and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricDescription {
    /// Its name.
    pub name: String,
    /// The names of its labels.
    pub labels: Vec<String>,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its help text.
    pub help: String,
}

/// Creates metrics with the prefix `workflow_`, and registers them.
#[derive(Default)]
pub(super) struct MetricRegistrar {
    pub(super) registry: Registry,
    /// What was registered.
    pub(super) descriptions: RefCell<Vec<MetricDescription>>,
}

#[allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "names and labels are constants, registered once per registry; each start tests them"
)]
impl MetricRegistrar {
    /// Registers a metric of a kind.
    pub(super) fn register(&self, kind: &'static str, collector: impl Collector + 'static) {
        let descriptions = collector.desc().into_iter().map(|desc| MetricDescription {
            name: desc.fq_name.clone(),
            labels: desc.variable_labels.clone(),
            kind,
            help: desc.help.clone(),
        });
        self.descriptions.borrow_mut().extend(descriptions);
        self.registry.register(Box::new(collector)).unwrap();
    }

    /// Registers the metrics of the operating system about this process.
    #[cfg(target_os = "linux")]
    pub(super) fn register_process(&self) {
        self.registry.register(Box::new(super::process::ProcessCollector::new().unwrap())).unwrap();
    }

    pub(super) fn gauge_vec(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        let metric = IntGaugeVec::new(Opts::new(format!("workflow_{name}"), help), labels).unwrap();
        self.register("gauge", metric.clone());
        metric
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> IntGauge {
        let metric = IntGauge::new(format!("workflow_{name}"), help).unwrap();
        self.register("gauge", metric.clone());
        metric
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> IntCounter {
        let metric = IntCounter::new(format!("workflow_{name}"), help).unwrap();
        self.register("counter", metric.clone());
        metric
    }

    pub(super) fn counter_vec(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        let metric =
            IntCounterVec::new(Opts::new(format!("workflow_{name}"), help), labels).unwrap();
        self.register("counter", metric.clone());
        metric
    }

    pub(super) fn histogram_vec(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        let metric = HistogramVec::new(
            HistogramOpts::new(format!("workflow_{name}"), help).buckets(seconds_buckets()),
            labels,
        )
        .unwrap();
        self.register("histogram", metric.clone());
        metric
    }

    pub(super) fn histogram(&self, name: &str, help: &str, buckets: Vec<f64>) -> Histogram {
        let metric = Histogram::with_opts(
            HistogramOpts::new(format!("workflow_{name}"), help).buckets(buckets),
        )
        .unwrap();
        self.register("histogram", metric.clone());
        metric
    }
}
