//! The offsets of buses: how far their topics are read and written (table `bus_positions`).

use super::core::{Core, fail_point};
use super::reader::Reader;
use super::row::{POSITION_ROWS, each_row, position, position_checksum};
use crate::journal::error::JournalError;
use crate::journal::record::Position;
use rusqlite::params;

impl Core {
    /// Stores offsets, all or none, replacing those of the same partitions.
    pub(super) fn write_positions(&mut self, positions: &[Position]) -> Result<(), JournalError> {
        self.unless_broken()?;
        self.positions_in_transaction(positions).map_err(|error| self.error(error))
    }

    fn positions_in_transaction(&mut self, positions: &[Position]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut upsert = transaction.prepare_cached(
                "INSERT INTO bus_positions(bus, topic, part, position, checksum)
                 VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE
                 SET position = excluded.position, checksum = excluded.checksum",
            )?;
            for position in positions {
                fail_point("journal::positions")?;
                let Position { bus, topic, partition, offset } = position;
                upsert.execute(params![
                    bus,
                    topic,
                    partition,
                    offset,
                    position_checksum(position)
                ])?;
            }
        }
        transaction.commit()
    }
}

impl Reader {
    /// Returns the stored offsets of a bus.
    pub(super) fn positions(&self, bus: &str) -> Result<Vec<Position>, JournalError> {
        self.with(|connection| {
            let mut found = Vec::new();
            let sql = format!("{POSITION_ROWS} WHERE bus = ?1");
            each_row((connection, self.file()), &sql, [bus], |row| {
                found.push(position(row, self.file())?);
                Ok(())
            })?;
            Ok(found)
        })
    }
}
