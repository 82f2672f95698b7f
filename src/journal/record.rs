//! What is written to a journal, the result of a deletion, and the space a journal uses on the
//! disk.

use engine::{Decision, JobId, JobState, Origin, Recorded, StepIndex, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A job's number in this journal. Numbers rise in the order of creation; a parent's is lower than
/// its children's.
pub type JobNumber = i64;

/// What is appended to the journal together for one job.
#[derive(Debug)]
pub struct Record {
    /// The job's number.
    pub job: JobNumber,
    /// The new job; only in the first record of a job.
    pub created: Option<NewJob>,
    /// The decision.
    pub recorded: Recorded,
    /// The new state, if it changed.
    pub state: Option<JobState>,
    /// Whether nothing is left to do for the job.
    pub is_closed: bool,
    /// The new statuses of a root job's steps.
    pub statuses: Vec<(StepIndex, Arc<str>)>,
    /// The notice for the webhook, if there is one.
    pub notice: Option<Notice>,
}

impl Record {
    /// Makes the record of a decision. The caller is responsible for the effects.
    pub fn from_decision(job: JobNumber, created: Option<NewJob>, decision: Decision) -> Record {
        let Decision { recorded, effects: _, state, statuses, closed } = decision;
        Record { job, created, recorded, state, is_closed: closed, statuses, notice: None }
    }

    /// Returns whether these records cancel jobs, and contain no records of other jobs.
    pub(super) fn are_all_cancellations(records: &[&Record]) -> bool {
        let ends = |record: &&&Record| record.state == Some(JobState::Cancelled);
        let cancelled: BTreeSet<JobNumber> =
            records.iter().filter(ends).map(|record| record.job).collect();
        !cancelled.is_empty() && records.iter().all(|record| cancelled.contains(&record.job))
    }
}

/// The fields of a new job's row that its entries do not contain.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// The origin of the job.
    pub origin: Arc<Origin>,
    /// The root job's number.
    pub root: JobNumber,
    /// The parent's number.
    pub parent: Option<JobNumber>,
}

/// A notice for the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// When the event happened.
    pub at: Timestamp,
    /// The text of the notice.
    pub body: Arc<str>,
}

/// A notice's number. Numbers rise and are never reused.
pub type NoticeNumber = i64;

/// How far a bus has read a partition of a topic: everything before the offset is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredOffset {
    /// The name of the bus in the settings.
    pub bus: Arc<str>,
    /// The name of the topic.
    pub topic: Arc<str>,
    /// The number of the partition.
    pub partition: i32,
    /// The offset of the first message that is not done.
    pub offset: i64,
}

/// The result of a deletion.
#[derive(Debug, Default)]
pub struct Deletion {
    /// How many root jobs were deleted, each with its whole job tree.
    pub roots: usize,
    /// How many rows were deleted: each job is one, and each of its records.
    pub rows: usize,
    /// Whether the limit of rows was reached before everything was deleted.
    pub is_partial: bool,
    /// How many root jobs were skipped because they are running.
    pub skipped: usize,
    /// Deleted jobs that may still have an actor: the root jobs, and the child jobs that waited for
    /// late replies.
    pub maybe_active: Vec<DeletedJob>,
}

/// A deleted job that may still have an actor, which may have taken input until then.
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
    /// The size of the main file.
    pub main: u64,
    /// The size of what is committed but not yet in the main file.
    pub wal: u64,
    /// The free space within the main file, which is used again.
    pub free: u64,
}
