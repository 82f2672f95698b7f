//! The journal: durable records per second by the size of the group that is committed together, the
//! same without waiting for the disk, and the time to recover 100,000 running jobs.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use workflow_manager::engine::{
    Context, Definition, Graph, Job, JobId, Limits, Message, Origin, Step, Timestamp,
};
use workflow_manager::journal::{Created, Options, Record, Store};

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

fn record(number: i64, definition: &Arc<Definition>) -> Record {
    // Spread like ids by chance, the same in every run.
    let id = JobId(uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, &number.to_be_bytes()));
    let origin = Origin {
        id,
        definition: definition.clone(),
        graph: 0,
        parent: None,
        root: id,
        depth: 0,
        created: Timestamp(number),
    };
    let message = Message::parse(br#"{"filename":"/data/book.txt","n":1}"#).expect("a message");
    let (_, decision) = Job::create(
        origin.clone(),
        message,
        &Context { now: Timestamp(number), limits: &LIMITS, claims: &|_| true },
    );
    let created = Some(Created { origin: Arc::new(origin), root: number, parent: None });
    Record::of(number, created, decision)
}

fn options(file: &Path) -> Options {
    Options {
        file: file.to_owned(),
        cache_bytes: 64 << 20,
        verify_bytes_max: 512 << 20,
        pages_max: 0,
    }
}

fn main() {
    let out = &mut std::io::stdout();
    let step = Step::named("only");
    let definition =
        Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, vec![step])]));
    // In the current folder: the temporary folder may be in memory.
    let folder = tempfile::tempdir_in(".").expect("a folder");
    for (batch, batches) in [(1, 500), (10, 300), (100, 200), (1_000, 50)] {
        let mut store =
            Store::open(&options(&folder.path().join(format!("{batch}.db")))).expect("opens");
        let records: Vec<Record> =
            (1..=batch * batches).map(|number| record(number, &definition)).collect();
        let started = Instant::now();
        for group in records.chunks(usize::try_from(batch).expect("small")) {
            store.append(group).expect("commits");
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
    let file = folder.path().join("recover.db");
    {
        let mut store = Store::open(&options(&file)).expect("opens");
        for start in (1..RUNNING).step_by(10_000) {
            let records: Vec<Record> =
                (start..start + 10_000).map(|number| record(number, &definition)).collect();
            store.append(&records).expect("commits");
        }
    }
    let started = Instant::now();
    let store = Store::open(&options(&file)).expect("opens");
    let opened = started.elapsed();
    let recovered = store.recover().expect("recovers");
    assert_eq!(recovered.len(), usize::try_from(RUNNING).expect("small"));
    let total = started.elapsed().as_secs_f64();
    writeln!(
        out,
        "recovery of {RUNNING} running jobs   {total:.2} s, of which {:.2} s to verify every row",
        opened.as_secs_f64()
    )
    .expect("written");
}
