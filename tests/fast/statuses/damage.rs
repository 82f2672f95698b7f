//! Tables of statuses that lag behind the entries are brought up; missing, altered or damaged ones
//! are made anew.

use super::*;

#[test]
fn what_a_crash_leaves_agrees_with_the_entries() {
    let place = Place::new();
    let definition = chain("w", &["a", "b"]);
    let mut store = place.open(&[&definition]);
    for number in 1..20 {
        let mut live = Live::create(number, &definition);
        if number % 2 == 0 {
            live.reply("a", "{}");
        }
        store.append(&live.records.iter().collect::<Vec<_>>()).expect("commits");
        if number == 9 {
            store.project().expect("derives");
        }
    }
    // The files as a process that ends now leaves them.
    let copy = Place::new();
    for suffix in ["", "-wal"] {
        let name = format!("j.db{suffix}");
        std::fs::copy(place.folder.path().join(&name), copy.folder.path().join(&name))
            .expect("copied");
    }
    assert_eq!(copy.rows("SELECT count(*) FROM status_w"), [["9"]], "some are not derived yet");
    drop(copy.open(&[&definition]));
    store.project().expect("derives");
    assert_eq!(copy.rows("SELECT * FROM status_w"), place.rows("SELECT * FROM status_w"));
    assert_as_rebuilt(&copy, &definition);
}

#[test]
fn what_was_dropped_or_altered_is_made_anew() {
    for harm in [
        "DROP TABLE status_w",
        "ALTER TABLE status_w DROP COLUMN updated",
        "ALTER TABLE status_w RENAME COLUMN state TO stat",
        "DROP TABLE status_w; CREATE VIEW status_w AS SELECT 1 AS job",
        "DROP TABLE status_w; CREATE TABLE status_w(job TEXT NOT NULL, state TEXT NOT NULL, \
         created INTEGER NOT NULL, updated TEXT NOT NULL)",
    ] {
        let definition = chain("w", &["a", "b"]);
        let full =
            |live: &[&Live]| -> Vec<Vec<String>> { live.iter().map(|live| live.row()).collect() };
        // While it runs: with the next record.
        let place = Place::new();
        let mut store = place.open(&[&definition]);
        let (mut first, mut second) = (Live::create(1, &definition), Live::create(2, &definition));
        first.commit(&mut store);
        second.commit(&mut store);
        place.change(harm);
        second.reply("a", "{}").commit(&mut store);
        second.reply("b", "{}").commit(&mut store);
        assert_eq!(
            place.rows("SELECT job, state, a, b FROM status_w"),
            full(&[&first, &second]),
            "{harm}"
        );
        // While it does not run: at the next start.
        drop(store);
        place.change(harm);
        let mut store = place.open(&[&definition]);
        first.reply("a", "{}").commit(&mut store);
        assert_eq!(
            place.rows("SELECT job, state, a, b FROM status_w"),
            full(&[&first, &second]),
            "{harm}"
        );
        assert_eq!(store.recover().expect("recovers").len(), 1, "{harm}");
    }
}

#[test]
fn a_table_that_cannot_be_made_stops_nothing_but_itself() {
    let place = Place::new();
    let (definition, other) = (chain("w", &["a"]), chain("v", &["a"]));
    let mut store = place.open(&[]);
    place.change("CREATE TABLE \"index a of w\"(what)");
    store.create_status_tables(&[&definition, &other]).expect("the other's is made");
    let (mut live, mut neighbour) = (Live::create(1, &definition), Live::create(2, &other));
    live.reply("a", "{}").commit(&mut store);
    neighbour.commit(&mut store);
    assert_eq!(place.rows("SELECT job, state, a FROM status_v"), [neighbour.row()]);
    assert_eq!(place.rows("SELECT state FROM jobs"), [["completed"], ["running"]]);
    store.delete_jobs(&[1], u32::MAX).expect("deletes");
    drop(store);
    place.change("DROP TABLE \"index a of w\"");
    let mut store = place.open(&[&definition, &other]);
    let mut later = Live::create(3, &definition);
    later.commit(&mut store);
    assert_eq!(place.rows("SELECT job, state, a FROM status_w"), [later.row()]);
}

#[test]
fn rows_that_are_missing_or_numbered_anew_are_found_at_the_start() {
    let place = Place::new();
    let definition = chain("w", &["a"]);
    let mut store = place.open(&[&definition]);
    (3..9).for_each(|number| Live::create(number, &definition).commit(&mut store));
    drop(store);
    let whole = place.rows("SELECT _rowid_, * FROM status_w");
    for harm in [
        "DELETE FROM status_w WHERE _rowid_ = 5",
        "UPDATE status_w SET _rowid_ = _rowid_ - 2",
        "DELETE FROM status_w",
        "VACUUM",
    ] {
        place.change(harm);
        drop(place.open(&[&definition]));
        assert_eq!(place.rows("SELECT _rowid_, * FROM status_w"), whole, "{harm}");
    }
}

/// Overwrites the first page of a table or index.
fn smash(file: &Path, name: &str) {
    let page: u64 =
        rows(file, &format!("SELECT rootpage FROM sqlite_schema WHERE name = '{name}'"))[0][0]
            .parse()
            .expect("a number");
    let mut bytes = std::fs::read(file).expect("readable");
    let at = usize::try_from((page - 1) * 4096).expect("small");
    bytes[at..at + 4096].fill(0xee);
    std::fs::write(file, bytes).expect("writable");
}

#[test]
fn a_damaged_table_is_made_anew_and_damage_elsewhere_is_refused() {
    let place = Place::new();
    let definition = chain("w", &["a", "b"]);
    let mut store = place.open(&[&definition]);
    (1..400).for_each(|number| Live::create(number, &definition).commit(&mut store));
    drop(store);
    let whole = place.rows("SELECT * FROM status_w");
    for name in ["status_w", "index a of w"] {
        smash(&place.file(), name);
        // Twice: the pages that are left in the file do no harm.
        for _ in 0..2 {
            let store = place.open(&[&definition]);
            assert_eq!(store.recover().expect("recovers").len(), 399);
            drop(store);
            assert_eq!(place.rows("SELECT * FROM status_w"), whole);
        }
    }
    // Unverified, it shows at the first write.
    smash(&place.file(), "status_w");
    let mut store = SqliteJournal::open(&JournalOptions { verify_bytes_max: 0, ..place.options() })
        .expect("opens");
    Live::create(400, &definition).commit(&mut store);
    assert_eq!(place.rows("SELECT * FROM status_w").len(), 400);
    drop(store);
    smash(&place.file(), "places");
    let before = std::fs::read(place.file()).expect("readable");
    let error =
        SqliteJournal::open(&place.options()).map(drop).expect_err("is damaged").to_string();
    assert!(error.contains("is damaged"), "{error}");
    assert!(
        std::fs::read(place.file()).expect("readable") == before,
        "a refused journal keeps its bytes"
    );
}
