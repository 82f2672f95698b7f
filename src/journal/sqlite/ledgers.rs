//! Stores and reads the ledgers of schedules (table `schedules`).

use super::reader::Reader;
use super::row_format::read_ledgers;
use super::writer::{JournalWriter, hit_fail_point};
use crate::checksums::ledger_checksum;
use crate::error::JournalError;
use crate::record::StoredLedger;
use crate::traits::ScheduleRecords;
use rusqlite::params;

impl JournalWriter {
    /// Stores or deletes ledgers, all or none.
    pub(super) fn store_ledgers(&mut self, ledgers: &[StoredLedger]) -> Result<(), JournalError> {
        self.check_not_broken()?;
        self.store_ledgers_in_transaction(ledgers).map_err(|error| self.to_journal_error(error))
    }

    fn store_ledgers_in_transaction(&mut self, ledgers: &[StoredLedger]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut upsert = transaction.prepare_cached(
                "INSERT INTO schedules(name, ledger, checksum) VALUES (?1, ?2, ?3)
                 ON CONFLICT DO UPDATE
                 SET ledger = excluded.ledger, checksum = excluded.checksum",
            )?;
            let mut delete = transaction.prepare_cached("DELETE FROM schedules WHERE name = ?1")?;
            for StoredLedger { schedule, ledger } in ledgers {
                hit_fail_point("journal::ledgers")?;
                match ledger {
                    Some(ledger) => {
                        let checksum = ledger_checksum(schedule, ledger);
                        upsert.execute(params![schedule, ledger, checksum])?
                    }
                    None => delete.execute(params![schedule])?,
                };
            }
        }
        transaction.commit()
    }
}

impl ScheduleRecords for Reader {
    fn load_ledgers(&self) -> Result<Vec<StoredLedger>, JournalError> {
        self.read(|connection| read_ledgers(connection, self.file()))
    }
}
