//! Notices: the ends of top-level jobs that the webhook is to be told. A row is written with the
//! end itself and goes when it was told, so that none is lost and however many wait, they wait on
//! the disk.

use super::schema::damaged_or_failed;
use super::{JournalError, Reader, Store, checksum};
use crate::engine::Timestamp;
use rusqlite::{Connection, Row, params};
use std::sync::Arc;

/// What is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// When it happened.
    pub at: Timestamp,
    /// The text.
    pub body: Arc<str>,
}

/// A notice's number: rising, and never used again.
pub type NoticeNumber = i64;

pub(super) const SCHEMA: &str = "
CREATE TABLE notices(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
";

/// The columns that [`notice`] reads.
pub(super) const ROWS: &str = "SELECT number, at, body, checksum FROM notices";

pub(super) fn insert(connection: &Connection, notice: &Notice) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare_cached("INSERT INTO notices(at, body, checksum) VALUES (?1, ?2, ?3)")?;
    statement
        .execute(params![notice.at.0, notice.body, checksum(notice.at.0, &notice.body)])
        .map(|_| ())
}

/// Reads a row of [`ROWS`] and compares its checksum.
pub(super) fn notice(row: &Row<'_>, file: &str) -> Result<(NoticeNumber, Notice), JournalError> {
    let number = row.get(0).unwrap_or_default();
    let damaged = |what: String| JournalError::Damaged {
        file: file.to_owned(),
        table: "notices",
        row: number,
        what,
    };
    let read =
        || -> rusqlite::Result<(i64, String, u32)> { Ok((row.get(1)?, row.get(2)?, row.get(3)?)) };
    let (at, body, stored) = read().map_err(|error| damaged(error.to_string()))?;
    if checksum(at, &body) != stored {
        return Err(damaged("the checksum does not match".to_owned()));
    }
    Ok((number, Notice { at: Timestamp(at), body: body.into() }))
}

impl Store {
    /// Deletes notices, in one transaction.
    pub fn forget(&mut self, notices: &[NoticeNumber]) -> Result<(), JournalError> {
        let mut delete = || {
            let transaction = self.connection.transaction()?;
            for number in notices {
                transaction
                    .prepare_cached("DELETE FROM notices WHERE number = ?1")?
                    .execute([number])?;
            }
            transaction.commit()
        };
        delete().map_err(|error| self.error(error))
    }
}

impl Reader {
    /// Notices in the order in which they were written, beyond `after`.
    pub fn notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError> {
        self.notice_rows(
            &format!("{ROWS} WHERE number > ?1 ORDER BY number LIMIT ?2"),
            params![after, limit],
        )
    }

    /// One notice, unless it is deleted.
    pub fn notice(&self, number: NoticeNumber) -> Result<Option<Notice>, JournalError> {
        let rows = self.notice_rows(&format!("{ROWS} WHERE number = ?1"), [number])?;
        Ok(rows.into_iter().next().map(|(_, notice)| notice))
    }

    /// How many there are.
    pub fn notice_count(&self) -> Result<i64, JournalError> {
        self.with(|connection| {
            let count = connection.query_row("SELECT count(*) FROM notices", [], |row| row.get(0));
            count.map_err(|error| damaged_or_failed(self.file(), error))
        })
    }

    fn notice_rows(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError> {
        let failed = |error| damaged_or_failed(self.file(), error);
        self.with(|connection| {
            let mut statement = connection.prepare_cached(sql).map_err(failed)?;
            let mut rows = statement.query(values).map_err(failed)?;
            let mut found = Vec::new();
            while let Some(row) = rows.next().map_err(failed)? {
                found.push(notice(row, self.file())?);
            }
            Ok(found)
        })
    }
}
