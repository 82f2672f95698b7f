//! What the exporter is told of a job.

use engine::{JobId, Timestamp};

/// A root job that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedJob {
    /// The id of the job.
    pub id: JobId,
    /// When it was created. Another job may have the same id by now.
    pub created: Timestamp,
    /// The number of the entry that ended it, from 1.
    pub entry: u64,
    /// The time of that entry.
    pub at: Timestamp,
}
