//! Reads the rows from which jobs are rebuilt, over any connection to the file.

use super::row_format::{
    ENTRY_COLUMNS, EntryRow, SELECT_CONFIRMS, SELECT_JOBS, for_each_row, misplaced_row,
    parse_confirm_row, parse_definition_row, parse_entry_row, parse_job_row, to_journal_error,
    to_recorded,
};
use crate::error::JournalError;
use crate::record::JobNumber;
use crate::recover::{ChildKey, JobRow, JobRows};
use crate::sql::to_sql_number;
use engine::Recorded;
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::Arc;

/// How many rows of a job are read at once, from the last row backwards, to find the end of the
/// job. Few rows follow it, such as those of late replies.
const ROW_BATCH: u32 = 16;

/// The rows of a journal file.
pub(super) struct FileRows<'a> {
    /// Any connection to the file.
    pub(super) connection: &'a Connection,
    /// The name of the file, for errors.
    pub(super) file: &'a str,
    /// Whether everything is projected, so that unprojected rows of `entries` and pending confirms
    /// need not be read.
    pub(super) is_projected: bool,
}

/// The SQL condition of the rows of `entries` that are not projected yet.
pub(super) const UNPROJECTED: &str = "seq > (SELECT upto FROM derived)";

/// The callback that receives each row of `entries`.
type RowHandler<'a> = &'a mut dyn FnMut(EntryRow) -> Result<(), JournalError>;

impl FileRows<'_> {
    /// Returns the rows of `entries` that match an SQL condition, in the order of their `seq`.
    pub(super) fn entry_rows(
        &self,
        condition: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<EntryRow>, JournalError> {
        let sql = format!("SELECT {ENTRY_COLUMNS} FROM entries WHERE {condition} ORDER BY seq");
        let mut rows = Vec::new();
        self.for_each_entry_row(&sql, values, &mut |row| {
            rows.push(row);
            Ok(())
        })?;
        Ok(rows)
    }

    /// Returns the rows of a job in `entries`, in order.
    pub(super) fn job_entry_rows(&self, job: JobNumber) -> Result<Vec<EntryRow>, JournalError> {
        let mut rows = Vec::new();
        self.for_each_job_row(job, &mut |row| {
            rows.push(row);
            Ok(())
        })?;
        Ok(rows)
    }

    /// Returns at most `count` rows of a job that begin before the entry numbered `before`, the
    /// newest first. Reads only projected rows.
    pub(super) fn last_rows_before(
        &self,
        job: JobNumber,
        before: u64,
        count: u32,
    ) -> Result<Vec<EntryRow>, JournalError> {
        let condition = "seq IN (SELECT seq FROM places WHERE job = ?1 AND first < ?2 \
                    ORDER BY first DESC LIMIT ?3)";
        let mut rows = self.entry_rows(condition, params![job, to_sql_number(before), count])?;
        rows.reverse();
        Ok(rows)
    }

    /// Returns why a job ended, from the last entry that changed its state; `None` if that entry
    /// has no reason, or if there is no such entry. Reads only projected rows.
    pub(super) fn end_reason(&self, job: JobNumber) -> Result<Option<Arc<str>>, JournalError> {
        let mut before = u64::MAX;
        loop {
            let batch = self.last_rows_before(job, before, ROW_BATCH)?;
            let Some(oldest) = batch.last() else { return Ok(None) };
            before = oldest.first;
            for row in batch {
                let mut entries = row.parse_entries(self.file)?.into_iter().rev();
                if let Some(entry) = entries.find(|entry| entry.job_state().is_some()) {
                    return Ok(entry.reason().cloned());
                }
            }
        }
    }

    /// Calls `handler` with the rows of a job, in order.
    fn for_each_job_row(
        &self,
        job: JobNumber,
        handler: RowHandler<'_>,
    ) -> Result<(), JournalError> {
        // CROSS JOIN makes `places` the outer loop, so that the rows need not be sorted.
        let sql = "SELECT e.job, e.first, e.at, e.body, e.checksum, e.seq, e.confirms, e.origin
                   FROM places p CROSS JOIN entries e ON e.seq = p.seq WHERE p.job = ?1 \
                     ORDER BY p.first";
        self.for_each_entry_row(sql, [job], handler)?;
        if self.is_projected {
            return Ok(());
        }
        let sql = format!(
            "SELECT {ENTRY_COLUMNS} FROM entries WHERE {UNPROJECTED} AND job = ?1 ORDER BY seq"
        );
        self.for_each_entry_row(&sql, [job], handler)
    }

    /// Calls `handler` with the rows of a query that selects [`ENTRY_COLUMNS`].
    fn for_each_entry_row(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
        handler: RowHandler<'_>,
    ) -> Result<(), JournalError> {
        let (connection, file) = (self.connection, self.file);
        for_each_row((connection, file), sql, values, |row| handler(parse_entry_row(row, file)?))
    }

    /// Returns the `seq` of each of a job's rows, starting at the latest with the row that contains
    /// the entry numbered `first`. Always includes all unprojected rows.
    pub(super) fn seqs_from(&self, job: JobNumber, first: u64) -> Result<Vec<i64>, JournalError> {
        let sql = format!(
            "SELECT seq FROM (
                 SELECT first, seq FROM places WHERE job = ?1
                 AND first >= (SELECT coalesce(max(first), 0) FROM places WHERE job = ?1 \
                   AND first <= ?2)
                 UNION ALL SELECT first, seq FROM entries WHERE {UNPROJECTED} AND job = ?1)
             ORDER BY first"
        );
        let read = || -> rusqlite::Result<Vec<i64>> {
            let mut statement = self.connection.prepare_cached(&sql)?;
            statement.query_map([job, to_sql_number(first)], |row| row.get(0))?.collect()
        };
        read().map_err(|error| self.to_journal_error(error))
    }

    /// Returns a job's first row; `None` if there is no such job.
    pub(super) fn first_row(&self, job: JobNumber) -> Result<Option<EntryRow>, JournalError> {
        let condition = "seq = (SELECT seq FROM places WHERE job = ?1 AND first = 0)";
        let row = self.entry_rows(condition, [job])?.pop();
        if row.is_some() || self.is_projected {
            return Ok(row);
        }
        let condition = format!("{UNPROJECTED} AND job = ?1 AND origin IS NOT NULL");
        Ok(self.entry_rows(&condition, [job])?.pop())
    }

    /// Returns the size of a job's entries in bytes, without the confirms in its rows.
    pub(super) fn entry_bytes(&self, job: JobNumber) -> Result<usize, JournalError> {
        let sql = format!(
            "SELECT (SELECT coalesce(sum(octet_length(e.body)), 0) FROM places p \
                    JOIN entries e ON e.seq = p.seq WHERE p.job = ?1)
                  + (SELECT coalesce(sum(octet_length(body)), 0) FROM entries WHERE {UNPROJECTED} \
                    AND job = ?1)"
        );
        let read = || self.connection.prepare_cached(&sql)?.query_row([job], |row| row.get(0));
        let bytes: i64 = read().map_err(|error| self.to_journal_error(error))?;
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Returns the pending confirms of a job: those in rows of `confirmed` after `last_seq`, the
    /// `seq` of the job's last row of `entries`.
    pub(super) fn confirms_after(
        &self,
        job: JobNumber,
        last_seq: i64,
    ) -> Result<Vec<Recorded>, JournalError> {
        let sql = format!("{SELECT_CONFIRMS} WHERE seq > ?1 ORDER BY seq");
        let mut decisions = Vec::new();
        for_each_row((self.connection, self.file), &sql, [last_seq], |row| {
            let (_, confirms_by_job) = parse_confirm_row(row, self.file)?;
            let confirms = confirms_by_job
                .into_iter()
                .filter(|(confirmed_job, _)| *confirmed_job == job)
                .flat_map(|(_, confirms)| confirms);
            decisions.extend(confirms.map(to_recorded));
            Ok(())
        })?;
        Ok(decisions)
    }

    /// Returns the rows of `jobs` that match an SQL condition.
    fn query_jobs(
        &self,
        condition: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<JobRow>, JournalError> {
        let sql = format!("{SELECT_JOBS} WHERE {condition}");
        let mut rows = Vec::new();
        for_each_row((self.connection, self.file), &sql, values, |row| {
            rows.push(parse_job_row(row, self.file)?);
            Ok(())
        })?;
        Ok(rows)
    }

    fn to_journal_error(&self, error: rusqlite::Error) -> JournalError {
        to_journal_error(self.file, error)
    }
}

impl JobRows for FileRows<'_> {
    fn find_job(&self, number: JobNumber) -> Result<Option<JobRow>, JournalError> {
        let row = self.query_jobs("number = ?1", [number])?.pop();
        if row.is_some() || self.is_projected {
            return Ok(row);
        }
        let condition = format!("{UNPROJECTED} AND job = ?1 AND origin IS NOT NULL");
        Ok(self.entry_rows(&condition, [number])?.pop().and_then(|row| row.origin))
    }

    fn load_open_jobs(&self) -> Result<Vec<JobRow>, JournalError> {
        self.query_jobs("open = 1 ORDER BY number", [])
    }

    fn load_live_children(&self, parent: JobNumber) -> Result<Vec<JobRow>, JournalError> {
        self.query_jobs(
            "parent = ?1 AND root = (SELECT root FROM jobs WHERE number = ?1) AND ended IS NULL",
            [parent],
        )
    }

    fn find_child(
        &self,
        root: JobNumber,
        key: &ChildKey,
    ) -> Result<Option<JobNumber>, JournalError> {
        let ChildKey { parent, step, item, id } = key;
        self.connection
            .prepare_cached(
                "SELECT number FROM jobs WHERE root = ?1 AND parent = ?2 AND step = ?3 \
                   AND item = ?4 AND id = ?5
                 ORDER BY number DESC LIMIT 1",
            )
            .and_then(|mut statement| {
                statement
                    .query_row(params![root, parent, step, item, id.0.as_bytes()], |row| row.get(0))
                    .optional()
            })
            .map_err(|error| self.to_journal_error(error))
    }

    fn for_each_decision(
        &self,
        job: JobNumber,
        handler: &mut dyn FnMut(Recorded) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let (mut entry_count, mut last_seq) = (0, i64::MAX);
        let mut handle_decision = |seq: i64, recorded: Recorded| {
            if recorded.first != entry_count {
                return Err(misplaced_row(seq, recorded.first, entry_count, self.file));
            }
            entry_count += recorded.entries.len() as u64;
            handler(recorded)
        };
        self.for_each_job_row(job, &mut |row| {
            last_seq = row.seq;
            let decisions = row.parse_decisions(self.file)?;
            decisions.into_iter().try_for_each(|recorded| handle_decision(row.seq, recorded))
        })?;
        if !self.is_projected {
            for recorded in self.confirms_after(job, last_seq)? {
                handle_decision(last_seq, recorded)?;
            }
        }
        Ok(())
    }

    fn find_seq(&self, job: JobNumber, entry: u64) -> Result<Option<i64>, JournalError> {
        let union_with_unprojected = if self.is_projected {
            String::new()
        } else {
            format!(
                "UNION ALL SELECT first, seq FROM entries WHERE {UNPROJECTED} AND job = ?1 \
                 AND first <= ?2"
            )
        };
        let sql = format!(
            "SELECT seq FROM (
                 SELECT * FROM (SELECT first, seq FROM places WHERE job = ?1 AND first <= ?2 \
                   ORDER BY first DESC LIMIT 1)
                 {union_with_unprojected})
             ORDER BY first DESC LIMIT 1"
        );
        let read = || -> rusqlite::Result<Option<i64>> {
            let mut statement = self.connection.prepare_cached(&sql)?;
            statement.query_row(params![job, to_sql_number(entry)], |row| row.get(0)).optional()
        };
        read().map_err(|error| self.to_journal_error(error))
    }

    fn load_definition_body(&self, number: i64) -> Result<String, JournalError> {
        let to_error = |error| self.to_journal_error(error);
        let mut statement = self
            .connection
            .prepare_cached("SELECT number, hash, body FROM definitions WHERE number = ?1")
            .map_err(to_error)?;
        let mut rows = statement.query([number]).map_err(to_error)?;
        let row = rows
            .next()
            .map_err(to_error)?
            .ok_or_else(|| self.damaged_row("definitions", number, "it is missing".to_owned()))?;
        parse_definition_row(row, self.file)
    }

    fn damaged_row(&self, table: &'static str, row: i64, problem: String) -> JournalError {
        JournalError::damaged_row(self.file, table, row, problem)
    }
}
