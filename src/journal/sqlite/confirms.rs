//! Confirms of the broker, and leases of workers, that are not in a record of their job yet.
//!
//! The confirms of one commit share one row of `confirmed`, whichever jobs they belong to: so there
//! are half as many rows as decisions. The next record of a job takes its confirms along, in front
//! of its own entries: then the rows of the job are complete again. Until then its confirms count
//! from `confirmed`.

use super::row::InnerRow;
use crate::engine::{Entry, StepEntry};
use crate::journal::record::{JobNumber, Record};
use std::collections::{BTreeMap, HashMap};

/// What the rows of `confirmed` are still needed for.
#[derive(Default)]
pub(super) struct Confirms {
    /// Rows, each with the number of jobs that wait for a record of their own.
    groups: BTreeMap<i64, usize>,
    /// The confirms of each job, with the row that they are in.
    waiting: HashMap<JobNumber, Vec<(i64, Vec<InnerRow>)>>,
    /// Rows that nobody needs any more.
    pub(super) done: Vec<i64>,
}

impl Confirms {
    /// Whether a record is one confirm, or one lease, and nothing else. Only such records share a
    /// row.
    pub(super) fn is_confirm(record: &Record) -> bool {
        record.created.is_none()
            && record.state.is_none()
            && !record.closed
            && record.notice.is_none()
            && record.statuses.is_empty()
            && matches!(
                *record.recorded.entries,
                [Entry::Step(_, StepEntry::Confirmed | StepEntry::Leased(_) | StepEntry::Begun)]
            )
    }

    /// What the next record of a job has before its own entries.
    pub(super) fn of(&self, job: JobNumber) -> impl Iterator<Item = &InnerRow> {
        self.waiting.get(&job).into_iter().flatten().flat_map(|(_, rows)| rows)
    }

    /// The place of the last one of a job.
    pub(super) fn last_of(&self, job: JobNumber) -> Option<u64> {
        self.of(job).map(|(first, ..)| *first).max()
    }

    /// A row is committed.
    pub(super) fn add(&mut self, seq: i64, group: Vec<(JobNumber, Vec<InnerRow>)>) {
        self.groups.insert(seq, group.len());
        for (job, rows) in group {
            self.waiting.entry(job).or_default().push((seq, rows));
        }
    }

    /// A record of the job is committed, or the job is deleted.
    pub(super) fn written(&mut self, job: JobNumber) {
        for (seq, _) in self.waiting.remove(&job).into_iter().flatten() {
            if let Some(left) = self.groups.get_mut(&seq) {
                *left -= 1;
                if *left == 0 {
                    self.groups.remove(&seq);
                    self.done.push(seq);
                }
            }
        }
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The jobs whose confirms have waited since this row, or longer.
    pub(super) fn since(&self, seq: i64) -> Vec<JobNumber> {
        let is_old = |waiting: &Vec<(i64, Vec<InnerRow>)>| {
            waiting.first().is_some_and(|(first, _)| *first <= seq)
        };
        let mut jobs: Vec<JobNumber> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| is_old(waiting))
            .map(|(job, _)| *job)
            .collect();
        jobs.sort_unstable();
        jobs
    }
}
