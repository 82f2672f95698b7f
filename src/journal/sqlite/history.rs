//! The record of one job, a page at a time, and a job as it was; also of a file that another
//! process has open.

use super::reader::Reader;
use super::row::{ENTRY_ROWS, checked_entries};
use super::schema;
use crate::engine::JobId;
use crate::journal::error::JournalError;
use crate::journal::query::{RecordPage, Then};
use rusqlite::{Connection, OptionalExtension, params};
use std::path::Path;

impl Reader {
    /// A reader of a file that this process has no [`super::Store`] of; another one may run on it,
    /// and notices nothing.
    ///
    /// # Errors
    ///
    /// There is no such file; it is no journal, or one of another schema version.
    pub fn open(path: &Path) -> Result<Reader, JournalError> {
        if !path.is_file() {
            return Err(JournalError::Missing { file: path.to_string_lossy().into_owned() });
        }
        let reader = Reader::new(path);
        reader.with(|connection| schema::readable(connection, reader.file()))?;
        Ok(reader)
    }

    /// The entries of the newest job with this id behind the entry numbered `after`, up to `limit`
    /// of them, and rows of about `bytes_max` bytes.
    pub fn record(
        &self,
        id: JobId,
        after: u64,
        limit: u32,
        bytes_max: usize,
    ) -> Result<Option<RecordPage>, JournalError> {
        self.with(|connection| {
            let Some((number, graph, definition)) = self.newest(connection, id)? else {
                return Ok(None);
            };
            let definition = self.with_definitions(connection, |rebuild| rebuild.definition(definition))?;
            let mut page = RecordPage { definition, graph, rows: Vec::new(), is_last: true };
            let failed = |error| self.failed(error);
            let sql = format!(
                "{ENTRY_ROWS} WHERE job = ?1 AND first >=
                 (SELECT coalesce(max(first), 0) FROM entries WHERE job = ?1 AND first <= ?2) ORDER BY first"
            );
            let mut statement = connection.prepare_cached(&sql).map_err(failed)?;
            let place = i64::try_from(after).unwrap_or(i64::MAX);
            let mut rows = statement.query(params![number, place]).map_err(failed)?;
            let (mut left, mut bytes) = (limit as usize, 0);
            while let Some(row) = rows.next().map_err(failed)? {
                if left == 0 || bytes > bytes_max {
                    page.is_last = false;
                    break;
                }
                let row = checked_entries(row, self.file())?;
                bytes += row.bytes();
                let mut row = row.recorded(self.file())?;
                let skipped = usize::try_from(after.saturating_sub(row.first)).unwrap_or(usize::MAX);
                let skipped = skipped.min(row.entries.len());
                row.entries.drain(..skipped);
                row.first += skipped as u64;
                if row.entries.len() > left {
                    row.entries.truncate(left);
                    page.is_last = false;
                }
                left -= row.entries.len();
                page.rows.push(row);
                if !page.is_last {
                    break;
                }
            }
            Ok(Some(page))
        })
    }

    /// The newest job with this id as it was after the entry numbered `at`.
    pub fn job_at(&self, id: JobId, at: u64) -> Result<Option<Then>, JournalError> {
        self.with(|connection| {
            let Some((number, ..)) = self.newest(connection, id)? else { return Ok(None) };
            self.with_definitions(connection, |rebuild| rebuild.load_at(number, at))
        })
    }

    /// The number, the graph and the definition of the newest job with this id.
    fn newest(
        &self,
        connection: &Connection,
        id: JobId,
    ) -> Result<Option<(i64, u16, i64)>, JournalError> {
        connection
            .prepare_cached(
                "SELECT number, graph, definition FROM jobs WHERE id = ?1 ORDER BY number DESC LIMIT 1",
            )
            .and_then(|mut statement| {
                statement
                    .query_row([id.0.as_bytes()], |row| {
                        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                    })
                    .optional()
            })
            .map_err(|error| self.failed(error))
    }
}
