//! Pending confirms: confirms of the broker, leases of workers, and beginnings of steps, that no
//! row of `entries` contains yet.
//!
//! All confirms of one commit share one row of `confirmed`, whichever jobs they belong to, which
//! about halves the number of rows. The next row of a job in `entries` contains its pending
//! confirms, before its own entries. Until then they are read from `confirmed`.

use super::row_format::InnerDecision;
use crate::record::{JobNumber, Record};
use engine::{Entry, StepEntry};
use std::collections::{BTreeMap, HashMap};

/// The pending confirms of each job, and the rows of `confirmed` that contain them.
#[derive(Default)]
pub(super) struct PendingConfirms {
    /// The rows by `seq`, each with the number of jobs that still need it.
    rows: BTreeMap<i64, usize>,
    /// The confirms of each job, by the rows that contain them: each row's `seq` and its confirms,
    /// in the order of the `seq`.
    pending: HashMap<JobNumber, Vec<(i64, Vec<InnerDecision>)>>,
    /// The rows that no job needs any more, to be deleted by the next projection.
    pub(super) obsolete: Vec<i64>,
}

impl PendingConfirms {
    /// Returns whether a record consists of a single confirm, lease or beginning of a step. Only
    /// such records share a row of `confirmed`.
    pub(super) fn is_confirm(record: &Record) -> bool {
        record.created.is_none()
            && record.state.is_none()
            && !record.is_closed
            && record.notice.is_none()
            && record.statuses.is_empty()
            && matches!(
                *record.recorded.entries,
                [Entry::Step(_, StepEntry::Confirmed | StepEntry::Leased(_) | StepEntry::Begun)]
            )
    }

    /// Returns the pending confirms of a job, in order.
    pub(super) fn of_job(&self, job: JobNumber) -> impl Iterator<Item = &InnerDecision> {
        self.pending.get(&job).into_iter().flatten().flat_map(|(_, confirms)| confirms)
    }

    /// Returns the entry number of a job's last pending confirm; `None` if it has none.
    pub(super) fn last_entry_of(&self, job: JobNumber) -> Option<u64> {
        self.of_job(job).map(|(first, ..)| *first).max()
    }

    /// Adds the confirms of a committed row.
    pub(super) fn add_row(&mut self, seq: i64, confirms: Vec<(JobNumber, Vec<InnerDecision>)>) {
        self.rows.insert(seq, confirms.len());
        for (job, confirms) in confirms {
            self.pending.entry(job).or_default().push((seq, confirms));
        }
    }

    /// Removes the confirms of a job, after a row of it in `entries` is committed or the job is
    /// deleted.
    pub(super) fn remove(&mut self, job: JobNumber) {
        for (seq, _) in self.pending.remove(&job).into_iter().flatten() {
            if let Some(remaining_jobs) = self.rows.get_mut(&seq) {
                *remaining_jobs -= 1;
                if *remaining_jobs == 0 {
                    self.rows.remove(&seq);
                    self.obsolete.push(seq);
                }
            }
        }
    }

    /// Returns whether no confirms are pending.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the jobs whose oldest pending confirm is in the row `seq` or an earlier one, ordered
    /// by number.
    pub(super) fn jobs_waiting_since(&self, seq: i64) -> Vec<JobNumber> {
        let is_old = |confirms: &Vec<(i64, Vec<InnerDecision>)>| {
            confirms.first().is_some_and(|(oldest_seq, _)| *oldest_seq <= seq)
        };
        let mut jobs: Vec<JobNumber> = self
            .pending
            .iter()
            .filter(|(_, confirms)| is_old(confirms))
            .map(|(job, _)| *job)
            .collect();
        jobs.sort_unstable();
        jobs
    }
}
