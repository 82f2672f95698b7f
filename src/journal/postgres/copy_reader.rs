//! Reads all that a name has in one transaction, for its copy (`crate::copy`). Rows come through
//! cursors, some megabytes at a time.

use super::connection::{Params, params};
use super::controls;
use super::limit_rates;
use super::pool::Session;
use super::rows::{
    DatabaseRows, ENTRY_COLUMNS, JOB_COLUMNS, LEDGER_COLUMNS, NOTICE_COLUMNS, OFFSET_COLUMNS,
    parse_entry, parse_job, parse_ledger, parse_notice, parse_offset,
};
use super::trends;
use crate::copy::rows::{
    CopyReader, DecisionOrder, DecisionText, GateRows, JobOrder, RowHandler, StoredJobRow,
};
use crate::error::JournalError;
use crate::record::{Notice, NoticeNumber, StoredLedger, StoredOffset, StoredTrend};
use crate::recover::JobRows;
use engine::{DefinitionHash, JobState, Timestamp};
use std::cell::Cell;
use tokio_postgres::Row;

/// The bytes that are fetched at once, as far as the rows before tell their size.
const FETCH_BYTES: usize = 4 << 20;

/// How many rows are fetched at once. Each number is a statement of its own.
const FETCH_ROWS: [usize; 5] = [2_000, 500, 100, 20, 4];

/// The fewest bytes that a row is thought to have.
const ROW_BYTES_MIN: usize = 200;

/// Reads a journal in a database.
pub(super) struct DatabaseCopyReader<'a> {
    session: &'a Session<'a>,
    rows: DatabaseRows<'a>,
    /// The number of cursors so far: each has a name of its own.
    cursors: Cell<u32>,
}

impl<'a> DatabaseCopyReader<'a> {
    pub(super) fn new(session: &'a Session<'a>) -> DatabaseCopyReader<'a> {
        DatabaseCopyReader { session, rows: DatabaseRows::new(session), cursors: Cell::new(0) }
    }

    /// Calls `handler` with every row of a query. It returns the size of the row.
    fn for_each_row(
        &self,
        sql: &str,
        handler: &mut dyn FnMut(&Row) -> Result<usize, JournalError>,
    ) -> Result<(), JournalError> {
        self.cursors.set(self.cursors.get() + 1);
        let cursor = format!("copy_{}", self.cursors.get());
        let declare = format!("DECLARE {cursor} NO SCROLL CURSOR FOR {sql}");
        self.session.query(&declare, params![])?;
        let mut count = FETCH_ROWS[3];
        loop {
            let rows = self.session.query(&format!("FETCH {count} FROM {cursor}"), params![])?;
            let mut bytes = 0;
            for row in &rows {
                bytes += ROW_BYTES_MIN + handler(row)?;
            }
            if rows.len() < count {
                return self.session.query(&format!("CLOSE {cursor}"), params![]).map(drop);
            }
            let row_bytes = bytes / rows.len();
            let fits = |count: &usize| count.saturating_mul(row_bytes) <= FETCH_BYTES;
            count = FETCH_ROWS.into_iter().find(fits).unwrap_or(1);
        }
    }

    fn query(&self, sql: &str, params: Params) -> Result<Vec<Row>, JournalError> {
        self.session.query(sql, params)
    }

    fn damaged(&self, table: &'static str, row: i64, problem: &str) -> JournalError {
        JournalError::damaged_row(self.session.journal(), table, row, problem.to_owned())
    }
}

impl CopyReader for DatabaseCopyReader<'_> {
    fn journal(&self) -> &str {
        self.session.journal()
    }

    fn rows(&self) -> &dyn JobRows {
        &self.rows
    }

    fn announce(&self, jobs: &[StoredJobRow]) {
        self.rows.announce(jobs.iter().map(|job| job.row.number));
    }

    fn count_jobs(&self) -> Result<u64, JournalError> {
        let sql = format!("SELECT count(*) FROM jobs WHERE {}", self.session.own("number"));
        let rows = self.query(&sql, params![])?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0)).unsigned_abs())
    }

    fn for_each_definition(
        &self,
        handler: RowHandler<'_, (i64, String)>,
    ) -> Result<(), JournalError> {
        let sql = "SELECT number, hash, body FROM definitions ORDER BY number";
        for row in self.query(sql, params![])? {
            let (number, hash, body): (i64, Vec<u8>, String) = (row.get(0), row.get(1), row.get(2));
            if DefinitionHash::from_json_text(&body).0.as_slice() != hash {
                let problem = "the content does not match its hash";
                return Err(self.damaged("definitions", number, problem));
            }
            handler((number, body))?;
        }
        Ok(())
    }

    fn for_each_job(
        &self,
        order: JobOrder,
        handler: RowHandler<'_, StoredJobRow>,
    ) -> Result<(), JournalError> {
        let (own, columns) = (self.session.own("number"), order.columns());
        let sql = format!(
            "SELECT {JOB_COLUMNS}, state, ended, open FROM jobs WHERE {own} ORDER BY {columns}"
        );
        self.for_each_row(&sql, &mut |row| {
            let job = parse_job(row, self.session.journal())?;
            let (state, ended): (String, Option<i64>) = (row.get(11), row.get(12));
            let state = JobState::from_name(&state)
                .ok_or_else(|| self.damaged("jobs", job.number, "its state is none of a job"))?;
            let (ended, is_open) = (ended.map(Timestamp), row.get(13));
            handler(StoredJobRow { row: job, state, ended, is_open })?;
            Ok(0)
        })
    }

    fn for_each_decision_text(
        &self,
        order: DecisionOrder,
        handler: RowHandler<'_, DecisionText>,
    ) -> Result<(), JournalError> {
        let columns = match order {
            DecisionOrder::ByCommit => "seq",
            DecisionOrder::ByJob => "job, first",
        };
        let own = self.session.own("job");
        let sql = format!("SELECT {ENTRY_COLUMNS} FROM entries WHERE {own} ORDER BY {columns}");
        self.for_each_row(&sql, &mut |row| {
            let (job, entry) = parse_entry(row, self.session.journal())?;
            let bytes = entry.body.len();
            handler(DecisionText { job, first: entry.first, at: entry.at, body: entry.body })?;
            Ok(bytes)
        })
    }

    fn load_notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError> {
        let sql = format!(
            "SELECT {NOTICE_COLUMNS} FROM notices WHERE name = $3 AND number > $1 \
             ORDER BY number LIMIT $2"
        );
        let params = params![after, i64::from(limit), self.session.ordinal().0];
        let rows = self.query(&sql, params)?;
        rows.iter().map(|row| parse_notice(row, self.session.journal())).collect()
    }

    fn load_all_ledgers(&self) -> Result<Vec<StoredLedger>, JournalError> {
        let sql = format!(
            "SELECT {LEDGER_COLUMNS} FROM schedules WHERE name = $1 ORDER BY schedule COLLATE \"C\""
        );
        let rows = self.query(&sql, params![self.session.ordinal().0])?;
        rows.iter().map(|row| parse_ledger(row, self.session.journal())).collect()
    }

    fn load_all_trends(&self) -> Result<Vec<StoredTrend>, JournalError> {
        let rows = self.query(&trends::select_all(), params![self.session.ordinal().0])?;
        Ok(rows.iter().filter_map(trends::parse).collect())
    }

    fn load_all_offsets(&self) -> Result<Vec<StoredOffset>, JournalError> {
        // Sorted by bytes, as in a file.
        let sql = format!(
            "SELECT {OFFSET_COLUMNS} FROM bus_offsets \
             WHERE name = $1 ORDER BY bus COLLATE \"C\", topic COLLATE \"C\", partition"
        );
        let rows = self.query(&sql, params![self.session.ordinal().0])?;
        rows.iter().map(|row| parse_offset(row, self.session.journal())).collect()
    }

    fn load_gate_rows(&self) -> Result<GateRows, JournalError> {
        let (name, journal) = (self.session.ordinal().0, self.session.journal());
        let marks = self.query(limit_rates::SELECT_MARKS, params![name])?;
        let controls = self.query(controls::SELECT_CONTROLS, params![name])?;
        Ok(GateRows {
            marks: marks
                .iter()
                .map(|row| limit_rates::parse(row, journal))
                .collect::<Result<_, _>>()?,
            controls: controls
                .iter()
                .map(|row| controls::parse(row, journal))
                .collect::<Result<_, _>>()?,
        })
    }
}
