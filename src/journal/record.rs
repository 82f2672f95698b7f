//! What goes into a journal, what a deletion took out of it, and what it takes on the disk.

use crate::engine::{Decision, JobId, JobState, Origin, Recorded, StepIndex, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A job's number in this journal: rising in the order of creation, a parent's below its
/// children's.
pub type JobNumber = i64;

/// What goes into the journal together for one job.
#[derive(Debug)]
pub struct Record {
    /// The job.
    pub job: JobNumber,
    /// Set with the first record of a job.
    pub created: Option<NewJob>,
    /// What was decided, if anything was.
    pub recorded: Recorded,
    /// The new state, if it changed.
    pub state: Option<JobState>,
    /// Whether nothing is left to do for the job.
    pub closed: bool,
    /// The new statuses of a top-level job's steps.
    pub statuses: Vec<(StepIndex, Arc<str>)>,
    /// The notice for the webhook, if it is to be told.
    pub notice: Option<Notice>,
}

impl Record {
    /// What a decision puts into the journal. Whoever calls this sees to its effects.
    pub fn of(job: JobNumber, created: Option<NewJob>, decision: Decision) -> Record {
        let Decision { recorded, effects: _, state, statuses, closed } = decision;
        Record { job, created, recorded, state, closed, statuses, notice: None }
    }

    /// Whether these are records of jobs that they cancel, and of no others.
    pub(super) fn all_cancelled(records: &[&Record]) -> bool {
        let ends = |record: &&&Record| record.state == Some(JobState::Cancelled);
        let cancelled: BTreeSet<JobNumber> =
            records.iter().filter(ends).map(|record| record.job).collect();
        !cancelled.is_empty() && records.iter().all(|record| cancelled.contains(&record.job))
    }

    /// Of a job for which nothing was decided.
    pub fn nothing(job: JobNumber) -> Record {
        Record::of(job, None, Decision::default())
    }
}

/// The parts of a new job's row that its entries do not hold.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Where the job comes from.
    pub origin: Arc<Origin>,
    /// The top-level job's number.
    pub root: JobNumber,
    /// The parent's number.
    pub parent: Option<JobNumber>,
}

/// A notice for the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// When it happened.
    pub at: Timestamp,
    /// The text.
    pub body: Arc<str>,
}

/// A notice's number: rising, and never used again.
pub type NoticeNumber = i64;

/// How far a bus has come in a partition of a topic: what lies before is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The bus, by its name in the settings.
    pub bus: Arc<str>,
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offset of the first message that is not done.
    pub offset: i64,
}

/// What a deletion took away.
#[derive(Debug, Default)]
pub struct Deleted {
    /// How many top-level jobs, each with all its children.
    pub roots: usize,
    /// How many rows: a job is one, and each of its records.
    pub rows: usize,
    /// There is more to delete, for which the rows did not last.
    pub is_part: bool,
    /// How many were left because they run.
    pub left: usize,
    /// The top-level jobs, and those child jobs that still waited for late replies: an actor may
    /// have them.
    pub open: Vec<Open>,
}

/// A deleted job that may still have an actor, which may have taken input until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Its id.
    pub id: JobId,
    /// Its number.
    pub number: JobNumber,
}

/// What a journal takes on the disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The main file.
    pub main: u64,
    /// What is committed and not in the main file yet.
    pub wal: u64,
    /// What is free within the main file, and used again.
    pub free: u64,
}
