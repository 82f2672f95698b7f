//! Limits in a running manager: who is admitted, and what a restart keeps.

use actix_web::http::StatusCode;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use support::manager::{TestManager, echo};
use support::waits::within;
use workflow_manager::bus::Publication;
use workflow_manager::engine::{JobId, JobState, Operation, Reply, StepIndex, Timestamp};
use workflow_manager::settings::Settings;

const WORKFLOWS: &str = "
limits:
  - { name: license, concurrency: 1 }
  - { name: hourly, rate: 1/h, key: job.customer }
workflows:
  - { name: one, steps: [ { name: pay, limit: license } ] }
  - { name: slow, steps: [ { name: pay, limit: hourly } ] }
";

const MANY_ITEMS: &str = "
limits: [ { name: quick, rate: 2000/s } ]
workflows:
  - name: many
    steps: [ { name: each, task: item } ]
    tasks: [ { name: item, itemListKey: items, steps: [ { name: pay, limit: quick } ] } ]
";
const ITEMS: u64 = 4_000;
/// How many items are under way at once.
const WINDOW: u32 = 100;

const STEP: StepIndex = StepIndex(0);

async fn start(folder: &Path) -> TestManager {
    TestManager::with(WORKFLOWS).folder(folder).await
}

/// Waits until the step's message was sent, or waits for its limits.
async fn until_sent(manager: &TestManager, id: JobId, is_sent: bool) {
    manager
        .until(id, |job| job.can_be_answered(STEP) == is_sent && job.step(STEP).claim().is_some())
        .await;
}

/// Answers in place of a worker.
async fn reply(manager: &TestManager, id: JobId) {
    let reply = Reply::Result("{}".into());
    let operation = Operation::Reply { step: "pay".to_owned(), reply };
    manager.handle().operate(id, operation).await.expect("it is answered");
}

#[test]
fn a_place_is_held_over_a_restart_and_is_free_when_its_holder_has_ended() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = start(folder.path()).await;
        let mut jobs = Vec::new();
        for is_sent in [true, false, false] {
            let job = manager.create_job("one", "{}").await;
            until_sent(&manager, job, is_sent).await;
            jobs.push(job);
        }
        manager.stop().await;
        let manager = start(folder.path()).await;
        let held = manager.handle().inspect_gate(|gate| gate.view(9, Timestamp(0))).await;
        let held = held.expect("it runs");
        let license = held.iter().find(|limit| &*limit.name == "license").expect("the limit");
        assert_eq!((license.held, license.waiting), (1, 2));
        reply(&manager, jobs[0]).await;
        until_sent(&manager, jobs[1], true).await;
        until_sent(&manager, jobs[2], false).await;
        // Who is cancelled while he waits, and who is cancelled while he holds, leave nothing.
        let cancel = || Operation::Cancel { reason: "enough".into() };
        let fourth = manager.create_job("one", "{}").await;
        manager.handle().operate(jobs[2], cancel()).await.expect("cancelled");
        manager.handle().operate(jobs[1], cancel()).await.expect("cancelled");
        until_sent(&manager, fourth, true).await;
        reply(&manager, fourth).await;
        assert_eq!(manager.until_ended(fourth).await.state(), JobState::Completed);
        // The journal has sent the effects of its commits, and the router has handled them.
        manager.handle().probe_liveness().await;
        manager.handle().wait_for_router().await;
        let is_empty = manager.handle().inspect_gate(|gate| gate.is_empty()).await;
        assert_eq!(is_empty, Some(true));
        manager.stop().await;
    });
}

#[test]
fn a_limit_that_a_reload_changes_counts_at_once_and_lowering_it_cancels_no_holder() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("workflows.yaml");
    let with_places = |count: u32| {
        let text = WORKFLOWS.replace("concurrency: 1", &format!("concurrency: {count}"));
        std::fs::write(&file, text).expect("written");
    };
    with_places(1);
    let named = |settings: &mut Settings| settings.workflows = vec![file.clone()];
    let manager = TestManager::with(WORKFLOWS).folder(folder.path()).set(named);
    actix_rt::System::new().block_on(manager.serve_here(async |api| {
        let reload = async |count: u32| {
            with_places(count);
            let reloaded = api.post("/api/reload", "").await;
            assert_eq!(reloaded.status, StatusCode::OK, "{}", reloaded.text());
        };
        let held = async |held: u64, waiting: u64| {
            let is_so = |told: &Value| {
                let limits = told["limits"].as_array().into_iter().flatten();
                let mut licenses = limits.filter(|limit| limit["limit"] == "license");
                licenses.any(|limit| limit["held"] == held && limit["waiting"] == waiting)
            };
            api.until("/api/limits", is_so).await;
        };
        let mut jobs = Vec::new();
        for _ in 0..3 {
            jobs.push(api.create_job("one", "{}").await);
        }
        let reply = async |job: &str| {
            let answer = api.post(&format!("/api/job/{job}/step/pay"), "{}").await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        };
        held(1, 2).await;
        reload(2).await;
        held(2, 1).await;
        // Both keep their places; one leaves, and nobody follows.
        reload(1).await;
        held(2, 1).await;
        reply(&jobs[0]).await;
        held(1, 1).await;
        reply(&jobs[1]).await;
        held(1, 0).await;
        reply(&jobs[2]).await;
        held(0, 0).await;
    }));
}

#[test]
fn a_rate_is_kept_over_a_restart_for_each_key() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = start(folder.path()).await;
        let first = manager.create_job("slow", r#"{"customer":1}"#).await;
        until_sent(&manager, first, true).await;
        reply(&manager, first).await;
        manager.until_closed(first).await;
        manager.stop().await;
        let manager = start(folder.path()).await;
        let same = manager.create_job("slow", r#"{"customer":1}"#).await;
        let other = manager.create_job("slow", r#"{"customer":2}"#).await;
        until_sent(&manager, other, true).await;
        until_sent(&manager, same, false).await;
        manager.stop().await;
    });
}

#[test]
fn items_behind_a_rate_start_in_order_and_only_those_of_the_window_are_at_the_gate() {
    let (numbers, received) = std::sync::mpsc::channel();
    let work = move |message: &Publication| {
        let item: Value = serde_json::from_slice(&message.body.to_bytes()).expect("JSON");
        // An error means that the test has failed.
        let _lost = numbers.send(item["item"].as_u64());
        echo(message)
    };
    let setup = TestManager::with(MANY_ITEMS).worker("pay", work);
    let setup = setup.set(|settings| settings.fanout.window = WINDOW);
    actix_rt::System::new().block_on(within("all items are done", async {
        let manager = setup.await;
        let items: Vec<u64> = (0..ITEMS).collect();
        let job = manager.create_job("many", &json!({ "items": items }).to_string()).await;
        let mut most = 0;
        while manager.is_active(job) {
            let counts = manager.handle().inspect_gate(|gate| gate.count()).await;
            let counts = counts.expect("it runs").into_iter();
            most =
                counts.map(|limit| limit.held + limit.waiting).max().max(Some(most)).unwrap_or(0);
            actix_rt::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(manager.until_ended(job).await.state(), JobState::Completed);
        // A few that have ended may not have told the gate yet.
        assert!(most <= 2 * WINDOW as usize, "{most} items were at the gate at once");
        let started: Vec<Option<u64>> = received.try_iter().collect();
        assert_eq!(started.len() as u64, ITEMS);
        assert!(started.into_iter().eq((0..ITEMS).map(Some)), "not in order");
        manager.stop().await;
    }));
}
