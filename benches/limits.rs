//! What limits cost: the CPU of a step with one and without, the memory of those who wait, and how
//! exactly a rate is reached. Each case runs in a process of its own, and the ratios are taken in
//! one run.
//!
//! With a number, such as `cargo bench --bench limits -- 1000000`: what a fan-out of so many items
//! takes, without limits and behind a rate of 5,000 a second.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod process;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::manager::TestManager;
use support::waits::poll;
use workflow_manager::engine::{
    ClaimState, ClaimedPlace, Demand, Gate, JobId, JobState, LimitSetting, StepClaim, StepIndex,
    Timestamp,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A chain of five steps, without limits and with one that is never reached; steps that wait for a
/// person, and for a limit whose only place is taken; and steps behind a rate.
const WORKFLOWS: &str = "
limits:
  - { name: wide, concurrency: 1000000 }
  - { name: narrow, concurrency: 1 }
  - { name: thousand, rate: 1000/s }
  - { name: quick, rate: 5000/s }
workflows:
  - name: free
    steps:
      - { name: a, queue: work }
      - { name: b, queue: work, depends: [ a ] }
      - { name: c, queue: work, depends: [ b ] }
      - { name: d, queue: work, depends: [ c ] }
      - { name: e, queue: work, depends: [ d ] }
  - name: limited
    steps:
      - { name: a, queue: work, limit: wide }
      - { name: b, queue: work, limit: wide, depends: [ a ] }
      - { name: c, queue: work, limit: wide, depends: [ b ] }
      - { name: d, queue: work, limit: wide, depends: [ c ] }
      - { name: e, queue: work, limit: wide, depends: [ d ] }
  - { name: asks, steps: [ { name: wait, external: true } ] }
  - { name: waits, steps: [ { name: wait, queue: nobody, limit: narrow } ] }
  - { name: rated, steps: [ { name: send, queue: work, limit: thousand } ] }
  - name: items
    steps: [ { name: each, task: item } ]
    tasks: [ { name: item, itemListKey: items, steps: [ { name: send, queue: work } ] } ]
  - name: rated-items
    steps: [ { name: each, task: item } ]
    tasks:
      - { name: item, itemListKey: items, steps: [ { name: send, queue: work, limit: quick } ] }
";

const STEPS: usize = 5;
/// How many chains run in a turn, and how many turns there are of each kind: many short ones, for a
/// turn in which the journal's file is tidied up costs half as much again as one without.
const CHAINS: usize = 1_000;
const TURNS: usize = 24;
const WAITERS: usize = 100_000;
/// How many messages go through a rate of 1,000 a second.
const RATED: usize = 10_000;
/// How many jobs are under way, or are created, at once.
const CONCURRENCY: usize = 1_000;

/// The variable that names the case of a child process.
const CASE_ENV: &str = "LIMITS_CASE";

async fn start(folder: &Path) -> TestManager {
    let setup = TestManager::with(WORKFLOWS).folder(folder).echo(["work"]);
    let limited = setup.set(|settings| {
        settings.limits.jobs_running_max = WAITERS + CONCURRENCY;
        settings.limits.jobs_bytes_max = 1 << 40;
    });
    limited.await
}

async fn create(manager: &TestManager, workflow: &str, count: usize) -> Vec<JobId> {
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let now = CONCURRENCY.min(count - ids.len());
        let creations = (0..now).map(|_| manager.create_job(workflow, r#"{"n":1}"#));
        ids.extend(futures_util::future::join_all(creations).await);
    }
    ids
}

async fn run(manager: &TestManager, workflow: &str, count: usize) {
    for _ in 0..count.div_ceil(CONCURRENCY) {
        let ids = create(manager, workflow, CONCURRENCY.min(count)).await;
        poll(|| !ids.iter().any(|id| manager.is_active(*id))).await;
    }
}

/// Measures the CPU of a step in turns, so that both kinds have the same machine.
async fn measure_cost(folder: &Path) -> String {
    let manager = start(folder).await;
    let mut spent = [0.0; 2];
    for workflow in ["free", "limited"] {
        run(&manager, workflow, CHAINS).await;
    }
    for _ in 0..TURNS {
        for (cpu_s, workflow) in spent.iter_mut().zip(["free", "limited"]) {
            let before = process::cpu_seconds("self");
            run(&manager, workflow, CHAINS).await;
            *cpu_s += process::cpu_seconds("self") - before;
        }
    }
    manager.stop().await;
    let [free, limited] = spent.map(|cpu_s| cpu_s * 1e6 / (TURNS * CHAINS * STEPS) as f64);
    let ratio = limited / free;
    format!(
        "CPU of a step: {free:.1} µs without limits, {limited:.1} µs with one; ratio {ratio:.2} \
         (≤ 1.1)"
    )
}

/// Measures what jobs take in memory, in bytes each.
async fn measure_jobs(folder: &Path, workflow: &str) -> f64 {
    let manager = start(folder).await;
    create(&manager, workflow, CONCURRENCY).await;
    let before = process::resident_kib();
    create(&manager, workflow, WAITERS - CONCURRENCY).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let grown_kib = process::resident_kib() - before;
    manager.stop().await;
    (grown_kib * 1024) as f64 / (WAITERS - CONCURRENCY) as f64
}

/// Measures what those who wait take at the gate, in bytes each.
fn measure_gate() -> f64 {
    let mut gate = Gate::default();
    let concurrency = Some(1);
    gate.configure(&"narrow".into(), LimitSetting { concurrency, ..LimitSetting::default() });
    let place = ClaimedPlace { limit: "narrow".into(), key: None, fair: None };
    let places: Arc<[ClaimedPlace]> = [place].into();
    let mut wait = |jobs: std::ops::Range<i64>| {
        for job in jobs {
            let (since, places) = (Timestamp(job), places.clone());
            let claim = StepClaim { ticket: 2, since, places, state: ClaimState::Waiting };
            let step = (job, JobId::from_call(&[&job.to_be_bytes()]), StepIndex(0));
            let demand = Demand { claim, made: since, priority: 0 };
            gate.demand(step, Some(&demand), Arc::clone);
        }
    };
    let (first, all) = (CONCURRENCY as i64, 10 * WAITERS as i64);
    wait(0..first);
    let before = process::resident_kib();
    wait(first..all);
    ((process::resident_kib() - before) * 1024) as f64 / (all - first) as f64
}

async fn measure_rate(folder: &Path) -> String {
    let manager = start(folder).await;
    let begun = Instant::now();
    let ids = create(&manager, "rated", RATED).await;
    poll(|| !ids.iter().any(|id| manager.is_active(*id))).await;
    let reached = RATED as f64 / begun.elapsed().as_secs_f64();
    manager.stop().await;
    format!("a rate of 1000/s: {RATED} messages at {reached:.1}/s (within 2 %)")
}

/// Measures a fan-out of so many items.
async fn measure_items(folder: &Path, workflow: &str, count: usize) -> String {
    let manager = start(folder).await;
    let message = serde_json::json!({ "items": (0..count).collect::<Vec<usize>>() }).to_string();
    let begun = Instant::now();
    let id = manager.create_job(workflow, &message).await;
    poll(|| !manager.is_active(id)).await;
    let (seconds, peak) = (begun.elapsed().as_secs_f64(), process::peak_kib() / 1024);
    assert_eq!(manager.job(id).state(), JobState::Completed);
    manager.stop().await;
    format!("{workflow}: {count} in {seconds:.1} s, peak {peak} MiB")
}

fn main() {
    let mut out = std::io::stdout();
    let item_count = std::env::args().find_map(|argument| argument.parse::<usize>().ok());
    if let Ok(case) = std::env::var(CASE_ENV) {
        let folder = tempfile::tempdir_in(".").expect("a folder");
        let path = folder.path();
        let result = actix_rt::System::new().block_on(async {
            match &*case {
                "cost" => measure_cost(path).await,
                "rate" => measure_rate(path).await,
                "gate" => measure_gate().to_string(),
                "items" | "rated-items" => {
                    measure_items(path, &case, item_count.expect("a number")).await
                }
                workflow => measure_jobs(path, workflow).await.to_string(),
            }
        });
        writeln!(out, "{result}").expect("written");
        return;
    }
    let run_case = |case: &str| {
        let program = std::env::current_exe().expect("this program");
        let number = item_count.map(|count| count.to_string());
        let command = &mut Command::new(program);
        let output = command.args(number).env(CASE_ENV, case).output().expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    if item_count.is_some() {
        for case in ["items", "rated-items"] {
            writeln!(out, "{}", run_case(case)).expect("written");
        }
        return;
    }
    writeln!(out, "{}", run_case("cost")).expect("written");
    writeln!(out, "{}", run_case("rate")).expect("written");
    let [asks, waits, gate]: [f64; 3] =
        ["asks", "waits", "gate"].map(|case| run_case(case).parse().expect("a number"));
    writeln!(
        out,
        "{WAITERS} jobs: {asks:.0} bytes each that wait for a person, {waits:.0} for a limit: \
         {:.0} more; at the gate alone {gate:.0} (≤ 100)",
        waits - asks
    )
    .expect("written");
}
