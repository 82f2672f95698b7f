//! The metrics of the limits of rate and concurrency. Only limits of loaded workflows have series
//! of their own, and at most `metrics.steps_max` of them; all others are counted together.

use super::registrar::MetricRegistrar;
use super::series::{Definitions, OTHER, collect_labels};
use engine::{LimitCount, Timestamp};
use prometheus::{HistogramVec, IntGaugeVec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

/// The metrics of the limits. See the [module](self).
#[derive(Clone)]
pub struct LimitMetrics {
    /// `workflow_limit_held{limit}`: steps and jobs that hold a place, of all keys together.
    held: IntGaugeVec,
    /// `workflow_limit_waiting{limit}`: steps and jobs that wait for a place, of all keys together.
    waiting: IntGaugeVec,
    /// `workflow_limit_wait_seconds{limit}`: how long attempts waited until they were admitted.
    wait: HistogramVec,
    /// The full names of the limits that have series of their own.
    tracked: Arc<RwLock<BTreeSet<Arc<str>>>>,
}

impl LimitMetrics {
    /// Creates the metrics, and registers them.
    pub(super) fn new(register: &MetricRegistrar) -> LimitMetrics {
        LimitMetrics {
            held: register.gauge_vec(
                "limit_held",
                "steps and jobs that hold a place of a limit, of all keys together",
                &["limit"],
            ),
            waiting: register.gauge_vec(
                "limit_waiting",
                "steps and jobs that wait for a limit, of all keys together",
                &["limit"],
            ),
            wait: register.histogram_vec(
                "limit_wait_seconds",
                "time from the claim of an attempt to its admission, once for each limit of the \
                 step; 0 where nobody was before it",
                &["limit"],
            ),
            tracked: Arc::default(),
        }
    }

    /// Replaces the limits of the workflow files, and removes the series of those that are in no
    /// file any more. `limits_max`: how many limits may have series of their own.
    pub(super) fn set_definitions(&self, definitions: &Definitions, limits_max: usize) {
        let mut names = BTreeSet::new();
        for definition in definitions.values() {
            let own = definition.limits.iter();
            names.extend(own.map(|limit| definition.full_limit_name(&limit.name)));
        }
        let tracked: BTreeSet<Arc<str>> = names.into_iter().take(limits_max).collect();
        *self.tracked.write().unwrap_or_else(PoisonError::into_inner) = tracked;
        for limit in list_limits(&self.wait) {
            if limit != OTHER && self.find_label(&limit) == OTHER {
                // An error means that another thread has removed the series.
                let _ = self.wait.remove_label_values(&[&*limit]);
            }
        }
    }

    /// Counts that an attempt was admitted that had waited for a limit, given by its full name,
    /// since `since`.
    pub(crate) fn observe_wait(&self, limit: &str, since: Timestamp, now: Timestamp) {
        let seconds = since.duration_until(now).as_secs_f64();
        self.wait.with_label_values(&[self.find_label(limit)]).observe(seconds);
    }

    /// Sets how many hold and wait, and removes the series of limits that are not among them.
    pub(crate) fn set_counts(&self, counts: &[LimitCount]) {
        let mut sums: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for LimitCount { name, held, waiting } in counts {
            let sum = sums.entry(self.find_label(name)).or_default();
            *sum = (sum.0 + held, sum.1 + waiting);
        }
        for (limit, (held, waiting)) in &sums {
            let to_gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
            self.held.with_label_values(&[*limit]).set(to_gauge(*held));
            self.waiting.with_label_values(&[*limit]).set(to_gauge(*waiting));
        }
        for gauge in [&self.held, &self.waiting] {
            for limit in list_limits(gauge) {
                if !sums.contains_key(&*limit) {
                    let _ = gauge.remove_label_values(&[&*limit]);
                }
            }
        }
    }

    /// Returns the label value of a limit: its full name, or [`OTHER`].
    fn find_label<'l>(&self, limit: &'l str) -> &'l str {
        let tracked = self.tracked.read().unwrap_or_else(PoisonError::into_inner);
        if tracked.contains(limit) { limit } else { OTHER }
    }
}

/// Returns the limits that a family has series of.
fn list_limits(family: &impl prometheus::core::Collector) -> Vec<String> {
    let labels = collect_labels(family).into_iter().flatten();
    labels.filter(|(name, _)| name == "limit").map(|(_, value)| value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;
    use engine::{Definition, LimitDefinition};

    fn files(limits: &[&str]) -> Definitions {
        let limits = limits
            .iter()
            .map(|name| LimitDefinition {
                name: (*name).into(),
                rate: None,
                concurrency: Some(1),
                key: None,
                fair: None,
            })
            .collect();
        let definition = Definition { limits, ..Definition::new("w", Vec::new()) };
        Definitions::from([("w".to_owned(), Arc::new(definition))])
    }

    fn count(name: &str, held: usize, waiting: usize) -> LimitCount {
        LimitCount { name: name.into(), held, waiting }
    }

    fn rendered(metrics: &Metrics) -> Vec<String> {
        let text = metrics.render();
        let is_meant = |line: &&str| {
            line.starts_with("workflow_limit_held")
                || line.starts_with("workflow_limit_waiting")
                || line.starts_with("workflow_limit_wait_seconds_count")
        };
        text.lines().filter(is_meant).map(|line| line.replace('"', "")).collect()
    }

    #[test]
    fn limits_beyond_the_bound_are_counted_together_and_removed_ones_have_no_series() {
        let metrics = Metrics::new();
        metrics.limits.set_definitions(&files(&["a", "b", "c", "d"]), 2);
        metrics.limits.set_counts(&[count("a", 1, 2), count("c", 3, 4), count("d", 5, 6)]);
        metrics.limits.observe_wait("a", Timestamp(0), Timestamp(1_000_000_000));
        metrics.limits.observe_wait("d", Timestamp(0), Timestamp(1_000_000_000));
        assert_eq!(
            rendered(&metrics),
            [
                "workflow_limit_held{limit=__other__} 8",
                "workflow_limit_held{limit=a} 1",
                "workflow_limit_wait_seconds_count{limit=__other__} 1",
                "workflow_limit_wait_seconds_count{limit=a} 1",
                "workflow_limit_waiting{limit=__other__} 10",
                "workflow_limit_waiting{limit=a} 2",
            ]
        );
        metrics.limits.set_definitions(&files(&["b"]), 2);
        metrics.limits.set_counts(&[count("b", 0, 0)]);
        assert_eq!(
            rendered(&metrics),
            [
                "workflow_limit_held{limit=b} 0",
                "workflow_limit_wait_seconds_count{limit=__other__} 1",
                "workflow_limit_waiting{limit=b} 0",
            ]
        );
    }
}
