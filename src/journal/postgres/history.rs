//! Reads the record of one job, page by page, and a job as it was after an entry.

use super::reader::Reader;
use super::rows::DatabaseRows;
use crate::error::JournalError;
use crate::query::{JobAtEntry, RecordHead, RecordPage, RecordVersion};
use crate::record::JobNumber;
use crate::recover::JobRows;
use crate::traits::HistoryRecords;
use engine::{Job, JobId, Recorded};

/// How many rows of a record are read at once.
const PAGE_ROWS: i64 = 64;

impl HistoryRecords for Reader {
    fn load_job_by_number(&self, number: JobNumber) -> Result<Option<Job>, JournalError> {
        let session = self.pool.begin()?;
        self.rebuild(&session, |rebuild| Ok(rebuild.load(number)?.cloned()))
    }

    fn load_rows_by_number(
        &self,
        number: JobNumber,
    ) -> Result<Option<Vec<Recorded>>, JournalError> {
        let session = self.pool.begin()?;
        let rows = DatabaseRows::new(&session);
        if rows.find_job(number)?.is_none() {
            return Ok(None);
        }
        let mut decisions = Vec::new();
        rows.for_each_decision(number, &mut |recorded| {
            decisions.push(recorded);
            Ok(())
        })?;
        Ok(Some(decisions))
    }

    fn load_job_at_entry(
        &self,
        id: JobId,
        entries: u64,
    ) -> Result<Option<JobAtEntry>, JournalError> {
        let session = self.pool.begin()?;
        let Some(number) = session.find_newest(id)? else { return Ok(None) };
        self.rebuild(&session, |rebuild| rebuild.load_at(number, entries))
    }

    fn load_record_page(
        &self,
        id: JobId,
        after: u64,
        limit: u32,
        bytes_max: usize,
    ) -> Result<Option<RecordPage>, JournalError> {
        let session = self.pool.begin()?;
        let Some(job) = session.find_newest_row(id)? else { return Ok(None) };
        let definition = self.load_definition_by_number(&session, job.definition)?;
        let mut page = RecordPage { definition, graph: job.graph, rows: Vec::new(), is_last: true };
        let rows = DatabaseRows::new(&session);
        // The page may begin within the row that contains the entry `after`.
        let before = i64::try_from(after).unwrap_or(i64::MAX).saturating_add(1);
        let first_row = rows.last_rows_before(job.number, before, 1)?.pop();
        let mut next = first_row.map_or(0, |row| row.first);
        let (mut remaining, mut bytes) = (limit as usize, 0);
        loop {
            let batch = rows.entry_rows(job.number, next, PAGE_ROWS)?;
            let Some(last) = batch.last() else { return Ok(Some(page)) };
            next = last.first + 1;
            for row in batch {
                if remaining == 0 || bytes > bytes_max {
                    page.is_last = false;
                }
                if !page.is_last {
                    return Ok(Some(page));
                }
                bytes += row.body.len();
                let recorded = row.parse_recorded(job.number, session.journal())?;
                page.add(recorded, after, &mut remaining);
            }
        }
    }

    fn for_each_row(
        &self,
        id: JobId,
        handler: &mut dyn FnMut(Recorded),
    ) -> Result<Option<RecordHead>, JournalError> {
        let session = self.pool.begin()?;
        let Some(job) = session.find_newest_row(id)? else { return Ok(None) };
        let definition = self.load_definition_by_number(&session, job.definition)?;
        DatabaseRows::new(&session).for_each_decision(job.number, &mut |recorded| {
            handler(recorded);
            Ok(())
        })?;
        Ok(Some(RecordHead { definition, graph: job.graph, created: job.created }))
    }

    fn record_version(&self, id: JobId) -> Result<Option<RecordVersion>, JournalError> {
        let session = self.pool.begin()?;
        let Some(job) = session.find_newest_row(id)? else { return Ok(None) };
        // The last row is enough: a row has the number of its first entry.
        let last = DatabaseRows::new(&session).last_rows_before(job.number, i64::MAX, 1)?.pop();
        let length = match last {
            Some(row) => row.first + row.parse(job.number, session.journal())?.len() as u64,
            None => 0,
        };
        Ok(Some(RecordVersion { number: job.number, created: job.created, entries: length }))
    }
}
