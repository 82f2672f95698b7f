//! The journal on real files: what is appended comes back, damage is found and named, one process
//! has the file.

use std::path::Path;
use std::sync::Arc;
use workflow_manager::engine::{
    Context, Definition, Graph, Job, JobId, Limits, Message, Millis, Origin, Reply, Step, Timestamp,
};
use workflow_manager::engine::{Effect, FanOutKeys, Input, Instruction, Operation, Order};
use workflow_manager::journal::{Created, JournalError, Options, Reader, Record, Remedy, Store};

const LIMITS: Limits = Limits {
    step_message_bytes_max: 1 << 20,
    reply_bytes_max: 1 << 20,
    depth_max: 32,
    window: 100,
    window_bytes: 1 << 26,
};

fn options(file: &Path) -> Options {
    Options { file: file.to_owned(), cache_bytes: 1 << 20, verify_bytes_max: 1 << 30, pages_max: 0 }
}

fn definition() -> Arc<Definition> {
    let step = Step::named("only");
    Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, vec![step])]))
}

fn context(now: i64) -> Context<'static> {
    Context { now: Timestamp(now), limits: &LIMITS }
}

fn new_job(number: i64) -> (Job, Record) {
    let id = JobId(uuid::Uuid::from_u128(number as u128));
    let origin = Origin::top_level(id, definition(), Timestamp(number));
    let (job, decision) = Job::create(
        origin.clone(),
        Message::parse(br#"{"k":1e400}"#).expect("a message"),
        &context(number),
    );
    (
        job,
        Record::of(
            number,
            Some(Created { origin: Arc::new(origin), root: number, parent: None }),
            decision,
        ),
    )
}

fn reply(job: &mut Job, number: i64, body: &str) -> Record {
    let input = Input::Reply {
        step: "only".to_owned(),
        attempt: None,
        reply: Reply::Result(body.to_owned().into()),
    };
    Record::of(number, None, job.take(input, &context(number + 1)).expect("taken"))
}

fn refused(result: Result<Store, JournalError>) -> JournalError {
    match result {
        Ok(_) => panic!("the journal was opened"),
        Err(error) => error,
    }
}

#[test]
fn what_was_appended_is_recovered_and_what_ended_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let (first, first_record) = new_job(1);
    let (mut second, second_record) = new_job(2);
    {
        let mut store = Store::open(&options(&file)).expect("opens");
        store.append([&first_record, &second_record]).expect("commits");
        let ended = reply(&mut second, 2, r#"{"done":0.10}"#);
        store.append([&ended]).expect("commits");
    }
    let store = Store::open(&options(&file)).expect("opens again");
    let recovered = store.recover().expect("recovers");
    assert_eq!(recovered.len(), 1);
    assert!(recovered[0].job == first, "the recovered job equals the live one");
    assert!(
        matches!(recovered[0].effects.as_slice(), [Effect::Dispatch { attempt: 1, .. }]),
        "its dispatch was not confirmed"
    );
    assert_eq!(store.next_number().expect("a number"), 3);
    let reader = Reader::new(&file);
    let found = reader.job(second.id()).expect("reads").expect("is kept");
    assert_eq!(found.job.result().to_text(), r#"{"done":0.10}"#);
    let creation = reader.creation(second.id()).expect("reads").expect("is kept");
    assert_eq!(creation.message.expect("top-level").to_text(), r#"{"k":1e400}"#);
}

#[test]
fn a_record_that_comes_twice_changes_nothing_and_another_in_its_place_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let mut store = Store::open(&options(&file)).expect("opens");
    let (mut job, first) = new_job(1);
    let mut other = job.clone();
    let (end, another) = (reply(&mut job, 1, r#"{"n":1}"#), reply(&mut other, 1, r#"{"n":2}"#));
    store.append([&first, &end]).expect("commits");
    assert!(store.append([&first, &end]).expect("is there already").is_empty());
    let error = store.append([&another]).expect_err("is refused");
    assert!(matches!(error, JournalError::Damaged { table: "entries", .. }), "{error}");
    assert_eq!(error.remedy(), Remedy::Exit);
    drop(store);
    let found = Reader::new(&file).job(job.id()).expect("reads").expect("is kept");
    assert!(found.job == job, "the first stays, once");
}

#[test]
fn a_row_that_is_missing_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let (mut job, first) = new_job(1);
    let paused = job.take(Input::Operate(Operation::Pause), &context(2)).expect("paused");
    let resumed = job.take(Input::Operate(Operation::Resume), &context(3)).expect("resumed");
    let rows = [first, Record::of(1, None, paused), Record::of(1, None, resumed)];
    Store::open(&options(&file)).expect("opens").append(&rows).expect("commits");
    let whole = std::fs::read(&file).expect("readable");
    for row in 1..=2 {
        std::fs::write(&file, &whole).expect("writable");
        let client = rusqlite::Connection::open(&file).expect("opens");
        client.execute("DELETE FROM entries WHERE seq = ?1", [row]).expect("deletes");
        client.execute("DELETE FROM places WHERE seq = ?1", [row]).expect("deletes");
        drop(client);
        let store = Store::open(&options(&file)).expect("every row is whole");
        let error = store.recover().err().expect("one is missing").to_string();
        assert!(error.contains(&format!("row {}", row + 1)), "{error}");
        assert!(error.contains("a row is missing"), "{error}");
    }
}

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let first = Store::open(&options(&file)).expect("opens");
    let error = refused(Store::open(&options(&file)));
    assert!(matches!(error, JournalError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("in use by another process"), "{error}");
    drop(first);
    assert!(Store::open(&options(&file)).is_ok());
}

#[test]
fn every_flipped_byte_of_a_row_is_found_named_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    {
        let mut store = Store::open(&options(&file)).expect("opens");
        let records: Vec<Record> = (1..50).map(|number| new_job(number).1).collect();
        store.append(&records).expect("commits");
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
            let Err(error) = Store::open(&options(&file)) else { continue };
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
    assert!(Store::open(&options(&file)).is_ok(), "the whole file opens");
}

/// A job's entries are found by the index: one that is wrong by a bit could hide the last of them.
#[test]
fn a_bit_that_is_wrong_in_an_index_of_the_entries_is_found() {
    const JOBS: i64 = 40;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    {
        let mut store = Store::open(&options(&file)).expect("opens");
        let records: Vec<Record> = (1..=JOBS).map(|number| new_job(number).1).collect();
        store.append(&records).expect("commits");
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
        let error = refused(Store::open(&options(&file)));
        let is_of_places = matches!(error, JournalError::Damaged { table: "places", .. });
        assert!(
            is_of_places || matches!(error, JournalError::Malformed { .. }),
            "byte {at}: {error}"
        );
    }
    std::fs::write(&file, &whole).expect("writable");
    assert!(Store::open(&options(&file)).is_ok(), "the whole file opens");
}

#[test]
fn a_truncated_file_and_files_of_others_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    {
        let mut store = Store::open(&options(&file)).expect("opens");
        let records: Vec<Record> = (1..500).map(|number| new_job(number).1).collect();
        store.append(&records).expect("commits");
    }
    let whole = std::fs::read(&file).expect("readable");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("writable");
    let error = refused(Store::open(&options(&file)));
    assert!(
        matches!(error, JournalError::Malformed { .. } | JournalError::Damaged { .. }),
        "{error}"
    );

    let text = folder.path().join("text.db");
    std::fs::write(&text, "this is no database, but it is long enough to have a header that SQLite can look at and refuse").expect("writable");
    let error = refused(Store::open(&options(&text)));
    assert!(error.to_string().contains("no SQLite database"), "{error}");

    let other = folder.path().join("other.db");
    rusqlite::Connection::open(&other)
        .expect("opens")
        .execute_batch("CREATE TABLE theirs(a)")
        .expect("creates");
    let error = refused(Store::open(&options(&other)));
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
    let mut store = Store::open(&options(&file)).expect("opens");
    store.append([&new_job(1).1]).expect("commits");
}

#[test]
fn a_newer_schema_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    drop(Store::open(&options(&file)).expect("opens"));
    rusqlite::Connection::open(&file)
        .expect("opens")
        .pragma_update(None, "user_version", 99)
        .expect("updates");
    let error = refused(Store::open(&options(&file)));
    assert!(matches!(error, JournalError::Newer { found: 99, .. }), "{error}");
}

#[test]
fn without_room_the_batch_is_rolled_back_whole_and_goes_in_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    drop(Store::open(&options(&file)).expect("opens"));
    let records: Vec<Record> = (1..2_000).map(|number| new_job(number).1).collect();
    {
        let mut store = Store::open(&Options { pages_max: 40, ..options(&file) }).expect("opens");
        let error = store.append(&records).expect_err("there is no room");
        assert_eq!(error.remedy(), Remedy::WaitForRoom, "{error}");
        store.append(&records[..1]).expect("a small batch has room");
    }
    let mut store = Store::open(&options(&file)).expect("opens with room");
    assert_eq!(
        store.recover().expect("recovers").len(),
        1,
        "of the refused batch nothing was kept"
    );
    store.append(&records[1..]).expect("commits");
    assert_eq!(store.recover().expect("recovers").len(), records.len());
}

#[test]
fn retention_deletes_what_ended_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = Store::open(&options(&folder.path().join("j.db"))).expect("opens");
    let (mut ended, created) = new_job(1);
    store.append([&created, &new_job(2).1]).expect("commits");
    store.append([&reply(&mut ended, 1, "{}")]).expect("commits");
    assert_eq!(
        store.delete_ended(Timestamp(1), Millis(0), 10).expect("deletes").roots,
        0,
        "not before its time"
    );
    assert_eq!(store.delete_ended(Timestamp(i64::MAX), Millis(0), 10).expect("deletes").roots, 1);
    let reader = Reader::new(&folder.path().join("j.db"));
    assert!(reader.job(ended.id()).expect("reads").is_none());
    assert_eq!(store.recover().expect("recovers").len(), 1);
}

#[test]
fn records_of_a_deleted_job_are_void() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let mut store = Store::open(&options(&file)).expect("opens");
    let (mut job, first) = new_job(1);
    store.append([&first]).expect("commits");
    let deleted = store.delete(&[1]).expect("looks");
    assert_eq!((deleted.roots, deleted.left), (0, 1), "it runs");
    let end = reply(&mut job, 1, "{}");
    assert!(store.append([&end]).expect("commits").is_empty());
    assert_eq!(store.delete(&[1]).expect("deletes").roots, 1);
    // A child job that was about to start, and a record that was on its way.
    let (_, mut child) = new_job(2);
    child.created = child.created.map(|created| Created { parent: Some(1), root: 1, ..created });
    let empty = Record::nothing(3);
    let gone = store.append([&child, &end, &empty]).expect("commits");
    assert_eq!(gone.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    drop(store);
    let store = Store::open(&options(&file)).expect("opens again");
    assert!(store.recover().expect("recovers").is_empty());
    assert_eq!(store.next_number().expect("a number"), 1, "no row is left");
    assert!(Reader::new(&file).job(job.id()).expect("reads").is_none());
}

#[test]
fn columns_that_contradict_each_other_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    {
        let mut store = Store::open(&options(&file)).expect("opens");
        let (_, running) = new_job(1);
        let (mut job, created) = new_job(2);
        store.append([&running, &created, &reply(&mut job, 2, "{}")]).expect("commits");
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
        let error = Store::open(&options(&file))
            .and_then(|store| store.recover().map(drop))
            .expect_err(wrong)
            .to_string();
        assert!(error.contains("table jobs, row"), "{wrong}: {error}");
        change(&format!("UPDATE jobs SET {right}"));
        assert_eq!(
            Store::open(&options(&file)).and_then(|store| store.recover()).expect(right).len(),
            1
        );
    }
}

/// A job, its child job and the child's child job, of which the first two fan out.
fn three_levels() -> Vec<(i64, Job, Record)> {
    let each = |task| Step { task: Some(task), ..Step::named("each") };
    let graphs = vec![
        Graph::new("w".to_owned(), None, vec![each(1)]),
        Graph::new("t".to_owned(), Some(FanOutKeys::new("items", "item")), vec![each(2)]),
        Graph::new("u".to_owned(), Some(FanOutKeys::new("subs", "sub")), vec![Step::named("only")]),
    ];
    let id = JobId(uuid::Uuid::from_u128(1));
    let definition = Arc::new(Definition::new("w", graphs));
    let mut origin = Origin::top_level(id, definition, Timestamp(1));
    let mut message = Message::parse(br#"{"items":[1],"subs":[1]}"#).expect("a message");
    let mut levels = Vec::new();
    for number in 1..=3 {
        origin.created = Timestamp(number);
        let (job, mut decision) = Job::create(origin.clone(), message.clone(), &context(number));
        let effects = std::mem::take(&mut decision.effects);
        let created = Created {
            origin: Arc::new(origin.clone()),
            root: 1,
            parent: (number > 1).then(|| number - 1),
        };
        levels.push((number, job, Record::of(number, Some(created), decision)));
        for effect in effects {
            if let Effect::StartChild { origin: child, message: of_child } = effect {
                (origin, message) = (*child, of_child);
            }
        }
    }
    levels
}

#[test]
fn a_closed_job_with_an_open_child_tells_its_parent_after_a_crash() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let mut levels = three_levels();
    let mut store = Store::open(&options(&file)).expect("opened");
    store.append(levels.iter().map(|(_, _, record)| record)).expect("appended");
    // The middle one fails; what it tells its parent and its child is lost with the process.
    let (number, middle, _) = &mut levels[1];
    let failed = middle
        .take(
            Input::Order(Order { round: 0, what: Instruction::Halt("a test".into()) }),
            &context(10),
        )
        .expect("it fails");
    assert!(failed.closed);
    store.append([&Record::of(*number, None, failed)]).expect("appended");
    drop(store);

    let recovered =
        Store::open(&options(&file)).expect("opened again").recover().expect("recovered");
    let numbers: Vec<i64> = recovered.iter().map(|recovered| recovered.number).collect();
    assert_eq!(numbers, [1, 3], "the middle one is closed");
    assert!(
        matches!(recovered[0].effects[..], [Effect::TellParent(..)]),
        "{:?}",
        recovered[0].effects
    );
    assert!(
        matches!(recovered[1].orders[..], [Order { what: Instruction::Halt(_), .. }]),
        "{:?}",
        recovered[1].orders
    );
}
