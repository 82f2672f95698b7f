//! Failures: the failed jobs and child jobs of a journal, each with the pattern of its reason, but
//! for child jobs that their parents halted; and the jobs that completed although items of them
//! have failed. They are stored beside the jobs, so that they are counted and found without reading
//! records. They follow from the entries.

use super::record::Record;
use engine::input::is_halt_reason;
use engine::{Entry, Job, JobId, JobState, ReasonId, ReasonPattern, Timestamp};

/// How many failures are grouped, at most: the newest ones. So a look costs the same, however many
/// jobs have failed.
pub const GROUPED_FAILURES_MAX: u32 = 50_000;

/// The change to the failure of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureChange {
    /// It failed for a reason of this pattern.
    Failed(ReasonId),
    /// It completed, and items of it have failed.
    Tolerated,
    /// Neither holds, or not any more.
    Cleared,
}

impl FailureChange {
    /// Returns what a record changes; `None`: nothing.
    pub(super) fn from_record(record: &Record) -> Option<FailureChange> {
        match record.state? {
            JobState::Failed => {
                let mut entries = record.recorded.entries.iter().rev();
                let end = entries.find(|entry| entry.job_state().is_some());
                let reason = end.and_then(|entry| entry.reason());
                Some(FailureChange::from_reason(reason.map(|reason| &**reason)))
            }
            JobState::Completed if record.has_failed_items => Some(FailureChange::Tolerated),
            // A job that has not ended before, or runs again since an earlier record, has nothing
            // left.
            JobState::Completed => {
                let is_reopened = record.recorded.entries.iter().any(Entry::is_reopening);
                is_reopened.then_some(FailureChange::Cleared)
            }
            JobState::Running | JobState::Paused | JobState::Cancelled => {
                record.created.is_none().then_some(FailureChange::Cleared)
            }
        }
    }

    /// Returns what follows from the state of a job.
    pub(super) fn from_job(job: &Job) -> FailureChange {
        match job.state() {
            JobState::Failed => FailureChange::from_reason(job.reason().map(|reason| &**reason)),
            JobState::Completed if job.has_failed_items() => FailureChange::Tolerated,
            JobState::Running | JobState::Paused | JobState::Completed | JobState::Cancelled => {
                FailureChange::Cleared
            }
        }
    }

    /// Returns the change of a job that failed for this reason. A child job that was halted counts
    /// as little as one that was cancelled.
    pub(super) fn from_reason(reason: Option<&str>) -> FailureChange {
        match reason.unwrap_or_default() {
            reason if is_halt_reason(reason) => FailureChange::Cleared,
            reason => FailureChange::Failed(ReasonPattern::from_reason(reason).id()),
        }
    }
}

/// The criteria of failures that are grouped. A failure must meet every criterion that is set.
#[derive(Clone, Debug, Default)]
pub struct FailureFilter {
    /// The workflow's full name.
    pub workflow: Option<String>,
    /// The earliest end time, inclusive.
    pub ended_from: Option<Timestamp>,
    /// The end of the range of end times, exclusive.
    pub ended_before: Option<Timestamp>,
}

impl FailureFilter {
    /// Returns the range of end times: its beginning, inclusive, and its end, exclusive.
    pub(crate) fn ended_range(&self) -> (i64, i64) {
        let bound = |time: Option<Timestamp>, default: i64| time.map_or(default, |time| time.0);
        (bound(self.ended_from, i64::MIN), bound(self.ended_before, i64::MAX))
    }
}

/// Failures, grouped by the pattern of their reason and by workflow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureGroups {
    /// The largest groups, the largest first.
    pub groups: Vec<FailureGroup>,
    /// How many failures were grouped: at most [`GROUPED_FAILURES_MAX`].
    pub failures: u32,
}

/// The failures of one workflow whose reasons have one pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureGroup {
    /// The id of the pattern.
    pub reason: ReasonId,
    /// The workflow's full name.
    pub workflow: String,
    /// The number of jobs and child jobs.
    pub jobs: u32,
    /// The number of child jobs among them.
    pub children: u32,
    /// When the first of them failed.
    pub first: Timestamp,
    /// When the last of them failed.
    pub last: Timestamp,
    /// The newest of them.
    pub example: JobId,
    /// Why that one failed.
    pub example_reason: Option<std::sync::Arc<str>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Decision, JobEntry, Recorded, StepIndex};

    #[test]
    fn a_job_that_runs_again_and_completes_at_once_leaves_no_failure() {
        let record = |entries: Vec<Entry>, has_failed_items| {
            let recorded = Recorded { entries, ..Recorded::default() };
            let state = Some(JobState::Completed);
            let decision = Decision { recorded, state, has_failed_items, ..Decision::default() };
            Record::from_decision(1, None, decision)
        };
        let reopened = [
            JobEntry::Retried { round: 1, deadline: None },
            JobEntry::Rerun { step: StepIndex(0), deadline: None, only_failed_items: false },
        ];
        for entry in reopened {
            let entries = vec![Entry::Job(entry), Entry::Job(JobEntry::Completed)];
            let change = FailureChange::from_record(&record(entries.clone(), false));
            assert_eq!(change, Some(FailureChange::Cleared));
            let change = FailureChange::from_record(&record(entries, true));
            assert_eq!(change, Some(FailureChange::Tolerated));
        }
        let completed = vec![Entry::Job(JobEntry::Completed)];
        assert_eq!(FailureChange::from_record(&record(completed, false)), None);
    }
}
