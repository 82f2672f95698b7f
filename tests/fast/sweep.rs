//! What is done to many jobs is done in parts, and the journal goes on with everything else between
//! them.

use crate::alone::{Log, alone};
use futures_util::future::join_all;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::manager::TestManager;
use support::waits::{until, within};
use support::world::LIMITS;
use workflow_manager::actors::bulk_requests::BulkRedispatch;
use workflow_manager::bus::Address;
use workflow_manager::clock;
use workflow_manager::engine::{
    Context, Definition, Graph, Input, Job, JobId, Message, Millis, Operation, Origin, Step,
    Timestamp,
};
use workflow_manager::journal::{Journal, JournalOptions, NewJob, Record, SqliteJournal, back_up};
use workflow_manager::settings::{DurationSetting, Settings};

const ONE: &str = "workflows: [{name: w, steps: [{name: a}]}]";

/// Jobs past their retention; each has a row of its own, and two of its record.
const EXPIRED: i64 = 500;
const ROWS_EACH: usize = 3;

/// Twice as many jobs as are told of a redispatch at once, and one.
const WAITING: usize = 2_001;

/// What a part takes at least: so the parts become small.
const SLOW: Duration = Duration::from_millis(100);

fn options(file: &Path) -> JournalOptions {
    JournalOptions {
        file: file.to_owned(),
        cache_bytes: 1 << 20,
        verify_bytes_max: 0,
        pages_max: 0,
    }
}

/// A journal with cancelled jobs that are past every retention.
fn fill(file: &Path) {
    let graph = Graph::new("old".to_owned(), None, vec![Step::with_name("a")]);
    let definition = Arc::new(Definition::new("old", vec![graph]));
    let context = Context { now: Timestamp(1), limits: &LIMITS, pauses: None, spare: None };
    let mut records = Vec::new();
    for number in 1..=EXPIRED {
        let id = JobId(uuid::Uuid::from_u128(number as u128));
        let origin = Origin::for_root_job(id, definition.clone(), Timestamp(1));
        let message = Message::parse(b"{}").expect("a message");
        let (mut job, begun) = Job::create(origin.clone(), message, &context);
        let created = NewJob { origin: Arc::new(origin), root: number, parent: None };
        records.push(Record::from_decision(number, Some(created), begun));
        let cancel = Operation::Cancel { reason: "a test".into() };
        let ended = job.handle_input(Input::from_request(cancel), &context).expect("taken");
        records.push(Record::from_decision(number, None, ended));
    }
    let mut store = SqliteJournal::open(&options(file)).expect("opens");
    store.append(&records.iter().collect::<Vec<_>>()).expect("commits");
}

/// A job that was created just now: it vouches for the clock of the next start.
fn vouch(file: &Path) {
    let graph = Graph::new("w".to_owned(), None, vec![Step::with_name("a")]);
    let definition = Arc::new(Definition::new("w", vec![graph]));
    let now = clock::now();
    let origin = Origin::for_root_job(JobId(uuid::Uuid::from_u128(u128::MAX)), definition, now);
    let message = Message::parse(b"{}").expect("a message");
    let context = Context { now, limits: &LIMITS, pauses: None, spare: None };
    let (_, begun) = Job::create(origin.clone(), message, &context);
    let number = EXPIRED + 1;
    let created = NewJob { origin: Arc::new(origin), root: number, parent: None };
    let mut store = SqliteJournal::open(&options(file)).expect("opens");
    store.append(&[&Record::from_decision(number, Some(created), begun)]).expect("commits");
}

/// A sweep in small parts, beside clients who create so many jobs at once. Under load a commit
/// waits this long for more records.
async fn a_sweep(at_once: usize, linger: Duration) {
    let log = Log::begin();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    fill(&file);
    vouch(&file);
    let parts = Arc::new(AtomicUsize::new(0));
    let counted = parts.clone();
    fail::cfg_callback("journal::sweep", move || {
        std::thread::sleep(SLOW);
        counted.fetch_add(1, Ordering::SeqCst);
    })
    .expect("a failpoint");
    let lingers = |settings: &mut Settings| settings.journal.linger = DurationSetting(linger);
    let manager = TestManager::with(ONE).journal(&file).set(lingers).await;
    let deleted = manager.core().metrics.deleted.with_label_values(&["retention"]);
    let (mut answered, mut longest) = (0, 0);
    within("all are deleted, and counted", async {
        while deleted.get() < EXPIRED as u64 {
            let before = parts.load(Ordering::SeqCst);
            join_all((0..at_once).map(|_| manager.create_job("w", "{}"))).await;
            longest = longest.max(parts.load(Ordering::SeqCst) - before);
            answered += 1;
        }
    })
    .await;
    let all = parts.load(Ordering::SeqCst);
    assert!(all >= EXPIRED as usize * ROWS_EACH / 500 + 4, "small parts: {all}");
    if at_once == 1 {
        assert!(answered > all, "{answered} answers beside {all} parts");
    }
    assert!(longest <= 2, "an answer has waited for {longest} of {all} parts");
    until("the sweep is over, and counted", || {
        let text = manager.core().metrics.render();
        text.contains("workflow_journal_deletion_seconds_count")
    })
    .await;
    until("the log tells", || {
        log.has(&format!("deleted ended jobs past their retention jobs={EXPIRED}"))
    })
    .await;
    assert!(
        manager
            .core()
            .reader
            .count_root_jobs_by_state()
            .expect("reads")
            .iter()
            .all(|count| count.0 == "w")
    );
    manager.stop().await;
}

#[test]
fn a_backup_that_is_vacuumed_leaves_out_what_is_free() {
    let folder = tempfile::tempdir().expect("a folder");
    let [file, whole, small] =
        ["j.db", "whole.db", "small.db"].map(|name| folder.path().join(name));
    fill(&file);
    let mut store = SqliteJournal::open(&options(&file)).expect("opens");
    let before = store.disk_usage().expect("told");
    let deleted = store.delete_expired(Timestamp(i64::MAX), Millis(0), u32::MAX).expect("deletes");
    assert_eq!(deleted.roots, EXPIRED as usize);
    let after = store.disk_usage().expect("told");
    assert!(after.free > before.free, "{after:?}");
    let whole = back_up(&file, &whole, None, false).expect("copied").bytes;
    let small = back_up(&file, &small, None, true).expect("copied").bytes;
    assert!(small <= whole - after.free, "{small} of {whole}, {} free", after.free);
}

#[test]
fn what_is_due_is_committed_between_the_parts_of_a_sweep() {
    let scenario = a_sweep(1, Duration::from_millis(2));
    alone("sweep::what_is_due_is_committed_between_the_parts_of_a_sweep", scenario);
}

#[test]
fn what_waits_for_more_records_is_committed_before_the_next_part() {
    // So much as to wait longer than for several parts.
    let scenario = a_sweep(20, Duration::from_secs(5));
    alone("sweep::what_waits_for_more_records_is_committed_before_the_next_part", scenario);
}

async fn a_redispatch() {
    let manager = TestManager::with(ONE).await;
    join_all((0..WAITING).map(|_| manager.create_job("w", "{}"))).await;
    let parts = Arc::new(AtomicUsize::new(0));
    let counted = parts.clone();
    fail::cfg_callback("router::part", move || {
        counted.fetch_add(1, Ordering::SeqCst);
    })
    .expect("a failpoint");
    let queue = Address { bus: manager.core().buses.resolve(None, ""), queue: "a".into() };
    manager.handle().redispatch(BulkRedispatch::new(queue)).await.expect("answered");
    assert_eq!(parts.load(Ordering::SeqCst), 3, "so many jobs are told in parts");
    manager.stop().await;
}

#[test]
fn many_jobs_are_told_of_a_redispatch_in_parts() {
    alone("sweep::many_jobs_are_told_of_a_redispatch_in_parts", a_redispatch());
}
