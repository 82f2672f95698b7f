//! What one transaction deletes, and which job trees are deleted in part.

use super::commit_connection::BatchStatement;
use super::connection::params;
use crate::record::{Deletion, JobNumber};
use std::collections::{HashMap, HashSet};

/// The job trees that this process has deleted in part.
#[derive(Default)]
pub(super) struct PartialDeletions {
    /// The jobs that remain of each job tree, parents before their children, by the root job.
    pub(super) trees: HashMap<JobNumber, Vec<JobNumber>>,
    /// All these jobs.
    jobs: HashSet<JobNumber>,
}

impl PartialDeletions {
    /// Returns whether a job remains of a job tree whose deletion has begun.
    pub(super) fn contains(&self, job: JobNumber) -> bool {
        self.jobs.contains(&job)
    }

    pub(super) fn insert(&mut self, root: JobNumber, remaining: Vec<JobNumber>) {
        self.remove(root);
        self.jobs.extend(&remaining);
        self.trees.insert(root, remaining);
    }

    /// Forgets a job tree that is completely deleted.
    pub(super) fn remove(&mut self, root: JobNumber) {
        for job in self.trees.remove(&root).into_iter().flatten() {
            self.jobs.remove(&job);
        }
    }
}

/// What one transaction deletes.
#[derive(Default)]
pub(super) struct DeletionPlan {
    pub(super) deletion: Deletion,
    /// The jobs whose rows of `entries` from a first entry on are deleted, with that entry.
    pub(super) entries: Vec<(JobNumber, i64)>,
    /// The jobs whose row of `jobs` is deleted.
    pub(super) deleted_jobs: Vec<JobNumber>,
    /// The jobs that take no more input.
    pub(super) closed_jobs: Vec<JobNumber>,
    /// The root jobs of the job trees that do not exist any more.
    pub(super) deleted_roots: Vec<JobNumber>,
    /// The root job of a job tree that is deleted in part, and the jobs that remain.
    pub(super) partial_tree: Option<(JobNumber, Vec<JobNumber>)>,
}

impl DeletionPlan {
    /// Returns the statements of the transaction.
    pub(super) fn statements(&self) -> Vec<BatchStatement> {
        let (jobs, firsts): (Vec<JobNumber>, Vec<i64>) = self.entries.iter().copied().unzip();
        vec![
            BatchStatement::new(
                "DELETE FROM entries e USING unnest($1::bigint[], $2::bigint[]) AS u(job, first) \
                 WHERE e.job = u.job AND e.first >= u.first",
                params![jobs.clone(), firsts],
            ),
            BatchStatement::new(
                "DELETE FROM failures WHERE job = ANY($1) OR job = ANY($2)",
                params![jobs.clone(), self.deleted_jobs.clone()],
            ),
            BatchStatement::new(
                "DELETE FROM tolerated WHERE job = ANY($1) OR job = ANY($2)",
                params![jobs, self.deleted_jobs.clone()],
            ),
            BatchStatement::new(
                "DELETE FROM statuses WHERE job = ANY($1)",
                params![self.deleted_jobs.clone()],
            ),
            BatchStatement::new(
                "DELETE FROM cells WHERE job = ANY($1)",
                params![self.deleted_jobs.clone()],
            ),
            BatchStatement::new(
                "DELETE FROM jobs WHERE number = ANY($1)",
                params![self.deleted_jobs.clone()],
            ),
            BatchStatement::new(
                "UPDATE jobs SET open = false WHERE number = ANY($1) AND open",
                params![self.closed_jobs.clone()],
            ),
        ]
    }
}
