//! Stores and reads how far the rates of limits are used up (table `limit_rates`).

use super::commit_connection::BatchStatement;
use super::connection::{params, to_sql_text};
use super::store::PostgresJournal;
use crate::checksums::mark_checksum;
use crate::error::JournalError;
use base::clock;
use engine::{RateMark, Timestamp};
use tokio_postgres::Row;

/// Returns the statement that stores the marks, in the transaction of the records whose messages
/// they are about; `None`: there are none. An earlier time does not replace a later one.
pub(super) fn upsert(ordinal: i16, marks: &[&RateMark]) -> Option<BatchStatement> {
    if marks.is_empty() {
        return None;
    }
    let sql = "INSERT INTO limit_rates AS r (name, limit_name, key, time, checksum)
               SELECT $5, u.* FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) u
               ON CONFLICT (name, limit_name, key) DO UPDATE
               SET time = excluded.time, checksum = excluded.checksum
               WHERE excluded.time > r.time";
    let params = params![
        marks.iter().map(|mark| mark.limit.to_string()).collect::<Vec<_>>(),
        marks.iter().map(|mark| to_sql_text(&mark.key)).collect::<Vec<_>>(),
        marks.iter().map(|mark| mark.time.0).collect::<Vec<_>>(),
        marks.iter().map(|mark| i64::from(mark_checksum(mark))).collect::<Vec<_>>(),
        ordinal,
    ];
    Some(BatchStatement::new(sql, params))
}

/// Selects the marks of a name.
pub(super) const SELECT_MARKS: &str = "SELECT limit_name, key, time, checksum FROM limit_rates
    WHERE name = $1 ORDER BY limit_name COLLATE \"C\", key COLLATE \"C\"";

/// Parses a row of [`SELECT_MARKS`]. `journal`: its name, for messages.
pub(super) fn parse(row: &Row, journal: &str) -> Result<RateMark, JournalError> {
    let (limit, key): (String, String) = (row.get(0), row.get(1));
    let mark = RateMark { limit: limit.into(), key: key.into(), time: Timestamp(row.get(2)) };
    if i64::from(mark_checksum(&mark)) != row.get::<_, i64>(3) {
        let problem = format!("the rate of the limit {} has another checksum", mark.limit);
        return Err(JournalError::damaged_row(journal, "limit_rates", 0, problem));
    }
    Ok(mark)
}

impl PostgresJournal {
    /// Returns the marks whose time has not passed, and deletes the others.
    pub(super) fn read_rate_marks(&mut self) -> Result<Vec<RateMark>, JournalError> {
        let (ordinal, now) = (self.writer.ordinal.0, clock::now().0);
        let delete = "DELETE FROM limit_rates WHERE name = $1 AND time <= $2";
        let statement = BatchStatement::new(delete, params![ordinal, now]);
        self.writer.commits.transact(vec![statement])?;
        let rows = self.writer.commits.query(SELECT_MARKS, params![ordinal])?;
        rows.iter().map(|row| parse(row, &self.writer.journal)).collect()
    }
}
