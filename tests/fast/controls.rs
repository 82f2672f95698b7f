//! Controls: pauses of limits, queues and workflows, and other values of limits, in a running
//! manager. Nothing new is sent meanwhile, replies are taken, and each ends by itself.

use actix_web::http::{Method, StatusCode};
use serde_json::{Value, json};
use std::path::Path;
use support::api::Api;
use support::manager::TestManager;
use workflow_manager::clock;
use workflow_manager::engine::{
    Control, ControlKey, ControlKind, Job, JobId, JobState, Millis, Operation, Reply, StepIndex,
    StepState,
};

const WORKFLOWS: &str = "
limits:
  - { name: license, concurrency: 2 }
  - { name: hourly, rate: 1/h, burst: 1 }
workflows:
  - name: orders
    steps:
      - { name: price, timeout: 1h }
      - { name: ship, depends: [ price ] }
  - name: fan
    steps: [ { name: list }, { name: each, task: one, depends: [ list ] } ]
    tasks: [ { name: one, itemListKey: items, steps: [ { name: work } ] } ]
  - { name: human, steps: [ { name: sign, external: true, timeout: 1h } ] }
  - { name: licensed, steps: [ { name: draw, limit: license } ] }
  - { name: slow, steps: [ { name: pay, limit: hourly } ] }
";

const FIRST: StepIndex = StepIndex(0);
const SECOND: StepIndex = StepIndex(1);

async fn start(folder: &Path) -> TestManager {
    TestManager::with(WORKFLOWS).folder(folder).await
}

fn key(kind: ControlKind, name: &str) -> ControlKey {
    let bus = if kind == ControlKind::QueuePause { "embedded" } else { "" };
    ControlKey { kind, bus: bus.into(), vhost: "".into(), name: name.into() }
}

fn pause(kind: ControlKind, name: &str) -> Control {
    Control {
        key: key(kind, name),
        rate: None,
        concurrency: None,
        reason: Some("the bank is down".into()),
        by: None,
        since: clock::now(),
        until: None,
    }
}

/// Answers in place of a worker.
async fn reply(manager: &TestManager, id: JobId, step: &str, output: &'static str) {
    let operation = Operation::Reply { step: step.to_owned(), reply: Reply::Result(output.into()) };
    manager.handle().operate(id, operation).await.expect("it is answered");
}

fn waits(step: StepIndex) -> impl Fn(&Job) -> bool {
    move |job| job.step(step).is_claiming()
}

fn is_sent(step: StepIndex) -> impl Fn(&Job) -> bool {
    move |job| job.can_be_answered(step)
}

/// Does something with a manager in a folder, as often as there are starts.
fn run<F: Future>(test: impl FnOnce(tempfile::TempDir) -> F) -> F::Output {
    let folder = tempfile::tempdir().expect("a folder");
    actix_rt::System::new().block_on(test(folder))
}

#[test]
fn a_paused_queue_gets_nothing_new_over_a_restart_and_its_replies_are_taken() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let early = manager.create_job("orders", "{}").await;
        manager.until(early, is_sent(FIRST)).await;
        for queue in ["price", "ship"] {
            manager
                .handle()
                .set_control(pause(ControlKind::QueuePause, queue))
                .await
                .expect("kept");
        }
        // What was sent before goes on.
        reply(&manager, early, "price", "{}").await;
        manager.until(early, waits(SECOND)).await;
        let late = manager.create_job("orders", "{}").await;
        manager.until(late, waits(FIRST)).await;
        manager.stop().await;
        let manager = start(folder.path()).await;
        let names: Vec<_> =
            manager.handle().controls().await.into_iter().map(|control| control.key.name).collect();
        assert_eq!(names, ["price".into(), "ship".into()]);
        let third = manager.create_job("orders", "{}").await;
        manager.until(third, waits(FIRST)).await;
        manager.until(late, waits(FIRST)).await;
        manager.handle().end_control(key(ControlKind::QueuePause, "price")).await.expect("ended");
        for job in [late, third] {
            let sent = manager.until(job, is_sent(FIRST)).await;
            // Its timeout begins once a worker has the message.
            assert!(sent.step(FIRST).is_timeout_pending());
            assert_eq!(sent.step(FIRST).attempt, 1);
        }
        assert!(manager.job(early).step(SECOND).is_claiming(), "the other pause goes on");
        manager.handle().end_control(key(ControlKind::QueuePause, "ship")).await.expect("ended");
        manager.until(early, is_sent(SECOND)).await;
        reply(&manager, early, "ship", "{}").await;
        assert_eq!(manager.until_ended(early).await.state(), JobState::Completed);
        assert!(manager.handle().controls().await.is_empty());
        manager.stop().await;
    });
}

#[test]
fn a_pause_ends_by_itself_also_while_no_manager_runs() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let end = clock::now().plus(Millis(300));
        for name in ["orders", "human"] {
            let control = Control { until: Some(end), ..pause(ControlKind::WorkflowPause, name) };
            manager.handle().set_control(control).await.expect("kept");
        }
        let job = manager.create_job("orders", "{}").await;
        manager.until(job, is_sent(FIRST)).await;
        assert!(clock::now() >= end, "nothing was sent before its end");
        assert!(manager.handle().controls().await.is_empty());
        manager.stop().await;
        let manager = start(folder.path()).await;
        assert!(manager.handle().controls().await.is_empty(), "the journal has forgotten it");
        manager.stop().await;
    });
}

#[test]
fn in_a_paused_workflow_no_step_and_no_item_begins() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let fan = manager.create_job("fan", "{}").await;
        manager.until(fan, is_sent(FIRST)).await;
        for name in ["fan", "human"] {
            let control = pause(ControlKind::WorkflowPause, name);
            manager.handle().set_control(control).await.expect("kept");
        }
        reply(&manager, fan, "list", r#"{"items":[1,2,3]}"#).await;
        manager.until(fan, waits(SECOND)).await;
        let human = manager.create_job("human", "{}").await;
        let waiting = manager.until(human, waits(FIRST)).await;
        assert!(waiting.step(FIRST).timeout_at().is_none(), "its timeout stands still");
        let other = manager.create_job("orders", "{}").await;
        manager.until(other, is_sent(FIRST)).await;
        // The items of a task are child jobs, and so are subject to the pause of a queue.
        let control = pause(ControlKind::QueuePause, "work");
        manager.handle().set_control(control).await.expect("kept");
        for name in ["fan", "human"] {
            let key = key(ControlKind::WorkflowPause, name);
            manager.handle().end_control(key).await.expect("ended");
        }
        let begun = manager.until(human, is_sent(FIRST)).await;
        assert!(begun.step(FIRST).timeout_at().is_some());
        let started = manager.until(fan, |job| job.child_count() == 3).await;
        let children: Vec<JobId> =
            (0..3).filter_map(|index| started.child_id(SECOND, index)).collect();
        for child in &children {
            manager.until(*child, waits(FIRST)).await;
        }
        manager.handle().end_control(key(ControlKind::QueuePause, "work")).await.expect("ended");
        for child in children {
            manager.until(child, is_sent(FIRST)).await;
            reply(&manager, child, "work", "{}").await;
        }
        let ended = manager.until_ended(fan).await;
        assert_eq!(ended.state(), JobState::Completed);
        assert_eq!(ended.step(SECOND).state, StepState::Completed);
        manager.stop().await;
    });
}

#[test]
fn a_job_of_a_paused_workflow_can_be_cancelled_and_leaves_nothing_at_the_gate() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let control = pause(ControlKind::WorkflowPause, "orders");
        manager.handle().set_control(control).await.expect("kept");
        let job = manager.create_job("orders", "{}").await;
        manager.until(job, waits(FIRST)).await;
        let cancel = Operation::Cancel { reason: "enough".into() };
        manager.handle().operate(job, cancel).await.expect("cancelled");
        manager.until_closed(job).await;
        manager.handle().probe_liveness().await;
        manager.handle().wait_for_router().await;
        assert_eq!(manager.handle().inspect_gate(|gate| gate.is_empty()).await, Some(true));
        manager.stop().await;
    });
}

#[test]
fn a_lower_limit_cancels_no_holder_and_a_pause_of_it_admits_nobody() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let mut jobs = Vec::new();
        for must_wait in [false, false, true, true] {
            let job = manager.create_job("licensed", "{}").await;
            if must_wait {
                manager.until(job, waits(FIRST)).await;
            } else {
                manager.until(job, is_sent(FIRST)).await;
            }
            jobs.push(job);
        }
        let lower = Control { concurrency: Some(1), ..pause(ControlKind::LimitChange, "license") };
        manager.handle().set_control(lower).await.expect("kept");
        // Both still hold a place. One leaves, and nobody follows.
        reply(&manager, jobs[0], "draw", "{}").await;
        assert_eq!(manager.until_ended(jobs[0]).await.state(), JobState::Completed);
        manager.handle().probe_liveness().await;
        manager.handle().wait_for_router().await;
        assert!(manager.job(jobs[1]).can_be_answered(FIRST));
        assert!(manager.job(jobs[2]).step(FIRST).is_claiming());
        manager.stop().await;
        let manager = start(folder.path()).await;
        manager.until(jobs[2], waits(FIRST)).await;
        let control = pause(ControlKind::LimitPause, "license");
        manager.handle().set_control(control).await.expect("kept");
        let change = key(ControlKind::LimitChange, "license");
        manager.handle().end_control(change).await.expect("ended");
        reply(&manager, jobs[1], "draw", "{}").await;
        manager.until_closed(jobs[1]).await;
        manager.handle().wait_for_router().await;
        for job in &jobs[2..] {
            assert!(manager.job(*job).step(FIRST).is_claiming());
        }
        manager.handle().end_control(key(ControlKind::LimitPause, "license")).await.expect("ended");
        for job in &jobs[2..] {
            manager.until(*job, is_sent(FIRST)).await;
        }
        manager.stop().await;
    });
}

#[test]
fn a_queue_is_also_paused_for_steps_that_wait_for_a_limit_already() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let first = manager.create_job("licensed", "{}").await;
        let second = manager.create_job("licensed", "{}").await;
        let third = manager.create_job("licensed", "{}").await;
        manager.until(first, is_sent(FIRST)).await;
        manager.until(second, is_sent(FIRST)).await;
        manager.until(third, waits(FIRST)).await;
        let control = pause(ControlKind::QueuePause, "draw");
        manager.handle().set_control(control).await.expect("kept");
        reply(&manager, first, "draw", "{}").await;
        manager.until_closed(first).await;
        manager.handle().probe_liveness().await;
        manager.handle().wait_for_router().await;
        assert!(manager.job(third).step(FIRST).is_claiming());
        manager.handle().end_control(key(ControlKind::QueuePause, "draw")).await.expect("ended");
        manager.until(third, is_sent(FIRST)).await;
        manager.stop().await;
    });
}

async fn delete(api: &Api, path: &str) -> StatusCode {
    api.request(Method::DELETE, path, &[], "").await.status
}

#[test]
fn operators_pause_and_resume_over_the_api_and_why_names_the_pause() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        let paused = api.post("/api/queue/price/pause?for=1h&reason=bank%20down", "").await;
        assert_eq!(paused.status, StatusCode::OK, "{}", paused.text());
        let told = paused.json();
        assert_eq!(
            (&told["kind"], &told["name"], &told["reason"]),
            (&json!("queuePause"), &json!("price"), &json!("bank down"))
        );
        assert!(told["until"].is_string() && told["since"].is_string(), "{told}");
        let mut listed = told.clone();
        listed["waiting"] = json!(0);
        assert_eq!(api.get_json("/api/controls").await, json!({ "controls": [listed] }));
        let job = api.create_job("orders", "{}").await;
        let is_paused = |why: &Value| why["cause"] == "paused";
        let why = api.until(&format!("/api/job/{job}/why"), is_paused).await;
        listed["waiting"] = json!(1);
        assert_eq!(api.get_json("/api/controls").await, json!({ "controls": [listed] }));
        let sentence = why["why"].as_str().expect("a sentence");
        assert!(
            sentence.starts_with("step \"price\" waits: queue price is paused until 20")
                && sentence.ends_with(": bank down"),
            "{sentence}"
        );
        let path = format!("/api/job/{job}/step/price");
        assert_eq!(api.get_json(&path).await["state"], "running");
        let resumed = api.post("/api/queue/price/resume", "").await;
        assert_eq!(resumed.status, StatusCode::OK, "{}", resumed.text());
        api.until(&path, |told| told["attempt"] == 1).await;
        let again = api.post("/api/queue/price/resume", "").await;
        assert_eq!(again.status, StatusCode::CONFLICT);
        assert_eq!(again.detail(), "nothing to end: queue price is not paused");

        let changed = api.post("/api/limits/hourly?rate=20/s&burst=3&for=1h", "").await;
        assert_eq!(changed.status, StatusCode::OK, "{}", changed.text());
        let hourly = |told: &Value| told["limits"][0]["limit"] == "hourly";
        let limits = api.until("/api/limits", hourly).await;
        assert_eq!(
            (&limits["limits"][0]["rate"], &limits["limits"][0]["burst"]),
            (&json!("20/s"), &json!(3))
        );
        assert_eq!(api.post("/api/limits/hourly/pause", "").await.status, StatusCode::OK);
        assert_eq!(api.get_json("/api/limits").await["limits"][0]["paused"], true);
        assert_eq!(api.post("/api/limits/hourly/resume", "").await.status, StatusCode::OK);
        assert_eq!(delete(&api, "/api/limits/hourly").await, StatusCode::OK);
        assert_eq!(delete(&api, "/api/limits/hourly").await, StatusCode::CONFLICT);
        assert_eq!(api.get_json("/api/limits").await["limits"][0]["rate"], "1/h");

        let paused = api.post("/api/workflows/orders/pause", "").await;
        assert_eq!(paused.json()["kind"], "workflowPause");
        let job = api.create_job("orders", "{}").await;
        let why = api.until(&format!("/api/job/{job}/why"), is_paused).await;
        assert_eq!(
            why["why"],
            "step \"price\" waits: workflow orders is paused until it is resumed"
        );
        let resumed = api.post("/api/workflows/orders/resume", "").await;
        assert_eq!(resumed.status, StatusCode::OK);
        api.until(&format!("/api/job/{job}/step/price"), |told| told["attempt"] == 1).await;
    });
}

#[test]
fn a_control_of_something_unknown_or_with_bad_values_is_refused_with_a_hint() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        for (path, status, detail) in [
            ("/api/limits/licence?rate=1/s", 404, "did you mean \"license\"?"),
            ("/api/limits/licence/pause", 404, "did you mean \"license\"?"),
            ("/api/limits/license/stop", 404, "there are pause and resume"),
            ("/api/queue/prise/pause", 404, "did you mean \"price\"?"),
            ("/api/workflows/order/pause", 404, "did you mean \"orders\"?"),
            ("/api/limits/license", 400, "?rate=20/s"),
            ("/api/limits/license?rate=20", 400, "write its unit: 100/s"),
            ("/api/limits/license?rate=0/s", 400, "pause the limit"),
            ("/api/limits/license?burst=2", 400, "burst needs rate"),
            ("/api/limits/license?concurrency=0", 400, "to admit nobody, pause the limit"),
            ("/api/limits/license?concurrency=1&for=soon", 400, "such as 90s, 30m, 1h or 2d"),
            ("/api/queue/price/pause?for=0s", 400, "such as 90s, 30m, 1h or 2d"),
            ("/api/queue/price/pause?until=1h", 400, "known are bus, vhost, for, reason"),
            ("/api/queue/price/resume?for=1h", 400, "known are bus, vhost, reason"),
            ("/api/workflows/orders/resume?for=1h", 400, "known are vhost, reason"),
        ] {
            let answer = api.post(path, "").await;
            assert_eq!(answer.status.as_u16(), status, "{path}: {}", answer.text());
            assert!(answer.detail().contains(detail), "{path}: {}", answer.detail());
        }
        assert_eq!(api.get_json("/api/controls").await, json!({ "controls": [] }));
    });
}
