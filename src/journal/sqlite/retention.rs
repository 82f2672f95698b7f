//! Deletes ended jobs: those whose retention is over, and those that a client deletes. A definition
//! can set the retention of its jobs (key `retention`); otherwise the settings do.

use super::failures;
use super::status_table::WriteError;
use super::writer::JournalWriter;
use crate::error::{JournalError, Remedy};
use crate::record::{DeletedJob, Deletion, JobNumber};
use engine::{JobId, Millis, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

/// The result of a deletion transaction.
#[derive(Default)]
struct DeletionOutcome {
    /// The result for the caller of the journal.
    deletion: Deletion,
    /// The jobs of which rows were deleted.
    changed_jobs: Vec<JobNumber>,
    /// The root jobs of the job trees that do not exist any more.
    deleted_roots: Vec<JobNumber>,
    /// The root job of a partially deleted job tree, and the jobs that remain; `None` if there is
    /// none.
    partial_tree: Option<(JobNumber, Vec<JobNumber>)>,
}

impl JournalWriter {
    /// Returns the time of the newest decision, apart from pending confirms; `None` if there is
    /// none.
    pub(super) fn newest_record_time(&self) -> Result<Option<Timestamp>, JournalError> {
        let sql = "SELECT at FROM entries ORDER BY seq DESC LIMIT 1";
        let decided_at = self.connection.query_row(sql, [], |row| row.get(0)).optional();
        Ok(decided_at.map_err(|error| self.to_journal_error(error))?.map(Timestamp))
    }

    /// Returns the number of root jobs whose retention is over, among those that are projected.
    pub(super) fn count_expired(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
    ) -> Result<u64, JournalError> {
        self.count_past_retention(now, default_retention)
            .map_err(|error| self.to_journal_error(error))
    }

    fn count_past_retention(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
    ) -> rusqlite::Result<u64> {
        self.load_retentions()?;
        let sql = "SELECT count(*) FROM jobs WHERE parent IS NULL AND ended IS NOT NULL \
                   AND definition = ?1 AND ended < ?2";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut count = 0;
        for (definition, retention) in &self.retentions {
            let ended_before = now.before(retention.unwrap_or(default_retention));
            let jobs: i64 =
                statement.query_row(params![definition, ended_before.0], |row| row.get(0))?;
            count += u64::try_from(jobs).expect("a count is not negative");
        }
        Ok(count)
    }

    /// Deletes up to `rows_max` rows of the job trees of root jobs whose retention is over. Jobs
    /// whose definition sets no retention have `default_retention`.
    pub(super) fn delete_expired(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
        rows_max: u32,
    ) -> Result<Deletion, JournalError> {
        self.check_not_broken()?;
        match self.project() {
            Err(error) if error.remedy() == Remedy::Exit => return Err(error),
            // Without the projection, unprojected jobs are not found, and remain for now.
            Ok(()) | Err(_) => {}
        }
        // Each job tree has at least one row, so no more root jobs than rows are needed.
        let roots = self
            .find_expired(now, default_retention, rows_max)
            .map_err(|error| self.to_journal_error(error))?;
        let is_at_limit = roots.len() == usize::try_from(rows_max).unwrap_or(usize::MAX);
        let mut deletion = self.delete_jobs(&roots, rows_max)?;
        deletion.is_partial |= is_at_limit && deletion.roots > 0;
        Ok(deletion)
    }

    /// Deletes up to `rows_max` rows of the job trees of these root jobs. Running root jobs are
    /// skipped.
    pub(super) fn delete_jobs(
        &mut self,
        roots: &[JobNumber],
        rows_max: u32,
    ) -> Result<Deletion, JournalError> {
        if roots.is_empty() {
            return Ok(Deletion::default());
        }
        let roots = self.find_deletable(roots)?;
        let DeletionOutcome { deletion, changed_jobs, deleted_roots, partial_tree } = self
            .write_in_reserve_with_repair(|writer| {
                writer.delete_in_transaction(&roots, rows_max)
            })?;
        changed_jobs.into_iter().for_each(|job| self.confirms.remove(job));
        self.partial_deletions.extend(partial_tree);
        for root in deleted_roots {
            self.partial_deletions.remove(&root);
        }
        Ok(deletion)
    }

    /// Projects everything, and returns the root jobs that can be deleted: usually all of `roots`.
    /// If the projection fails for lack of space or because of a lock, returns only those whose job
    /// trees are completely projected, because the deletion may free the missing space.
    fn find_deletable(&mut self, roots: &[JobNumber]) -> Result<Vec<JobNumber>, JournalError> {
        let projection_error = match self.project() {
            Ok(()) => return Ok(roots.to_vec()),
            Err(error) if error.remedy().is_retryable() => error,
            Err(error) => return Err(error),
        };
        let mut projected_roots = Vec::new();
        for root in roots {
            if self.is_tree_projected(*root).map_err(|error| self.to_journal_error(error))? {
                projected_roots.push(*root);
            }
        }
        if projected_roots.is_empty() { Err(projection_error) } else { Ok(projected_roots) }
    }

    /// Returns whether all rows of a job tree are projected.
    fn is_tree_projected(&self, root: JobNumber) -> rusqlite::Result<bool> {
        if self.unprojected.has_new_jobs_of(root) {
            return Ok(false);
        }
        let mut statement =
            self.connection.prepare_cached("SELECT number FROM jobs WHERE root = ?1")?;
        let rows = statement.query_map([root], |row| row.get::<_, JobNumber>(0))?;
        let numbers: Vec<JobNumber> = rows.collect::<rusqlite::Result<_>>()?;
        Ok(numbers.into_iter().all(|number| self.unprojected.last_row_start(number).is_none()))
    }

    /// Returns at most `limit` root jobs whose retention is over.
    fn find_expired(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
        limit: u32,
    ) -> rusqlite::Result<Vec<JobNumber>> {
        self.load_retentions()?;
        let sql = "SELECT number FROM jobs WHERE parent IS NULL AND ended IS NOT NULL \
                   AND definition = ?1 AND ended < ?2 ORDER BY ended LIMIT ?3";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut roots: Vec<JobNumber> = Vec::new();
        for (definition, retention) in &self.retentions {
            let remaining_limit = i64::from(limit).saturating_sub_unsigned(roots.len() as u64);
            let ended_before = now.before(retention.unwrap_or(default_retention));
            let values = params![definition, ended_before.0, remaining_limit];
            for root in statement.query_map(values, |row| row.get(0))? {
                roots.push(root?);
            }
        }
        Ok(roots)
    }

    /// Loads the retentions of definitions that were added since the last call. A definition never
    /// changes.
    fn load_retentions(&mut self) -> rusqlite::Result<()> {
        let last_number = self.retentions.last_key_value().map_or(0, |(number, _)| *number);
        let sql = "SELECT number, CASE WHEN json_valid(body) THEN json_extract(body, \
                   '$.retention') END FROM definitions WHERE number > ?1";
        let mut statement = self.connection.prepare_cached(sql)?;
        for row in statement
            .query_map([last_number], |row| Ok((row.get(0)?, row.get::<_, Option<i64>>(1)?)))?
        {
            let (number, millis) = row?;
            self.retentions
                .insert(number, millis.and_then(|millis| u64::try_from(millis).ok()).map(Millis));
        }
        Ok(())
    }

    /// Deletes job trees one after another until the limit of rows is reached. In a job tree, child
    /// jobs are deleted before their parents, and a job's last rows before its first. This way, the
    /// remainder of a partially deleted job tree can still be read after a crash, and is deleted
    /// like any other job tree.
    fn delete_in_transaction(
        &mut self,
        roots: &[JobNumber],
        rows_max: u32,
    ) -> Result<DeletionOutcome, WriteError> {
        let rows_max = usize::try_from(rows_max).unwrap_or(usize::MAX);
        let transaction = self.connection.transaction()?;
        let mut outcome = DeletionOutcome::default();
        for root in roots {
            if outcome.deletion.rows >= rows_max {
                outcome.deletion.is_partial = true;
                break;
            }
            let root_job: Option<(String, bool)> = transaction
                .prepare_cached(
                    "SELECT workflow, ended IS NULL FROM jobs WHERE number = ?1 AND parent IS NULL",
                )?
                .query_row([root], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let Some((workflow, is_running)) = root_job else {
                outcome.deleted_roots.push(*root);
                continue;
            };
            if is_running {
                outcome.deletion.skipped += 1;
                continue;
            }
            let mut job_tree = match self.partial_deletions.get(root) {
                Some(remaining_jobs) => remaining_jobs.clone(),
                None => load_job_tree(&transaction, *root)?,
            };
            let mut has_reached_root = false;
            while let Some(number) = job_tree.last().copied() {
                let remaining_rows = rows_max.saturating_sub(outcome.deletion.rows);
                if remaining_rows == 0 {
                    break;
                }
                if number == *root {
                    has_reached_root = true;
                    self.status_tables.delete_row(&transaction, &workflow, *root)?;
                }
                if delete_rows(&transaction, number, *root, remaining_rows, &mut outcome)? {
                    job_tree.pop();
                }
            }
            if job_tree.is_empty() {
                outcome.deleted_roots.push(*root);
                outcome.deletion.roots += 1;
            } else {
                // `delete_rows` closes a root job that it deletes in part.
                if !has_reached_root {
                    close_job(&transaction, *root, (*root, false), &mut outcome.deletion)?;
                }
                outcome.deletion.is_partial = true;
                outcome.partial_tree = Some((*root, job_tree));
                break;
            }
        }
        transaction.commit()?;
        Ok(outcome)
    }
}

/// Returns the numbers of a job tree, parents before their children.
fn load_job_tree(connection: &Connection, root: JobNumber) -> rusqlite::Result<Vec<JobNumber>> {
    let mut statement = connection.prepare_cached("SELECT number FROM jobs WHERE root = ?1")?;
    let rows = statement.query_map([root], |row| row.get::<_, JobNumber>(0))?;
    let mut numbers: Vec<JobNumber> = rows.collect::<rusqlite::Result<_>>()?;
    // A parent's number is lower than its children's.
    numbers.sort_unstable();
    Ok(numbers)
}

/// Deletes up to `rows_max` rows of a job, the last ones first, and finally its row of `jobs`.
/// Returns whether the job is deleted completely.
fn delete_rows(
    connection: &Connection,
    job: JobNumber,
    root: JobNumber,
    rows_max: usize,
    outcome: &mut DeletionOutcome,
) -> rusqlite::Result<bool> {
    let limit = i64::try_from(rows_max).unwrap_or(i64::MAX);
    let sql = "SELECT first, seq FROM places WHERE job = ?1 ORDER BY first DESC LIMIT ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let places = statement.query_map(params![job, limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let places: Vec<(i64, i64)> = places.collect::<rusqlite::Result<_>>()?;
    let mut delete_entry = connection.prepare_cached("DELETE FROM entries WHERE seq = ?1")?;
    for (_, seq) in &places {
        delete_entry.execute([seq])?;
    }
    failures::delete(connection, job)?;
    if let Some((first, _)) = places.last() {
        let sql = "DELETE FROM places WHERE job = ?1 AND first >= ?2";
        connection.prepare_cached(sql)?.execute([job, *first])?;
    }
    outcome.changed_jobs.push(job);
    outcome.deletion.rows += places.len();
    // The row of `jobs` counts too, so it is deleted only if the limit is not reached yet.
    let is_deleted = places.len() < rows_max;
    close_job(connection, job, (root, is_deleted), &mut outcome.deletion)?;
    if is_deleted {
        outcome.deletion.rows += 1;
        connection.prepare_cached("DELETE FROM jobs WHERE number = ?1")?.execute([job])?;
    }
    Ok(is_deleted)
}

/// Closes a job that is being deleted, if its row of `jobs` remains for now: it takes no more
/// input, not even after a crash. Adds the job to `maybe_active` if it may have an actor.
fn close_job(
    connection: &Connection,
    job: JobNumber,
    (root, is_deleted): (JobNumber, bool),
    deletion: &mut Deletion,
) -> rusqlite::Result<()> {
    let (id, is_open) = connection
        .prepare_cached("SELECT id, open FROM jobs WHERE number = ?1")?
        .query_row([job], |row| {
        Ok((JobId(uuid::Uuid::from_bytes(row.get(0)?)), row.get(1)?))
    })?;
    if is_open && !is_deleted {
        connection.prepare_cached("UPDATE jobs SET open = 0 WHERE number = ?1")?.execute([job])?;
    }
    if is_open || job == root {
        deletion.maybe_active.push(DeletedJob { id, number: job });
    }
    Ok(())
}
