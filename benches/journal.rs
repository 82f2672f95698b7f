//! The journal: durable records a second by the number of records in a commit; the rows, bytes and
//! CPU of a step of a chain; and the time to recover 100,000 running jobs. The same for a database
//! if `POSTGRES_URL` and `POSTGRES_BIN` name a server, as `POSTGRES_FSYNC=on tests/postgres start
//! DIR` does.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod process;

use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use support::journal_rules::{InDatabase, Place};
use workflow_manager::clock;
use workflow_manager::engine::{
    Context, Definition, Dependency, Graph, Input, Job, JobId, Limits, Message, Origin, Reply,
    Sender, Step, StepIndex, Timestamp,
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
const RUNNING: i64 = 100_000;
const BODY: &[u8] = br#"{"filename":"/data/book.txt","n":1}"#;

/// Creates a job, and returns it with its record.
fn new_job(number: i64, definition: &Arc<Definition>) -> (Job, Record) {
    // The ids are spread like random ones, but are the same in every run.
    let id = JobId(uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, &number.to_be_bytes()));
    let origin = Origin::for_root_job(id, definition.clone(), Timestamp(number));
    let message = Message::parse(BODY).expect("a message");
    let (job, decision) = Job::create(origin.clone(), message, &context(number));
    let created = Some(NewJob { origin: Arc::new(origin), root: number, parent: None });
    (job, Record::from_decision(number, created, decision))
}

fn context(now: i64) -> Context<'static> {
    Context { now: Timestamp(now), limits: &LIMITS, pauses: None, spare: None }
}

fn new_record(number: i64, definition: &Arc<Definition>) -> Record {
    new_job(number, definition).1
}

/// The number of chains of five steps that run at once, and of all chains.
const CONCURRENCY: usize = 512;
const CHAINS: i64 = 6_000;
const STEPS: u16 = 5;
/// The number of records in a commit, as seen with a broker.
const COMMIT_RECORDS: usize = 50;
/// The number of commits in a second at 4,500 steps/s. A second is the default of `journal.lag`;
/// about that often, confirms get records of their own.
const LAG_COMMITS: usize = 200;

fn chain() -> Arc<Definition> {
    let step = |at: u16| {
        let depends = at.checked_sub(1).map(|before| Dependency::Step(StepIndex(before)));
        Step { depends: depends.into_iter().collect(), ..Step::with_name(&format!("step-{at}")) }
    };
    Arc::new(Definition::new(
        "chain",
        vec![Graph::new("chain".to_owned(), None, (0..STEPS).map(step).collect())],
    ))
}

/// Returns all records of a chain: its creation, and for each step the confirm and the reply.
fn chain_records(number: i64, definition: &Arc<Definition>) -> VecDeque<Record> {
    let (mut job, first) = new_job(number, definition);
    let mut records = VecDeque::from([first]);
    for step in 0..STEPS {
        let confirmed = Input::Confirmed { step: StepIndex(step), attempt: 1, dispatch: None };
        let reply = Reply::Result(BODY.into());
        let replied = Input::Reply {
            step: format!("step-{step}"),
            attempt: None,
            reply,
            from: Sender::Unknown,
        };
        for input in [confirmed, replied] {
            let decision = job.handle_input(input, &context(number)).expect("taken");
            records.push_back(Record::from_decision(number, None, decision));
        }
    }
    records
}

/// Measures the rows, bytes and CPU of one step of a chain, with many chains running.
fn measure_steps(storage: &Storage, out: &mut dyn Write) {
    let definition = chain();
    let mut store = storage.open();
    let mut numbers = store.job_numbers().expect("numbers");
    let mut waiting: VecDeque<VecDeque<Record>> =
        (0..CHAINS).map(|_| chain_records(numbers.take(clock::now()), &definition)).collect();
    let mut under_way: Vec<VecDeque<Record>> = waiting.drain(..CONCURRENCY).collect();
    let mut records = Vec::new();
    let mut index = 0;
    while !under_way.is_empty() {
        // Another chain each time, so that the jobs are at different steps.
        index = (index + 197) % under_way.len();
        match under_way[index].pop_front() {
            Some(record) => records.push(record),
            None => match waiting.pop_front() {
                Some(next) => under_way[index] = next,
                None => drop(under_way.swap_remove(index)),
            },
        }
    }
    store.create_status_tables(&[&*definition]).expect("tables of statuses");
    let (bytes, cpu, started) =
        (process::written_bytes(), process::cpu_seconds("self"), Instant::now());
    for (at, group) in records.chunks(COMMIT_RECORDS).enumerate() {
        store.append(&group.iter().collect::<Vec<_>>()).expect("commits");
        if at % LAG_COMMITS == LAG_COMMITS - 1 {
            store.project().expect("derives");
            store.write_confirms().expect("writes confirms");
        }
    }
    let (cpu, elapsed) = (process::cpu_seconds("self") - cpu, started.elapsed().as_secs_f64());
    drop(store);
    let bytes = process::written_bytes() - bytes;
    let rows = storage.count_rows();
    let step_count = (CHAINS * i64::from(STEPS)) as f64;
    writeln!(
        out,
        "chains of {STEPS}, {CONCURRENCY} under way, {COMMIT_RECORDS} records a commit   {:.2} \
         rows, {:.0} bytes to the disk and {:.1} µs of CPU per step; {:.0} steps/s",
        rows as f64 / step_count,
        bytes as f64 / step_count,
        cpu * 1e6 / step_count,
        step_count / elapsed
    )
    .expect("written");
}

/// Where a journal of the bench is stored.
enum Storage {
    File(PathBuf),
    Database(InDatabase),
}

impl Storage {
    fn open(&self) -> Box<dyn Journal> {
        match self {
            Storage::File(file) => {
                let options = JournalOptions {
                    file: file.clone(),
                    cache_bytes: 64 << 20,
                    verify_bytes_max: 512 << 20,
                    pages_max: 0,
                };
                Box::new(SqliteJournal::open(&options).expect("opens"))
            }
            Storage::Database(database) => database.open().expect("opens"),
        }
    }

    /// Returns how many rows of `entries` were ever written.
    fn count_rows(&self) -> i64 {
        match self {
            // Rows of confirms are deleted later, but each has taken a number.
            Storage::File(file) => {
                let client = rusqlite::Connection::open(file).expect("opens");
                let sql = "SELECT max(seq) FROM entries";
                client.query_row(sql, [], |row| row.get(0)).unwrap_or(0)
            }
            Storage::Database(database) => {
                let count = database.query("SELECT count(*) FROM entries");
                count.trim().parse().expect("a number")
            }
        }
    }
}

fn main() {
    let out = &mut std::io::stdout();
    // The file is in the current folder, since the temporary folder may be in memory.
    let folder = tempfile::tempdir_in(".").expect("a folder");
    measure("a file", &|name| Storage::File(folder.path().join(format!("{name}.db"))), out);
    if std::env::var_os("POSTGRES_URL").is_some() {
        measure("a database", &|_| Storage::Database(InDatabase::create()), out);
    }
}

/// Measures all for one kind of storage; `create` creates an empty one with a name.
fn measure(kind: &str, create: &dyn Fn(&str) -> Storage, out: &mut dyn Write) {
    writeln!(out, "in {kind}:").expect("written");
    let step = Step::with_name("only");
    let definition =
        Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, vec![step])]));
    for (batch, batches) in [(1, 500), (10, 300), (100, 200), (1_000, 50)] {
        let storage = create(&batch.to_string());
        let mut store = storage.open();
        let mut numbers = store.job_numbers().expect("numbers");
        let records: Vec<Record> = (0..batch * batches)
            .map(|_| new_record(numbers.take(clock::now()), &definition))
            .collect();
        let started = Instant::now();
        for group in records.chunks(usize::try_from(batch).expect("small")) {
            store.append(&group.iter().collect::<Vec<_>>()).expect("commits");
        }
        let elapsed = started.elapsed().as_secs_f64();
        let per_commit = elapsed / batches as f64 * 1e3;
        writeln!(
            out,
            "groups of {batch:>5}   {:>9.0} durable records/s   {per_commit:>7.3} ms per commit",
            (batch * batches) as f64 / elapsed
        )
        .expect("written");
    }
    measure_steps(&create("steps"), out);
    let storage = create("recover");
    {
        let mut store = storage.open();
        let mut numbers = store.job_numbers().expect("numbers");
        for _ in (0..RUNNING).step_by(1_000) {
            let records: Vec<Record> =
                (0..1_000).map(|_| new_record(numbers.take(clock::now()), &definition)).collect();
            store.append(&records.iter().collect::<Vec<_>>()).expect("commits");
        }
    }
    let started = Instant::now();
    let store = storage.open();
    let opened = started.elapsed();
    let recovered = store.recover().expect("recovers");
    assert_eq!(recovered.len(), usize::try_from(RUNNING).expect("small"));
    let total = started.elapsed().as_secs_f64();
    writeln!(
        out,
        "recovery of {RUNNING} running jobs   {total:.2} s, of which {:.2} s to open the journal",
        opened.as_secs_f64()
    )
    .expect("written");
}
