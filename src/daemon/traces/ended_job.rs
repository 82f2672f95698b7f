//! The message that a root job's trace is to be exported.

use engine::{JobId, Timestamp};

/// A root job that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedJob {
    /// The id of the job.
    pub id: JobId,
    /// When it was created. It distinguishes the job from a later one with the same id.
    pub created: Timestamp,
    /// The number of the entry that ended it; a job's first entry has number 1.
    pub entry: u64,
    /// The time of that entry.
    pub at: Timestamp,
}
