//! Reads what is kept of many jobs: creation and end times for statistics, notices, and offsets.

use super::connection::{Params, params, to_sql_text};
use super::reader::Reader;
use super::rows::{
    LEDGER_COLUMNS, NOTICE_COLUMNS, OFFSET_COLUMNS, parse_ledger, parse_notice, parse_offset,
};
use crate::error::JournalError;
use crate::query::EndedCursor;
use crate::record::{JobNumber, Notice, NoticeNumber, StoredLedger, StoredOffset};
use crate::traits::{NoticeRecords, OffsetRecords, ScheduleRecords, StatisticsRecords};
use engine::{JobState, Timestamp};
use tokio_postgres::Row;

impl StatisticsRecords for Reader {
    fn for_each_creation(
        &self,
        below: JobNumber,
        limit: u32,
        handler: &mut dyn FnMut(&str, Timestamp),
    ) -> Result<Option<JobNumber>, JournalError> {
        let sql = format!(
            "SELECT number, workflow, created FROM jobs
             WHERE parent IS NULL AND number < $1 AND {} ORDER BY number DESC LIMIT $2",
            self.pool.ordinal.condition("number")
        );
        let rows = self.query(&sql, params![below, i64::from(limit)])?;
        for row in &rows {
            handler(row.get(1), Timestamp(row.get(2)));
        }
        Ok(rows.last().map(|row| row.get(0)))
    }

    fn for_each_end(
        &self,
        workflow: &str,
        since: Timestamp,
        after: EndedCursor,
        limit: u32,
        handler: &mut dyn FnMut(JobState, Timestamp, Timestamp),
    ) -> Result<Option<EndedCursor>, JournalError> {
        let sql = format!(
            "SELECT number, state, created, ended FROM jobs
             WHERE workflow = $1 AND parent IS NULL AND ended IS NOT NULL AND ended >= $2
               AND (ended, number) < ($3, $4) AND {} ORDER BY ended DESC, number DESC LIMIT $5",
            self.pool.ordinal.condition("number")
        );
        let params =
            params![to_sql_text(workflow), since.0, after.ended.0, after.number, i64::from(limit)];
        let rows = self.query(&sql, params)?;
        for row in &rows {
            if let Some(state) = JobState::from_name(row.get(1)) {
                handler(state, Timestamp(row.get(2)), Timestamp(row.get(3)));
            }
        }
        let to_cursor =
            |row: &Row| EndedCursor { ended: Timestamp(row.get(3)), number: row.get(0) };
        Ok(rows.last().map(to_cursor))
    }
}

impl Reader {
    /// Runs a query that selects notices of this manager's name, and checks their checksums.
    fn query_notices(
        &self,
        condition: &str,
        params: Params,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError> {
        let sql = format!(
            "SELECT {NOTICE_COLUMNS} FROM notices WHERE name = {} AND {condition}",
            self.pool.ordinal.0
        );
        let rows = self.query(&sql, params)?;
        rows.iter().map(|row| parse_notice(row, &self.pool.journal)).collect()
    }
}

impl NoticeRecords for Reader {
    fn load_notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError> {
        let condition = "number > $1 ORDER BY number LIMIT $2";
        self.query_notices(condition, params![after, i64::from(limit)])
    }

    fn load_notice(&self, number: NoticeNumber) -> Result<Option<Notice>, JournalError> {
        let notices = self.query_notices("number = $1", params![number])?;
        Ok(notices.into_iter().next().map(|(_, notice)| notice))
    }

    fn count_notices(&self) -> Result<i64, JournalError> {
        let rows = self
            .query("SELECT count(*) FROM notices WHERE name = $1", params![self.pool.ordinal.0])?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }
}

impl OffsetRecords for Reader {
    /// Checks the checksums too, because an offset that is too high would skip replies.
    fn load_offsets(&self, bus: &str) -> Result<Vec<StoredOffset>, JournalError> {
        let sql = format!("SELECT {OFFSET_COLUMNS} FROM bus_offsets WHERE name = $1 AND bus = $2");
        let rows = self.query(&sql, params![self.pool.ordinal.0, bus.to_owned()])?;
        rows.iter().map(|row| parse_offset(row, &self.pool.journal)).collect()
    }
}

impl ScheduleRecords for Reader {
    fn load_ledgers(&self) -> Result<Vec<StoredLedger>, JournalError> {
        let sql = format!(
            "SELECT {LEDGER_COLUMNS} FROM schedules WHERE name = $1 ORDER BY schedule COLLATE \"C\""
        );
        let rows = self.query(&sql, params![self.pool.ordinal.0])?;
        rows.iter().map(|row| parse_ledger(row, &self.pool.journal)).collect()
    }
}
