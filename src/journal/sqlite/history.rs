//! Reads the record of one job, page by page, and a job as it was after an entry. It also opens
//! journals that this process does not write.

use super::reader::Reader;
use super::schema;
use crate::error::JournalError;
use crate::query::{JobAtEntry, RecordHead, RecordPage, RecordVersion};
use crate::record::JobNumber;
use crate::recover::{JobRow, JobRows};
use crate::traits::HistoryRecords;
use engine::{Job, JobId, Recorded};
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
        let may_be_unprojected = self.may_be_unprojected(id);
        self.read(|connection| {
            let rows = self.rows(connection);
            let Some(job) = self.find_newest_row(connection, id, may_be_unprojected)? else {
                return Ok(None);
            };
            let definition =
                self.rebuild(connection, |rebuilder| rebuilder.load_definition(job.definition))?;
            let mut page =
                RecordPage { definition, graph: job.graph, rows: Vec::new(), is_last: true };
            let (mut remaining_entries, mut bytes, mut last_seq) = (limit as usize, 0, i64::MAX);
            for seq in rows.seqs_from(job.number, after)? {
                if remaining_entries == 0 || bytes > bytes_max {
                    page.is_last = false;
                }
                if !page.is_last {
                    return Ok(Some(page));
                }
                last_seq = seq;
                for row in rows.entry_rows("seq = ?1", [seq])? {
                    bytes += row.size();
                    for recorded in row.parse_decisions(self.file())? {
                        page.add(recorded, after, &mut remaining_entries);
                    }
                }
            }
            for recorded in rows.confirms_after(job.number, last_seq)? {
                page.add(recorded, after, &mut remaining_entries);
            }
            Ok(Some(page))
        })
    }

    fn for_each_row(
        &self,
        id: JobId,
        handler: &mut dyn FnMut(Recorded),
    ) -> Result<Option<RecordHead>, JournalError> {
        let may_be_unprojected = self.may_be_unprojected(id);
        self.read(|connection| {
            let rows = self.rows(connection);
            let Some(job) = self.find_newest_row(connection, id, may_be_unprojected)? else {
                return Ok(None);
            };
            let definition =
                self.rebuild(connection, |rebuilder| rebuilder.load_definition(job.definition))?;
            rows.for_each_decision(job.number, &mut |recorded| {
                handler(recorded);
                Ok(())
            })?;
            Ok(Some(RecordHead { definition, graph: job.graph, created: job.created }))
        })
    }

    fn load_job_by_number(&self, number: JobNumber) -> Result<Option<Job>, JournalError> {
        self.read(|connection| {
            self.rebuild(connection, |rebuilder| Ok(rebuilder.load(number)?.cloned()))
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
            let mut decisions = Vec::new();
            rows.for_each_decision(number, &mut |recorded| {
                decisions.push(recorded);
                Ok(())
            })?;
            Ok(Some(decisions))
        })
    }

    fn record_version(&self, id: JobId) -> Result<Option<RecordVersion>, JournalError> {
        let may_be_unprojected = self.may_be_unprojected(id);
        self.read(|connection| {
            let rows = self.rows(connection);
            let Some(job) = self.find_newest_row(connection, id, may_be_unprojected)? else {
                return Ok(None);
            };
            let (mut last_seq, mut length) = (i64::MAX, 0);
            let mut update_length =
                |recorded: &Recorded| length = recorded.first + recorded.entries.len() as u64;
            // The last row and the confirms after it are enough: a row has the number of its first
            // entry.
            if let Some(seq) = rows.seqs_from(job.number, u64::MAX)?.pop() {
                last_seq = seq;
                for row in rows.entry_rows("seq = ?1", [seq])? {
                    row.parse_decisions(self.file())?.iter().for_each(&mut update_length);
                }
            }
            rows.confirms_after(job.number, last_seq)?.iter().for_each(update_length);
            Ok(Some(RecordVersion { number: job.number, created: job.created, entries: length }))
        })
    }

    fn load_job_at_entry(
        &self,
        id: JobId,
        entries: u64,
    ) -> Result<Option<JobAtEntry>, JournalError> {
        let may_be_unprojected = self.may_be_unprojected(id);
        self.read(|connection| {
            let Some(number) = self.find_newest(connection, id, may_be_unprojected)? else {
                return Ok(None);
            };
            self.rebuild(connection, |rebuilder| rebuilder.load_at(number, entries))
        })
    }
}

impl Reader {
    /// Opens a reader of a journal without its writing end. Another process may have the journal
    /// open, and is not disturbed.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such file, or if it is not a journal of this schema version.
    pub fn open(path: &Path) -> Result<Reader, JournalError> {
        if !path.is_file() {
            return Err(JournalError::Missing { file: path.to_string_lossy().into_owned() });
        }
        let reader = Reader::new(path);
        reader.read(|connection| schema::check_version(connection, reader.file()))?;
        Ok(reader)
    }

    /// Returns the row of the newest job with this id, like [`Reader::find_newest`].
    fn find_newest_row(
        &self,
        connection: &Connection,
        id: JobId,
        may_be_unprojected: bool,
    ) -> Result<Option<JobRow>, JournalError> {
        match self.find_newest(connection, id, may_be_unprojected)? {
            Some(number) => self.rows(connection).find_job(number),
            None => Ok(None),
        }
    }
}
