//! Rebuilds many jobs, tree by tree.

use super::error::JournalError;
use super::record::JobNumber;
use super::recover::{JobRow, JobRows, JobSnapshot, Rebuilder};

/// Rebuilds jobs ordered by their trees. It keeps only what the jobs of the same tree need.
pub(super) struct TreeRebuilder<'a> {
    rebuilder: Rebuilder<'a>,
    /// The root job of the tree.
    root: JobNumber,
}

impl<'a> TreeRebuilder<'a> {
    pub(super) fn new(rows: &'a dyn JobRows) -> TreeRebuilder<'a> {
        TreeRebuilder { rebuilder: Rebuilder::new(rows), root: 0 }
    }

    /// Rebuilds the job of a row.
    pub(super) fn rebuild(&mut self, row: &JobRow) -> Result<JobSnapshot, JournalError> {
        if self.root != row.root {
            self.root = row.root;
            self.rebuilder.forget_jobs();
        }
        self.rebuilder.rebuild_snapshot(row)
    }
}
