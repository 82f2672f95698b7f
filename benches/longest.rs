//! The longest response time under load, alone and during operations on many jobs: the sweep of
//! retention, a redispatch, a start with many running jobs, a burst of creations, retries of ended
//! jobs. What counts is the ratio to the same load alone, in the same run.
//!
//! `LONGEST_JOBS` sets another number of jobs.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use futures_util::future::join_all;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use workflow_manager::actors::bulk::Bulk;
use workflow_manager::actors::door;
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::actors::ways::Ways;
use workflow_manager::bus::Address;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::clock;
use workflow_manager::engine::{
    Context, Definition, Graph, Input, Job, JobId, Limits, Message, Operation, Origin, Step,
    Timestamp,
};
use workflow_manager::journal::{Journal, NewJob, Options, Record, Store};
use workflow_manager::load::load_text;
use workflow_manager::settings::Settings;

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
const ALONE: Duration = Duration::from_secs(5);

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

fn number() -> usize {
    std::env::var("LONGEST_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(20_000)
}

/// Fills a journal with ended jobs whose retention is over.
fn fill(file: &Path, jobs: usize) {
    let steps = (0..5).map(|at| Step::named(&format!("step-{at}"))).collect();
    let definition =
        Arc::new(Definition::new("old", vec![Graph::new("old".to_owned(), None, steps)]));
    let context = Context { now: Timestamp(1), limits: &LIMITS };
    let options =
        Options { file: file.to_owned(), cache_bytes: 8 << 20, verify_bytes_max: 0, pages_max: 0 };
    let mut store = Store::open(&options).expect("opens");
    store.make_status_tables(&[&*definition]).expect("tables of statuses");
    for numbers in (1..=jobs as i64).collect::<Vec<_>>().chunks(1_000) {
        let mut records = Vec::new();
        for number in numbers.iter().copied() {
            let id = JobId(uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, &number.to_be_bytes()));
            let origin = Origin::top_level(id, definition.clone(), Timestamp(1));
            let (mut job, begun) = Job::create(origin.clone(), message(), &context);
            let created = NewJob { origin: Arc::new(origin), root: number, parent: None };
            records.push(Record::of(number, Some(created), begun));
            let cancel = Operation::Cancel { reason: "old".into() };
            let ended = job.take(Input::operate(cancel), &context).expect("taken");
            records.push(Record::of(number, None, ended));
        }
        store.append(&records.iter().collect::<Vec<_>>()).expect("commits");
    }
    // One that was created just now vouches for the clock of the next start.
    let (number, now) = (jobs as i64 + 1, clock::now());
    let id = JobId(uuid::Uuid::from_u128(u128::MAX));
    let origin = Origin::top_level(id, definition, now);
    let (_, begun) = Job::create(origin.clone(), message(), &Context { now, limits: &LIMITS });
    let created = NewJob { origin: Arc::new(origin), root: number, parent: None };
    store.append(&[&Record::of(number, Some(created), begun)]).expect("commits");
}

async fn start(file: &Path) -> Manager {
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = file.to_owned();
    settings.limits.creations_waiting_max = 100_000;
    let definitions = load_text("bench.yaml", WORKFLOWS).expect("valid").definitions;
    let workers = Workers::new().with("echo", 2, |message| Ok(message.body.to_bytes())).with(
        "fails",
        2,
        |_| Err("as it is to be".into()),
    );
    manager::start(settings, definitions, workers).await.expect("starts")
}

/// Measures response times under load until `meanwhile` completes. Returns them sorted.
async fn answers(ways: &Arc<Ways>, meanwhile: impl Future<Output = ()>) -> Vec<Duration> {
    let over = Arc::new(AtomicBool::new(false));
    let clients = (0..CLIENTS).map(|_| {
        let (ways, over) = (ways.clone(), over.clone());
        actix_rt::spawn(async move {
            let mut took = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                door::create(&ways, "quick", None, message(), None).await.expect("created");
                took.push(asked.elapsed());
            }
            took
        })
    });
    let clients: Vec<_> = clients.collect();
    meanwhile.await;
    over.store(true, Ordering::Relaxed);
    let mut all: Vec<Duration> =
        join_all(clients).await.into_iter().flat_map(|took| took.expect("ended")).collect();
    all.sort_unstable();
    all
}

fn tell(out: &mut dyn Write, what: &str, took: &[Duration], alone: Duration, within: Duration) {
    let longest = took.last().copied().unwrap_or_default();
    let p99 = took[took.len() * 99 / 100];
    writeln!(
        out,
        "{what:45} longest {longest:8.1?}, {:5.1} times the longest alone; p99 {p99:8.1?}; {} \
         answers in {:.1} s",
        longest.as_secs_f64() / alone.as_secs_f64(),
        took.len(),
        within.as_secs_f64()
    )
    .expect("written");
}

/// Measures and prints the response times during one operation.
async fn beside(
    (out, what, alone): (&mut dyn Write, &str, Duration),
    ways: &Arc<Ways>,
    meanwhile: impl Future<Output = ()>,
) {
    let begun = Instant::now();
    let took = answers(ways, meanwhile).await;
    tell(out, what, &took, alone, begun.elapsed());
}

async fn create_all(manager: &Manager, workflow: &str, jobs: usize) -> Vec<JobId> {
    let created = join_all((0..jobs).map(|_| manager.create(workflow, None, message()))).await;
    created.into_iter().map(|created| created.expect("created").id()).collect()
}

async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn run(out: &mut dyn Write) {
    let jobs = number();
    let folder = tempfile::tempdir().expect("a folder");
    let (old, file) = (folder.path().join("old.db"), folder.path().join("j.db"));

    let manager = start(&file).await;
    let begun = Instant::now();
    let took = answers(manager.ways(), tokio::time::sleep(ALONE)).await;
    let alone = took.last().copied().unwrap_or_default();
    tell(out, "the load alone", &took, alone, begun.elapsed());

    let mut waiting = Vec::new();
    let burst = async { waiting = create_all(&manager, "waits", jobs).await };
    beside((out, &format!("a burst of {jobs} creations"), alone), manager.ways(), burst).await;

    let ways = manager.ways();
    let queue = Address { bus: ways.buses.named(None, ""), queue: "nobody".into() };
    let again = async {
        let found = door::redispatch(ways, Bulk::new(queue)).await.expect("sent again");
        assert_eq!(found.0, waiting.len(), "all wait");
    };
    beside((out, &format!("a redispatch of {jobs} steps"), alone), ways, again).await;

    let failed = create_all(&manager, "fails", jobs / 4).await;
    until(|| failed.iter().all(|id| !ways.routes.is_live(*id))).await;
    let back = async {
        join_all(failed.iter().map(|id| manager.operate(*id, Operation::Retry))).await;
    };
    beside((out, &format!("{} jobs brought back from their end", jobs / 4), alone), ways, back)
        .await;
    manager.stop().await;

    let manager = start(&file).await;
    let first = tokio::time::sleep(ALONE);
    beside((out, &format!("a start with {jobs} jobs under way"), alone), manager.ways(), first)
        .await;
    manager.stop().await;

    fill(&old, jobs);
    let manager = start(&old).await;
    let deleted = manager.common().metrics.deleted.with_label_values(&["retention"]);
    let sweep = until(|| deleted.get() == jobs as u64);
    beside((out, &format!("the retention of {jobs} jobs"), alone), manager.ways(), sweep).await;
    manager.stop().await;
}

fn main() {
    // `cargo test --benches` only checks that it compiles and starts.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    actix_rt::System::new().block_on(run(&mut std::io::stdout()));
}
