//! The files of a journal: one process has them whatever they are called, they are their owner's
//! alone, they are whole after a stop, and it is noticed when somebody takes them away.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::manager::TestManager;
use support::waits::until;
use workflow_manager::actors::client_response::RequestError;
use workflow_manager::actors::inputs::JournalInput;
use workflow_manager::engine::Message;
use workflow_manager::journal::{
    FileLoss, JobRecords, Journal, JournalError, JournalOptions, Reader, SqliteJournal,
};
use workflow_manager::settings::DurationSetting;

/// Nobody works for its step.
const WORKFLOW: &str = "workflows: [{name: w, steps: [{name: a}]}]";

fn options(file: &Path) -> JournalOptions {
    JournalOptions {
        file: file.to_owned(),
        cache_bytes: 1 << 20,
        verify_bytes_max: 1 << 30,
        pages_max: 0,
    }
}

fn refused(file: &Path) -> JournalError {
    match SqliteJournal::open(&options(file)) {
        Ok(_) => panic!("{} was opened", file.display()),
        Err(error) => error,
    }
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", file.display()))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

async fn start(file: &Path) -> TestManager {
    let setup = TestManager::with(WORKFLOW).journal(file);
    setup.set(|settings| settings.shutdown.grace = DurationSetting(Duration::from_secs(5))).await
}

// ---- one process, whatever the name

#[test]
fn no_other_name_of_the_file_leads_around_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("data");
    fs::create_dir(&place).unwrap();
    let file = place.join("j.db");
    symlink("data/j.db", folder.path().join("link.db")).unwrap();
    symlink("data", folder.path().join("directory")).unwrap();
    // Made through a link that leads nowhere yet.
    let first = SqliteJournal::open(&options(&folder.path().join("link.db"))).expect("opens");
    assert_eq!(first.path(), file.canonicalize().unwrap());
    for name in [
        file.clone(),
        folder.path().join("link.db"),
        folder.path().join("directory/j.db"),
        place.join("../data/j.db"),
    ] {
        let error = refused(&name);
        assert!(matches!(error, JournalError::InUse { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&*name.to_string_lossy()) && text.contains("data/j.db.lock"),
            "{text}"
        );
    }
    let other = folder.path().join("other.db");
    fs::hard_link(&file, &other).unwrap();
    for name in [&file, &other] {
        let error = refused(name);
        assert!(matches!(error, JournalError::HardLinked { names: 2, .. }), "{error}");
        assert!(error.to_string().contains("-samefile"), "{error}");
    }
    drop(first);
    assert!(matches!(refused(&other), JournalError::HardLinked { .. }), "also while nobody has it");
    fs::remove_file(&other).unwrap();
    assert!(SqliteJournal::open(&options(&file)).is_ok());
    assert_eq!(
        names(folder.path()),
        ["data", "directory", "link.db"],
        "nothing lies beside a link"
    );
}

#[test]
fn what_is_no_journal_gets_no_lock_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    fs::write(
        &text,
        "these are notes, and there are enough of them to fill the header of a database, which has \
         a hundred bytes; here they are",
    )
    .unwrap();
    assert!(refused(&text).to_string().contains("not a SQLite database"));
    let theirs = folder.path().join("theirs.db");
    rusqlite::Connection::open(&theirs).unwrap().execute_batch("CREATE TABLE theirs(a)").unwrap();
    assert!(matches!(refused(&theirs), JournalError::Foreign { .. }));
    assert_eq!(names(folder.path()), ["notes.txt", "theirs.db"]);
    assert!(matches!(refused(folder.path()), JournalError::NotAFile { .. }));
    let error = refused(&folder.path().join("missing/j.db"));
    assert!(
        matches!(error, JournalError::Unreachable { .. })
            && error.to_string().contains("directory"),
        "{error}"
    );
    // One that was there before stays.
    fs::write(beside(&text, ".lock"), "").unwrap();
    refused(&text);
    assert_eq!(names(folder.path()), ["notes.txt", "notes.txt.lock", "theirs.db"]);
}

#[test]
fn new_files_are_their_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("j.db");
    let _store = SqliteJournal::open(&options(&file)).expect("opens");
    let mode =
        |suffix: &str| fs::metadata(beside(&file, suffix)).unwrap().permissions().mode() & 0o777;
    assert_eq!(["", "-wal", "-shm", ".lock"].map(mode), [0o600; 4]);
    // An existing one keeps what somebody gave it.
    let shared = folder.path().join("shared.db");
    drop(SqliteJournal::open(&options(&shared)).expect("opens"));
    fs::set_permissions(&shared, Permissions::from_mode(0o640)).unwrap();
    let _shared = SqliteJournal::open(&options(&shared)).expect("opens");
    for suffix in ["", "-wal", "-shm"] {
        assert_eq!(
            fs::metadata(beside(&shared, suffix)).unwrap().permissions().mode() & 0o777,
            0o640,
            "{suffix}"
        );
    }
}

// ---- whole after a stop

#[test]
fn after_a_stop_the_main_file_alone_is_the_journal_whoever_has_read() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("j.db");
        let manager = start(&file).await;
        let reader = manager.core().reader.clone();
        let ids = [
            manager.create_job("w", r#"{"n":1}"#).await,
            manager.create_job("w", r#"{"n":1}"#).await,
        ];
        // What is read leaves connections open, and a stream of a list may go on reading.
        assert_eq!(reader.load_running_jobs(0, 10).unwrap().len(), 2);
        let reading = std::thread::spawn({
            let reader = reader.clone();
            move || while reader.load_running_jobs(0, 10).is_ok() {}
        });
        manager.stop().await;
        reading.join().unwrap();
        assert!(fs::metadata(beside(&file, "-wal")).map_or(0, |wal| wal.len()) == 0);
        let copy = folder.path().join("copy.db");
        fs::copy(&file, &copy).unwrap();
        let manager = start(&copy).await;
        assert!(
            ids.iter().all(|id| manager.core().reader.load_job(*id).unwrap().is_some()),
            "all jobs are in the copy"
        );
        manager.stop().await;
    });
}

#[test]
fn a_program_that_reads_on_keeps_no_stop_waiting_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("j.db");
    let store = SqliteJournal::open(&options(&file)).expect("opens");
    let other = rusqlite::Connection::open(&file).unwrap();
    other.execute_batch("BEGIN; SELECT count(*) FROM jobs").unwrap();
    drop(store);
    assert!(SqliteJournal::open(&options(&file)).is_ok());
}

// ---- taken away

type Harm = fn(&Path);

const HARMS: [(&str, Harm, &str); 9] = [
    ("rm", |file| fs::remove_file(file).unwrap(), "j.db was removed or renamed"),
    (
        "mv away",
        |file| fs::rename(file, file.with_extension("old")).unwrap(),
        "j.db was removed or renamed",
    ),
    (
        "mv over it",
        |file| {
            fs::write(file.with_extension("new"), "something else").unwrap();
            fs::rename(file.with_extension("new"), file).unwrap();
        },
        "j.db was replaced by another file",
    ),
    ("truncate", |file| fs::write(file, "").unwrap(), "j.db was truncated to 0 bytes"),
    (
        "half of it",
        |file| cut(file, fs::metadata(file).unwrap().len() / 2),
        "j.db was truncated to",
    ),
    (
        "cp of another, as large",
        |file| {
            let other = file.with_extension("other");
            drop(SqliteJournal::open(&options(&other)).expect("opens"));
            let bytes = fs::read(&other).unwrap();
            let mut bytes_as_large = bytes.clone();
            bytes_as_large.resize(
                usize::try_from(fs::metadata(file).unwrap().len()).unwrap().max(bytes.len()),
                0,
            );
            fs::write(file, bytes_as_large).unwrap();
        },
        "j.db was",
    ),
    (
        "rm of -wal",
        |file| fs::remove_file(beside(file, "-wal")).unwrap(),
        "j.db-wal was removed or renamed",
    ),
    (
        "truncate of -wal",
        |file| fs::write(beside(file, "-wal"), "").unwrap(),
        "j.db-wal was truncated to 0 bytes",
    ),
    (
        "rm of -shm",
        |file| fs::remove_file(beside(file, "-shm")).unwrap(),
        "j.db-shm was removed or renamed",
    ),
];

fn cut(file: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(file).unwrap().set_len(bytes).unwrap();
}

#[test]
fn a_journal_that_is_taken_away_is_noticed_and_no_answer_is_given_on_it() {
    actix_rt::System::new().block_on(async {
        for (name, harm, words) in HARMS {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("j.db");
            let manager = start(&file).await;
            let id = manager.create_job("w", r#"{"n":1}"#).await;
            // Nothing is being derived: what is written at the very moment of the harm may hide it.
            let (answer, derived) = tokio::sync::oneshot::channel();
            manager.mailboxes().journal.send(JournalInput::ProjectionBarrier(answer));
            derived.await.expect("derived");
            harm(&file);
            // At once: what is committed into a file that is gone is not answered as created.
            let Err(RequestError::Overloaded(reason)) =
                manager.handle().create("w", None, Message::default()).await
            else {
                panic!("{name}: a job was created")
            };
            assert!(
                reason.contains(words) && reason.contains("docs/how-to/back-up.md"),
                "{name}: {reason}"
            );
            let reader = manager.core().reader.clone();
            let check = manager
                .core()
                .health
                .checks()
                .into_iter()
                .find(|check| check.name == "journal")
                .unwrap();
            assert!(!check.is_passed && check.message.contains(words), "{name}: {check:?}");
            assert!(
                matches!(
                    manager.handle().create("w", None, Message::default()).await,
                    Err(RequestError::Overloaded(_))
                ),
                "{name}"
            );
            let cancelled = manager.handle().cancel(id, None).await;
            assert!(
                matches!(cancelled, Err(RequestError::Overloaded(_))),
                "{name}: an operation is answered"
            );
            assert!(
                matches!(reader.load_job(id), Err(JournalError::Closed { .. })),
                "{name}: nothing is read from the file"
            );
            let left: Vec<(PathBuf, Option<Vec<u8>>)> = ["", "-wal"]
                .iter()
                .map(|suffix| beside(&file, suffix))
                .map(|path| (path.clone(), fs::read(path).ok()))
                .collect();
            manager.stop().await;
            for (path, bytes) in left {
                assert_eq!(
                    fs::read(&path).ok(),
                    bytes,
                    "{name}: {} is not touched any more",
                    path.display()
                );
            }
        }
    });
}

#[test]
fn it_is_noticed_also_while_nothing_is_asked() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let manager = start(&folder.path().join("j.db")).await;
        fs::remove_file(folder.path().join("j.db")).unwrap();
        until("the journal's loss is noticed", || !manager.core().health.can_accept()).await;
        manager.stop().await;
    });
}

#[test]
fn what_sqlite_and_its_clients_do_is_no_loss() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("j.db");
    let mut store = SqliteJournal::open(&options(&file)).expect("opens");
    let reader = Reader::new(store.path());
    let other = rusqlite::Connection::open(&file).unwrap();
    other.execute_batch("CREATE TABLE notes(a)").unwrap();
    let fill = |rows: u32| {
        let sql = format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) \
             INSERT INTO notes SELECT randomblob(900) FROM n"
        );
        other.execute_batch(&sql).unwrap();
    };
    let largest = std::cell::Cell::new(0);
    let mut look = |what: &str| {
        store.check_files().unwrap_or_else(|loss| panic!("{what}: {loss}"));
        reader.load_running_jobs(0, 10).unwrap();
        largest.set(largest.get().max(fs::metadata(&file).unwrap().size()));
    };
    look("the start");
    for _ in 0..5 {
        // Large enough for checkpoints at a commit.
        fill(5_000);
        look("a large commit");
        other.query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(())).unwrap();
        look("a checkpoint");
        other.execute_batch("DELETE FROM notes").unwrap();
        look("a deletion");
        other.execute_batch("VACUUM").unwrap();
        look("VACUUM");
        other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        look("a checkpoint that empties the -wal");
        fill(1);
        look("a small commit");
    }
    assert!(fs::metadata(&file).unwrap().size() < largest.get(), "it has shrunk meanwhile");
    drop(other);
    look("the end of the client");
    fs::remove_file(beside(&file, ".lock")).unwrap();
    look("a lock that was removed is taken again");
    assert!(matches!(refused(&file), JournalError::InUse { .. }));
    fs::remove_file(&file).unwrap();
    assert!(matches!(store.check_files(), Err(FileLoss::Removed(_))));
}
