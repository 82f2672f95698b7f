//! A fan-out over the embedded bus: the median time of three runs, and the memory, by the number of
//! items. Other numbers can be given as arguments.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod process;

use bytes::Bytes;
use std::io::Write;
use std::time::{Duration, Instant};
use workflow_manager::actors::manager;
use workflow_manager::bus::Publication;
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::engine::{JobState, Message};
use workflow_manager::load::load_text;
use workflow_manager::settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FAN: &str = "workflows: [{name: fan, steps: [{name: each, task: t}], tasks: [{name: t, \
                   itemListKey: items, steps: [{name: work}]}]}]";

fn echo(message: &Publication) -> Result<Bytes, WorkerError> {
    Ok(message.body.to_bytes())
}

async fn run_fan_out(items: usize) -> (Duration, u64, u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = folder.path().join("j.db");
    let loaded = load_text("fan.yaml", FAN).expect("valid");
    let manager =
        manager::start(settings, loaded.definitions, Workers::new().with_worker("work", 1, echo))
            .await
            .expect("starts");
    let list: Vec<usize> = (0..items).collect();
    let message = Message::parse(serde_json::json!({ "items": list }).to_string().as_bytes())
        .expect("a message");
    let started = Instant::now();
    let id = manager.handle().create("fan", None, message).await.expect("created").id();
    while manager.handles().routes.find(id).is_some() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (elapsed, peak) = (started.elapsed(), process::peak_kib() / 1024);
    let found = manager.common().reader.load_job(id).expect("reads").expect("is kept");
    assert_eq!(found.job.state(), JobState::Completed);
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
        run_fan_out(1_000).await;
        for items in sizes {
            let mut runs =
                [run_fan_out(items).await, run_fan_out(items).await, run_fan_out(items).await];
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
