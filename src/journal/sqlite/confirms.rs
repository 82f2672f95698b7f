//! Confirms of the broker, and leases of workers, that are not in a record of their job yet.
//!
//! The confirms of one commit share one row of `confirmed`, whichever jobs they belong to, which
//! halves the number of rows. The next record of a job takes its confirms along, before its own
//! entries, and completes the job's rows. Until then its confirms are read from `confirmed`.

use super::row_format::InnerDecision;
use crate::record::{JobNumber, Record};
use engine::{Entry, StepEntry};
use std::collections::{BTreeMap, HashMap};

/// The rows of `confirmed` that are still needed, and for which jobs.
#[derive(Default)]
pub(super) struct PendingConfirms {
    /// The rows by `seq`, each with the number of jobs that still need it.
    rows: BTreeMap<i64, usize>,
    /// The confirms of each job, with the row that they are in.
    pending: HashMap<JobNumber, Vec<(i64, Vec<InnerDecision>)>>,
    /// The rows that are no longer needed.
    pub(super) obsolete: Vec<i64>,
}

impl PendingConfirms {
    /// Returns whether a record is a single confirm, lease or begin, and nothing else. Only such
    /// records share a row.
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

    /// Returns the confirms that the next record of a job takes along.
    pub(super) fn of_job(&self, job: JobNumber) -> impl Iterator<Item = &InnerDecision> {
        self.pending.get(&job).into_iter().flatten().flat_map(|(_, rows)| rows)
    }

    /// Returns the entry number of the last confirm of a job.
    pub(super) fn last_entry_of(&self, job: JobNumber) -> Option<u64> {
        self.of_job(job).map(|(first, ..)| *first).max()
    }

    /// Adds a committed row.
    pub(super) fn add_row(&mut self, seq: i64, group: Vec<(JobNumber, Vec<InnerDecision>)>) {
        self.rows.insert(seq, group.len());
        for (job, rows) in group {
            self.pending.entry(job).or_default().push((seq, rows));
        }
    }

    /// Removes the confirms of a job, after a record of it is committed or the job is deleted.
    pub(super) fn remove(&mut self, job: JobNumber) {
        for (seq, _) in self.pending.remove(&job).into_iter().flatten() {
            if let Some(left) = self.rows.get_mut(&seq) {
                *left -= 1;
                if *left == 0 {
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

    /// Returns the jobs whose confirms have waited since this row or longer.
    pub(super) fn jobs_waiting_since(&self, seq: i64) -> Vec<JobNumber> {
        let is_old = |waiting: &Vec<(i64, Vec<InnerDecision>)>| {
            waiting.first().is_some_and(|(first, _)| *first <= seq)
        };
        let mut jobs: Vec<JobNumber> = self
            .pending
            .iter()
            .filter(|(_, waiting)| is_old(waiting))
            .map(|(job, _)| *job)
            .collect();
        jobs.sort_unstable();
        jobs
    }
}
