//! Reads and deletes the notices of ended root jobs for the webhook. A notice is committed together
//! with the end of its job, and deleted once the webhook has received it. So no notice is lost, and
//! waiting notices take no memory.

use super::reader::Reader;
use super::row_format::{SELECT_NOTICES, parse_notice_row, to_journal_error};
use super::writer::JournalWriter;
use crate::error::JournalError;
use crate::record::{Notice, NoticeNumber};
use crate::traits::NoticeRecords;
use rusqlite::params;

impl JournalWriter {
    /// Deletes notices, in one transaction.
    pub(super) fn delete_notices(&mut self, notices: &[NoticeNumber]) -> Result<(), JournalError> {
        let mut delete = || {
            let transaction = self.connection.transaction()?;
            for number in notices {
                transaction
                    .prepare_cached("DELETE FROM notices WHERE number = ?1")?
                    .execute([number])?;
            }
            transaction.commit()
        };
        delete().map_err(|error| self.to_journal_error(error))
    }
}

impl NoticeRecords for Reader {
    fn load_notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError> {
        self.query_notices(
            &format!("{SELECT_NOTICES} WHERE number > ?1 ORDER BY number LIMIT ?2"),
            params![after, limit],
        )
    }

    fn load_notice(&self, number: NoticeNumber) -> Result<Option<Notice>, JournalError> {
        let rows = self.query_notices(&format!("{SELECT_NOTICES} WHERE number = ?1"), [number])?;
        Ok(rows.into_iter().next().map(|(_, notice)| notice))
    }

    fn count_notices(&self) -> Result<i64, JournalError> {
        self.read(|connection| {
            let count = connection.query_row("SELECT count(*) FROM notices", [], |row| row.get(0));
            count.map_err(|error| to_journal_error(self.file(), error))
        })
    }
}

impl Reader {
    /// Runs a query that selects notices.
    fn query_notices(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError> {
        let to_error = |error| to_journal_error(self.file(), error);
        self.read(|connection| {
            let mut statement = connection.prepare_cached(sql).map_err(to_error)?;
            let mut rows = statement.query(values).map_err(to_error)?;
            let mut notices = Vec::new();
            while let Some(row) = rows.next().map_err(to_error)? {
                notices.push(parse_notice_row(row, self.file())?);
            }
            Ok(notices)
        })
    }
}
