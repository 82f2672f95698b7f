//! The memory and disk space of jobs: many fan-outs at once, waiting jobs, ended jobs. Each case
//! runs in a process of its own.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod process;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::manager::{TestManager, message};
use support::waits::poll;
use workflow_manager::engine::JobId;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FAN: &str = "workflows: [{name: fan, steps: [{name: each, task: t}], tasks: [{name: t, \
                   itemListKey: items, steps: [{name: work}]}]}]";
const IDLE: &str = "workflows: [{name: idle, steps: [{name: wait, external: true}]}]";

/// A chain of five steps.
const CHAIN: &str = "workflows: [{name: chain, steps: [{name: a, queue: work}, \
                     {name: b, queue: work, depends: [a]}, {name: c, queue: work, depends: [b]}, \
                     {name: d, queue: work, depends: [c]}, {name: e, queue: work, depends: [d]}]}]";

const FAN_OUTS: usize = 64;
const ITEMS: usize = 1_000;
const IDLE_JOBS: usize = 100_000;
/// The size of the messages of waiting jobs, and the number of jobs.
const SIZES: [(usize, usize); 3] = [(1 << 10, 20_000), (10 << 10, 5_000), (100 << 10, 1_000)];
/// The number of waiting jobs with large messages, the size of a message, and
/// `limits.jobs_bytes_max`, which has room for all of them or for few.
const LARGE_CASES: [(usize, usize, usize); 3] =
    [(40, 15_000_000, 1 << 40), (40, 15_000_000, 128 << 20), (2_000, 300_000, 128 << 20)];
const CHAINS: usize = 20_000;
const ITEMS_ENDED: usize = 100_000;
/// How many creations are under way at once.
const CONCURRENCY: usize = 1_000;

/// The variable that names the case of a child process.
const CASE_ENV: &str = "MEMORY_CASE";

async fn start(folder: &Path, workflows: &str) -> TestManager {
    start_with_limit(folder, workflows, 1 << 40).await
}

/// Starts a manager whose jobs may hold this many bytes of memory.
async fn start_with_limit(folder: &Path, workflows: &str, jobs_bytes_max: usize) -> TestManager {
    let setup = TestManager::with(workflows).folder(folder).echo(["work"]);
    let limited = setup.set(|settings| {
        settings.limits.jobs_running_max = IDLE_JOBS + 1;
        settings.limits.jobs_bytes_max = jobs_bytes_max;
    });
    limited.await
}

/// Creates jobs, each with its own copy of the message.
async fn create(manager: &TestManager, workflow: &str, count: usize, message: &str) -> Vec<JobId> {
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let now = CONCURRENCY.min(count - ids.len());
        let creations = (0..now).map(|_| manager.create_job(workflow, message));
        ids.extend(futures_util::future::join_all(creations).await);
    }
    ids
}

async fn measure_fan_outs(folder: &Path) -> String {
    let manager = start(folder, FAN).await;
    let list: Vec<usize> = (0..ITEMS).collect();
    let body = serde_json::json!({ "items": list }).to_string();
    let ids = create(&manager, "fan", FAN_OUTS, &body).await;
    wait_until_ended(&manager, &ids).await;
    manager.stop().await;
    let peak = process::peak_kib() / 1024;
    format!("{FAN_OUTS} jobs of {ITEMS} items at once: peak {peak} MiB")
}

async fn measure_idle(folder: &Path) -> String {
    let manager = start(folder, IDLE).await;
    let message = r#"{"n":1}"#;
    create(&manager, "idle", 1_000, message).await;
    let before = process::resident_kib();
    create(&manager, "idle", IDLE_JOBS - 1_000, message).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let each = (process::resident_kib() - before) as f64 / (IDLE_JOBS - 1_000) as f64;
    manager.stop().await;
    let disk = kib_each(journal_bytes(folder) as f64, IDLE_JOBS);
    format!(
        "{IDLE_JOBS} running jobs of one step that wait: {each:.2} KiB of memory, {disk:.1} KiB of \
         disk each"
    )
}

/// Returns a message of about this size.
fn message_of_size(bytes: usize) -> String {
    serde_json::json!({ "n": 1, "text": "x".repeat(bytes) }).to_string()
}

/// Returns the size of the journal's file, once it is closed.
fn journal_bytes(folder: &Path) -> u64 {
    std::fs::metadata(folder.join("j.db")).expect("the journal").len()
}

fn kib_each(bytes: f64, count: usize) -> f64 {
    bytes / 1024.0 / count as f64
}

async fn wait_until_ended(manager: &TestManager, ids: &[JobId]) {
    poll(|| !ids.iter().any(|id| manager.is_active(*id))).await;
}

async fn measure_waiting(folder: &Path, bytes: usize, jobs: usize) -> String {
    let manager = start(folder, IDLE).await;
    let before = process::resident_kib();
    create(&manager, "idle", jobs, &message_of_size(bytes)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let memory = (process::resident_kib() - before) as f64 / jobs as f64;
    manager.stop().await;
    let disk = kib_each(journal_bytes(folder) as f64, jobs);
    let size = bytes / 1024;
    format!(
        "{jobs} jobs that wait with a message of {size} KiB: {memory:.1} KiB of memory, \
         {disk:.1} KiB of disk each"
    )
}

/// Measures the resident memory as a part of the accepted bytes: while jobs are created, and after
/// a restart.
async fn measure_large(folder: &Path, jobs: usize, bytes: usize, jobs_bytes_max: usize) -> String {
    let before = process::resident_kib();
    let manager = start_with_limit(folder, IDLE, jobs_bytes_max).await;
    let text = message_of_size(bytes);
    let mut accepted = 0;
    while accepted < jobs {
        match manager.handle().create("idle", None, message(&text)).await {
            Ok(_) => accepted += 1,
            // Earlier jobs are being passivated.
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    let mib = |bytes: usize| bytes / (1 << 20);
    let ratio = |kib: u64| (kib * 1024) as f64 / (jobs * bytes) as f64;
    let (resident, peak) = (process::resident_kib() - before, process::peak_kib() - before);
    manager.stop().await;
    let manager = start_with_limit(folder, IDLE, jobs_bytes_max).await;
    let after_restart = process::peak_kib() - before;
    manager.stop().await;
    let max = if jobs_bytes_max < 1 << 40 {
        format!("{} MiB", mib(jobs_bytes_max))
    } else {
        "all".to_owned()
    };
    format!(
        "{jobs} jobs of {} KiB that wait, jobs may hold {max}: {} MiB accepted; resident ÷ \
         accepted {:.2}, at the peak {:.2}, after a start on them {:.2}",
        bytes / 1024,
        mib(jobs * bytes),
        ratio(resident),
        ratio(peak),
        ratio(after_restart)
    )
}

async fn measure_chains(folder: &Path, bytes: usize) -> String {
    let manager = start(folder, CHAIN).await;
    let message = message_of_size(bytes);
    let mut ids = Vec::new();
    while ids.len() < CHAINS {
        let new = create(&manager, "chain", CONCURRENCY, &message).await;
        wait_until_ended(&manager, &new).await;
        ids.extend(new);
    }
    let peak = process::peak_kib() / 1024;
    manager.stop().await;
    let disk = kib_each(journal_bytes(folder) as f64, CHAINS);
    format!(
        "{CHAINS} ended chains of five steps, each reply {bytes} bytes: {disk:.1} KiB of disk \
         each, peak {peak} MiB"
    )
}

async fn measure_ended_items(folder: &Path) -> String {
    let manager = start(folder, FAN).await;
    let list: Vec<usize> = (0..ITEMS_ENDED).collect();
    let body = serde_json::json!({ "items": list }).to_string();
    let ids = create(&manager, "fan", 1, &body).await;
    wait_until_ended(&manager, &ids).await;
    let peak = process::peak_kib() / 1024;
    manager.stop().await;
    let disk = kib_each(journal_bytes(folder) as f64, ITEMS_ENDED);
    format!(
        "an ended fan-out of {ITEMS_ENDED} items: {disk:.2} KiB of disk an item, peak {peak} MiB"
    )
}

fn main() {
    let mut out = std::io::stdout();
    let sizes = SIZES.map(|(bytes, jobs)| format!("waiting {bytes} {jobs}"));
    let large_ones = LARGE_CASES.map(|(jobs, bytes, max)| format!("large {jobs} {bytes} {max}"));
    let Ok(case) = std::env::var(CASE_ENV) else {
        let fixed = ["fan_outs", "idle", "chains 100", "chains 1024", "items_ended"];
        let others = sizes.iter().chain(&large_ones).map(String::as_str);
        for case in fixed.into_iter().chain(others) {
            let program = std::env::current_exe().expect("this program");
            let run = Command::new(program).env(CASE_ENV, case).status().expect("runs");
            assert!(run.success(), "{case}: {run}");
        }
        return;
    };
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let words: Vec<&str> = case.split(' ').collect();
    let number = |at: usize| words[at].parse::<usize>().expect("a number");
    let line = actix_rt::System::new().block_on(async {
        match words[0] {
            "fan_outs" => measure_fan_outs(folder.path()).await,
            "idle" => measure_idle(folder.path()).await,
            "waiting" => measure_waiting(folder.path(), number(1), number(2)).await,
            "large" => measure_large(folder.path(), number(1), number(2), number(3)).await,
            "chains" => measure_chains(folder.path(), number(1)).await,
            "items_ended" => measure_ended_items(folder.path()).await,
            other => panic!("no case {other}"),
        }
    });
    writeln!(out, "{line}").expect("written");
}
