//! Pages of the record of one job, and a job as it was; also from a file that another process has
//! open.

use super::reader::Reader;
use super::schema;
use crate::error::JournalError;
use crate::query::{JobAtEntry, RecordHead, RecordPage};
use crate::record::JobNumber;
use crate::recover::{JobRow, JobRows};
use crate::traits::HistoryRecords;
use engine::{Job, JobId, Recorded, Timestamp};
use rusqlite::Connection;
use std::path::Path;

impl HistoryRecords for Reader {
    fn load_record_page(
        &self,
        id: JobId,
        after: u64,
        limit: u32,
        bytes_max: usize,
    ) -> Result<Option<RecordPage>, JournalError> {
        let is_new = self.may_be_unprojected(id);
        self.read(|connection| {
            let rows = self.rows(connection);
            let Some(job) = self.find_newest_row(connection, id, is_new)? else { return Ok(None) };
            let definition =
                self.rebuild(connection, |rebuild| rebuild.load_definition(job.definition))?;
            let mut page =
                RecordPage { definition, graph: job.graph, rows: Vec::new(), is_last: true };
            let (mut left, mut bytes, mut last) = (limit as usize, 0, i64::MAX);
            for seq in rows.seqs_from(job.number, after)? {
                if left == 0 || bytes > bytes_max {
                    page.is_last = false;
                }
                if !page.is_last {
                    return Ok(Some(page));
                }
                last = seq;
                for row in rows.entry_rows("seq = ?1", [seq])? {
                    bytes += row.size();
                    for recorded in row.parse_decisions(self.file())? {
                        add_to_page(&mut page, recorded, after, &mut left);
                    }
                }
            }
            for recorded in rows.confirms_after(job.number, last)? {
                add_to_page(&mut page, recorded, after, &mut left);
            }
            Ok(Some(page))
        })
    }

    fn for_each_row(
        &self,
        id: JobId,
        each: &mut dyn FnMut(Recorded),
    ) -> Result<Option<RecordHead>, JournalError> {
        let is_new = self.may_be_unprojected(id);
        self.read(|connection| {
            let rows = self.rows(connection);
            let Some(job) = self.find_newest_row(connection, id, is_new)? else { return Ok(None) };
            let definition =
                self.rebuild(connection, |rebuild| rebuild.load_definition(job.definition))?;
            rows.for_each_decision(job.number, &mut |row| {
                each(row);
                Ok(())
            })?;
            Ok(Some(RecordHead { definition, graph: job.graph, created: job.created }))
        })
    }

    fn load_job_by_number(&self, number: JobNumber) -> Result<Option<Job>, JournalError> {
        self.read(|connection| {
            self.rebuild(connection, |rebuild| Ok(rebuild.load(number)?.cloned()))
        })
    }

    fn load_rows_by_number(
        &self,
        number: JobNumber,
    ) -> Result<Option<Vec<Recorded>>, JournalError> {
        self.read(|connection| {
            let rows = self.rows(connection);
            if rows.find_job(number)?.is_none() {
                return Ok(None);
            }
            let mut read = Vec::new();
            rows.for_each_decision(number, &mut |row| {
                read.push(row);
                Ok(())
            })?;
            Ok(Some(read))
        })
    }

    fn record_length(&self, id: JobId) -> Result<Option<(Timestamp, u64)>, JournalError> {
        let is_new = self.may_be_unprojected(id);
        self.read(|connection| {
            let rows = self.rows(connection);
            let Some(job) = self.find_newest_row(connection, id, is_new)? else { return Ok(None) };
            let (mut last, mut length) = (i64::MAX, 0);
            let mut count =
                |recorded: &Recorded| length = recorded.first + recorded.entries.len() as u64;
            if let Some(seq) = rows.seqs_from(job.number, u64::MAX)?.pop() {
                last = seq;
                for row in rows.entry_rows("seq = ?1", [seq])? {
                    row.parse_decisions(self.file())?.iter().for_each(&mut count);
                }
            }
            rows.confirms_after(job.number, last)?.iter().for_each(count);
            Ok(Some((job.created, length)))
        })
    }

    fn load_job_at_entry(&self, id: JobId, at: u64) -> Result<Option<JobAtEntry>, JournalError> {
        let is_new = self.may_be_unprojected(id);
        self.read(|connection| {
            let Some(number) = self.find_newest(connection, id, is_new)? else { return Ok(None) };
            self.rebuild(connection, |rebuild| rebuild.load_at(number, at))
        })
    }
}

impl Reader {
    /// Opens a reader of a file that this process has no [`super::SqliteJournal`] of. Another
    /// process may have it open, and notices nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such file, or if it is no journal or has another schema
    /// version.
    pub fn open(path: &Path) -> Result<Reader, JournalError> {
        if !path.is_file() {
            return Err(JournalError::Missing { file: path.to_string_lossy().into_owned() });
        }
        let reader = Reader::new(path);
        reader.read(|connection| schema::check_version(connection, reader.file()))?;
        Ok(reader)
    }

    /// Returns the fields that never change of the newest job with this id.
    fn find_newest_row(
        &self,
        connection: &Connection,
        id: JobId,
        may_be_new: bool,
    ) -> Result<Option<JobRow>, JournalError> {
        match self.find_newest(connection, id, may_be_new)? {
            Some(number) => self.rows(connection).find_job(number),
            None => Ok(None),
        }
    }
}

/// Adds the entries of a row after the entry numbered `after` to a page, as far as there is room.
fn add_to_page(page: &mut RecordPage, mut row: Recorded, after: u64, left: &mut usize) {
    let skipped = usize::try_from(after.saturating_sub(row.first)).unwrap_or(usize::MAX);
    let skipped = skipped.min(row.entries.len());
    row.entries.drain(..skipped);
    row.first += skipped as u64;
    if row.entries.is_empty() {
        return;
    }
    if row.entries.len() > *left {
        row.entries.truncate(*left);
        page.is_last = false;
    }
    *left -= row.entries.len();
    if !row.entries.is_empty() {
        page.rows.push(row);
    }
}
