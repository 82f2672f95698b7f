//! A fan-out over the embedded bus: the median time of three runs, and the memory, by the number of
//! items. Other numbers can be given as arguments. With the argument `database`, the journal is in
//! a database of the server that `POSTGRES_URL` and `POSTGRES_BIN` name (`POSTGRES_FSYNC=on
//! tests/postgres start DIR`).

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod process;

use std::io::Write;
use std::time::{Duration, Instant};
use support::journal_rules::InDatabase;
use support::manager::{TestManager, message};
use support::waits::poll;
use workflow_manager::engine::JobState;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FAN: &str = "workflows: [{name: fan, steps: [{name: each, task: t}], tasks: [{name: t, \
                   itemListKey: items, steps: [{name: work}]}]}]";

async fn run_fan_out(items: usize, database: Option<&InDatabase>) -> (Duration, u64, u64) {
    let setup = TestManager::with(FAN).echo(["work"]);
    let manager = setup
        .set(|settings| {
            if let Some(database) = database {
                settings.journal.url.0 = database.url();
            }
        })
        .await;
    let list: Vec<usize> = (0..items).collect();
    let message = message(&serde_json::json!({ "items": list }).to_string());
    let started = Instant::now();
    let id = manager.handle().create("fan", None, message).await.expect("created").id();
    poll(|| !manager.is_active(id)).await;
    let (elapsed, peak) = (started.elapsed(), process::peak_kib() / 1024);
    assert_eq!(manager.job(id).state(), JobState::Completed);
    manager.stop().await;
    (elapsed, peak, process::peak_kib() / 1024)
}

fn main() {
    actix_rt::System::new().block_on(async {
        let mut out = std::io::stdout();
        let mut sizes: Vec<usize> =
            std::env::args().filter_map(|argument| argument.parse().ok()).collect();
        if sizes.is_empty() {
            sizes = vec![1_000, 10_000, 100_000];
        }
        let is_in_database = std::env::args().any(|argument| argument == "database");
        let database = is_in_database.then(InDatabase::create);
        let run = |items| run_fan_out(items, database.as_ref());
        run(1_000).await;
        for items in sizes {
            let mut runs = [run(items).await, run(items).await, run(items).await];
            runs.sort_by_key(|(elapsed, ..)| *elapsed);
            let (elapsed, ..) = runs[1];
            // The peak is that of the whole process, so only that of the first run counts.
            let (peak, read) =
                (runs.iter().map(|run| run.1).min(), runs.iter().map(|run| run.2).min());
            writeln!(
                out,
                "{items:>8} items  {:>9.3} s  {:>8.1} µs per item  peak {} MiB, {} once the job \
                 was read",
                elapsed.as_secs_f64(),
                elapsed.as_secs_f64() * 1e6 / items as f64,
                peak.unwrap_or_default(),
                read.unwrap_or_default(),
            )
            .expect("written");
        }
    });
}
