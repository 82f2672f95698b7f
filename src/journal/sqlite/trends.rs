//! Stores and reads the buckets of trends (table `trends`).

use super::reader::Reader;
use super::row_format::{for_each_row, to_journal_error};
use super::writer::{JournalWriter, hit_fail_point};
use crate::checksums::trend_checksum;
use crate::error::JournalError;
use crate::record::StoredTrend;
use crate::traits::TrendRecords;
use engine::Timestamp;
use rusqlite::{Connection, Params, Row, params};
use std::sync::Arc;

/// The columns of `trends` that [`parse`] reads.
const COLUMNS: &str = "ring, position, workflow, start, body, checksum";

/// Selects all buckets, in the order in which they are copied.
pub(super) const ALL: &str = "ORDER BY ring, position, workflow";

/// Returns the buckets of a query with this condition and order, without damaged ones. `file`: the
/// name of the journal, for messages.
pub(super) fn load(
    (connection, file): (&Connection, &str),
    condition: &str,
    values: impl Params,
) -> Result<Vec<StoredTrend>, JournalError> {
    let sql = format!("SELECT {COLUMNS} FROM trends {condition}");
    let mut trends = Vec::new();
    for_each_row((connection, file), &sql, values, |row| {
        trends.extend(parse(row).map_err(|error| to_journal_error(file, error))?);
        Ok(())
    })?;
    Ok(trends)
}

/// Parses a row of [`COLUMNS`]; `None`: it is not what was written.
fn parse(row: &Row<'_>) -> rusqlite::Result<Option<StoredTrend>> {
    let (workflow, body): (String, String) = (row.get(2)?, row.get(4)?);
    let trend = StoredTrend {
        ring: row.get(0)?,
        position: row.get(1)?,
        workflow: workflow.into(),
        start: Timestamp(row.get(3)?),
        body: body.into(),
    };
    let checksum: u32 = row.get(5)?;
    Ok(Some(trend).filter(|trend| trend_checksum(trend) == checksum))
}

impl JournalWriter {
    /// Deletes the trends of the workflows `forgotten`, then stores buckets, all or nothing.
    pub(super) fn store_trends(
        &mut self,
        trends: &[StoredTrend],
        forgotten: &[Arc<str>],
    ) -> Result<(), JournalError> {
        self.check_not_broken()?;
        self.store_trends_in_transaction(trends, forgotten)
            .map_err(|error| self.to_journal_error(error))
    }

    fn store_trends_in_transaction(
        &mut self,
        trends: &[StoredTrend],
        forgotten: &[Arc<str>],
    ) -> rusqlite::Result<()> {
        hit_fail_point("journal::trends")?;
        let transaction = self.connection.transaction()?;
        {
            let mut delete =
                transaction.prepare_cached("DELETE FROM trends WHERE workflow = ?1")?;
            for workflow in forgotten {
                delete.execute(params![workflow])?;
            }
            let mut upsert = transaction.prepare_cached(
                "INSERT INTO trends(ring, position, workflow, start, body, checksum)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT DO UPDATE SET start = excluded.start, body = excluded.body,
                   checksum = excluded.checksum",
            )?;
            for trend in trends {
                let StoredTrend { ring, position, workflow, start, body } = trend;
                upsert.execute(params![
                    ring,
                    position,
                    workflow,
                    start.0,
                    body,
                    trend_checksum(trend)
                ])?;
            }
        }
        transaction.commit()
    }
}

impl TrendRecords for Reader {
    fn load_trend(
        &self,
        ring: i32,
        workflow: &str,
        since: Timestamp,
    ) -> Result<Vec<StoredTrend>, JournalError> {
        let condition = "WHERE ring = ?1 AND workflow = ?2 AND start >= ?3 ORDER BY start";
        self.read(|connection| {
            load((connection, self.file()), condition, params![ring, workflow, since.0])
        })
    }

    fn load_trends_at(&self, ring: i32, position: i32) -> Result<Vec<StoredTrend>, JournalError> {
        let condition = "WHERE ring = ?1 AND position = ?2 ORDER BY workflow";
        self.read(|connection| load((connection, self.file()), condition, params![ring, position]))
    }

    fn load_trend_workflows(&self) -> Result<Vec<Arc<str>>, JournalError> {
        let sql = "SELECT DISTINCT workflow FROM trends WHERE workflow <> '' ORDER BY workflow";
        self.read(|connection| {
            let mut names = Vec::new();
            for_each_row((connection, self.file()), sql, [], |row| {
                let name: String = row.get(0).map_err(|e| to_journal_error(self.file(), e))?;
                names.push(name.into());
                Ok(())
            })?;
            Ok(names)
        })
    }
}
