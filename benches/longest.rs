//! The longest response time under load, alone and during operations on many jobs: the sweep of
//! retention, a start with many running jobs, a burst of creations, retries of ended jobs. What
//! counts is the ratio to the same load alone, in the same run. A redispatch is not among them: on
//! the embedded bus, which is measured here, there is never anything to send again.
//!
//! `LONGEST_JOBS` sets another number of jobs.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use futures_util::future::join_all;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::manager::{TestManager, echo};
use support::waits::poll;
use workflow_manager::actors::manager::Manager;
use workflow_manager::actors::manager_handle::ManagerHandle;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::clock;
use workflow_manager::engine::{
    Context, Definition, Graph, Input, Job, JobId, Limits, Message, Operation, Origin, Step,
    Timestamp,
};
use workflow_manager::journal::{Journal, JournalOptions, NewJob, Record, SqliteJournal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LIMITS: Limits = Limits {
    step_message_bytes_max: 1 << 20,
    reply_bytes_max: 1 << 20,
    depth_max: 32,
    window: 100,
    window_bytes: 1 << 26,
};

/// The number of clients. Each creates one job after another.
const CLIENTS: usize = 8;

/// How long the load alone is measured.
const BASELINE_DURATION: Duration = Duration::from_secs(5);

const WORKFLOWS: &str = "
workflows:
  - name: quick
    steps: [{name: echo}]
  - name: waits
    steps: [{name: nobody}]
  - name: fails
    steps: [{name: fails}]";

fn message() -> Message {
    Message::parse(br#"{"filename":"/data/book.txt","n":1}"#).expect("a message")
}

fn job_count() -> usize {
    std::env::var("LONGEST_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(20_000)
}

/// Fills a journal with ended jobs whose retention is over.
fn fill_journal(file: &Path, jobs: usize) {
    let steps = (0..5).map(|at| Step::with_name(&format!("step-{at}"))).collect();
    let definition =
        Arc::new(Definition::new("old", vec![Graph::new("old".to_owned(), None, steps)]));
    let context = Context { now: Timestamp(1), limits: &LIMITS, pauses: None, spare: None };
    let options = JournalOptions {
        file: file.to_owned(),
        cache_bytes: 8 << 20,
        verify_bytes_max: 0,
        pages_max: 0,
    };
    let mut store = SqliteJournal::open(&options).expect("opens");
    store.create_status_tables(&[&*definition]).expect("tables of statuses");
    for numbers in (1..=jobs as i64).collect::<Vec<_>>().chunks(1_000) {
        let mut records = Vec::new();
        for number in numbers.iter().copied() {
            let id = JobId(uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, &number.to_be_bytes()));
            let origin = Origin::for_root_job(id, definition.clone(), Timestamp(1));
            let (mut job, begun) = Job::create(origin.clone(), message(), &context);
            let created = NewJob { origin: Arc::new(origin), root: number, parent: None };
            records.push(Record::from_decision(number, Some(created), begun));
            let cancel = Operation::Cancel { reason: "old".into() };
            let ended = job.handle_input(Input::from_request(cancel), &context).expect("taken");
            records.push(Record::from_decision(number, None, ended));
        }
        store.append(&records.iter().collect::<Vec<_>>()).expect("commits");
    }
    // One that was created just now vouches for the clock of the next start.
    let (number, now) = (jobs as i64 + 1, clock::now());
    let id = JobId(uuid::Uuid::from_u128(u128::MAX));
    let origin = Origin::for_root_job(id, definition, now);
    let (_, begun) = Job::create(
        origin.clone(),
        message(),
        &Context { now, limits: &LIMITS, pauses: None, spare: None },
    );
    let created = NewJob { origin: Arc::new(origin), root: number, parent: None };
    store.append(&[&Record::from_decision(number, Some(created), begun)]).expect("commits");
}

async fn start(file: &Path) -> TestManager {
    let workers = Workers::new()
        .with_worker("echo", 2, echo)
        .with_worker("fails", 2, |_| Err("as it is to be".into()));
    let setup = TestManager::with(WORKFLOWS).journal(file).workers(workers);
    setup.set(|settings| settings.limits.creations_waiting_max = 100_000).await
}

/// Measures response times under load until `meanwhile` completes. Returns them sorted.
async fn measure_responses(
    handle: &ManagerHandle,
    meanwhile: impl Future<Output = ()>,
) -> Vec<Duration> {
    let is_over = Arc::new(AtomicBool::new(false));
    let clients = (0..CLIENTS).map(|_| {
        let (handle, over) = (handle.clone(), is_over.clone());
        actix_rt::spawn(async move {
            let mut times = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                handle.create("quick", None, message()).await.expect("created");
                times.push(begun.elapsed());
            }
            times
        })
    });
    let clients: Vec<_> = clients.collect();
    meanwhile.await;
    is_over.store(true, Ordering::Relaxed);
    let mut all: Vec<Duration> =
        join_all(clients).await.into_iter().flat_map(|took| took.expect("ended")).collect();
    all.sort_unstable();
    all
}

fn print_row(
    out: &mut dyn Write,
    label: &str,
    times: &[Duration],
    baseline: Duration,
    elapsed: Duration,
) {
    let longest = times.last().copied().unwrap_or_default();
    let p99 = times[times.len() * 99 / 100];
    writeln!(
        out,
        "{label:45} longest {longest:8.1?}, {:5.1} times the longest alone; p99 {p99:8.1?}; {} \
         answers in {:.1} s",
        longest.as_secs_f64() / baseline.as_secs_f64(),
        times.len(),
        elapsed.as_secs_f64()
    )
    .expect("written");
}

/// Measures and prints the response times during one operation.
async fn measure_during(
    (out, label, alone): (&mut dyn Write, &str, Duration),
    handle: &ManagerHandle,
    meanwhile: impl Future<Output = ()>,
) {
    let begun = Instant::now();
    let times = measure_responses(handle, meanwhile).await;
    print_row(out, label, &times, alone, begun.elapsed());
}

async fn create_all(manager: &Manager, workflow: &str, jobs: usize) -> Vec<JobId> {
    let created =
        join_all((0..jobs).map(|_| manager.handle().create(workflow, None, message()))).await;
    created.into_iter().map(|created| created.expect("created").id()).collect()
}

async fn run(out: &mut dyn Write) {
    let jobs = job_count();
    let folder = tempfile::tempdir().expect("a folder");
    let (old, file) = (folder.path().join("old.db"), folder.path().join("j.db"));

    let manager = start(&file).await;
    let begun = Instant::now();
    let times = measure_responses(manager.handle(), tokio::time::sleep(BASELINE_DURATION)).await;
    let baseline = times.last().copied().unwrap_or_default();
    print_row(out, "the load alone", &times, baseline, begun.elapsed());

    let burst = async { drop(create_all(&manager, "waits", jobs).await) };
    measure_during(
        (out, &format!("a burst of {jobs} creations"), baseline),
        manager.handle(),
        burst,
    )
    .await;

    let handle = manager.handle();
    let failed = create_all(&manager, "fails", jobs / 4).await;
    poll(|| failed.iter().all(|id| !handle.routes().is_active(*id))).await;
    let retries = async {
        join_all(failed.iter().map(|id| manager.handle().operate(*id, Operation::Retry))).await;
    };
    measure_during(
        (out, &format!("{} jobs brought back from their end", jobs / 4), baseline),
        handle,
        retries,
    )
    .await;
    manager.stop().await;

    let manager = start(&file).await;
    let first = tokio::time::sleep(BASELINE_DURATION);
    measure_during(
        (out, &format!("a start with {jobs} jobs under way"), baseline),
        manager.handle(),
        first,
    )
    .await;
    manager.stop().await;

    fill_journal(&old, jobs);
    let manager = start(&old).await;
    let deleted = manager.core().metrics.deleted.with_label_values(&["retention"]);
    let sweep = poll(|| deleted.get() == jobs as u64);
    measure_during(
        (out, &format!("the retention of {jobs} jobs"), baseline),
        manager.handle(),
        sweep,
    )
    .await;
    manager.stop().await;
}

fn main() {
    // `cargo test --benches` only checks that it compiles and starts.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    actix_rt::System::new().block_on(run(&mut std::io::stdout()));
}
