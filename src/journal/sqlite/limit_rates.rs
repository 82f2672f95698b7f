//! Stores and reads how far the rates of limits are used up (table `limit_rates`).

use super::row_format::to_journal_error;
use super::writer::JournalWriter;
use crate::checksums::mark_checksum;
use crate::error::JournalError;
use base::clock;
use engine::{RateMark, Timestamp};
use rusqlite::{Connection, params};

/// Stores the marks, in the transaction of the records whose messages they are about. An earlier
/// time does not replace a later one.
pub(super) fn upsert(transaction: &Connection, marks: &[&RateMark]) -> rusqlite::Result<()> {
    if marks.is_empty() {
        return Ok(());
    }
    let mut upsert = transaction.prepare_cached(
        "INSERT INTO limit_rates(name, key, time, checksum) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT DO UPDATE SET time = excluded.time, checksum = excluded.checksum
         WHERE excluded.time > time",
    )?;
    for mark in marks {
        let (limit, key, time) = (&*mark.limit, &*mark.key, mark.time.0);
        upsert.execute(params![limit, key, time, mark_checksum(mark)])?;
    }
    Ok(())
}

/// Returns all marks. `file`: the name of the journal, for messages.
pub(super) fn load(connection: &Connection, file: &str) -> Result<Vec<RateMark>, JournalError> {
    let to_error = |error| to_journal_error(file, error);
    let mut select = connection
        .prepare("SELECT name, key, time, checksum FROM limit_rates ORDER BY name, key")
        .map_err(to_error)?;
    let rows = select.query_map([], |row| {
        let (name, key): (String, String) = (row.get(0)?, row.get(1)?);
        let mark = RateMark { limit: name.into(), key: key.into(), time: Timestamp(row.get(2)?) };
        Ok((mark, row.get::<_, u32>(3)?))
    });
    let mut marks = Vec::new();
    for row in rows.map_err(to_error)? {
        let (mark, checksum) = row.map_err(to_error)?;
        if mark_checksum(&mark) != checksum {
            let problem = format!("the rate of the limit {} has another checksum", mark.limit);
            return Err(JournalError::damaged_row(file, "limit_rates", 0, problem));
        }
        marks.push(mark);
    }
    Ok(marks)
}

impl JournalWriter {
    /// Returns the marks whose time has not passed, and deletes the others.
    pub(super) fn load_rate_marks(&mut self) -> Result<Vec<RateMark>, JournalError> {
        let delete = "DELETE FROM limit_rates WHERE time <= ?1";
        let deleted = self.connection.execute(delete, [clock::now().0]);
        deleted.map_err(|error| to_journal_error(&self.file, error))?;
        load(&self.connection, &self.file)
    }
}
