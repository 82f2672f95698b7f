//! Stores and reads the buckets of trends (table `trends`).

use super::commit_connection::BatchStatement;
use super::connection::{params, to_sql_text};
use super::reader::Reader;
use super::store::PostgresJournal;
use crate::checksums::trend_checksum;
use crate::error::JournalError;
use crate::record::StoredTrend;
use crate::traits::TrendRecords;
use engine::Timestamp;
use std::sync::Arc;
use tokio_postgres::Row;

/// The columns of `trends` that [`parse`] reads.
const COLUMNS: &str = "ring, position, workflow, start, body, checksum";

/// Returns the query for all buckets of the name `$1`, in the order in which they are copied.
pub(super) fn select_all() -> String {
    format!(
        "SELECT {COLUMNS} FROM trends
         WHERE name = $1 ORDER BY ring, position, workflow COLLATE \"C\""
    )
}

/// Parses a row of [`COLUMNS`]; `None`: it is not what was written.
pub(super) fn parse(row: &Row) -> Option<StoredTrend> {
    let (workflow, body): (String, String) = (row.get(2), row.get(4));
    let trend = StoredTrend {
        ring: row.get(0),
        position: row.get(1),
        workflow: workflow.into(),
        start: Timestamp(row.get(3)),
        body: body.into(),
    };
    Some(trend).filter(|trend| i64::from(trend_checksum(trend)) == row.get::<_, i64>(5))
}

impl PostgresJournal {
    /// Deletes the trends of the workflows `forgotten`, then stores buckets, all or nothing.
    pub(super) fn write_trends(
        &mut self,
        trends: &[StoredTrend],
        forgotten: &[Arc<str>],
    ) -> Result<(), JournalError> {
        let name = self.writer.ordinal.0;
        let delete = "DELETE FROM trends WHERE name = $1 AND workflow = ANY($2)";
        let forgotten: Vec<String> = forgotten.iter().map(|name| to_sql_text(name)).collect();
        let upsert = "INSERT INTO trends(name, ring, position, workflow, start, body, checksum)
                      SELECT $7, u.* FROM unnest($1::integer[], $2::integer[], $3::text[],
                                                 $4::bigint[], $5::text[], $6::bigint[]) u
                      ON CONFLICT (name, ring, position, workflow) DO UPDATE
                      SET start = excluded.start, body = excluded.body,
                          checksum = excluded.checksum";
        let params = params![
            trends.iter().map(|trend| trend.ring).collect::<Vec<_>>(),
            trends.iter().map(|trend| trend.position).collect::<Vec<_>>(),
            trends.iter().map(|trend| to_sql_text(&trend.workflow)).collect::<Vec<_>>(),
            trends.iter().map(|trend| trend.start.0).collect::<Vec<_>>(),
            trends.iter().map(|trend| to_sql_text(&trend.body)).collect::<Vec<_>>(),
            trends.iter().map(|trend| i64::from(trend_checksum(trend))).collect::<Vec<_>>(),
            name,
        ];
        let statements = vec![
            BatchStatement::new(delete, params![name, forgotten]),
            BatchStatement::new(upsert, params),
        ];
        self.writer.commits.transact(statements).map(drop)
    }
}

impl TrendRecords for Reader {
    fn load_trend(
        &self,
        ring: i32,
        workflow: &str,
        since: Timestamp,
    ) -> Result<Vec<StoredTrend>, JournalError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM trends
             WHERE name = $1 AND ring = $2 AND workflow = $3 AND start >= $4 ORDER BY start"
        );
        let params = params![self.pool.ordinal.0, ring, to_sql_text(workflow), since.0];
        Ok(self.query(&sql, params)?.iter().filter_map(parse).collect())
    }

    fn load_trends_at(&self, ring: i32, position: i32) -> Result<Vec<StoredTrend>, JournalError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM trends
             WHERE name = $1 AND ring = $2 AND position = $3 ORDER BY workflow COLLATE \"C\""
        );
        let params = params![self.pool.ordinal.0, ring, position];
        Ok(self.query(&sql, params)?.iter().filter_map(parse).collect())
    }

    fn load_trend_workflows(&self) -> Result<Vec<Arc<str>>, JournalError> {
        let sql = "SELECT DISTINCT workflow COLLATE \"C\" FROM trends
                   WHERE name = $1 AND workflow <> '' ORDER BY 1";
        let rows = self.query(sql, params![self.pool.ordinal.0])?;
        Ok(rows.iter().map(|row| row.get::<_, String>(0).into()).collect())
    }
}
