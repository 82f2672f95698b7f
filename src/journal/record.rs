//! What is written to a journal, the result of a deletion, and the disk space that a journal uses.

use engine::{
    CallerEntry, Decision, Entry, JobId, JobState, NamedCell, Origin, RateMark, Recorded,
    StepIndex, Timestamp,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A job's number in this journal. Numbers increase in the order of creation, so a parent's is
/// lower than its children's.
pub type JobNumber = i64;

/// A decision about one job, to be appended to the journal, and the changes that follow from it.
#[derive(Debug)]
pub struct Record {
    /// The job's number.
    pub job: JobNumber,
    /// The fields of a new job; `None` in all but the first record of a job.
    pub created: Option<NewJob>,
    /// The entries of the decision.
    pub recorded: Recorded,
    /// The new state of the job; `None` if it did not change. A job may have ended once more.
    pub state: Option<JobState>,
    /// Whether the job has completed although items of it have failed.
    pub has_failed_items: bool,
    /// Whether the job is closed: it has ended and takes no more input.
    pub is_closed: bool,
    /// The new statuses of a root job's steps; empty for a child job.
    pub statuses: Vec<(StepIndex, Arc<str>)>,
    /// The new cells of a root job's label and columns; empty for a child job.
    pub cells: Vec<NamedCell>,
    /// The notice for the webhook; `None` if there is none.
    pub notice: Option<Notice>,
    /// How far the rates of limits are used up by the messages that follow.
    pub marks: Vec<RateMark>,
}

impl Record {
    /// Creates the record of a decision, without a notice. The effects and the demands are dropped:
    /// the caller must have taken them.
    pub fn from_decision(job: JobNumber, created: Option<NewJob>, decision: Decision) -> Record {
        let Decision {
            recorded,
            effects: _,
            demands: _,
            state,
            statuses,
            cells,
            has_failed_items,
            closed,
        } = decision;
        let (notice, marks) = (None, Vec::new());
        let (is_closed, cells) = (closed, cells.cells);
        Record {
            job,
            created,
            recorded,
            state,
            has_failed_items,
            is_closed,
            statuses,
            cells,
            notice,
            marks,
        }
    }

    /// Returns the latest mark of each limit and key in these records, in the order of their names.
    pub(super) fn latest_marks<'r>(records: &[&'r Record]) -> Vec<&'r RateMark> {
        let mut latest: BTreeMap<(&str, &str), &RateMark> = BTreeMap::new();
        for mark in records.iter().flat_map(|record| &record.marks) {
            let newest = latest.entry((&*mark.limit, &*mark.key)).or_insert(mark);
            if newest.time < mark.time {
                *newest = mark;
            }
        }
        latest.into_values().collect()
    }

    /// Returns the new state of the job, and when the job ended; `None` if the state does not
    /// change.
    pub(super) fn state_change(&self) -> Option<(JobState, Option<Timestamp>)> {
        let end = |state: JobState| state.is_ended().then_some(self.recorded.at);
        self.state.map(|state| (state, end(state)))
    }

    /// Returns whether the job takes input after the record; `None` if that does not change.
    pub(super) fn open_change(&self) -> Option<bool> {
        // A caller that joins a closed job reopens it, until the caller has its answer.
        let is_join = |entry: &Entry| matches!(entry, Entry::Caller(CallerEntry::Joined(_)));
        let is_reopened = self.recorded.entries.iter().any(is_join);
        let is_changed = self.state.is_some() || self.is_closed || is_reopened;
        is_changed.then_some(!self.is_closed)
    }

    /// Returns whether there are records, and every job that has one is cancelled by one of them.
    pub(super) fn are_all_cancellations(records: &[&Record]) -> bool {
        let is_cancellation = |record: &&&Record| record.state == Some(JobState::Cancelled);
        let cancelled_jobs: BTreeSet<JobNumber> =
            records.iter().filter(is_cancellation).map(|record| record.job).collect();
        !cancelled_jobs.is_empty()
            && records.iter().all(|record| cancelled_jobs.contains(&record.job))
    }
}

/// The fields of a new job's row that its entries do not contain.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// The origin of the job.
    pub origin: Arc<Origin>,
    /// The root job's number.
    pub root: JobNumber,
    /// The parent's number; `None` for a root job.
    pub parent: Option<JobNumber>,
}

/// A notice for the webhook that a root job has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// When the job ended.
    pub at: Timestamp,
    /// The body of the request to the webhook.
    pub body: Arc<str>,
}

/// A notice's number. Numbers increase, and are never reused.
pub type NoticeNumber = i64;

/// How far a bus has read a partition of a topic, or knows what it has written to it. The journal
/// already contains what follows from the messages before the offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredOffset {
    /// The name of the bus in the settings.
    pub bus: Arc<str>,
    /// The name of the topic.
    pub topic: Arc<str>,
    /// The number of the partition.
    pub partition: i32,
    /// The offset of the first message that is not processed.
    pub offset: i64,
}

/// The ledger of a schedule, as JSON that the journal does not interpret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLedger {
    /// The full name of the schedule.
    pub schedule: Arc<str>,
    /// The ledger; `None` when it is to be deleted.
    pub ledger: Option<Arc<str>>,
}

/// A bucket of a trend, as JSON that the journal does not interpret. The journal has one bucket for
/// each ring, position and workflow: a new one replaces it, so that their number is bounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTrend {
    /// The number of the ring.
    pub ring: i32,
    /// The position of the bucket in its ring.
    pub position: i32,
    /// The full name of the workflow; empty: all workflows together.
    pub workflow: Arc<str>,
    /// When the bucket begins.
    pub start: Timestamp,
    /// What happened in it.
    pub body: Arc<str>,
}

/// The result of a deletion.
#[derive(Debug, Default)]
pub struct Deletion {
    /// The number of completely deleted job trees.
    pub roots: usize,
    /// The number of deleted rows: one for each job, and one for each row of its record.
    pub rows: usize,
    /// Whether something remains to be deleted, because the limit of rows was reached.
    pub is_partial: bool,
    /// The number of root jobs that were skipped because they are running.
    pub skipped: usize,
    /// Jobs of the deleted or partially deleted job trees that may still have an actor: the root
    /// jobs, and the child jobs that took input.
    pub maybe_active: Vec<DeletedJob>,
}

impl Deletion {
    /// Adds what another call has deleted.
    pub(super) fn add(&mut self, other: Deletion) {
        self.roots += other.roots;
        self.rows += other.rows;
        self.is_partial |= other.is_partial;
        self.skipped += other.skipped;
        self.maybe_active.extend(other.maybe_active);
    }
}

/// A job that was deleted, or is being deleted, although it may still have an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeletedJob {
    /// The job's id.
    pub id: JobId,
    /// The job's number.
    pub number: JobNumber,
}

/// The disk space that a journal uses, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// The size of the main file, including its free pages.
    pub main: u64,
    /// The size of the write-ahead log.
    pub wal: u64,
    /// The free space within the main file, which SQLite reuses.
    pub free: u64,
}
