//! What jobs take of memory, each case in a process of its own: many fan-outs at once, and jobs
//! that wait.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod process;

use bytes::Bytes;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::bus::Publication;
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::engine::{JobId, Message};
use workflow_manager::load::load_text;
use workflow_manager::settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FAN: &str = "workflows: [{name: fan, steps: [{name: each, task: t}], tasks: [{name: t, itemListKey: items, steps: [{name: work}]}]}]";
const IDLE: &str = "workflows: [{name: idle, steps: [{name: wait, external: true}]}]";

const FAN_OUTS: usize = 64;
const ITEMS: usize = 1_000;
const IDLE_JOBS: usize = 100_000;
/// Creations under way at once.
const AT_ONCE: usize = 1_000;

/// Set for the process of a case.
const CASE: &str = "MEMORY_CASE";

fn echo(message: &Publication) -> Result<Bytes, WorkerError> {
    Ok(message.body.to_bytes())
}

async fn start(folder: &Path, workflows: &str) -> Manager {
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = folder.join("j.db");
    settings.limits.jobs_running_max = IDLE_JOBS + 1;
    let definitions = load_text("bench.yaml", workflows).expect("valid").definitions;
    let workers = Workers::new().with("work", 1, echo);
    manager::start(settings, definitions, workers).await.expect("starts")
}

async fn create(manager: &Manager, workflow: &str, count: usize, message: &Message) -> Vec<JobId> {
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let now = AT_ONCE.min(count - ids.len());
        let asked = (0..now).map(|_| manager.create(workflow, None, message.clone()));
        let answers = futures_util::future::join_all(asked).await;
        ids.extend(answers.into_iter().map(|answer| answer.expect("created").id()));
    }
    ids
}

async fn fan_outs(folder: &Path) -> String {
    let manager = start(folder, FAN).await;
    let list: Vec<usize> = (0..ITEMS).collect();
    let body = serde_json::json!({ "items": list }).to_string();
    let message = Message::parse(body.as_bytes()).expect("a message");
    let ids = create(&manager, "fan", FAN_OUTS, &message).await;
    while ids.iter().any(|id| manager.ways().routes.is_live(*id)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    manager.stop().await;
    let peak = process::peak() / 1024;
    format!("{FAN_OUTS} jobs of {ITEMS} items at once: peak {peak} MiB")
}

async fn idle(folder: &Path) -> String {
    let manager = start(folder, IDLE).await;
    let message = Message::parse(br#"{"n":1}"#).expect("a message");
    create(&manager, "idle", 1_000, &message).await;
    let before = process::resident();
    create(&manager, "idle", IDLE_JOBS - 1_000, &message).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let each = (process::resident() - before) as f64 / (IDLE_JOBS - 1_000) as f64;
    manager.stop().await;
    format!("{IDLE_JOBS} running jobs of one step that wait: {each:.2} KiB each")
}

fn main() {
    let mut out = std::io::stdout();
    let Ok(case) = std::env::var(CASE) else {
        for case in ["fan_outs", "idle"] {
            let program = std::env::current_exe().expect("this program");
            let run = Command::new(program).env(CASE, case).status().expect("runs");
            assert!(run.success(), "{case}: {run}");
        }
        return;
    };
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let line = actix_rt::System::new().block_on(async {
        match case.as_str() {
            "fan_outs" => fan_outs(folder.path()).await,
            "idle" => idle(folder.path()).await,
            other => panic!("no case {other}"),
        }
    });
    writeln!(out, "{line}").expect("written");
}
