//! Stores and reads what operators have changed for a time (table `controls`).

use super::commit_connection::BatchStatement;
use super::connection::{params, to_sql_text};
use super::store::PostgresJournal;
use crate::checksums::{checksum, parse_control};
use crate::error::JournalError;
use engine::{Control, ControlKey};
use tokio_postgres::Row;

/// Selects the controls of a name.
pub(super) const SELECT_CONTROLS: &str = "SELECT body, checksum FROM controls WHERE name = $1
    ORDER BY kind COLLATE \"C\", bus COLLATE \"C\", vhost COLLATE \"C\", subject COLLATE \"C\"";

/// Parses a row of [`SELECT_CONTROLS`]. `journal`: its name, for messages.
pub(super) fn parse(row: &Row, journal: &str) -> Result<Control, JournalError> {
    parse_control(row.get(0), row.get(1)).ok_or_else(|| {
        let problem = "a control is not what was written".to_owned();
        JournalError::damaged_row(journal, "controls", 0, problem)
    })
}

impl PostgresJournal {
    /// Stores a control, replacing the one with the same key.
    pub(super) fn write_control(&mut self, control: &Control) -> Result<(), JournalError> {
        let body = serde_json::to_string(control).expect("texts and numbers can be serialized");
        let body = to_sql_text(&body);
        let sum = i64::from(checksum(0, &body));
        let sql = "INSERT INTO controls(name, kind, bus, vhost, subject, body, checksum)
                   VALUES ($1, $2, $3, $4, $5, $6, $7)
                   ON CONFLICT (name, kind, bus, vhost, subject) DO UPDATE
                   SET body = excluded.body, checksum = excluded.checksum";
        let ControlKey { kind, bus, vhost, name } = &control.key;
        let params = params![
            self.writer.ordinal.0,
            kind.as_str(),
            bus.to_string(),
            vhost.to_string(),
            name.to_string(),
            body,
            sum,
        ];
        self.writer.commits.transact(vec![BatchStatement::new(sql, params)]).map(drop)
    }

    /// Deletes a control.
    pub(super) fn remove_control(&mut self, key: &ControlKey) -> Result<(), JournalError> {
        let sql = "DELETE FROM controls
                   WHERE name = $1 AND kind = $2 AND bus = $3 AND vhost = $4 AND subject = $5";
        let ControlKey { kind, bus, vhost, name } = key;
        let params = params![
            self.writer.ordinal.0,
            kind.as_str(),
            bus.to_string(),
            vhost.to_string(),
            name.to_string(),
        ];
        self.writer.commits.transact(vec![BatchStatement::new(sql, params)]).map(drop)
    }

    /// Returns all controls.
    pub(super) fn read_controls(&mut self) -> Result<Vec<Control>, JournalError> {
        let rows = self.writer.commits.query(SELECT_CONTROLS, params![self.writer.ordinal.0])?;
        rows.iter().map(|row| parse(row, &self.writer.journal)).collect()
    }
}
