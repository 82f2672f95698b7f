//! The offsets of buses: how far their topics are read and written (table `bus_positions`).

use super::reader::Reader;
use super::row_format::{SELECT_OFFSETS, for_each_row, offset_checksum, parse_offset_row};
use super::writer::{JournalWriter, fail_point};
use crate::error::JournalError;
use crate::record::StoredOffset;
use crate::traits::OffsetRecords;
use rusqlite::params;

impl JournalWriter {
    /// Stores offsets, all or none, replacing those of the same partitions.
    pub(super) fn store_offsets(&mut self, positions: &[StoredOffset]) -> Result<(), JournalError> {
        self.check_not_broken()?;
        self.store_offsets_in_transaction(positions).map_err(|error| self.to_journal_error(error))
    }

    fn store_offsets_in_transaction(&mut self, positions: &[StoredOffset]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut upsert = transaction.prepare_cached(
                "INSERT INTO bus_positions(bus, topic, part, position, checksum)
                 VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE
                 SET position = excluded.position, checksum = excluded.checksum",
            )?;
            for position in positions {
                fail_point("journal::positions")?;
                let StoredOffset { bus, topic, partition, offset } = position;
                upsert.execute(params![
                    bus,
                    topic,
                    partition,
                    offset,
                    offset_checksum(position)
                ])?;
            }
        }
        transaction.commit()
    }
}

impl OffsetRecords for Reader {
    fn load_offsets(&self, bus: &str) -> Result<Vec<StoredOffset>, JournalError> {
        self.read(|connection| {
            let mut found = Vec::new();
            let sql = format!("{SELECT_OFFSETS} WHERE bus = ?1");
            for_each_row((connection, self.file()), &sql, [bus], |row| {
                found.push(parse_offset_row(row, self.file())?);
                Ok(())
            })?;
            Ok(found)
        })
    }
}
