//! Counts created and ended root jobs per minute, for the charts of the web page. A query covers at
//! most the last day; the totals are in the metrics.

use engine::{JobState, Timestamp};
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use utoipa::ToSchema;

/// How many minutes with jobs are retained for a workflow. Also the longest time span of a
/// [`Rate`].
const RETAINED_MINUTES: usize = 24 * 60;

/// How many completed jobs are retained for the percentiles of a workflow: the newest ones.
const RETAINED_JOBS: usize = 1_000;

/// The length of a minute, in nanoseconds.
const MINUTE_NS: i64 = 60_000_000_000;

/// How far back the counts reach, in nanoseconds.
pub(crate) const RETENTION_NS: i64 = RETAINED_MINUTES as i64 * MINUTE_NS;

/// The counts of all workflows, by their full names.
#[derive(Default)]
pub struct JobRates(Mutex<HashMap<Arc<str>, WorkflowRates>>);

/// The counts of one workflow.
#[derive(Default)]
struct WorkflowRates {
    /// The minutes in which jobs were created or ended, in order.
    minutes: VecDeque<Minute>,
    /// The completed jobs, in the order in which they were recorded as ended, the newest last.
    completed_jobs: VecDeque<CompletedJob>,
}

/// A job that has completed.
#[derive(Debug, PartialEq, Eq)]
struct CompletedJob {
    /// The minute of its end, counted since 1970.
    minute: i64,
    duration_ns: i64,
}

/// The counts of one minute.
#[derive(Clone, Copy, Default)]
struct Minute {
    /// The number of minutes since 1970.
    minute: i64,
    created: u32,
    completed: u32,
    failed: u32,
    cancelled: u32,
}

/// The counts of a workflow's jobs within a time span.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// Jobs that were created.
    pub created: u32,
    /// Jobs that completed.
    pub completed: u32,
    /// Jobs that failed.
    pub failed: u32,
    /// Jobs that were cancelled.
    pub cancelled: u32,
    /// For each minute, the oldest first: how many jobs completed, and how many failed.
    #[schema(value_type = Vec<Vec<u32>>)]
    pub per_minute: Vec<(u32, u32)>,
    /// The median duration of the newest thousand completed jobs, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<i64>,
    /// The 95th percentile of the same durations, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95: Option<i64>,
}

impl JobRates {
    /// Counts a job that was created.
    pub(crate) fn record_created(&self, workflow: &str, time: Timestamp) {
        self.update(workflow, |rates| rates.minute_mut(time).created += 1);
    }

    /// Counts a job that has ended. `elapsed_ns` is the time since its creation.
    pub(crate) fn record_ended(
        &self,
        workflow: &str,
        time: Timestamp,
        state: JobState,
        elapsed_ns: i64,
    ) {
        self.update(workflow, |rates| {
            let minute = rates.minute_mut(time).count_end(state);
            if state == JobState::Completed {
                if rates.completed_jobs.len() == RETAINED_JOBS {
                    rates.completed_jobs.pop_front();
                }
                rates.completed_jobs.push_back(CompletedJob { minute, duration_ns: elapsed_ns });
            }
        });
    }

    /// Revokes the count of a job that ended at `ended_at` in `state` but continues, because it was
    /// retried for example. It is counted again at its next end. `elapsed_ns` is the time from its
    /// creation to that end, as it was recorded.
    pub(crate) fn revoke_end(
        &self,
        workflow: &str,
        ended_at: Timestamp,
        state: JobState,
        elapsed_ns: i64,
    ) {
        self.update(workflow, |rates| {
            let minute = ended_at.0.div_euclid(MINUTE_NS);
            if state == JobState::Completed {
                let revoked = CompletedJob { minute, duration_ns: elapsed_ns };
                // The job is missing if a thousand others completed after it.
                let index = rates.completed_jobs.iter().rposition(|job| *job == revoked);
                index.map(|index| rates.completed_jobs.remove(index));
            }
            let index = rates.minutes.binary_search_by_key(&minute, |entry| entry.minute);
            let Some(minute) = index.ok().and_then(|index| rates.minutes.get_mut(index)) else {
                return;
            };
            if let Some(count) = minute.counter_mut(state) {
                *count = count.saturating_sub(1);
            }
        });
    }

    /// Counts a job that was created before the process began.
    pub(crate) fn record_past_created(&self, workflow: &str, time: Timestamp) {
        self.record_created(workflow, time);
    }

    /// Counts a job that ended before the process began, and before all jobs that were counted so
    /// far.
    pub(crate) fn record_past_ended(
        &self,
        workflow: &str,
        time: Timestamp,
        state: JobState,
        elapsed_ns: i64,
    ) {
        self.update(workflow, |rates| {
            let minute = rates.minute_mut(time).count_end(state);
            if state == JobState::Completed && rates.completed_jobs.len() < RETAINED_JOBS {
                rates.completed_jobs.push_front(CompletedJob { minute, duration_ns: elapsed_ns });
            }
        });
    }

    /// Returns the counts of a workflow's jobs within the last `minutes`, including the current
    /// one. `minutes` is limited to one day.
    pub fn rate(&self, workflow: &str, now: Timestamp, minutes: usize) -> Rate {
        let minutes = minutes.clamp(1, RETAINED_MINUTES);
        let minute_count = i64::try_from(minutes).unwrap_or(i64::MAX);
        let first_minute = now.0.div_euclid(MINUTE_NS) - minute_count + 1;
        let mut rate = Rate { per_minute: vec![(0, 0); minutes], ..Rate::default() };
        let workflows = self.lock();
        let Some(rates) = workflows.get(workflow) else { return rate };
        for minute in rates.minutes.iter().filter(|minute| minute.minute >= first_minute) {
            rate.created += minute.created;
            rate.completed += minute.completed;
            rate.failed += minute.failed;
            rate.cancelled += minute.cancelled;
            // If the clock was set back, there can be minutes in the future, which have no element.
            let index = usize::try_from(minute.minute - first_minute).unwrap_or(usize::MAX);
            if let Some(counts) = rate.per_minute.get_mut(index) {
                *counts = (minute.completed, minute.failed);
            }
        }
        let mut durations: Vec<i64> = rates
            .completed_jobs
            .iter()
            .filter(|job| job.minute >= first_minute)
            .map(|job| job.duration_ns)
            .collect();
        durations.sort_unstable();
        rate.p50 = nearest_rank(&durations, 50);
        rate.p95 = nearest_rank(&durations, 95);
        rate
    }

    /// Changes the counts of a workflow, which are created if they are missing.
    fn update(&self, workflow: &str, change: impl FnOnce(&mut WorkflowRates)) {
        let mut workflows = self.lock();
        match workflows.get_mut(workflow) {
            Some(rates) => change(rates),
            None => change(workflows.entry(workflow.into()).or_default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, WorkflowRates>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Minute {
    /// Counts a job that ended in this minute. Returns the number of the minute.
    fn count_end(&mut self, state: JobState) -> i64 {
        if let Some(count) = self.counter_mut(state) {
            *count += 1;
        }
        self.minute
    }

    /// Returns the counter of jobs that ended in a state; `None` for a state that is not final.
    fn counter_mut(&mut self, state: JobState) -> Option<&mut u32> {
        match state {
            JobState::Completed => Some(&mut self.completed),
            JobState::Failed => Some(&mut self.failed),
            JobState::Cancelled => Some(&mut self.cancelled),
            JobState::Running | JobState::Paused => None,
        }
    }
}

impl WorkflowRates {
    /// Returns the minute of a time, and inserts it if it is missing. Drops the oldest minutes
    /// beyond [`RETAINED_MINUTES`], except the returned one.
    fn minute_mut(&mut self, time: Timestamp) -> &mut Minute {
        let minute = time.0.div_euclid(MINUTE_NS);
        let search_result = self.minutes.binary_search_by_key(&minute, |entry| entry.minute);
        let mut index = search_result.unwrap_or_else(|insertion_index| {
            self.minutes.insert(insertion_index, Minute { minute, ..Minute::default() });
            insertion_index
        });
        while self.minutes.len() > RETAINED_MINUTES && index > 0 {
            self.minutes.pop_front();
            index -= 1;
        }
        &mut self.minutes[index]
    }
}

/// Returns the nearest-rank percentile of a sorted slice; `None` if it is empty.
fn nearest_rank(sorted: &[i64], percent: usize) -> Option<i64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: i64 = 1_000_000_000;

    /// Returns a time within the minute with this number.
    fn in_minute(minute: i64) -> Timestamp {
        Timestamp(minute * MINUTE_NS + 7 * SECOND_NS)
    }

    #[test]
    fn jobs_are_counted_in_their_minutes_up_to_now() {
        let rates = JobRates::default();
        rates.record_created("w", in_minute(100));
        rates.record_created("other", in_minute(100));
        rates.record_ended("w", in_minute(100), JobState::Completed, 3 * SECOND_NS);
        rates.record_ended("w", in_minute(102), JobState::Failed, SECOND_NS);
        rates.record_ended("w", in_minute(102), JobState::Completed, SECOND_NS);
        rates.record_ended("w", in_minute(103), JobState::Cancelled, SECOND_NS);
        let rate = rates.rate("w", in_minute(103), 4);
        assert_eq!(rate.per_minute, [(1, 0), (0, 0), (1, 1), (0, 0)]);
        assert_eq!((rate.created, rate.completed, rate.failed, rate.cancelled), (1, 2, 1, 1));
        assert_eq!((rate.p50, rate.p95), (Some(SECOND_NS), Some(3 * SECOND_NS)));
        let shorter = rates.rate("w", in_minute(103), 2);
        assert_eq!((shorter.created, shorter.completed, shorter.p50), (0, 1, Some(SECOND_NS)));
        let empty = rates.rate("unknown", in_minute(103), 3);
        assert_eq!((empty.per_minute.len(), empty.p50), (3, None));
    }

    #[test]
    fn a_job_that_continues_after_its_end_is_counted_at_its_last_end_alone() {
        let rates = JobRates::default();
        rates.record_ended("w", in_minute(100), JobState::Failed, SECOND_NS);
        rates.record_ended("w", in_minute(100), JobState::Failed, SECOND_NS);
        rates.revoke_end("w", in_minute(100), JobState::Failed, SECOND_NS);
        rates.record_ended("w", in_minute(102), JobState::Failed, SECOND_NS);
        rates.revoke_end("w", in_minute(102), JobState::Failed, SECOND_NS);
        rates.record_ended("w", in_minute(103), JobState::Completed, SECOND_NS);
        let rate = rates.rate("w", in_minute(103), 4);
        assert_eq!(rate.per_minute, [(0, 1), (0, 0), (0, 0), (1, 0)]);
        assert_eq!((rate.completed, rate.failed), (1, 1));
        // An end in a minute that is not retained, and one that was not counted.
        rates.revoke_end("w", in_minute(1), JobState::Failed, SECOND_NS);
        rates.revoke_end("w", in_minute(103), JobState::Cancelled, SECOND_NS);
        assert_eq!(rates.rate("w", in_minute(103), 4), rate);
        // A completed job that is rerun leaves the percentiles too.
        rates.record_ended("w", in_minute(103), JobState::Completed, 9 * SECOND_NS);
        rates.revoke_end("w", in_minute(103), JobState::Completed, 9 * SECOND_NS);
        assert_eq!(rates.rate("w", in_minute(103), 4), rate);
        rates.record_ended("w", in_minute(103), JobState::Completed, 5 * SECOND_NS);
        assert_eq!(rates.rate("w", in_minute(103), 4).p95, Some(5 * SECOND_NS));
    }

    #[test]
    fn a_day_is_retained_and_the_newest_thousand_durations_whatever_the_clock_does() {
        let rates = JobRates::default();
        for minute in 0..3 * 24 * 60 {
            rates.record_ended("w", in_minute(minute), JobState::Completed, minute);
        }
        // The clock is set back by an hour.
        rates.record_ended("w", in_minute(3 * 24 * 60 - 60), JobState::Completed, 0);
        let workflows = rates.lock();
        let workflow = workflows.get("w").expect("the workflow has counts");
        assert_eq!(
            (workflow.minutes.len(), workflow.completed_jobs.len()),
            (RETAINED_MINUTES, RETAINED_JOBS)
        );
        assert!(workflow.minutes.iter().is_sorted_by_key(|minute| minute.minute));
    }

    #[test]
    fn past_ends_sort_behind_new_ones_and_are_bounded_too() {
        let rates = JobRates::default();
        rates.record_ended("w", in_minute(5_000), JobState::Completed, 1);
        for minute in (0..2 * 24 * 60).rev() {
            rates.record_past_ended("w", in_minute(minute + 2_000), JobState::Completed, 2);
        }
        rates.record_past_ended("w", in_minute(4_999), JobState::Failed, 3);
        let rate = rates.rate("w", in_minute(5_000), 2);
        assert_eq!(rate.per_minute, [(0, 1), (1, 0)]);
        let workflows = rates.lock();
        let workflow = workflows.get("w").expect("the workflow has counts");
        assert!(workflow.minutes.len() <= RETAINED_MINUTES + 1, "{}", workflow.minutes.len());
        assert_eq!(workflow.completed_jobs.len(), RETAINED_JOBS);
        let newest = CompletedJob { minute: 5_000, duration_ns: 1 };
        assert_eq!(workflow.completed_jobs.back(), Some(&newest), "the newest is the last");
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let hundred: Vec<i64> = (1..=100).collect();
        assert_eq!(
            [1, 50, 95, 100].map(|percent| nearest_rank(&hundred, percent)),
            [Some(1), Some(50), Some(95), Some(100)]
        );
        assert_eq!((nearest_rank(&[7], 50), nearest_rank(&[], 50)), (Some(7), None));
    }
}
