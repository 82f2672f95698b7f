//! The rows from which jobs are rebuilt, read through any connection to the file.

use super::row_format::{
    ENTRY_COLUMNS, EntryRow, SELECT_CONFIRMS, SELECT_JOBS, for_each_row, misplaced_row,
    parse_confirm_row, parse_definition_row, parse_entry_row, parse_job_row, to_journal_error,
    to_recorded, to_sql_number,
};
use crate::error::JournalError;
use crate::record::JobNumber;
use crate::recover::{ChildKey, JobRow, JobRows};
use engine::Recorded;
use rusqlite::{Connection, OptionalExtension, params};

/// The rows of a journal file.
pub(super) struct FileRows<'a> {
    /// Any connection to the file.
    pub(super) connection: &'a Connection,
    /// The name of the file, for errors.
    pub(super) file: &'a str,
    /// Whether everything is projected; otherwise the newest rows are searched for what is not.
    pub(super) is_projected: bool,
}

/// The condition of the rows of `entries` that are not projected yet.
pub(super) const UNPROJECTED: &str = "seq > (SELECT upto FROM derived)";

/// The callback that receives each row of `entries`.
type RowHandler<'a> = &'a mut dyn FnMut(EntryRow) -> Result<(), JournalError>;

impl FileRows<'_> {
    /// Returns the rows of `entries` that match a condition, in order.
    pub(super) fn entry_rows(
        &self,
        condition: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<EntryRow>, JournalError> {
        let sql = format!("SELECT {ENTRY_COLUMNS} FROM entries WHERE {condition} ORDER BY seq");
        let mut found = Vec::new();
        self.each_row(&sql, values, &mut |row| {
            found.push(row);
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the rows of a job, in order.
    pub(super) fn job_entry_rows(&self, job: JobNumber) -> Result<Vec<EntryRow>, JournalError> {
        let mut found = Vec::new();
        self.for_each_job_row(job, &mut |row| {
            found.push(row);
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the last rows of a job before the entry numbered `before`, the newest first, from a
    /// file in which everything is projected.
    pub(super) fn last_rows_before(
        &self,
        job: JobNumber,
        before: u64,
        count: u32,
    ) -> Result<Vec<EntryRow>, JournalError> {
        let last = "seq IN (SELECT seq FROM places WHERE job = ?1 AND first < ?2 \
                    ORDER BY first DESC LIMIT ?3)";
        let mut rows = self.entry_rows(last, params![job, to_sql_number(before), count])?;
        rows.reverse();
        Ok(rows)
    }

    fn for_each_job_row(&self, job: JobNumber, each: RowHandler<'_>) -> Result<(), JournalError> {
        // In the order of the index, so nothing is sorted.
        let sql = "SELECT e.job, e.first, e.at, e.body, e.checksum, e.seq, e.confirms, e.origin
                   FROM places p CROSS JOIN entries e ON e.seq = p.seq WHERE p.job = ?1 \
                     ORDER BY p.first";
        self.each_row(sql, [job], each)?;
        if self.is_projected {
            return Ok(());
        }
        let sql = format!(
            "SELECT {ENTRY_COLUMNS} FROM entries WHERE {UNPROJECTED} AND job = ?1 ORDER BY seq"
        );
        self.each_row(&sql, [job], each)
    }

    fn each_row(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
        each: RowHandler<'_>,
    ) -> Result<(), JournalError> {
        let (connection, file) = (self.connection, self.file);
        for_each_row((connection, file), sql, values, |row| each(parse_entry_row(row, file)?))
    }

    /// Returns the `seq` of a job's rows, starting with the one that has the entry numbered
    /// `first`.
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

    /// Returns a job's first row.
    pub(super) fn first_row(&self, job: JobNumber) -> Result<Option<EntryRow>, JournalError> {
        let first = "seq = (SELECT seq FROM places WHERE job = ?1 AND first = 0)";
        let row = self.entry_rows(first, [job])?.pop();
        if row.is_some() || self.is_projected {
            return Ok(row);
        }
        let condition = format!("{UNPROJECTED} AND job = ?1 AND origin IS NOT NULL");
        Ok(self.entry_rows(&condition, [job])?.pop())
    }

    /// Returns the size of a job's rows in bytes.
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

    /// Returns the confirms of a job after this row of `entries`, which no row of its own has yet.
    pub(super) fn confirms_after(
        &self,
        job: JobNumber,
        behind: i64,
    ) -> Result<Vec<Recorded>, JournalError> {
        let sql = format!("{SELECT_CONFIRMS} WHERE seq > ?1 ORDER BY seq");
        let mut confirmed = Vec::new();
        for_each_row((self.connection, self.file), &sql, [behind], |row| {
            let (_, group) = parse_confirm_row(row, self.file)?;
            let own = group.into_iter().filter(|(of, _)| *of == job);
            confirmed.extend(own.flat_map(|(_, rows)| rows).map(to_recorded));
            Ok(())
        })?;
        Ok(confirmed)
    }

    fn query_jobs(
        &self,
        condition: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<JobRow>, JournalError> {
        let sql = format!("{SELECT_JOBS} WHERE {condition}");
        let mut found = Vec::new();
        for_each_row((self.connection, self.file), &sql, values, |row| {
            found.push(parse_job_row(row, self.file)?);
            Ok(())
        })?;
        Ok(found)
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
        Ok(self.entry_rows(&condition, [number])?.pop().and_then(|first| first.origin))
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
        place: &ChildKey,
    ) -> Result<Option<JobNumber>, JournalError> {
        let ChildKey { parent, step, item, id } = place;
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
        each: &mut dyn FnMut(Recorded) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let (mut entries, mut last) = (0, i64::MAX);
        let mut check_order = |seq: i64, recorded: Recorded| {
            if recorded.first != entries {
                return Err(misplaced_row(seq, recorded.first, entries, self.file));
            }
            entries += recorded.entries.len() as u64;
            each(recorded)
        };
        self.for_each_job_row(job, &mut |row| {
            last = row.seq;
            let recorded = row.parse_decisions(self.file)?;
            recorded.into_iter().try_for_each(|recorded| check_order(row.seq, recorded))
        })?;
        if !self.is_projected {
            for recorded in self.confirms_after(job, last)? {
                check_order(last, recorded)?;
            }
        }
        Ok(())
    }

    fn find_seq(&self, job: JobNumber, entry: u64) -> Result<Option<i64>, JournalError> {
        let tail = if self.is_projected {
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
                 {tail})
             ORDER BY first DESC LIMIT 1"
        );
        let read = || -> rusqlite::Result<Option<i64>> {
            let mut statement = self.connection.prepare_cached(&sql)?;
            statement.query_row(params![job, to_sql_number(entry)], |row| row.get(0)).optional()
        };
        read().map_err(|error| self.to_journal_error(error))
    }

    fn load_definition_body(&self, number: i64) -> Result<String, JournalError> {
        let failed = |error| self.to_journal_error(error);
        let mut statement = self
            .connection
            .prepare_cached("SELECT number, hash, body FROM definitions WHERE number = ?1")
            .map_err(failed)?;
        let mut rows = statement.query([number]).map_err(failed)?;
        let row = rows
            .next()
            .map_err(failed)?
            .ok_or_else(|| self.damaged_row("definitions", number, "it is missing".to_owned()))?;
        parse_definition_row(row, self.file)
    }

    fn damaged_row(&self, table: &'static str, row: i64, what: String) -> JournalError {
        JournalError::damaged_row(self.file, table, row, what)
    }
}
