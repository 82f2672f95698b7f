//! The rows from which jobs are rebuilt, read through any connection to the file.

use super::row::{
    ENTRY_COLUMNS, EntryRow, GROUP_ROWS, JOB_ROWS, checked_definition, checked_entry,
    checked_group, damaged_or_failed, each_row, job_row, misplaced, place, recorded,
};
use crate::engine::Recorded;
use crate::journal::error::JournalError;
use crate::journal::record::JobNumber;
use crate::journal::recover::{ChildPlace, JobRow, Rows};
use rusqlite::{Connection, OptionalExtension, params};

/// The rows of a journal file.
pub(super) struct FileRows<'a> {
    /// Any connection to the file.
    pub(super) connection: &'a Connection,
    /// The name of the file, for errors.
    pub(super) file: &'a str,
    /// Whether everything is projected; otherwise the newest rows are searched for what is not.
    pub(super) is_derived: bool,
}

/// The condition of the rows of `entries` that are not projected yet.
pub(super) const TAIL: &str = "seq > (SELECT upto FROM derived)";

/// The callback that receives each row of `entries`.
type EachRow<'a> = &'a mut dyn FnMut(EntryRow) -> Result<(), JournalError>;

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
    pub(super) fn rows_of(&self, job: JobNumber) -> Result<Vec<EntryRow>, JournalError> {
        let mut found = Vec::new();
        self.each_row_of(job, &mut |row| {
            found.push(row);
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the last rows of a job before the entry numbered `before`, the newest first, from a
    /// file in which everything is projected.
    pub(super) fn last_before(
        &self,
        job: JobNumber,
        before: u64,
        count: u32,
    ) -> Result<Vec<EntryRow>, JournalError> {
        let last = "seq IN (SELECT seq FROM places WHERE job = ?1 AND first < ?2 \
                    ORDER BY first DESC LIMIT ?3)";
        let mut rows = self.entry_rows(last, params![job, place(before), count])?;
        rows.reverse();
        Ok(rows)
    }

    fn each_row_of(&self, job: JobNumber, each: EachRow<'_>) -> Result<(), JournalError> {
        // In the order of the index, so nothing is sorted.
        let sql = "SELECT e.job, e.first, e.at, e.body, e.checksum, e.seq, e.confirms, e.origin
                   FROM places p CROSS JOIN entries e ON e.seq = p.seq WHERE p.job = ?1 \
                     ORDER BY p.first";
        self.each_row(sql, [job], each)?;
        if self.is_derived {
            return Ok(());
        }
        let sql =
            format!("SELECT {ENTRY_COLUMNS} FROM entries WHERE {TAIL} AND job = ?1 ORDER BY seq");
        self.each_row(&sql, [job], each)
    }

    fn each_row(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
        each: EachRow<'_>,
    ) -> Result<(), JournalError> {
        let (connection, file) = (self.connection, self.file);
        each_row((connection, file), sql, values, |row| each(checked_entry(row, file)?))
    }

    /// Returns the `seq` of a job's rows, starting with the one that has the entry numbered
    /// `first`.
    pub(super) fn from(&self, job: JobNumber, first: u64) -> Result<Vec<i64>, JournalError> {
        let sql = format!(
            "SELECT seq FROM (
                 SELECT first, seq FROM places WHERE job = ?1
                 AND first >= (SELECT coalesce(max(first), 0) FROM places WHERE job = ?1 \
                   AND first <= ?2)
                 UNION ALL SELECT first, seq FROM entries WHERE {TAIL} AND job = ?1)
             ORDER BY first"
        );
        let read = || -> rusqlite::Result<Vec<i64>> {
            let mut statement = self.connection.prepare_cached(&sql)?;
            statement.query_map([job, place(first)], |row| row.get(0))?.collect()
        };
        read().map_err(|error| self.failed(error))
    }

    /// Returns a job's first row.
    pub(super) fn first_of(&self, job: JobNumber) -> Result<Option<EntryRow>, JournalError> {
        let first = "seq = (SELECT seq FROM places WHERE job = ?1 AND first = 0)";
        let row = self.entry_rows(first, [job])?.pop();
        if row.is_some() || self.is_derived {
            return Ok(row);
        }
        let condition = format!("{TAIL} AND job = ?1 AND origin IS NOT NULL");
        Ok(self.entry_rows(&condition, [job])?.pop())
    }

    /// Returns the size of a job's rows in bytes.
    pub(super) fn bytes_of(&self, job: JobNumber) -> Result<usize, JournalError> {
        let sql = format!(
            "SELECT (SELECT coalesce(sum(octet_length(e.body)), 0) FROM places p \
                    JOIN entries e ON e.seq = p.seq WHERE p.job = ?1)
                  + (SELECT coalesce(sum(octet_length(body)), 0) FROM entries WHERE {TAIL} \
                    AND job = ?1)"
        );
        let read = || self.connection.prepare_cached(&sql)?.query_row([job], |row| row.get(0));
        let bytes: i64 = read().map_err(|error| self.failed(error))?;
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Returns the confirms of a job after this row of `entries`, which no row of its own has yet.
    pub(super) fn confirmed(
        &self,
        job: JobNumber,
        behind: i64,
    ) -> Result<Vec<Recorded>, JournalError> {
        let sql = format!("{GROUP_ROWS} WHERE seq > ?1 ORDER BY seq");
        let mut confirmed = Vec::new();
        each_row((self.connection, self.file), &sql, [behind], |row| {
            let (_, group) = checked_group(row, self.file)?;
            let own = group.into_iter().filter(|(of, _)| *of == job);
            confirmed.extend(own.flat_map(|(_, rows)| rows).map(recorded));
            Ok(())
        })?;
        Ok(confirmed)
    }

    fn job_rows(
        &self,
        condition: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<JobRow>, JournalError> {
        let sql = format!("{JOB_ROWS} WHERE {condition}");
        let mut found = Vec::new();
        each_row((self.connection, self.file), &sql, values, |row| {
            found.push(job_row(row, self.file)?);
            Ok(())
        })?;
        Ok(found)
    }

    fn failed(&self, error: rusqlite::Error) -> JournalError {
        damaged_or_failed(self.file, error)
    }
}

impl Rows for FileRows<'_> {
    fn job(&self, number: JobNumber) -> Result<Option<JobRow>, JournalError> {
        let row = self.job_rows("number = ?1", [number])?.pop();
        if row.is_some() || self.is_derived {
            return Ok(row);
        }
        let condition = format!("{TAIL} AND job = ?1 AND origin IS NOT NULL");
        Ok(self.entry_rows(&condition, [number])?.pop().and_then(|first| first.origin))
    }

    fn open_jobs(&self) -> Result<Vec<JobRow>, JournalError> {
        self.job_rows("open = 1 ORDER BY number", [])
    }

    fn live_children(&self, parent: JobNumber) -> Result<Vec<JobRow>, JournalError> {
        self.job_rows(
            "parent = ?1 AND root = (SELECT root FROM jobs WHERE number = ?1) AND ended IS NULL",
            [parent],
        )
    }

    fn child(
        &self,
        root: JobNumber,
        place: &ChildPlace,
    ) -> Result<Option<JobNumber>, JournalError> {
        let ChildPlace { parent, step, item, id } = place;
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
            .map_err(|error| self.failed(error))
    }

    fn recorded(
        &self,
        job: JobNumber,
        each: &mut dyn FnMut(Recorded) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let (mut entries, mut last) = (0, i64::MAX);
        let mut in_place = |seq: i64, recorded: Recorded| {
            if recorded.first != entries {
                return Err(misplaced(seq, recorded.first, entries, self.file));
            }
            entries += recorded.entries.len() as u64;
            each(recorded)
        };
        self.each_row_of(job, &mut |row| {
            last = row.seq;
            let recorded = row.recorded(self.file)?;
            recorded.into_iter().try_for_each(|recorded| in_place(row.seq, recorded))
        })?;
        if !self.is_derived {
            for recorded in self.confirmed(job, last)? {
                in_place(last, recorded)?;
            }
        }
        Ok(())
    }

    fn place_of(&self, job: JobNumber, entry: u64) -> Result<Option<i64>, JournalError> {
        let tail = if self.is_derived {
            String::new()
        } else {
            format!(
                "UNION ALL SELECT first, seq FROM entries WHERE {TAIL} AND job = ?1 AND first <= ?2"
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
            statement.query_row(params![job, place(entry)], |row| row.get(0)).optional()
        };
        read().map_err(|error| self.failed(error))
    }

    fn definition(&self, number: i64) -> Result<String, JournalError> {
        let failed = |error| self.failed(error);
        let mut statement = self
            .connection
            .prepare_cached("SELECT number, hash, body FROM definitions WHERE number = ?1")
            .map_err(failed)?;
        let mut rows = statement.query([number]).map_err(failed)?;
        let row = rows
            .next()
            .map_err(failed)?
            .ok_or_else(|| self.damaged("definitions", number, "it is missing".to_owned()))?;
        checked_definition(row, self.file)
    }

    fn damaged(&self, table: &'static str, row: i64, what: String) -> JournalError {
        JournalError::damaged_row(self.file, table, row, what)
    }
}
