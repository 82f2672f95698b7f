//! Deletes ended jobs once their retention is over, and jobs that are erased.
//!
//! A deletion first reads what it will delete, and then deletes exactly that in one transaction. If
//! the result of the transaction is unknown, the next call looks first whether it was committed.

use super::connection::params;
use super::day_survey::RetentionLimits;
use super::deletion_plan::DeletionPlan;
use super::writer::PostgresWriter;
use crate::error::{JournalError, Remedy};
use crate::record::{DeletedJob, Deletion, JobNumber};
use engine::{JobId, Millis, Timestamp};
use std::collections::HashMap;
use tokio_postgres::Row;

impl PostgresWriter {
    /// Returns the number of root jobs whose retention is over.
    pub(super) fn count_past_retention(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
    ) -> Result<u64, JournalError> {
        let RetentionLimits { definitions, before } =
            self.retention_limits(now, default_retention)?;
        let sql = format!(
            "SELECT count(*) FROM unnest($1::bigint[], $2::bigint[]) AS u(definition, before)
             JOIN jobs j ON j.definition = u.definition AND j.ended < u.before
             WHERE j.parent IS NULL AND j.ended IS NOT NULL AND {}",
            self.ordinal.condition("j.number")
        );
        let rows = self.commits.query(sql, params![definitions, before])?;
        let count: i64 = rows.first().map_or(0, |row| row.get(0));
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Deletes up to `rows_max` rows of the job trees of root jobs whose retention is over.
    pub(super) fn delete_past_retention(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
        rows_max: u32,
    ) -> Result<Deletion, JournalError> {
        self.finish_deletion()?;
        let limits = self.retention_limits(now, default_retention)?;
        self.keep_days(now, &limits)?;
        if self.days.is_surveying() {
            // What it counts must not be deleted meanwhile.
            return Ok(Deletion { is_partial: true, ..std::mem::take(&mut self.unreported) });
        }
        let RetentionLimits { definitions, before } = limits;
        // Each job tree has at least one row, so no more root jobs than rows are needed.
        let sql = format!(
            "SELECT j.number FROM unnest($1::bigint[], $2::bigint[]) AS u(definition, before)
             CROSS JOIN LATERAL (
               SELECT number, ended FROM jobs WHERE definition = u.definition
                 AND parent IS NULL AND ended IS NOT NULL AND ended < u.before AND {}{}
               ORDER BY ended LIMIT $3) j
             ORDER BY j.ended LIMIT $3",
            self.ordinal.condition("number"),
            self.days.kept_condition()
        );
        let rows = self.commits.query(sql, params![definitions, before, i64::from(rows_max)])?;
        let roots: Vec<JobNumber> = rows.iter().map(|row| row.get(0)).collect();
        let is_limited = roots.len() == usize::try_from(rows_max).unwrap_or(usize::MAX);
        let mut deletion = self.delete_job_trees(&roots, rows_max)?;
        deletion.is_partial |= is_limited && deletion.roots > 0;
        Ok(deletion)
    }

    /// Returns the stored definitions, and before which time their jobs must have ended to be
    /// deleted.
    fn retention_limits(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
    ) -> Result<RetentionLimits, JournalError> {
        // Those of another name may appear below the newest one.
        let rows = self.commits.query("SELECT number FROM definitions", params![])?;
        let numbers = rows.iter().map(|row| row.get::<_, i64>(0));
        let new: Vec<i64> =
            numbers.filter(|number| !self.retentions.contains_key(number)).collect();
        if !new.is_empty() {
            let sql = "SELECT number, body FROM definitions WHERE number = ANY($1)";
            for row in self.commits.query(sql, params![new])? {
                let body: String = row.get(1);
                let retention = serde_json::from_str::<DefinitionRetention>(&body)
                    .ok()
                    .and_then(|definition| definition.retention);
                self.retentions.insert(row.get(0), retention);
            }
        }
        let limit = |retention: &Option<Millis>| now.before(retention.unwrap_or(default_retention));
        let limits = self.retentions.iter().map(|(number, kept)| (*number, limit(kept).0));
        let (definitions, before) = limits.unzip();
        Ok(RetentionLimits { definitions, before })
    }

    /// Returns whether a job's deletion has begun, so that it takes no more input.
    pub(super) fn is_being_deleted(&self, job: JobNumber) -> bool {
        self.partial_deletions.contains(job) || self.days.is_closing(job)
    }

    /// Deletes up to `rows_max` rows of the job trees of these root jobs. Running root jobs are
    /// skipped. In a job tree, child jobs are deleted before their parents, and a job's last rows
    /// before its first. So what remains after a crash can be read, and is deleted like any other.
    pub(super) fn delete_job_trees(
        &mut self,
        roots: &[JobNumber],
        rows_max: u32,
    ) -> Result<Deletion, JournalError> {
        self.finish_deletion()?;
        if roots.is_empty() || rows_max == 0 {
            return Ok(std::mem::take(&mut self.unreported));
        }
        let plan = self.plan_deletion(roots, usize::try_from(rows_max).unwrap_or(usize::MAX))?;
        if plan.deletion.rows > 0 || !plan.closed_jobs.is_empty() {
            self.forget_committed_row(&plan.entries);
            if let Err(error) = self.commits.transact(plan.statements()) {
                if error.remedy() == Remedy::WaitForServer {
                    self.unfinished_deletion = Some(plan);
                }
                return Err(error);
            }
        }
        let mut deletion = self.apply_plan(plan);
        // What an earlier call has deleted is reported by this one.
        deletion.add(std::mem::take(&mut self.unreported));
        Ok(deletion)
    }

    /// Finds out what became of a deletion whose transaction was not answered. What it has deleted
    /// is reported by the next call. If it was rolled back, nothing is left of it: the jobs may
    /// have changed since.
    fn finish_deletion(&mut self) -> Result<(), JournalError> {
        let Some(plan) = &self.unfinished_deletion else { return Ok(()) };
        let (jobs, firsts): (Vec<JobNumber>, Vec<i64>) = plan.entries.iter().copied().unzip();
        let sql = "SELECT EXISTS (SELECT 1 FROM unnest($1::bigint[], $2::bigint[]) AS u(job, first)
                     JOIN entries e ON e.job = u.job AND e.first >= u.first)
                   OR EXISTS (SELECT 1 FROM jobs WHERE number = ANY($3) AND open)";
        let closed_jobs = plan.closed_jobs.clone();
        let rows = self.commits.query(sql, params![jobs, firsts, closed_jobs])?;
        let is_rolled_back = rows.first().is_some_and(|row| row.get(0));
        if let Some(plan) = self.unfinished_deletion.take().filter(|_| !is_rolled_back) {
            let deletion = self.apply_plan(plan);
            self.unreported.add(deletion);
        }
        Ok(())
    }

    /// Records in memory what a committed plan has deleted.
    fn apply_plan(&mut self, plan: DeletionPlan) -> Deletion {
        let DeletionPlan { deletion, deleted_roots, partial_tree, .. } = plan;
        for root in deleted_roots {
            self.partial_deletions.remove(root);
        }
        if let Some((root, remaining)) = partial_tree {
            self.partial_deletions.insert(root, remaining);
        }
        deletion
    }

    /// Forgets the row by which a server that went back is detected, if it is being deleted.
    fn forget_committed_row(&mut self, entries: &[(JobNumber, i64)]) {
        let is_deleted = self
            .commits
            .committed_row()
            .is_some_and(|(job, _)| entries.iter().any(|(deleted, _)| *deleted == job));
        if is_deleted {
            self.commits.set_committed_row(None);
        }
    }

    fn plan_deletion(
        &mut self,
        roots: &[JobNumber],
        rows_max: usize,
    ) -> Result<DeletionPlan, JournalError> {
        let mut plan = DeletionPlan::default();
        let mut trees = self.load_trees(roots, rows_max)?;
        for root in roots {
            if plan.deletion.rows >= rows_max {
                plan.deletion.is_partial = true;
                break;
            }
            let remaining = self.partial_deletions.trees.get(root).cloned();
            match (trees.found.remove(root), remaining) {
                // Its rows were beyond the limit.
                (None, _) if trees.last.is_some_and(|last| *root > last) => {
                    plan.deletion.is_partial = true;
                }
                (None, _) => plan.deleted_roots.push(*root),
                (Some(tree), _) if tree.is_running => plan.deletion.skipped += 1,
                (Some(_), Some(remaining)) => {
                    // Each job has at least one row, so no more jobs than rows are needed.
                    let from = remaining.len().saturating_sub(rows_max - plan.deletion.rows);
                    let jobs = self.load_tree_jobs(&remaining[from..])?;
                    self.plan_tree(*root, remaining, jobs, rows_max, &mut plan)?;
                }
                (Some(tree), None) => {
                    let is_cut = trees.last == Some(*root);
                    if is_cut && self.is_running(*root)? {
                        plan.deletion.skipped += 1;
                        continue;
                    }
                    let numbers = if is_cut {
                        self.load_job_tree(*root)?
                    } else {
                        tree.jobs.iter().rev().map(|job| job.number).collect()
                    };
                    self.plan_tree(*root, numbers, tree.jobs, rows_max, &mut plan)?;
                }
            }
            if plan.partial_tree.is_some() {
                break;
            }
        }
        Ok(plan)
    }

    /// Loads the last jobs of the job trees of these root jobs, as many as have `rows_max` rows, in
    /// one query.
    fn load_trees(
        &mut self,
        roots: &[JobNumber],
        rows_max: usize,
    ) -> Result<LoadedTrees, JournalError> {
        // Each job has at least one row, so no more jobs than rows are needed.
        let limit = i64::try_from(rows_max).unwrap_or(i64::MAX).saturating_add(1);
        let lowest = roots.iter().copied().min().unwrap_or(0);
        let sql = "SELECT j.root, j.parent IS NULL AND j.ended IS NULL, j.number, j.id, j.open,
                     (SELECT count(*) FROM entries e WHERE e.job = j.number)
                   FROM (SELECT root, parent, ended, number, id, open FROM jobs
                           WHERE number = ANY($1) AND parent IS NULL
                         UNION ALL SELECT root, parent, ended, number, id, open FROM jobs
                           WHERE root = ANY($1) AND parent IS NOT NULL AND number > $2) j
                   ORDER BY j.root, j.number DESC LIMIT $3";
        let rows = self.commits.query(sql, params![roots.to_vec(), lowest, limit])?;
        let is_cut = i64::try_from(rows.len()) == Ok(limit);
        let mut trees = LoadedTrees {
            last: rows.last().filter(|_| is_cut).map(|row| row.get(0)),
            found: HashMap::new(),
        };
        for row in &rows {
            let tree = trees.found.entry(row.get(0)).or_default();
            tree.is_running |= row.get::<_, bool>(1);
            tree.jobs.push(TreeJob::from_row(row, 2));
        }
        Ok(trees)
    }

    /// Returns whether a root job has not ended.
    fn is_running(&mut self, root: JobNumber) -> Result<bool, JournalError> {
        let sql = "SELECT ended IS NULL FROM jobs WHERE number = $1";
        let rows = self.commits.query(sql, params![root])?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    /// Returns the numbers of a job tree, parents before their children.
    fn load_job_tree(&mut self, root: JobNumber) -> Result<Vec<JobNumber>, JournalError> {
        let sql = "SELECT number FROM jobs WHERE root = $1 AND parent IS NOT NULL ORDER BY number";
        let rows = self.commits.query(sql, params![root])?;
        // A parent's number is lower than its children's, so the root job comes first.
        Ok([root].into_iter().chain(rows.iter().map(|row| row.get(0))).collect())
    }

    /// Returns what is needed to delete these jobs, the last one first.
    fn load_tree_jobs(&mut self, numbers: &[JobNumber]) -> Result<Vec<TreeJob>, JournalError> {
        let sql = "SELECT number, id, open, (SELECT count(*) FROM entries e WHERE e.job = j.number)
                   FROM jobs j WHERE number = ANY($1) ORDER BY number DESC";
        let rows = self.commits.query(sql, params![numbers.to_vec()])?;
        Ok(rows.iter().map(|row| TreeJob::from_row(row, 0)).collect())
    }

    /// Plans the deletion of a job tree, of which `jobs` are the last ones, the very last first.
    fn plan_tree(
        &mut self,
        root: JobNumber,
        mut tree: Vec<JobNumber>,
        jobs: Vec<TreeJob>,
        rows_max: usize,
        plan: &mut DeletionPlan,
    ) -> Result<(), JournalError> {
        let mut is_root_begun = false;
        for job in jobs {
            let remaining_rows = rows_max - plan.deletion.rows;
            if remaining_rows == 0 {
                break;
            }
            is_root_begun |= job.number == root;
            if job.is_open || job.number == root {
                plan.deletion.maybe_active.push(DeletedJob { id: job.id, number: job.number });
            }
            // The row of `jobs` counts too, so it is deleted only if the limit is not reached.
            if job.entry_rows >= remaining_rows {
                let first = self.first_of_last_rows(job.number, remaining_rows)?;
                plan.entries.push((job.number, first));
                plan.deletion.rows += remaining_rows;
                plan.closed_jobs.push(job.number);
                break;
            }
            plan.entries.push((job.number, 0));
            plan.deletion.rows += job.entry_rows + 1;
            plan.deleted_jobs.push(job.number);
            tree.pop();
        }
        if tree.is_empty() {
            plan.deletion.roots += 1;
            plan.deleted_roots.push(root);
            return Ok(());
        }
        // The remainder takes no more input, not even after a crash.
        if !is_root_begun {
            plan.closed_jobs.push(root);
            let root_jobs = self.load_tree_jobs(&[root])?;
            let id = root_jobs.first().map(|job| job.id);
            plan.deletion.maybe_active.extend(id.map(|id| DeletedJob { id, number: root }));
        }
        plan.deletion.is_partial = true;
        plan.partial_tree = Some((root, tree));
        Ok(())
    }

    /// Returns the first entry of a job's last `count` rows.
    fn first_of_last_rows(&mut self, job: JobNumber, count: usize) -> Result<i64, JournalError> {
        let sql = "SELECT first FROM entries WHERE job = $1 ORDER BY first DESC OFFSET $2 LIMIT 1";
        let offset = i64::try_from(count.saturating_sub(1)).unwrap_or(i64::MAX);
        let rows = self.commits.query(sql, params![job, offset])?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }
}

/// The job trees that are to be deleted.
struct LoadedTrees {
    /// The root job of the tree at which the limit was reached; `None` if all is loaded.
    last: Option<JobNumber>,
    found: HashMap<JobNumber, LoadedTree>,
}

#[derive(Default)]
struct LoadedTree {
    /// Whether the root job has not ended. If the limit was reached before it, that is unknown.
    is_running: bool,
    /// Its jobs, the last one first.
    jobs: Vec<TreeJob>,
}

/// A job of a job tree that is to be deleted.
#[derive(Clone, Copy)]
struct TreeJob {
    number: JobNumber,
    id: JobId,
    is_open: bool,
    /// The number of its rows of `entries`.
    entry_rows: usize,
}

impl TreeJob {
    /// Converts the columns from `first` on.
    fn from_row(row: &Row, first: usize) -> TreeJob {
        TreeJob {
            number: row.get(first),
            id: JobId(row.get(first + 1)),
            is_open: row.get(first + 2),
            entry_rows: usize::try_from(row.get::<_, i64>(first + 3)).unwrap_or(0),
        }
    }
}

/// The part of a definition that says how long its jobs are kept.
#[derive(serde::Deserialize)]
struct DefinitionRetention {
    #[serde(default)]
    retention: Option<Millis>,
}
