//! Positions of buses in the journal: what was written comes back, a damaged one is found.

use rusqlite::Connection;
use std::path::Path;
use workflow_manager::journal::{Journal, JournalError, Options, Position, Records, Store};

fn open(file: &Path) -> Result<Store, JournalError> {
    let file = file.to_owned();
    Store::open(&Options { file, cache_bytes: 1 << 20, verify_bytes_max: 1 << 30, pages_max: 0 })
}

fn position(bus: &str, topic: &str, partition: i32, offset: i64) -> Position {
    Position { bus: bus.into(), topic: topic.into(), partition, offset }
}

fn of(store: &Store, bus: &str) -> Vec<(String, i32, i64)> {
    let positions = store.reader().positions(bus).expect("reads").into_iter();
    let mut found: Vec<_> =
        positions.map(|one| (one.topic.to_string(), one.partition, one.offset)).collect();
    found.sort();
    found
}

#[test]
fn the_newest_position_of_each_partition_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let mut store = open(&file).expect("opens");
    let first = [position("a", "r", 0, 7), position("a", "r", 1, 3), position("b", "r", 0, 1)];
    store.write_positions(&first).expect("written");
    // A topic that was made anew begins again.
    store.write_positions(&[position("a", "r", 0, 9), position("a", "r", 1, 0)]).expect("written");
    drop(store);
    let store = open(&file).expect("opens again");
    assert_eq!(of(&store, "a"), [("r".to_owned(), 0, 9), ("r".to_owned(), 1, 0)]);
    assert_eq!(of(&store, "b"), [("r".to_owned(), 0, 1)]);
    assert_eq!(of(&store, "c"), []);
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
        open(&file).expect("opens").write_positions(&[position("a", "r", 0, 7)]).expect("written");
        Connection::open(&file).expect("opens").execute_batch(change).expect("changed");
        let error = open(&file).err().unwrap_or_else(|| panic!("{change}: opened"));
        let is_named = matches!(error, JournalError::Damaged { table: "bus_positions", .. });
        assert!(is_named, "{change}: {error}");
        let lenient =
            Options { file: file.clone(), cache_bytes: 1 << 20, verify_bytes_max: 0, pages_max: 0 };
        let store = Store::open(&lenient).expect("large journals are not verified as a whole");
        for bus in ["a", "b"] {
            let found = store.reader().positions(bus);
            assert!(found.is_err() || found.is_ok_and(|found| found.is_empty()), "{change}");
        }
    }
}
