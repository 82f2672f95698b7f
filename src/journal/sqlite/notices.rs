//! Notices of ended root jobs, for the webhook. A row is written together with the end of the job,
//! and deleted once the webhook has received it. So none is lost, and however many wait, they wait
//! on the disk.

use super::core::Core;
use super::reader::Reader;
use super::row::{NOTICE_ROWS, damaged_or_failed, notice};
use crate::journal::error::JournalError;
use crate::journal::record::{Notice, NoticeNumber};
use rusqlite::params;

impl Core {
    /// Deletes notices, in one transaction.
    pub(super) fn forget(&mut self, notices: &[NoticeNumber]) -> Result<(), JournalError> {
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
    /// Returns the notices after `after`, in the order in which they were written.
    pub(super) fn notices(
        &self,
        after: NoticeNumber,
        limit: u32,
    ) -> Result<Vec<(NoticeNumber, Notice)>, JournalError> {
        self.notice_rows(
            &format!("{NOTICE_ROWS} WHERE number > ?1 ORDER BY number LIMIT ?2"),
            params![after, limit],
        )
    }

    /// Returns the notice with this number, unless it is deleted.
    pub(super) fn notice(&self, number: NoticeNumber) -> Result<Option<Notice>, JournalError> {
        let rows = self.notice_rows(&format!("{NOTICE_ROWS} WHERE number = ?1"), [number])?;
        Ok(rows.into_iter().next().map(|(_, notice)| notice))
    }

    /// Returns the number of notices.
    pub(super) fn notice_count(&self) -> Result<i64, JournalError> {
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
