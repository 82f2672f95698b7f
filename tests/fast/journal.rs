//! The journal on real files: what is appended comes back, damage is found and named, one process
//! has the file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::world::LIMITS;
use workflow_manager::engine::{
    Context, Definition, Graph, Job, JobId, Message, Origin, Reply, Sender, Step, Timestamp,
};
use workflow_manager::engine::{Input, Operation};
use workflow_manager::journal::{
    JobRecords, Journal, JournalError, JournalOptions, NewJob, Reader, Record, Remedy,
    SqliteJournal, back_up, inspect_backup, restore,
};

fn options(file: &Path) -> JournalOptions {
    JournalOptions {
        file: file.to_owned(),
        cache_bytes: 1 << 20,
        verify_bytes_max: 1 << 30,
        pages_max: 0,
    }
}

fn definition() -> Arc<Definition> {
    let step = Step::with_name("only");
    Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, vec![step])]))
}

fn context(now: i64) -> Context<'static> {
    Context { now: Timestamp(now), limits: &LIMITS, pauses: None, spare: None }
}

fn new_job(number: i64) -> (Job, Record) {
    let id = JobId(uuid::Uuid::from_u128(number as u128));
    let origin = Origin::for_root_job(id, definition(), Timestamp(number));
    let (job, decision) = Job::create(
        origin.clone(),
        Message::parse(br#"{"k":1e400}"#).expect("a message"),
        &context(number),
    );
    (
        job,
        Record::from_decision(
            number,
            Some(NewJob { origin: Arc::new(origin), root: number, parent: None }),
            decision,
        ),
    )
}

fn reply(job: &mut Job, number: i64, body: &str) -> Record {
    let input = Input::Reply {
        step: "only".to_owned(),
        attempt: None,
        reply: Reply::Result(body.to_owned().into()),
        from: Sender::Unknown,
    };
    Record::from_decision(
        number,
        None,
        job.handle_input(input, &context(number + 1)).expect("taken"),
    )
}

fn refused(result: Result<SqliteJournal, JournalError>) -> JournalError {
    match result {
        Ok(_) => panic!("the journal was opened"),
        Err(error) => error,
    }
}

#[test]
fn a_record_that_comes_twice_changes_nothing_and_another_in_its_place_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let mut store = SqliteJournal::open(&options(&file)).expect("opens");
    let (mut job, first) = new_job(1);
    let mut other = job.clone();
    let (end, another) = (reply(&mut job, 1, r#"{"n":1}"#), reply(&mut other, 1, r#"{"n":2}"#));
    store.append(&[&first, &end]).expect("commits");
    assert!(store.append(&[&first, &end]).expect("is there already").is_empty());
    let error = store.append(&[&another]).expect_err("is refused");
    assert!(matches!(error, JournalError::Damaged { table: "entries", .. }), "{error}");
    assert_eq!(error.remedy(), Remedy::Exit);
    drop(store);
    let found = Reader::new(&file).load_job(job.id()).expect("reads").expect("is kept");
    assert!(found.job == job, "the first stays, once");
}

#[test]
fn a_row_that_is_missing_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let (mut job, first) = new_job(1);
    let paused =
        job.handle_input(Input::from_request(Operation::Pause), &context(2)).expect("paused");
    let resumed =
        job.handle_input(Input::from_request(Operation::Resume), &context(3)).expect("resumed");
    let rows =
        [first, Record::from_decision(1, None, paused), Record::from_decision(1, None, resumed)];
    SqliteJournal::open(&options(&file))
        .expect("opens")
        .append(&rows.iter().collect::<Vec<_>>())
        .expect("commits");
    let whole = std::fs::read(&file).expect("readable");
    for row in 1..=2 {
        std::fs::write(&file, &whole).expect("writable");
        let client = rusqlite::Connection::open(&file).expect("opens");
        client.execute("DELETE FROM entries WHERE seq = ?1", [row]).expect("deletes");
        client.execute("DELETE FROM places WHERE seq = ?1", [row]).expect("deletes");
        drop(client);
        let store = SqliteJournal::open(&options(&file)).expect("every row is whole");
        let error = store.recover().err().expect("one is missing").to_string();
        assert!(error.contains(&format!("row {}", row + 1)), "{error}");
        assert!(error.contains("a row is missing"), "{error}");
    }
}

#[test]
fn a_program_that_writes_into_the_file_is_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let mut store = SqliteJournal::open(&options(&file)).expect("opens");
    let other = rusqlite::Connection::open(&file).expect("opens");
    other.execute_batch("CREATE TABLE notes(note)").expect("a table of its own");
    other.execute_batch("BEGIN IMMEDIATE; INSERT INTO notes VALUES (1)").expect("it writes");
    let commits = std::thread::spawn(move || store.append(&[&new_job(1).1]).map(|_| store));
    // It is in the middle of its transaction. Should the other thread come later, nothing is seen
    // here.
    std::thread::sleep(Duration::from_millis(200));
    other.execute_batch("COMMIT").expect("written");
    let mut store = commits.join().expect("no panic").expect("commits");
    store.project().expect("derives");
    assert_eq!(store.recover().expect("recovers").len(), 1);
}

#[test]
fn every_flipped_byte_of_a_row_is_found_named_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    {
        let mut store = SqliteJournal::open(&options(&file)).expect("opens");
        let records: Vec<Record> = (1..50).map(|number| new_job(number).1).collect();
        store.append(&records.iter().collect::<Vec<_>>()).expect("commits");
    }
    let whole = std::fs::read(&file).expect("readable");
    // The texts of the entries and of the definition stand in plain sight; copies in pages that
    // SQLite no longer uses do not count.
    for (text, table, rows) in
        [("\"k\":1e400", "entries", 49), ("\"name\":\"only\"", "definitions", 1)]
    {
        let places: Vec<usize> = (0..whole.len() - text.len())
            .filter(|at| whole[*at..].starts_with(text.as_bytes()))
            .collect();
        let mut found = 0;
        for at in places {
            let mut flipped = whole.clone();
            flipped[at + 5] ^= 0x01;
            std::fs::write(&file, &flipped).expect("writable");
            let Err(error) = SqliteJournal::open(&options(&file)) else { continue };
            let error = error.to_string();
            assert!(
                error.contains("damaged")
                    && error.contains(&format!("table {table}, row "))
                    && error.contains("j.db"),
                "{error}"
            );
            assert_eq!(
                std::fs::read(&file).expect("readable"),
                flipped,
                "a refused journal keeps its bytes"
            );
            found += 1;
        }
        assert_eq!(found, rows, "rows of {table} whose damage was found");
    }
    std::fs::write(&file, &whole).expect("writable");
    assert!(SqliteJournal::open(&options(&file)).is_ok(), "the whole file opens");
}

/// A job's entries are found by the index: one that is wrong by a bit could hide the last of them.
#[test]
fn a_bit_that_is_wrong_in_an_index_of_the_entries_is_found() {
    const JOBS: i64 = 40;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    {
        let mut store = SqliteJournal::open(&options(&file)).expect("opens");
        let records: Vec<Record> = (1..=JOBS).map(|number| new_job(number).1).collect();
        store.append(&records.iter().collect::<Vec<_>>()).expect("commits");
    }
    let whole = std::fs::read(&file).expect("readable");
    let (page, size): (usize, usize) = {
        let client = rusqlite::Connection::open(&file).expect("opens");
        let read = |sql: &str| {
            client
                .query_row(sql, [], |row| row.get::<_, i64>(0))
                .expect(sql)
                .try_into()
                .expect("positive")
        };
        (read("SELECT rootpage FROM sqlite_schema WHERE name = 'places'"), read("PRAGMA page_size"))
    };
    // Seven bytes for each job but the first, which takes five.
    let cells = (page * size - 7 * usize::try_from(JOBS - 1).expect("few"))..page * size;
    for at in cells {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x04;
        std::fs::write(&file, &flipped).expect("writable");
        let error = refused(SqliteJournal::open(&options(&file)));
        let is_of_places = matches!(error, JournalError::Damaged { table: "places", .. });
        assert!(
            is_of_places || matches!(error, JournalError::Malformed { .. }),
            "byte {at}: {error}"
        );
    }
    std::fs::write(&file, &whole).expect("writable");
    assert!(SqliteJournal::open(&options(&file)).is_ok(), "the whole file opens");
}

#[test]
fn a_truncated_file_and_files_of_others_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    {
        let mut store = SqliteJournal::open(&options(&file)).expect("opens");
        let records: Vec<Record> = (1..500).map(|number| new_job(number).1).collect();
        store.append(&records.iter().collect::<Vec<_>>()).expect("commits");
    }
    let whole = std::fs::read(&file).expect("readable");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("writable");
    let error = refused(SqliteJournal::open(&options(&file)));
    assert!(
        matches!(error, JournalError::Malformed { .. } | JournalError::Damaged { .. }),
        "{error}"
    );

    let text = folder.path().join("text.db");
    std::fs::write(
        &text,
        "this is no database, but it is long enough to have a header that SQLite can look at and \
         refuse",
    )
    .expect("writable");
    let error = refused(SqliteJournal::open(&options(&text)));
    assert!(error.to_string().contains("not a SQLite database"), "{error}");

    let other = folder.path().join("other.db");
    rusqlite::Connection::open(&other)
        .expect("opens")
        .execute_batch("CREATE TABLE theirs(a)")
        .expect("creates");
    let error = refused(SqliteJournal::open(&options(&other)));
    assert!(matches!(error, JournalError::Foreign { .. }), "{error}");
}

#[test]
fn a_start_that_ended_before_the_first_migration_is_made_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    rusqlite::Connection::open(&file)
        .expect("opens")
        .pragma_update(None, "journal_mode", "WAL")
        .expect("updates");
    assert!(std::fs::metadata(&file).expect("is there").len() > 0);
    let mut store = SqliteJournal::open(&options(&file)).expect("opens");
    store.append(&[&new_job(1).1]).expect("commits");
}

#[test]
fn a_newer_schema_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    drop(SqliteJournal::open(&options(&file)).expect("opens"));
    rusqlite::Connection::open(&file)
        .expect("opens")
        .pragma_update(None, "user_version", 99)
        .expect("updates");
    let error = refused(SqliteJournal::open(&options(&file)));
    assert!(matches!(error, JournalError::Newer { file_version: 99, .. }), "{error}");
}

#[test]
fn without_room_the_batch_is_rolled_back_whole_and_goes_in_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    drop(SqliteJournal::open(&options(&file)).expect("opens"));
    let records: Vec<Record> = (1..2_000).map(|number| new_job(number).1).collect();
    {
        let mut store = SqliteJournal::open(&JournalOptions { pages_max: 40, ..options(&file) })
            .expect("opens");
        let error =
            store.append(&records.iter().collect::<Vec<_>>()).expect_err("there is no room");
        assert_eq!(error.remedy(), Remedy::WaitForSpace, "{error}");
        store.append(&records[..1].iter().collect::<Vec<_>>()).expect("a small batch has room");
    }
    let mut store = SqliteJournal::open(&options(&file)).expect("opens with room");
    assert_eq!(
        store.recover().expect("recovers").len(),
        1,
        "of the refused batch nothing was kept"
    );
    store.append(&records[1..].iter().collect::<Vec<_>>()).expect("commits");
    assert_eq!(store.recover().expect("recovers").len(), records.len());
}

/// Appends with `add` until there is no room; gives the last number that found some.
fn fill(
    store: &mut SqliteJournal,
    from: i64,
    add: impl Fn(&mut SqliteJournal, i64) -> Result<(), JournalError>,
) -> i64 {
    let mut last = from;
    loop {
        match add(store, last + 1) {
            Ok(()) => last += 1,
            Err(full) => {
                assert_eq!(full.remedy(), Remedy::WaitForSpace, "{full}");
                return last;
            }
        }
    }
}

/// A job that has ended with a large result.
fn add_large(store: &mut SqliteJournal, number: i64) -> Result<(), JournalError> {
    let large = format!("{{\"x\":\"{}\"}}", "x".repeat(10_000));
    let (mut job, created) = new_job(number);
    store.append(&[&created, &reply(&mut job, number, &large)]).map(drop)
}

#[test]
fn a_full_journal_of_which_nothing_is_derived_can_be_emptied() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let mut store =
        SqliteJournal::open(&JournalOptions { pages_max: 150, ..options(&file) }).expect("opens");
    let last = fill(&mut store, 0, add_large);
    assert!(last > 20 && store.has_unprojected());
    for number in 1..=last {
        assert_eq!(
            store.delete_jobs(&[number], u32::MAX).expect("deletes").roots,
            1,
            "job {number}"
        );
    }
    assert!(fill(&mut store, last, add_large) > last + 20, "there is as much room as before");
}

#[test]
fn without_room_to_derive_what_is_derived_can_be_deleted_and_makes_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let mut store =
        SqliteJournal::open(&JournalOptions { pages_max: 150, ..options(&file) }).expect("opens");
    (1..=30).for_each(|number| add_large(&mut store, number).expect("commits"));
    store.project().expect("derives");
    // More rows than the reserve has room to derive.
    let last = fill(&mut store, 30, |store, number| store.append(&[&new_job(number).1]).map(drop));
    assert!(last > 100 && store.has_unprojected(), "{last}");
    let behind = store.project().expect_err("there is no room");
    assert_eq!(behind.remedy(), Remedy::WaitForSpace, "{behind}");
    let new = store.delete_jobs(&[last], u32::MAX).expect_err("it is not derived");
    assert_eq!(new.remedy(), Remedy::WaitForSpace, "{new}");
    for number in 1..=30 {
        assert_eq!(
            store.delete_jobs(&[number], u32::MAX).expect("deletes").roots,
            1,
            "job {number}"
        );
    }
    store.project().expect("there is room");
    assert_eq!(store.delete_jobs(&[last], u32::MAX).expect("reads").skipped, 1, "it runs");
    drop(store);
    let store = SqliteJournal::open(&options(&file)).expect("whole");
    let (_, kept) = new_job(last - 1);
    let id = kept.created.expect("new").origin.id;
    assert!(store.reader().load_job(id).expect("reads").is_some());
}

#[test]
fn columns_that_contradict_each_other_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    {
        let mut store = SqliteJournal::open(&options(&file)).expect("opens");
        let (_, running) = new_job(1);
        let (mut job, created) = new_job(2);
        store.append(&[&running, &created, &reply(&mut job, 2, "{}")]).expect("commits");
    }
    let change = |sql: &str| {
        rusqlite::Connection::open(&file).expect("opens").execute_batch(sql).expect("changes")
    };
    for (wrong, right) in [
        ("open = 0 WHERE number = 1", "open = 1 WHERE number = 1"),
        ("open = 3 WHERE number = 1", "open = 1 WHERE number = 1"),
        ("state = 'runninG' WHERE number = 1", "state = 'running' WHERE number = 1"),
        ("ended = NULL WHERE number = 2", "ended = 3 WHERE number = 2"),
        ("open = 1 WHERE number = 2", "open = 0 WHERE number = 2"),
    ] {
        change(&format!("UPDATE jobs SET {wrong}"));
        let error = SqliteJournal::open(&options(&file))
            .and_then(|store| store.recover().map(drop))
            .expect_err(wrong)
            .to_string();
        assert!(error.contains("table jobs, row"), "{wrong}: {error}");
        change(&format!("UPDATE jobs SET {right}"));
        assert_eq!(
            SqliteJournal::open(&options(&file))
                .and_then(|store| store.recover())
                .expect(right)
                .len(),
            1
        );
    }
}

#[test]
fn a_prepared_journal_is_refused_by_name_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    {
        let mut store = SqliteJournal::open(&options(&file)).expect("opens");
        store.append(&[&new_job(1).1]).expect("commits");
    }
    let whole = std::fs::read(&file).expect("readable");
    for (evil, name) in [
        (
            "CREATE TRIGGER gone AFTER INSERT ON entries BEGIN DELETE FROM entries; END",
            "trigger \"gone\" on \"entries\"",
        ),
        (
            "CREATE TRIGGER no BEFORE DELETE ON jobs BEGIN SELECT RAISE(IGNORE); END",
            "trigger \"no\" on \"jobs\"",
        ),
        (
            "ALTER TABLE jobs RENAME TO real; CREATE VIEW jobs AS SELECT * FROM real",
            "view \"jobs\"",
        ),
        ("CREATE TABLE other(a REFERENCES jobs(number))", "table \"other\""),
        ("CREATE UNIQUE INDEX one ON jobs(workflow)", "index \"one\" on \"jobs\""),
        ("DROP INDEX jobs_open", "no index \"jobs_open\""),
    ] {
        std::fs::write(&file, &whole).expect("writable");
        rusqlite::Connection::open(&file).and_then(|c| c.execute_batch(evil)).expect(evil);
        let prepared = std::fs::read(&file).expect("readable");
        let to = folder.path().join("restored.db");
        let refusals = [
            refused(SqliteJournal::open(&options(&file))),
            restore(&file, &to).expect_err("restored"),
            inspect_backup(&file, folder.path()).expect_err("checked"),
            back_up(&file, &to, None, false).expect_err("backed up"),
        ];
        for error in refusals {
            assert!(matches!(error, JournalError::UnexpectedSchema { .. }), "{evil}: {error}");
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("DROP"), "{evil}: {text}");
            assert!(text.contains(&*file.to_string_lossy()), "it names the file given: {text}");
        }
        assert_eq!(std::fs::read(&file).expect("readable"), prepared, "{evil}: it is as it was");
        assert!(!to.exists(), "{evil}");
    }
    // An index that only finds rows is the user's affair.
    std::fs::write(&file, &whole).expect("writable");
    let mine = "CREATE INDEX mine ON jobs(created, workflow); ANALYZE";
    rusqlite::Connection::open(&file).and_then(|c| c.execute_batch(mine)).expect("made");
    assert_eq!(
        SqliteJournal::open(&options(&file)).expect("opens").recover().expect("reads").len(),
        1
    );
}

#[test]
fn what_others_put_into_an_open_journal_is_not_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let mut store = SqliteJournal::open(&options(&file)).expect("opens");
    let (first, of_first) = new_job(1);
    store.append(&[&of_first]).expect("commits");
    let evil = "CREATE TRIGGER gone AFTER INSERT ON entries BEGIN DELETE FROM entries; END";
    rusqlite::Connection::open(&file).and_then(|c| c.execute_batch(evil)).expect("added");
    let (second, of_second) = new_job(2);
    store.append(&[&of_second]).expect("commits");
    for job in [first, second] {
        let kept = store.records().load_job(job.id()).expect("reads").expect("is there");
        assert!(kept.job == job);
    }
}

#[test]
fn a_journal_of_version_0_1_0_is_what_that_made() {
    let kept = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journals/schema-9.sql");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let make = |sql: &str| {
        rusqlite::Connection::open(&file).and_then(|c| c.execute_batch(sql)).expect("made");
    };
    make(&std::fs::read_to_string(kept).expect("readable"));
    make("CREATE TRIGGER gone AFTER INSERT ON entries BEGIN DELETE FROM entries; END");
    let error = refused(SqliteJournal::open(&options(&file)));
    assert!(matches!(error, JournalError::UnexpectedSchema { .. }), "{error}");
    make("DROP TRIGGER gone");
    let mut store = SqliteJournal::open(&options(&file)).expect("opens");
    store.job_numbers().expect("it is brought up");
    drop(store);
    assert!(SqliteJournal::open(&options(&file)).is_ok(), "opens once more, as it is now");
}

#[test]
fn a_journal_from_before_version_0_1_0_is_refused_by_name_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    SqliteJournal::open(&options(&file))
        .and_then(|mut store| store.append(&[&new_job(1).1]))
        .expect("commits");
    for version in 1..=8 {
        rusqlite::Connection::open(&file)
            .and_then(|file| file.pragma_update(None, "user_version", version))
            .expect("updates");
        let before = std::fs::read(&file).expect("readable");
        let to = folder.path().join("restored.db");
        let refusals = [
            refused(SqliteJournal::open(&options(&file))),
            Reader::open(&file).map(drop).expect_err("read"),
            restore(&file, &to).expect_err("restored"),
            inspect_backup(&file, folder.path()).expect_err("checked"),
            back_up(&file, &to, None, false).expect_err("backed up"),
        ];
        for error in refusals {
            assert!(matches!(error, JournalError::Unreleased { .. }), "{version}: {error}");
            let text = error.to_string();
            for part in [
                &*file.to_string_lossy(),
                &format!("schema version {version},"),
                "Start version 0.1.0 on it once",
            ] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        assert!(std::fs::read(&file).expect("readable") == before, "{version}: not a byte");
        assert!(!to.exists(), "{version}");
    }
}
