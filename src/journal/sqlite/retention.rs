//! Deletes ended jobs once their retention is over: that of their definition (key `retention`),
//! else that of the settings.

use super::status_table::WriteError;
use super::writer::JournalWriter;
use crate::error::{JournalError, Remedy};
use crate::record::{DeletedJob, Deletion, JobNumber};
use engine::{JobId, Millis, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

/// The result of a deletion transaction.
#[derive(Default)]
struct DeletedRows {
    deleted: Deletion,
    /// The jobs of which rows were deleted.
    numbers: Vec<JobNumber>,
    /// The root jobs of the trees that are completely deleted.
    finished: Vec<JobNumber>,
    /// The root job of a tree that is deleted in part, and the jobs that are left.
    partial: Option<(JobNumber, Vec<JobNumber>)>,
}

impl JournalWriter {
    /// When the newest record was written.
    pub(super) fn newest(&self) -> Result<Option<Timestamp>, JournalError> {
        let sql = "SELECT at FROM entries ORDER BY seq DESC LIMIT 1";
        let newest = self.connection.query_row(sql, [], |row| row.get(0)).optional();
        Ok(newest.map_err(|error| self.to_journal_error(error))?.map(Timestamp))
    }

    /// How many top-level jobs ended long enough ago to be deleted.
    pub(super) fn count_ended(
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
        for (definition, own) in &self.retentions {
            let before = now.before(own.unwrap_or(default_retention));
            let of_it: i64 =
                statement.query_row(params![definition, before.0], |row| row.get(0))?;
            count += u64::try_from(of_it).expect("a count is not negative");
        }
        Ok(count)
    }

    /// Deletes up to `rows_max` rows of top-level jobs, with their children, that ended long enough
    /// ago. The definition that a job started with says how long it is kept. If it says nothing,
    /// `kept` does.
    pub(super) fn delete_expired(
        &mut self,
        now: Timestamp,
        default_retention: Millis,
        rows_max: u32,
    ) -> Result<Deletion, JournalError> {
        self.check_not_broken()?;
        match self.project() {
            Err(error) if error.remedy() == Remedy::Exit => return Err(error),
            // A job that is not projected is not deleted.
            Ok(()) | Err(_) => {}
        }
        // Each job tree has at least one row.
        let roots = self
            .find_expired(now, default_retention, rows_max)
            .map_err(|error| self.to_journal_error(error))?;
        let is_more = roots.len() == usize::try_from(rows_max).unwrap_or(usize::MAX);
        let mut deleted = self.delete_jobs(&roots, rows_max)?;
        deleted.is_partial |= is_more && deleted.roots > 0;
        Ok(deleted)
    }

    /// Deletes up to `rows_max` rows of the job trees of these root jobs, except of those still
    /// running.
    pub(super) fn delete_jobs(
        &mut self,
        roots: &[JobNumber],
        rows_max: u32,
    ) -> Result<Deletion, JournalError> {
        if roots.is_empty() {
            return Ok(Deletion::default());
        }
        let roots = self.find_deletable(roots)?;
        let done =
            self.write_in_reserve_with_repair(|core| core.delete_in_transaction(&roots, rows_max))?;
        let DeletedRows { deleted, numbers, finished, partial } = done;
        numbers.into_iter().for_each(|number| self.confirms.remove(number));
        self.partial_deletions.extend(partial);
        for root in finished {
            self.partial_deletions.remove(&root);
        }
        Ok(deleted)
    }

    /// Returns those of these jobs that can be deleted: all, once everything is projected. If there
    /// is no room for that, the deletion has to make it, so it takes jobs of which everything is
    /// projected.
    fn find_deletable(&mut self, roots: &[JobNumber]) -> Result<Vec<JobNumber>, JournalError> {
        let projection_error = match self.project() {
            Ok(()) => return Ok(roots.to_vec()),
            Err(error) => match error.remedy() {
                Remedy::WaitForSpace | Remedy::WaitForLock => error,
                Remedy::Exit => return Err(error),
            },
        };
        let mut projected = Vec::new();
        for root in roots {
            if self.is_tree_projected(*root).map_err(|error| self.to_journal_error(error))? {
                projected.push(*root);
            }
        }
        if projected.is_empty() { Err(projection_error) } else { Ok(projected) }
    }

    /// Returns whether everything of a root job and its descendants is projected.
    fn is_tree_projected(&self, root: JobNumber) -> rusqlite::Result<bool> {
        if self.unprojected.has_new_jobs_of(root) {
            return Ok(false);
        }
        let mut statement =
            self.connection.prepare_cached("SELECT number FROM jobs WHERE root = ?1")?;
        let rows = statement.query_map([root], |row| row.get::<_, JobNumber>(0))?;
        let numbers: Vec<JobNumber> = rows.collect::<rusqlite::Result<_>>()?;
        Ok(numbers.into_iter().all(|number| self.unprojected.last_entry_of(number).is_none()))
    }

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
        for (definition, own) in &self.retentions {
            let left = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(roots.len());
            let before = now.before(own.unwrap_or(default_retention));
            for root in statement.query_map(
                params![definition, before.0, i64::try_from(left).unwrap_or(i64::MAX)],
                |row| row.get(0),
            )? {
                roots.push(root?);
            }
        }
        Ok(roots)
    }

    /// Loads the retention of new definitions. Definitions are only ever added, and never change.
    fn load_retentions(&mut self) -> rusqlite::Result<()> {
        let known = self.retentions.last_key_value().map_or(0, |(number, _)| *number);
        let sql = "SELECT number, CASE WHEN json_valid(body) THEN json_extract(body, \
                   '$.retention') END FROM definitions WHERE number > ?1";
        let mut statement = self.connection.prepare_cached(sql)?;
        for row in
            statement.query_map([known], |row| Ok((row.get(0)?, row.get::<_, Option<i64>>(1)?)))?
        {
            let (number, millis) = row?;
            self.retentions
                .insert(number, millis.and_then(|millis| u64::try_from(millis).ok()).map(Millis));
        }
        Ok(())
    }

    /// Deletes whole job trees, as long as the limit of rows allows. In a large tree, child jobs
    /// are deleted before their parents, and a job's last rows before its first. So what a crash
    /// leaves can be read, and is deleted like other jobs.
    fn delete_in_transaction(
        &mut self,
        roots: &[JobNumber],
        rows_max: u32,
    ) -> Result<DeletedRows, WriteError> {
        let rows_max = usize::try_from(rows_max).unwrap_or(usize::MAX);
        let transaction = self.connection.transaction()?;
        let mut done = DeletedRows::default();
        for root in roots {
            if done.deleted.rows >= rows_max {
                done.deleted.is_partial = true;
                break;
            }
            let found: Option<(String, bool)> = transaction
                .prepare_cached(
                    "SELECT workflow, ended IS NULL FROM jobs WHERE number = ?1 AND parent IS NULL",
                )?
                .query_row([root], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let workflow = match found {
                None => {
                    done.finished.push(*root);
                    continue;
                }
                Some((_, true)) => {
                    done.deleted.skipped += 1;
                    continue;
                }
                Some((workflow, false)) => workflow,
            };
            let mut family = match self.partial_deletions.get(root) {
                Some(left) => left.clone(),
                None => job_tree(&transaction, *root)?,
            };
            while let Some(number) = family.last().copied() {
                let left = rows_max.saturating_sub(done.deleted.rows);
                if left == 0 {
                    break;
                }
                if number == *root {
                    self.status_tables.delete_row(&transaction, &workflow, *root)?;
                }
                if delete_rows(&transaction, number, *root, left, &mut done)? {
                    family.pop();
                }
            }
            if family.is_empty() {
                done.finished.push(*root);
                done.deleted.roots += 1;
            } else {
                if family.len() > 1 {
                    close_job(&transaction, *root, (*root, false), &mut done.deleted)?;
                }
                done.deleted.is_partial = true;
                done.partial = Some((*root, family));
                break;
            }
        }
        transaction.commit()?;
        Ok(done)
    }
}

/// Returns the numbers of a job tree, the root job first.
fn job_tree(connection: &Connection, root: JobNumber) -> rusqlite::Result<Vec<JobNumber>> {
    let mut all = connection.prepare_cached("SELECT number FROM jobs WHERE root = ?1")?;
    let all = all.query_map([root], |row| row.get::<_, JobNumber>(0))?;
    let mut numbers: Vec<JobNumber> = all.collect::<rusqlite::Result<_>>()?;
    // A parent is older than its children.
    numbers.sort_unstable();
    Ok(numbers)
}

/// Deletes up to `rows_max` rows of a job, the last ones first, and the job itself with its first
/// row. Returns whether the job is gone.
fn delete_rows(
    connection: &Connection,
    job: JobNumber,
    root: JobNumber,
    rows_max: usize,
    done: &mut DeletedRows,
) -> rusqlite::Result<bool> {
    let limit = i64::try_from(rows_max).unwrap_or(i64::MAX);
    let last = "SELECT first, seq FROM places WHERE job = ?1 ORDER BY first DESC LIMIT ?2";
    let mut places = connection.prepare_cached(last)?;
    let places = places.query_map(params![job, limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let places: Vec<(i64, i64)> = places.collect::<rusqlite::Result<_>>()?;
    let mut delete = connection.prepare_cached("DELETE FROM entries WHERE seq = ?1")?;
    for (_, seq) in &places {
        delete.execute([seq])?;
    }
    if let Some((first, _)) = places.last() {
        let delete = "DELETE FROM places WHERE job = ?1 AND first >= ?2";
        connection.prepare_cached(delete)?.execute([job, *first])?;
    }
    done.numbers.push(job);
    done.deleted.rows += places.len();
    // The limit was not reached, so no row is left.
    let is_gone = places.len() < rows_max;
    close_job(connection, job, (root, is_gone), &mut done.deleted)?;
    if is_gone {
        done.deleted.rows += 1;
        connection.prepare_cached("DELETE FROM jobs WHERE number = ?1")?.execute([job])?;
    }
    Ok(is_gone)
}

/// Reports a job that is being deleted as `maybe_active` if it may have an actor. If the job stays
/// for now, it takes no more input, also after a crash.
fn close_job(
    connection: &Connection,
    job: JobNumber,
    (root, is_gone): (JobNumber, bool),
    deleted: &mut Deletion,
) -> rusqlite::Result<()> {
    let (id, is_open) = connection
        .prepare_cached("SELECT id, open FROM jobs WHERE number = ?1")?
        .query_row([job], |row| {
        Ok((JobId(uuid::Uuid::from_bytes(row.get(0)?)), row.get(1)?))
    })?;
    if is_open && !is_gone {
        connection.prepare_cached("UPDATE jobs SET open = 0 WHERE number = ?1")?.execute([job])?;
    }
    if is_open || job == root {
        deleted.maybe_active.push(DeletedJob { id, number: job });
    }
    Ok(())
}
