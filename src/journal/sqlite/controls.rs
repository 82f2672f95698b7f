//! Stores and reads what operators have changed for a time (table `controls`).

use super::row_format::{sqlite_error, to_json};
use super::writer::JournalWriter;
use crate::checksums::{checksum, parse_control};
use crate::error::JournalError;
use engine::{Control, ControlKey};
use rusqlite::{Connection, params};

/// Stores a control, replacing the one with the same key.
pub(super) fn upsert(connection: &Connection, control: &Control) -> rusqlite::Result<()> {
    let sql = "INSERT INTO controls(kind, bus, vhost, name, body, checksum)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)
               ON CONFLICT DO UPDATE SET body = excluded.body, checksum = excluded.checksum";
    let ControlKey { kind, bus, vhost, name } = &control.key;
    let body = to_json(control)?;
    let sum = checksum(0, &body);
    connection.execute(sql, params![kind.as_str(), &**bus, &**vhost, &**name, body, sum]).map(drop)
}

/// Returns all controls. `file`: the name of the journal, for messages.
pub(super) fn load(connection: &Connection, file: &str) -> Result<Vec<Control>, JournalError> {
    let select = || {
        let sql = "SELECT body, checksum FROM controls ORDER BY kind, bus, vhost, name";
        let mut select = connection.prepare(sql)?;
        let rows =
            select.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, u32>(1)?)))?;
        rows.collect::<rusqlite::Result<Vec<(String, u32)>>>()
    };
    let rows = select().map_err(|error| sqlite_error(file, &error))?;
    let parse = |(body, sum): &(String, u32)| {
        parse_control(body, (*sum).into()).ok_or_else(|| {
            let problem = "a control is not what was written".to_owned();
            JournalError::damaged_row(file, "controls", 0, problem)
        })
    };
    rows.iter().map(parse).collect()
}

impl JournalWriter {
    /// Stores a control, replacing the one with the same key.
    pub(super) fn store_control(&mut self, control: &Control) -> Result<(), JournalError> {
        self.check_not_broken()?;
        upsert(&self.connection, control).map_err(|error| self.to_journal_error(error))
    }

    /// Deletes a control.
    pub(super) fn delete_control(&mut self, key: &ControlKey) -> Result<(), JournalError> {
        self.check_not_broken()?;
        let ControlKey { kind, bus, vhost, name } = key;
        let sql = "DELETE FROM controls WHERE kind = ?1 AND bus = ?2 AND vhost = ?3 AND name = ?4";
        let result =
            self.connection.execute(sql, params![kind.as_str(), &**bus, &**vhost, &**name]);
        result.map(drop).map_err(|error| self.to_journal_error(error))
    }
}
