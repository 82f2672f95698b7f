//! Positions of buses in a file: a damaged one is found. That what was written comes back is in
//! `any_journal`.

use rusqlite::Connection;
use std::path::Path;
use workflow_manager::journal::{
    Journal, JournalError, JournalOptions, OffsetRecords, SqliteJournal, StoredOffset,
};

fn open(file: &Path) -> Result<SqliteJournal, JournalError> {
    let file = file.to_owned();
    SqliteJournal::open(&JournalOptions {
        file,
        cache_bytes: 1 << 20,
        verify_bytes_max: 1 << 30,
        pages_max: 0,
    })
}

fn position() -> StoredOffset {
    StoredOffset { bus: "a".into(), topic: "r".into(), partition: 0, offset: 7 }
}

#[test]
fn a_damaged_position_is_found_before_anything_is_read_with_it() {
    for change in [
        "UPDATE bus_positions SET position = 8",
        "UPDATE bus_positions SET topic = 'q'",
        "UPDATE bus_positions SET part = 1",
        "UPDATE bus_positions SET bus = 'b'",
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("j.db");
        open(&file).expect("opens").store_offsets(&[position()]).expect("written");
        Connection::open(&file).expect("opens").execute_batch(change).expect("changed");
        let error = open(&file).err().unwrap_or_else(|| panic!("{change}: opened"));
        let is_named = matches!(error, JournalError::Damaged { table: "bus_positions", .. });
        assert!(is_named, "{change}: {error}");
        let lenient = JournalOptions {
            file: file.clone(),
            cache_bytes: 1 << 20,
            verify_bytes_max: 0,
            pages_max: 0,
        };
        let store =
            SqliteJournal::open(&lenient).expect("large journals are not verified as a whole");
        for bus in ["a", "b"] {
            let found = store.reader().load_offsets(bus);
            assert!(found.is_err() || found.is_ok_and(|found| found.is_empty()), "{change}");
        }
    }
}
