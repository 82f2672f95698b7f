//! Stores and reads the offsets of buses: how far they have read, and what they have written to,
//! the partitions of their topics (table `bus_positions`).

use super::reader::Reader;
use super::row_format::{SELECT_OFFSETS, for_each_row, parse_offset_row};
use super::writer::{JournalWriter, hit_fail_point};
use crate::checksums::offset_checksum;
use crate::error::JournalError;
use crate::record::StoredOffset;
use crate::traits::OffsetRecords;
use rusqlite::params;

impl JournalWriter {
    /// Stores offsets, all or none, replacing those of the same partitions.
    pub(super) fn store_offsets(&mut self, offsets: &[StoredOffset]) -> Result<(), JournalError> {
        self.check_not_broken()?;
        self.store_offsets_in_transaction(offsets).map_err(|error| self.to_journal_error(error))
    }

    fn store_offsets_in_transaction(&mut self, offsets: &[StoredOffset]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut upsert = transaction.prepare_cached(
                "INSERT INTO bus_positions(bus, topic, part, position, checksum)
                 VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE
                 SET position = excluded.position, checksum = excluded.checksum",
            )?;
            for stored_offset in offsets {
                hit_fail_point("journal::positions")?;
                let StoredOffset { bus, topic, partition, offset } = stored_offset;
                upsert.execute(params![
                    bus,
                    topic,
                    partition,
                    offset,
                    offset_checksum(stored_offset)
                ])?;
            }
        }
        transaction.commit()
    }
}

impl OffsetRecords for Reader {
    fn load_offsets(&self, bus: &str) -> Result<Vec<StoredOffset>, JournalError> {
        self.read(|connection| {
            let mut offsets = Vec::new();
            let sql = format!("{SELECT_OFFSETS} WHERE bus = ?1");
            for_each_row((connection, self.file()), &sql, [bus], |row| {
                offsets.push(parse_offset_row(row, self.file())?);
                Ok(())
            })?;
            Ok(offsets)
        })
    }
}
