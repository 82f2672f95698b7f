//! Another program that keeps the journal's file locked does no damage: what writes waits until it
//! lets go, and what is decided meanwhile is kept. The same holds while there is no memory.

use crate::alone::alone;
use actix_web::http::StatusCode;
use rusqlite::Connection;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::api::Api;
use support::manager::{Setup, TestManager};
use support::waits::{until, within};
use support::world::LIMITS;
use workflow_manager::actors::client_response::RequestError;
use workflow_manager::actors::health::JournalWait;
use workflow_manager::clock;
use workflow_manager::engine::{
    Context, Definition, Graph, Input, Job, JobId, JobState, Message, Millis, Operation, Origin,
    Step, StepIndex, Timestamp,
};
use workflow_manager::journal::{
    JobRecords, Journal, JournalError, JournalOptions, NewJob, Notice, Reader, Record, Remedy,
    SqliteJournal, StoredOffset,
};

/// A program that keeps the file locked until it is dropped.
struct Lock(Connection);

impl Lock {
    fn on(file: &Path) -> Lock {
        let connection = Connection::open(file).expect("opens");
        connection.busy_timeout(Duration::from_secs(60)).expect("set");
        connection.execute_batch("BEGIN IMMEDIATE").expect("locked");
        Lock(connection)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.execute_batch("ROLLBACK").expect("unlocked");
    }
}

fn options(file: &Path) -> JournalOptions {
    JournalOptions {
        file: file.to_owned(),
        cache_bytes: 1 << 20,
        verify_bytes_max: 1 << 30,
        pages_max: 0,
    }
}

fn definition() -> Arc<Definition> {
    let graph = Graph::new("w".to_owned(), None, vec![Step::with_name("a")]);
    Arc::new(Definition::new("w", vec![graph]))
}

const CONTEXT: Context<'static> =
    Context { now: Timestamp(1), limits: &LIMITS, pauses: None, spare: None };

fn new_job(number: i64) -> (Job, Record) {
    let id = JobId(uuid::Uuid::from_u128(number as u128));
    let origin = Origin::for_root_job(id, definition(), Timestamp(1));
    let message = Message::parse(b"{}").expect("a message");
    let (job, begun) = Job::create(origin.clone(), message, &CONTEXT);
    let created = NewJob { origin: Arc::new(origin), root: number, parent: None };
    (job, Record::from_decision(number, Some(created), begun))
}

fn taken(job: &mut Job, number: i64, input: Input) -> Record {
    Record::from_decision(number, None, job.handle_input(input, &CONTEXT).expect("taken"))
}

/// A kind of write, and its name.
type Write<'a> = (&'a str, Box<dyn FnMut(&mut SqliteJournal) -> Result<(), JournalError> + 'a>);

#[test]
fn each_kind_of_write_waits_for_another_program_and_is_done_once_it_lets_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let mut store = SqliteJournal::open(&options(&file)).expect("opens");
    let (mut first, of_first) = new_job(1);
    let cancel = Operation::Cancel { reason: "a test".into() };
    let end = taken(&mut first, 1, Input::from_request(cancel.clone()));
    let (mut second, of_second) = new_job(2);
    let noticed = Notice { at: Timestamp(1), body: "{}".into() };
    let of_second = Record { notice: Some(noticed), ..of_second };
    store.append(&[&of_first, &end, &of_second]).expect("commits");
    let input = Input::Confirmed { step: StepIndex(0), attempt: 1, dispatch: None };
    let confirm = taken(&mut second, 2, input);
    store.append(&[&confirm]).expect("commits");
    store.write_confirms().expect("writes none yet");
    let end = taken(&mut second, 2, Input::from_request(cancel));
    let position = StoredOffset { bus: "b".into(), topic: "t".into(), partition: 0, offset: 1 };
    let [notice] =
        store.records().load_notices(0, 9).expect("reads")[..].to_vec().try_into().expect("one");
    let w = definition();
    let writes: Vec<Write<'_>> = vec![
        ("derives", Box::new(|store| store.project())),
        ("writes confirms", Box::new(|store| store.write_confirms().map(|_| ()))),
        ("makes tables", Box::new(|store| store.create_status_tables(&[&*w]))),
        ("appends", Box::new(|store| store.append(&[&end]).map(|_| ()))),
        (
            "writes positions",
            Box::new(|store| store.store_offsets(std::slice::from_ref(&position))),
        ),
        ("forgets", Box::new(|store| store.delete_notices(&[notice.0]))),
        ("deletes", Box::new(|store| store.delete_jobs(&[1], u32::MAX).map(|_| ()))),
        (
            "deletes what is past its retention",
            Box::new(|store| {
                store.delete_expired(Timestamp(i64::MAX), Millis(0), u32::MAX).map(|_| ())
            }),
        ),
    ];
    for (what, mut write) in writes {
        let lock = Lock::on(&file);
        let error = write(&mut store).expect_err(what);
        assert_eq!(error.remedy(), Remedy::WaitForLock, "{what}: {error}");
        assert!(error.to_string().contains("locked"), "{what}: {error}");
        let _ = store.records().load_job(first.id()).expect("what is committed is read meanwhile");
        drop(lock);
        write(&mut store).expect(what);
        assert_eq!(store.check_files(), Ok(()), "{what}");
    }
    drop(store);
    let mut store = SqliteJournal::open(&options(&file)).expect("whole, and verified");
    assert_eq!(store.job_numbers().expect("numbers").take(Timestamp(0)), 1, "all was deleted");
}

/// So many lists are asked for while the file is locked.
const READS: u32 = 20;

#[test]
fn readers_do_not_wait_for_a_lock_that_is_known() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let mut store = SqliteJournal::open(&options(&file)).expect("opens");
    store.append(&[&new_job(1).1]).expect("commits");
    let lock = Lock::on(&file);
    let begun = clock::instant();
    store.project().expect_err("it is locked");
    let waited = begun.elapsed();
    let begun = clock::instant();
    for _ in 0..READS {
        let error =
            store.records().count_root_jobs_by_state().expect_err("what is committed is missing");
        assert_eq!(error.remedy(), Remedy::WaitForLock, "{error}");
    }
    let waited_by_all = begun.elapsed();
    assert!(waited_by_all < waited * READS / 2, "{waited_by_all:?}, each write {waited:?}");
    drop(lock);
    store.project().expect("derives");
    assert!(!store.records().count_root_jobs_by_state().expect("reads").is_empty());
}

fn setup(file: &Path) -> Setup {
    let text = "workflows: [{name: w, steps: [{name: a}]},
                {name: by-hand, steps: [{name: b, external: true}]}]";
    TestManager::with(text).journal(file).echo(["a"])
}

async fn a_lock() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let manager = setup(&file).await;
    let running = manager.create_job("by-hand", "{}").await;
    let lock = Lock::on(&file);
    let handle = manager.handle().clone();
    let waiting = handle.create("w", None, Message::default());
    let mut waiting = Box::pin(waiting);
    let health = &manager.core().health;
    tokio::select! {
        _ = &mut waiting => panic!("it is answered before its commit"),
        () = until("readiness tells", || {
            health.journal_wait() == Some(JournalWait::Lock)
        }) => {}
    }
    let checks = health.checks();
    let check = checks.iter().find(|check| check.name == "journal").expect("a check");
    assert!(!check.is_passed && check.message.contains("another program"), "{check:?}");
    let refused =
        manager.handle().create("w", None, Message::default()).await.expect_err("is refused");
    assert!(matches!(refused, RequestError::Overloaded(_)), "{refused:?}");
    let cancelled =
        within("nobody waits for its commit", manager.handle().cancel(running, None)).await;
    assert!(matches!(cancelled, Err(RequestError::Overloaded(_))), "{cancelled:?}");
    let failures = manager.core().metrics.journal_failures.with_label_values(&["locked"]);
    let seen = failures.get();
    until("it tries again and again", || failures.get() > seen + 1).await;
    drop(lock);
    let id = waiting.as_mut().await.expect("created").id();
    manager.until_closed(id).await;
    assert!(health.can_accept());
    manager.handle().cancel(running, None).await.expect("cancelled");
    manager.stop().await;
    let kept = Reader::new(&file).load_job(id).expect("read").expect("there").job;
    assert_eq!(kept.state(), JobState::Completed);
}

#[test]
fn a_manager_waits_for_another_program_s_lock_and_goes_on() {
    alone("locked::a_manager_waits_for_another_program_s_lock_and_goes_on", a_lock());
}

async fn no_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let manager = setup(&file).await;
    fail::cfg("journal::write", "return(memory)").expect("a failpoint");
    let mut waiting = Box::pin(manager.handle().create("w", None, Message::default()));
    let health = &manager.core().health;
    tokio::select! {
        _ = &mut waiting => panic!("it is answered before its commit"),
        () = until("readiness tells", || {
            health.journal_wait() == Some(JournalWait::Memory)
        }) => {}
    }
    let refused =
        manager.handle().create("w", None, Message::default()).await.expect_err("is refused");
    assert!(matches!(refused, RequestError::Overloaded(_)), "{refused:?}");
    let failures = manager.core().metrics.journal_failures.with_label_values(&["memory"]);
    let seen = failures.get();
    until("it tries again", || failures.get() > seen).await;
    fail::remove("journal::write");
    manager.until_closed(waiting.await.expect("created").id()).await;
    assert!(health.can_accept());
    manager.stop().await;
}

#[test]
fn a_manager_without_memory_for_its_journal_waits_and_goes_on() {
    alone("locked::a_manager_without_memory_for_its_journal_waits_and_goes_on", no_memory());
}

async fn a_missing_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let manager = setup(&file).await;
    let api = Api::new(&manager).await;
    let other = Connection::open(&file).expect("opens");
    other.execute_batch("DROP TABLE status_w").expect("dropped");
    let lock = Lock::on(&file);
    let mut waiting = Box::pin(manager.handle().create("w", None, Message::default()));
    let health = &manager.core().health;
    tokio::select! {
        _ = &mut waiting => panic!("it is answered before its commit"),
        () = until("the journal waits", || health.is_journal_waiting()) => {}
    }
    let answer = api.get("/api/status/w", &[]).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text());
    assert_eq!(answer.detail(), JournalWait::Lock.as_str());
    drop(lock);
    waiting.await.expect("created");
    manager.stop().await;
}

#[test]
fn a_table_that_is_missing_while_the_file_is_locked_says_what_the_journal_waits_for() {
    let test = "locked::\
                a_table_that_is_missing_while_the_file_is_locked_says_what_the_journal_waits_for";
    alone(test, a_missing_table());
}

async fn a_vacuum() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let manager = setup(&file).await;
    let mut ids = Vec::new();
    for round in 0..20 {
        let vacuum = file.clone();
        let other = std::thread::spawn(move || {
            let other = Connection::open(vacuum).expect("opens");
            other.busy_timeout(Duration::from_secs(60)).expect("set");
            other.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)").expect("vacuums");
        });
        for _ in 0..10 {
            ids.push(manager.create_job("w", "{}").await);
        }
        other.join().unwrap_or_else(|_| panic!("round {round}"));
    }
    until("all end", || !ids.iter().any(|id| manager.is_active(*id))).await;
    assert!(manager.core().health.journal_loss().is_none(), "a VACUUM is no loss");
    manager.stop().await;
    let mut store = SqliteJournal::open(&options(&file)).expect("whole, and verified");
    let next = store.job_numbers().expect("numbers").take(Timestamp(0));
    assert_eq!(next, ids.len() as i64 + 1);
}

#[test]
fn another_program_s_vacuum_does_no_harm() {
    alone("locked::another_program_s_vacuum_does_no_harm", a_vacuum());
}

#[test]
fn a_start_waits_for_another_program_s_lock() {
    let test = async {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("j.db");
        setup(&file).await.stop().await;
        let lock = Connection::open(&file).expect("opens");
        lock.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; COMMIT")
            .expect("locked, also for readers");
        let error = SqliteJournal::open(&options(&file)).err().expect("is refused");
        assert_eq!(error.remedy(), Remedy::WaitForLock, "{error}");
        let unlocked = std::thread::spawn(move || {
            // As long as the first try to open waits.
            std::thread::sleep(Duration::from_secs(6));
            drop(lock);
        });
        let manager = setup(&file).await;
        manager.create_job("w", "{}").await;
        manager.stop().await;
        unlocked.join().expect("unlocked");
    };
    alone("locked::a_start_waits_for_another_program_s_lock", test);
}
