//! The status table: how long a filter on the status of one step takes over 1,000,000 jobs, and
//! what writing the table adds to a durable record.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use workflow_manager::engine::{
    Context, Definition, Dependency, Graph, Input, Job, JobId, Limits, Message, Origin, Reply,
    Sender, Step, StepIndex, Timestamp,
};
use workflow_manager::journal::{
    JobNumber, Journal, JournalOptions, NewJob, Reader, Record, SqliteJournal, StatusRecords,
};
use workflow_manager::journal::{NEWEST_CURSOR, StatusFilter};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LIMITS: Limits = Limits {
    step_message_bytes_max: 1 << 20,
    reply_bytes_max: 1 << 20,
    depth_max: 32,
    window: 100,
    window_bytes: 1 << 26,
};
const STEPS: [&str; 6] = [
    "application",
    "phone-screen",
    "on-site-interview",
    "background-check",
    "health-screening",
    "offer",
];
const JOBS: JobNumber = 1_000_000;
/// One job in this many has a failed step.
const FAILED_EVERY: JobNumber = 10_000;
const RUNS: usize = 101;
/// The number of rows of one page of the API.
const ROWS: u32 = 1_000;

fn definition() -> Arc<Definition> {
    let after = |at: usize| {
        if at == 0 {
            Vec::new()
        } else {
            vec![Dependency::Step(StepIndex(u16::try_from(at - 1).expect("few")))]
        }
    };
    let steps = STEPS
        .iter()
        .enumerate()
        .map(|(at, step)| Step { depends: after(at), ..Step::with_name(step) })
        .collect();
    Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, steps)]))
}

/// Returns the records of a job whose first steps have been answered. If `fails` is set, the last
/// of these answers is an error.
fn records(
    number: JobNumber,
    definition: &Arc<Definition>,
    answered: usize,
    fails: bool,
) -> Vec<Record> {
    let id = JobId(uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, &number.to_be_bytes()));
    let origin = Origin::for_root_job(id, definition.clone(), Timestamp(number));
    let context =
        Context { now: Timestamp(number * 1_000_000), limits: &LIMITS, pauses: None, spare: None };
    let message = Message::parse(br#"{"first_name":"Ada","n":1}"#).expect("a message");
    let (mut job, decision) = Job::create(origin.clone(), message, &context);
    let mut records = vec![Record::from_decision(
        number,
        Some(NewJob { origin: Arc::new(origin), root: number, parent: None }),
        decision,
    )];
    for (at, step) in STEPS.iter().take(answered).enumerate() {
        let is_failure = fails && at + 1 == answered;
        let reply = if is_failure {
            Reply::Error(r#"{"error":"no"}"#.into())
        } else {
            Reply::Result(r#"{"passed":true}"#.into())
        };
        let decision = job
            .handle_input(
                Input::Reply {
                    step: (*step).to_owned(),
                    attempt: None,
                    reply,
                    from: Sender::Unknown,
                },
                &context,
            )
            .expect("taken");
        records.push(Record::from_decision(number, None, decision));
    }
    records
}

fn options(file: &Path) -> JournalOptions {
    JournalOptions {
        file: file.to_owned(),
        cache_bytes: 64 << 20,
        verify_bytes_max: 0,
        pages_max: 0,
    }
}

fn main() {
    let out = &mut std::io::stdout();
    // The journal is in the current folder, since the temporary folder may be in memory.
    let folder = tempfile::tempdir_in(".").expect("a folder");
    measure_cost(folder.path(), out);
    measure_filters(&folder.path().join("million.db"), out);
}

/// Measures the time of a record with the status table, without the table's index of ids, and
/// without the table, in turns.
fn measure_cost(folder: &Path, out: &mut dyn Write) {
    let definition = definition();
    for (batch, jobs) in [(1, 300), (100, 10_000)] {
        let records: Vec<Record> = (1..=jobs)
            .map(|number| records(number, &definition, STEPS.len(), false))
            .collect::<Vec<_>>()
            .into_iter()
            .flatten()
            .collect();
        let mut fastest = [f64::MAX; 3];
        for round in 0..3 {
            for (variant, fastest) in fastest.iter_mut().enumerate() {
                let file = folder.join(format!("{batch}-{round}-{variant}.db"));
                let mut store = SqliteJournal::open(&options(&file)).expect("opens");
                let other = rusqlite::Connection::open(&file).expect("opens");
                if variant == 2 {
                    // The journal goes on without a status table that cannot be created.
                    other.execute_batch("CREATE TABLE \"index job of w\"(x)").expect("creates");
                }
                store.create_status_tables(&[&*definition]).expect("tables of statuses");
                if variant == 1 {
                    other.execute_batch("DROP INDEX \"index job of w\"").expect("drops");
                }
                let started = Instant::now();
                for group in records.chunks(batch) {
                    store.append(&group.iter().collect::<Vec<_>>()).expect("commits");
                }
                *fastest =
                    fastest.min(started.elapsed().as_secs_f64() / records.len() as f64 * 1e6);
            }
        }
        writeln!(
            out,
            "groups of {batch:>3}   {:>7.1} µs per durable record with the relation, \
             {:>7.1} without its index of ids, {:>7.1} without it",
            fastest[0], fastest[1], fastest[2]
        )
        .expect("written");
    }
}

fn measure_filters(file: &Path, out: &mut dyn Write) {
    let definition = definition();
    let started = Instant::now();
    let mut store = SqliteJournal::open(&options(file)).expect("opens");
    store.create_status_tables(&[&*definition]).expect("tables of statuses");
    for first in (1..=JOBS).step_by(10_000) {
        let batch = (first..first + 10_000).flat_map(|number| {
            // One job in ten thousand fails at the background check. The others wait there or at
            // the first step, half of them each.
            if number % FAILED_EVERY == 0 {
                records(number, &definition, 4, true)
            } else {
                records(number, &definition, if number % 2 == 0 { 3 } else { 0 }, false)
            }
        });
        let batch: Vec<Record> = batch.collect();
        store.append(&batch.iter().collect::<Vec<_>>()).expect("commits");
    }
    drop(store);
    let bytes = std::fs::metadata(file).expect("is there").len();
    writeln!(
        out,
        "{JOBS} jobs written in {:.0} s, {} MiB",
        started.elapsed().as_secs_f64(),
        bytes >> 20
    )
    .expect("written");

    let mut store = SqliteJournal::open(&options(file)).expect("opens");
    let started = Instant::now();
    store.create_status_tables(&[&*definition]).expect("tables of statuses");
    writeln!(
        out,
        "the look at the start whether the relation is whole   {:.0} ms",
        started.elapsed().as_secs_f64() * 1e3
    )
    .expect("written");

    let reader = Reader::new(file);
    let columns = reader.load_status_columns("w").expect("reads").expect("is there");
    let queries: [(&str, &[(&str, &str)]); 5] = [
        ("few", &[("background-check", "FAILED")]),
        ("many", &[("background-check", "PENDING")]),
        ("none", &[("background-check", "ACCEPTED")]),
        ("few and many", &[("application", "COMPLETED"), ("background-check", "FAILED")]),
        ("none of many and many", &[("application", "PENDING"), ("background-check", "PENDING")]),
    ];
    for (label, steps) in queries {
        let steps =
            steps.iter().map(|(step, status)| ((*step).to_owned(), (*status).to_owned())).collect();
        let filter = StatusFilter { steps, ..StatusFilter::default() };
        let mut times = Vec::with_capacity(RUNS);
        let mut rows = 0;
        for _ in 0..RUNS {
            let started = Instant::now();
            rows = reader
                .load_statuses("w", &columns, &filter, NEWEST_CURSOR, ROWS)
                .expect("reads")
                .len();
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_unstable_by(f64::total_cmp);
        writeln!(
            out,
            "filter, {label:<22} {rows:>5} rows   median {:>8.3} ms, longest {:>8.3} ms",
            times[RUNS / 2],
            times[RUNS - 1]
        )
        .expect("written");
    }
    drop(reader);
    rusqlite::Connection::open(file)
        .expect("opens")
        .execute_batch("DROP TABLE status_w")
        .expect("drops");
    let started = Instant::now();
    store.create_status_tables(&[&*definition]).expect("tables of statuses");
    writeln!(
        out,
        "the relation made anew from the journal   {:.0} s",
        started.elapsed().as_secs_f64()
    )
    .expect("written");
}
