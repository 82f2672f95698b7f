//! What happened over time, in equal buckets: the jobs that were created and ended, the steps, how
//! long steps took, and how many messages waited in queues. The figures of a minute are the
//! difference between the metrics at its end and at its beginning, so that a step costs nothing
//! more than the metrics do.

use super::Metrics;
use engine::{JobState, Timestamp};
use prometheus::core::Collector;
use prometheus::proto::Metric;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::iter;
use std::sync::Arc;

/// The length of a minute, in nanoseconds.
pub const MINUTE_NS: i64 = 60_000_000_000;

/// The name under which the figures of all workflows together are kept. No workflow has it.
pub const ALL_WORKFLOWS: &str = "";

/// Of how many workflows trends are kept. The others are in the figures of all together.
pub const WORKFLOWS_MAX: usize = 100;

/// A time span of trends. Each has a ring of buckets, which reaches back twice as far, so that a
/// span can be compared with the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrendSpan {
    /// 60 buckets of one minute.
    Hour,
    /// 96 buckets of a quarter of an hour.
    Day,
    /// 84 buckets of two hours.
    Week,
}

impl TrendSpan {
    /// All spans, the shortest first.
    pub const ALL: [TrendSpan; 3] = [TrendSpan::Hour, TrendSpan::Day, TrendSpan::Week];

    /// Returns the name in requests.
    pub fn name(self) -> &'static str {
        match self {
            TrendSpan::Hour => "1h",
            TrendSpan::Day => "24h",
            TrendSpan::Week => "7d",
        }
    }

    /// Returns the span with this name.
    pub fn from_name(name: &str) -> Option<TrendSpan> {
        TrendSpan::ALL.into_iter().find(|span| span.name() == name)
    }

    /// Returns the number of the span's ring in the journal.
    pub fn ring(self) -> i32 {
        match self {
            TrendSpan::Hour => 1,
            TrendSpan::Day => 2,
            TrendSpan::Week => 3,
        }
    }

    /// Returns how many buckets the span has.
    pub fn buckets(self) -> u32 {
        match self {
            TrendSpan::Hour => 60,
            TrendSpan::Day => 96,
            TrendSpan::Week => 84,
        }
    }

    /// Returns how many minutes a bucket has.
    pub fn bucket_minutes(self) -> u32 {
        match self {
            TrendSpan::Hour => 1,
            TrendSpan::Day => 15,
            TrendSpan::Week => 120,
        }
    }

    /// Returns the beginning of the bucket in which a time is.
    pub fn bucket_start(self, time: Timestamp) -> Timestamp {
        let width = self.bucket_ns();
        Timestamp(time.0.div_euclid(width).saturating_mul(width))
    }

    /// Returns the beginning of the bucket that is `count` buckets before the one that begins at
    /// `start`.
    pub fn buckets_before(self, start: Timestamp, count: u32) -> Timestamp {
        Timestamp(start.0.saturating_sub(self.bucket_ns().saturating_mul(count.into())))
    }

    /// Returns the position of the ring that is for the bucket in which a time is.
    pub fn position(self, time: Timestamp) -> i32 {
        let positions = i64::from(2 * self.buckets());
        i32::try_from(time.0.div_euclid(self.bucket_ns()).rem_euclid(positions)).unwrap_or(0)
    }

    fn bucket_ns(self) -> i64 {
        i64::from(self.bucket_minutes()) * MINUTE_NS
    }
}

/// What happened in a bucket, or in several. The journal keeps it as JSON without its zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Figures {
    /// How many minutes were counted. While no manager is active, none is.
    #[serde(skip_serializing_if = "is_zero")]
    pub minutes: u64,
    /// Root jobs that were created.
    #[serde(skip_serializing_if = "is_zero")]
    pub created: u64,
    /// Root jobs that completed.
    #[serde(skip_serializing_if = "is_zero")]
    pub completed: u64,
    /// Root jobs that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// Root jobs that were cancelled.
    #[serde(skip_serializing_if = "is_zero")]
    pub cancelled: u64,
    /// Steps that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub steps_failed: u64,
    /// Attempts that failed and were followed by another.
    #[serde(skip_serializing_if = "is_zero")]
    pub steps_retried: u64,
    /// How many steps completed, by how long they took: the buckets of the metric
    /// `workflow_step_duration_seconds`, then the longer ones. Zeros at the end are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps_by_duration: Vec<u64>,
    /// The messages that waited in queues at the end; `None`: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// The most messages that waited at the end of a minute; `None`: never known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_max: Option<u64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Figures {
    /// Adds what happened later.
    pub fn add(&mut self, later: &Figures) {
        for (sum, more) in [
            (&mut self.minutes, later.minutes),
            (&mut self.created, later.created),
            (&mut self.completed, later.completed),
            (&mut self.failed, later.failed),
            (&mut self.cancelled, later.cancelled),
            (&mut self.steps_failed, later.steps_failed),
            (&mut self.steps_retried, later.steps_retried),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.add_durations(&later.steps_by_duration);
        self.queued = later.queued;
        self.queued_max = self.queued_max.max(later.queued_max);
    }

    /// Returns how many steps completed.
    pub fn steps_completed(&self) -> u64 {
        self.steps_by_duration.iter().sum()
    }

    /// Returns a percentile of the durations of completed steps, in nanoseconds, interpolated
    /// within its bucket; `None`: no step completed. Durations beyond the last bound count as the
    /// last bound.
    pub fn step_percentile(&self, percent: u64) -> Option<i64> {
        let rank = self.steps_completed().saturating_mul(percent).div_ceil(100).max(1);
        let (mut before, mut lower) = (0, 0.0);
        for (count, upper) in self.steps_by_duration.iter().zip(upper_bounds()) {
            if before + count >= rank {
                let share = (rank - before) as f64 / *count as f64;
                return Some(((lower + (upper - lower) * share) * 1e9) as i64);
            }
            before += count;
            lower = upper;
        }
        None
    }

    /// Returns whether there is nothing to keep.
    pub fn is_nothing(&self) -> bool {
        let idle =
            Figures { queued: self.queued, queued_max: self.queued_max, ..Figures::default() };
        *self == idle && self.queued_max.unwrap_or(0) == 0
    }

    fn add_durations(&mut self, counts: &[u64]) {
        let length = self.steps_by_duration.len().max(counts.len());
        self.steps_by_duration.resize(length, 0);
        for (sum, more) in self.steps_by_duration.iter_mut().zip(counts) {
            *sum = sum.saturating_add(*more);
        }
        while self.steps_by_duration.last() == Some(&0) {
            self.steps_by_duration.pop();
        }
    }
}

/// Returns the upper bounds of the durations of steps in seconds; the last one stands for all
/// longer ones.
fn upper_bounds() -> impl Iterator<Item = f64> {
    let bounds = super::registrar::seconds_buckets();
    let last = bounds.last().copied();
    bounds.into_iter().chain(last)
}

/// The figures of a time, by the full names of workflows; [`ALL_WORKFLOWS`] has their sum.
pub type FiguresByWorkflow = BTreeMap<Arc<str>, Figures>;

/// The values of the metrics at a time, from which the figures since then follow.
#[derive(Clone, Default)]
pub struct MetricValues(HashMap<SeriesKey, Vec<u64>>);

/// What a series counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Counted {
    Created,
    Ended,
    StepsFailed,
    StepsRetried,
    StepDurations,
}

/// A series: what it counts, the workflow, and the state or step.
type SeriesKey = (Counted, String, String);

impl MetricValues {
    /// Reads the metrics.
    pub fn read(metrics: &Metrics) -> MetricValues {
        let mut values = HashMap::new();
        let families: [(Counted, &dyn Collector, &str); 5] = [
            (Counted::Created, &metrics.jobs_created, ""),
            (Counted::Ended, &metrics.jobs_ended, "state"),
            (Counted::StepsFailed, &metrics.failed, "step"),
            (Counted::StepsRetried, &metrics.retried, "step"),
            (Counted::StepDurations, &metrics.step_duration, "step"),
        ];
        for (counted, family, second_label) in families {
            for family in family.collect() {
                for metric in family.get_metric() {
                    let key = (counted, label(metric, "workflow"), label(metric, second_label));
                    values.insert(key, counts(counted, metric));
                }
            }
        }
        MetricValues(values)
    }

    /// Returns what happened between `earlier` and these values. A series that is new, or that was
    /// removed and began again, counts from zero.
    pub fn since(&self, earlier: &MetricValues) -> FiguresByWorkflow {
        let mut figures = FiguresByWorkflow::new();
        figures.entry(ALL_WORKFLOWS.into()).or_default();
        for (key, counts) in &self.0 {
            let sum = |counts: &[u64]| counts.iter().sum::<u64>();
            let before = earlier.0.get(key).filter(|before| sum(before) <= sum(counts));
            let before = before.map_or(&[][..], Vec::as_slice).iter().chain(iter::repeat(&0));
            let difference = |(now, before): (&u64, &u64)| now.saturating_sub(*before);
            let differences: Vec<u64> = counts.iter().zip(before).map(difference).collect();
            if differences.iter().all(|difference| *difference == 0) {
                continue;
            }
            let (counted, workflow, second_label) = key;
            for name in [workflow, ALL_WORKFLOWS] {
                let figures = figures.entry(name.into()).or_default();
                figures.count(*counted, second_label, &differences);
            }
        }
        figures
    }
}

impl Figures {
    fn count(&mut self, counted: Counted, second_label: &str, counts: &[u64]) {
        let count = counts.first().copied().unwrap_or(0);
        match counted {
            Counted::Created => self.created += count,
            Counted::Ended => match JobState::from_name(second_label) {
                Some(JobState::Completed) => self.completed += count,
                Some(JobState::Failed) => self.failed += count,
                Some(JobState::Cancelled) => self.cancelled += count,
                Some(JobState::Running | JobState::Paused) | None => {}
            },
            Counted::StepsFailed => self.steps_failed += count,
            Counted::StepsRetried => self.steps_retried += count,
            Counted::StepDurations => self.add_durations(counts),
        }
    }
}

/// Returns the value of a label; empty: the series has no such label.
fn label(metric: &Metric, name: &str) -> String {
    let pair = metric.get_label().iter().find(|pair| pair.name() == name);
    pair.map(|pair| pair.value().to_owned()).unwrap_or_default()
}

/// Returns what a series has counted: one number, or one for each bucket of a histogram.
fn counts(counted: Counted, metric: &Metric) -> Vec<u64> {
    match counted {
        Counted::Created | Counted::Ended | Counted::StepsFailed | Counted::StepsRetried => {
            vec![metric.get_counter().get_value() as u64]
        }
        Counted::StepDurations => {
            let histogram = metric.get_histogram();
            let buckets = histogram.get_bucket().iter().map(|bucket| bucket.cumulative_count());
            let mut before = 0;
            let cumulative = buckets.chain([histogram.get_sample_count()]);
            // The buckets are read one after the other, while steps are counted.
            let difference = |count: u64| {
                let difference = count.saturating_sub(before);
                before = before.max(count);
                difference
            };
            cumulative.map(difference).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn completed_step(metrics: &Metrics, workflow: &str, step: &str, seconds: f64) {
        metrics.step_duration.with_label_values(&[workflow, step]).observe(seconds);
    }

    #[test]
    fn a_minute_is_the_difference_of_the_metrics() {
        let metrics = Metrics::new();
        metrics.jobs_created.with_label_values(&["w"]).inc_by(5);
        completed_step(&metrics, "w", "a", 1.0);
        let before = MetricValues::read(&metrics);
        metrics.jobs_created.with_label_values(&["w"]).inc_by(2);
        metrics.jobs_ended.with_label_values(&["w", "completed"]).inc();
        metrics.jobs_ended.with_label_values(&["x", "failed"]).inc_by(3);
        metrics.jobs_ended.with_label_values(&["x", "cancelled"]).inc();
        metrics.failed.with_label_values(&["x", "a"]).inc();
        metrics.retried.with_label_values(&["x", "a"]).inc();
        completed_step(&metrics, "w", "a", 2.0);
        completed_step(&metrics, "w", "b", 2.0);
        let figures = MetricValues::read(&metrics).since(&before);
        let w = Figures { created: 2, completed: 1, ..Figures::default() };
        let w = Figures { steps_by_duration: figures["w"].steps_by_duration.clone(), ..w };
        assert_eq!((figures["w"].steps_completed(), &figures["w"]), (2, &w));
        let x = Figures { failed: 3, cancelled: 1, steps_failed: 1, ..Figures::default() };
        assert_eq!(figures["x"], Figures { steps_retried: 1, ..x });
        let mut sum = figures["w"].clone();
        sum.add(&figures["x"]);
        assert_eq!(figures[ALL_WORKFLOWS], sum);
        let none = MetricValues::read(&metrics).since(&MetricValues::read(&metrics));
        assert!(none.len() == 1 && none[ALL_WORKFLOWS].is_nothing(), "{none:?}");
    }

    #[test]
    fn a_series_that_began_again_counts_from_zero() {
        let metrics = Metrics::new();
        metrics.jobs_created.with_label_values(&["w"]).inc_by(5);
        metrics.jobs_created.with_label_values(&["gone"]).inc_by(7);
        completed_step(&metrics, "w", "a", 9.0);
        completed_step(&metrics, "w", "a", 9.0);
        let before = MetricValues::read(&metrics);
        assert!(metrics.jobs_created.remove_label_values(&["w"]).is_ok());
        assert!(metrics.jobs_created.remove_label_values(&["gone"]).is_ok());
        assert!(metrics.step_duration.remove_label_values(&["w", "a"]).is_ok());
        metrics.jobs_created.with_label_values(&["w"]).inc_by(2);
        completed_step(&metrics, "w", "a", 1.0);
        let figures = MetricValues::read(&metrics).since(&before);
        assert_eq!((figures["w"].created, figures["w"].steps_completed()), (2, 1));
        assert_eq!(figures[ALL_WORKFLOWS].created, 2);
    }

    #[test]
    fn percentiles_of_added_figures_are_within_their_bucket() {
        let metrics = Metrics::new();
        let before = MetricValues::read(&metrics);
        for _ in 0..98 {
            completed_step(&metrics, "w", "a", 0.2);
        }
        let fast = MetricValues::read(&metrics).since(&before)["w"].clone();
        let before = MetricValues::read(&metrics);
        completed_step(&metrics, "w", "a", 30.0);
        completed_step(&metrics, "w", "a", 7_000.0);
        let slow = MetricValues::read(&metrics).since(&before)["w"].clone();
        let mut both = fast.clone();
        both.add(&slow);
        let within = |percent, from, to| {
            let value = both.step_percentile(percent).expect("steps completed");
            assert!(value > from && value <= to, "p{percent} is {value}");
        };
        within(50, SECOND / 10, SECOND / 4);
        within(99, 25 * SECOND, 50 * SECOND);
        assert_eq!(both.step_percentile(100), Some(500 * SECOND), "the last bound");
        assert_eq!(Figures::default().step_percentile(50), None);
        let text = serde_json::to_string(&fast).expect("serialised");
        assert_eq!(serde_json::from_str::<Figures>(&text).expect("parsed"), fast);
    }

    #[test]
    fn a_ring_has_the_span_and_the_one_before_whatever_the_clock_shows() {
        for span in TrendSpan::ALL {
            assert_eq!(TrendSpan::from_name(span.name()), Some(span));
            for now in [Timestamp(1_764_000_000 * SECOND + 7), Timestamp(-5), Timestamp(i64::MAX)] {
                let newest = span.bucket_start(now);
                let numbers = 0..2 * span.buckets();
                let position = |number| span.position(span.buckets_before(newest, number));
                let positions: std::collections::BTreeSet<i32> =
                    numbers.clone().map(position).collect();
                assert_eq!(positions.len(), numbers.len(), "each bucket has a position of its own");
                assert_eq!(
                    position(2 * span.buckets()),
                    span.position(newest),
                    "then they are used again"
                );
            }
        }
    }

    #[test]
    fn depths_are_the_last_and_the_most() {
        let depth = |queued| Figures { queued, queued_max: queued, ..Figures::default() };
        let mut sum = depth(Some(9));
        sum.add(&depth(None));
        assert_eq!((sum.queued, sum.queued_max), (None, Some(9)));
        sum.add(&depth(Some(3)));
        assert_eq!((sum.queued, sum.queued_max), (Some(3), Some(9)));
        assert!(!sum.is_nothing() && depth(Some(0)).is_nothing());
    }
}
