//! The rows from which jobs are rebuilt, through any connection to the file.

use super::row::{
    ENTRY_ROWS, JOB_ROWS, checked_definition, checked_entries, damaged_or_failed, job_row,
};
use crate::engine::Recorded;
use crate::journal::error::JournalError;
use crate::journal::record::JobNumber;
use crate::journal::recover::{JobRow, Place, Rows};
use rusqlite::{Connection, OptionalExtension, params};

/// The rows of a file.
pub(super) struct FileRows<'a> {
    /// Any connection to it.
    pub(super) connection: &'a Connection,
    /// Its name.
    pub(super) file: &'a str,
}

impl FileRows<'_> {
    fn job_rows(
        &self,
        condition: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<JobRow>, JournalError> {
        let mut statement = self
            .connection
            .prepare_cached(&format!("{JOB_ROWS} WHERE {condition}"))
            .map_err(|error| self.failed(error))?;
        let mut rows = statement.query(values).map_err(|error| self.failed(error))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(|error| self.failed(error))? {
            found.push(job_row(row, self.file)?);
        }
        Ok(found)
    }

    fn failed(&self, error: rusqlite::Error) -> JournalError {
        damaged_or_failed(self.file, error)
    }
}

impl Rows for FileRows<'_> {
    fn job(&self, number: JobNumber) -> Result<Option<JobRow>, JournalError> {
        Ok(self.job_rows("number = ?1", [number])?.pop())
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

    fn child(&self, root: JobNumber, place: &Place) -> Result<Option<JobNumber>, JournalError> {
        let Place { parent, step, item, id } = place;
        self.connection
            .prepare_cached(
                "SELECT number FROM jobs WHERE root = ?1 AND parent = ?2 AND step = ?3 AND item = ?4 AND id = ?5
                 ORDER BY number DESC LIMIT 1",
            )
            .and_then(|mut statement| {
                statement
                    .query_row(params![root, parent, step, item, id.0.as_bytes()], |row| row.get(0))
                    .optional()
            })
            .map_err(|error| self.failed(error))
    }

    fn recorded(&self, job: JobNumber) -> Result<Vec<Recorded>, JournalError> {
        let failed = |error| self.failed(error);
        let mut statement = self
            .connection
            .prepare_cached(&format!("{ENTRY_ROWS} WHERE job = ?1 ORDER BY first"))
            .map_err(failed)?;
        let mut rows = statement.query([job]).map_err(failed)?;
        let (mut found, mut entries) = (Vec::new(), 0);
        while let Some(row) = rows.next().map_err(failed)? {
            let row = checked_entries(row, self.file)?;
            if row.first != entries {
                return Err(row.misplaced(entries, self.file));
            }
            let recorded = row.recorded(self.file)?;
            entries += recorded.entries.len() as u64;
            found.push(recorded);
        }
        Ok(found)
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
        JournalError::Damaged { file: self.file.to_owned(), table, row, what }
    }
}
