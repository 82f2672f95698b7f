//! Limits of jobs: a job waits for its place, is refused one, or makes others give way; over the
//! API and over restarts.

use crate::simulation::relays::relay;
use actix_web::http::StatusCode;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use support::api::Api;
use support::manager::TestManager;
use support::waits::{until, within};
use workflow_manager::actors::inputs::{JobDemands, RouterInput};
use workflow_manager::actors::mailboxes::Mailboxes;
use workflow_manager::actors::manager::{Parts, Threads};
use workflow_manager::actors::manager_core::ManagerCore;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::engine::{
    ClaimState, Entry, Job, JobEntry, JobId, JobState, Operation, Reply, StepState,
};

const WORKFLOWS: &str = "
limits:
  - { name: customer, concurrency: 1, key: job.customer }
  - { name: pair, concurrency: 2 }
  - { name: hourly, rate: 1/h, burst: 1 }
workflows:
  - name: waits
    limit: { use: customer, then: wait }
    steps: [ { name: sign, external: true } ]
  - name: refuses
    limit: { use: customer, then: refuse }
    steps: [ { name: sign, external: true } ]
  - name: replaces
    limit: { use: pair, then: replace }
    steps: [ { name: sign, external: true } ]
  - name: latest
    limit: { use: customer, then: latest }
    steps: [ { name: sign, external: true } ]
  - name: debounced
    limit: { use: customer, then: latest, delay: 2s }
    steps: [ { name: sign, external: true } ]
  - name: calm
    limit: { use: customer, then: latest, delay: 1h }
    steps: [ { name: sign, external: true } ]
  - name: bounded
    deadline: 1h
    limit: { use: customer, waitAtMost: 50ms }
    steps: [ { name: sign, external: true } ]
  - { name: starts, limit: { use: hourly }, steps: [ { name: sign, external: true } ] }
  - { name: calls, steps: [ { name: ask, queue: workflow.waits } ] }
";

const C1: &str = r#"{"customer":"c1"}"#;

async fn start(folder: &Path) -> TestManager {
    TestManager::with(WORKFLOWS).folder(folder).await
}

/// Does something with managers in a folder.
fn run<F: Future>(test: impl FnOnce(tempfile::TempDir) -> F) -> F::Output {
    let folder = tempfile::tempdir().expect("a folder");
    actix_rt::System::new().block_on(within("the limits do their work", test(folder)))
}

/// Completes the only step of a job.
async fn complete(manager: &TestManager, id: JobId) {
    let reply = Reply::Result("{}".into());
    let operation = Operation::Reply { step: "sign".to_owned(), reply };
    manager.handle().operate(id, operation).await.expect("it is completed");
}

fn waits(job: &Job) -> bool {
    job.claim().is_some_and(|claim| claim.state == ClaimState::Waiting)
}

fn has_begun(job: &Job) -> bool {
    job.steps().any(|(_, run)| run.state == StepState::Running)
}

async fn assert_waits(manager: &TestManager, id: JobId) {
    let job = manager.until(id, waits).await;
    assert!(!has_begun(&job) && job.state() == JobState::Running);
}

async fn until_begun(manager: &TestManager, id: JobId) -> Job {
    manager.until(id, has_begun).await
}

/// Returns why a job was cancelled, once it was.
async fn until_cancelled(manager: &TestManager, id: JobId) -> String {
    let job = manager.until_ended(id).await;
    assert_eq!(job.state(), JobState::Cancelled, "{:?}", job.reason());
    job.reason_text().to_string()
}

/// How many places of a limit are held, and how many jobs and steps wait for one.
async fn count(api: &Api, limit: &str) -> (u64, u64) {
    let told = api.get_json("/api/limits").await;
    let limits = told["limits"].as_array().expect("a list").iter();
    let limit = limits.clone().find(|other| other["limit"] == limit).expect("the limit");
    (limit["held"].as_u64().expect("a number"), limit["waiting"].as_u64().expect("a number"))
}

#[test]
fn jobs_with_more_keys_than_a_limit_may_have_wait_until_one_is_free() {
    run(|folder| async move {
        let setup = TestManager::with(WORKFLOWS).folder(folder.path());
        let manager = setup.set(|settings| settings.limits.keys_max = 1).await;
        let first = manager.create_job("waits", C1).await;
        until_begun(&manager, first).await;
        let (c2, c3) = (r#"{"customer":"c2"}"#, r#"{"customer":"c3"}"#);
        let second = manager.create_job("waits", c2).await;
        assert_waits(&manager, second).await;
        let api = Api::new(&manager).await;
        assert_eq!(count(&api, "customer").await, (1, 1));
        let why = api.get_json(&format!("/api/job/{second}/why")).await;
        assert_eq!(
            why["why"],
            "it has not begun: it waits for a free key of limit customer, for \"c2\": 1 may be in \
             use at once (setting limits.keys_max), 0 before it"
        );
        let refused = api.post("/api/workflow/refuses", c3).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text());
        assert!(refused.text().contains("limits.keys_max"), "{}", refused.text());
        complete(&manager, first).await;
        until_begun(&manager, second).await;
        manager.stop().await;
    });
}

#[test]
fn jobs_wait_for_their_place_in_order_of_creation_over_restarts() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let first = manager.create_job("waits", C1).await;
        until_begun(&manager, first).await;
        let second = manager.create_job("waits", C1).await;
        let third = manager.create_job("waits", C1).await;
        let other = manager.create_job("waits", r#"{"customer":"c2"}"#).await;
        until_begun(&manager, other).await;
        assert_waits(&manager, second).await;
        manager.stop().await;

        let manager = start(folder.path()).await;
        let api = Api::new(&manager).await;
        assert_eq!(count(&api, "customer").await, (2, 2), "a restart counts from the jobs");
        let told = api.get_json(&format!("/api/job/{third}")).await;
        assert_eq!(told["waitsFor"]["limits"], json!([{ "limit": "customer", "key": "c1" }]));
        assert_eq!((&told["state"], told.get("startsAt")), (&json!("running"), None));
        let why = api.get_json(&format!("/api/job/{third}/why")).await;
        assert_eq!((&why["cause"], why.get("step")), (&json!("limit"), None), "{why}");
        assert_eq!(
            why["why"],
            "it has not begun: it waits for a place of limit customer for \"c1\": 1 of 1 held, 1 \
             before it"
        );
        complete(&manager, first).await;
        let job = until_begun(&manager, second).await;
        assert_eq!(job.claim().map(|claim| claim.state), Some(ClaimState::Holding));
        assert!(api.get_json(&format!("/api/job/{second}")).await.get("waitsFor").is_none());
        assert_waits(&manager, third).await;
        manager.stop().await;

        let manager = start(folder.path()).await;
        assert_waits(&manager, third).await;
        complete(&manager, second).await;
        until_begun(&manager, third).await;
        let number = manager.core().reader.find_job_number(third).expect("reads").expect("there");
        let rows = manager.core().reader.load_rows_by_number(number).expect("reads").expect("rows");
        let entries: Vec<Entry> = rows.into_iter().flat_map(|row| row.entries).collect();
        let count = |entry: &dyn Fn(&JobEntry) -> bool| {
            entries.iter().filter(|other| matches!(other, Entry::Job(job) if entry(job))).count()
        };
        assert_eq!(count(&|entry| matches!(entry, JobEntry::Claimed { .. })), 1);
        assert_eq!(count(&|entry| *entry == JobEntry::Admitted), 1);
        complete(&manager, third).await;
        manager.until_ended(third).await;
        let api = Api::new(&manager).await;
        until_free(&api, (1, 0)).await;
        manager.stop().await;
    });
}

/// Waits until so many places of the limit `customer` are held, and so many wait.
async fn until_free(api: &Api, expected: (u64, u64)) {
    let is_met = |told: &Value| {
        let limits = told["limits"].as_array().expect("a list").iter();
        let limit = limits.clone().find(|other| other["limit"] == "customer").expect("the limit");
        (limit["held"].as_u64(), limit["waiting"].as_u64()) == (Some(expected.0), Some(expected.1))
    };
    api.until("/api/limits", is_met).await;
}

#[test]
fn a_job_that_waits_is_cancelled_paused_and_bounded_and_fails_nobody_else() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let api = Api::new(&manager).await;
        let holder = manager.create_job("waits", C1).await;
        until_begun(&manager, holder).await;
        let cancelled = manager.create_job("waits", C1).await;
        let paused = manager.create_job("waits", C1).await;
        let last = manager.create_job("waits", C1).await;
        let bounded = manager.create_job("bounded", C1).await;
        let failed = manager.until_ended(bounded).await;
        assert_eq!(failed.state(), JobState::Failed);
        let reason = "it waited for limit customer for longer than its waitAtMost of 50ms";
        assert_eq!(&*failed.reason_text(), reason);
        let cancel = Operation::Cancel { reason: "no longer wanted".into() };
        manager.handle().operate(cancelled, cancel).await.expect("it is cancelled");
        manager.handle().operate(paused, Operation::Pause).await.expect("it is paused");
        until_free(&api, (1, 1)).await;
        complete(&manager, holder).await;
        until_begun(&manager, last).await;
        manager.handle().operate(paused, Operation::Resume).await.expect("it is resumed");
        assert_waits(&manager, paused).await;
        // A job keeps its place while it is paused.
        manager.handle().operate(last, Operation::Pause).await.expect("it is paused");
        until_free(&api, (1, 1)).await;
        let cancel = Operation::Cancel { reason: "enough".into() };
        manager.handle().operate(last, cancel).await.expect("it is cancelled");
        until_begun(&manager, paused).await;
        manager.handle().operate(bounded, Operation::Retry).await.expect("it is retried");
        let failed = manager.until(bounded, |job| job.round() == 1 && job.state().is_ended()).await;
        assert_eq!(&*failed.reason_text(), reason, "it claimed its place anew");
        complete(&manager, paused).await;
        manager.until_ended(paused).await;
        until_free(&api, (0, 0)).await;
        let rerun = Operation::Rerun { step: "sign".to_owned(), only_failed_items: false };
        manager.handle().operate(last, rerun).await.expect("it is rerun");
        until_begun(&manager, last).await;
        until_free(&api, (1, 0)).await;
        complete(&manager, last).await;
        until_free(&api, (0, 0)).await;
        manager.stop().await;
    });
}

#[test]
fn a_workflow_that_another_one_calls_waits_for_its_place_too() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let api = Api::new(&manager).await;
        let holder = manager.create_job("waits", C1).await;
        until_begun(&manager, holder).await;
        let caller = manager.create_job("calls", C1).await;
        until_free(&api, (1, 1)).await;
        assert_eq!(manager.job(caller).state(), JobState::Running);
        complete(&manager, holder).await;
        until_free(&api, (1, 0)).await;
        let running = api.get_json("/api/workflow/waits?limit=10").await;
        let called = running["running"][0].as_str().expect("the called job");
        complete(&manager, called.parse().expect("an id")).await;
        assert_eq!(manager.until_ended(caller).await.state(), JobState::Completed);
        manager.stop().await;
    });
}

#[test]
fn of_creations_at_once_exactly_one_is_accepted_and_the_others_name_it() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let api = Api::new(&manager).await;
        let answers = join_all((0..20).map(|_| api.post("/api/workflow/refuses", C1))).await;
        let created: Vec<_> =
            answers.iter().filter(|answer| answer.status == StatusCode::CREATED).collect();
        let [winner] = created[..] else { panic!("{} were created", created.len()) };
        let id = winner.json()["id"].as_str().expect("an id").to_owned();
        for answer in answers.iter().filter(|answer| answer.status != StatusCode::CREATED) {
            assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text());
            let problem: Value = answer.json();
            assert_eq!(problem["reason"], "no_place");
            let detail = problem["detail"].as_str().expect("a text");
            let expected = format!(
                "limit customer for \"c1\" has no place: job {id} has it, and workflow \"refuses\" \
                 refuses a job that would have to wait"
            );
            assert_eq!(detail, expected);
        }
        // The same request again is answered with the job that it has created.
        let path = format!("/api/workflow/refuses?id={id}");
        assert_eq!(api.post(&path, C1).await.status, StatusCode::CREATED);
        let other = api.post("/api/workflow/refuses", r#"{"customer":"c2"}"#).await;
        assert_eq!(other.status, StatusCode::CREATED);
        manager.stop().await;

        let manager = start(folder.path()).await;
        let api = Api::new(&manager).await;
        let refused = api.post("/api/workflow/refuses", C1).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "a restart knows the holder");
        complete(&manager, id.parse().expect("an id")).await;
        until_free(&api, (1, 0)).await;
        assert_eq!(api.post("/api/workflow/refuses", C1).await.status, StatusCode::CREATED);
        manager.stop().await;
    });
}

#[test]
fn a_key_without_a_value_refuses_the_creation() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        for workflow in ["waits", "refuses", "latest"] {
            let answer = api.post(&format!("/api/workflow/{workflow}"), "{}").await;
            assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", answer.text());
            let detail = answer.detail();
            let place =
                format!("`key: job.customer` of the limit \"customer\" of workflow \"{workflow}\"");
            assert!(detail.contains(&place), "{detail}");
        }
        let answer = api.post("/api/workflow/waits", r#"{"customer":["c1"]}"#).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
        let expected = "expected a text, a number, or true or false";
        assert!(answer.detail().contains(expected), "{}", answer.detail());
        assert_eq!(count(&api, "customer").await, (0, 0), "nothing is claimed");
    });
}

#[test]
fn the_oldest_job_beyond_the_concurrency_is_replaced() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let first = manager.create_job("replaces", "{}").await;
        let second = manager.create_job("replaces", "{}").await;
        until_begun(&manager, first).await;
        until_begun(&manager, second).await;
        let third = manager.create_job("replaces", "{}").await;
        let reason = until_cancelled(&manager, first).await;
        assert_eq!(reason, format!("replaced by the newer job {third}, at limit pair"));
        until_begun(&manager, third).await;
        assert!(has_begun(&manager.job(second)));
        manager.stop().await;

        let manager = start(folder.path()).await;
        assert!(has_begun(&manager.job(second)) && has_begun(&manager.job(third)));
        let fourth = manager.create_job("replaces", "{}").await;
        let fifth = manager.create_job("replaces", "{}").await;
        until_cancelled(&manager, second).await;
        until_cancelled(&manager, third).await;
        until_begun(&manager, fourth).await;
        until_begun(&manager, fifth).await;
        manager.stop().await;
    });
}

#[test]
fn of_those_that_wait_only_the_newest_stays() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let holder = manager.create_job("latest", C1).await;
        until_begun(&manager, holder).await;
        // A job of another workflow gives way to none of this one.
        let other = manager.create_job("waits", C1).await;
        let older = manager.create_job("latest", C1).await;
        assert_waits(&manager, older).await;
        manager.stop().await;

        let manager = start(folder.path()).await;
        let newest = manager.create_job("latest", C1).await;
        let reason = until_cancelled(&manager, older).await;
        assert_eq!(reason, format!("superseded by the newer job {newest}, at limit customer"));
        assert!(has_begun(&manager.job(holder)), "who has begun goes on");
        assert_waits(&manager, newest).await;
        complete(&manager, holder).await;
        until_begun(&manager, other).await;
        complete(&manager, other).await;
        until_begun(&manager, newest).await;
        manager.stop().await;
    });
}

#[test]
fn who_has_a_place_with_the_commit_of_a_newer_job_is_not_superseded_by_it() {
    actix_rt::System::new().block_on(within("all is told at once", async {
        let kept: Rc<RefCell<Option<Vec<JobDemands>>>> = Rc::default();
        let told = kept.clone();
        let wiring = move |mailboxes: Mailboxes, core: &ManagerCore| {
            let keep = move |input| match (input, &mut *told.borrow_mut()) {
                (RouterInput::Demands(all), Some(kept)) => {
                    kept.extend(all);
                    None
                }
                (input, _) => Some(input),
            };
            let router = relay(mailboxes.router, &core.metrics, keep);
            Mailboxes { router, ..mailboxes }
        };
        let parts = Parts { wiring: Box::new(wiring), ..Parts::standard(Workers::new()) };
        let manager = TestManager::with(WORKFLOWS).start_on(Threads::Current, parts);
        let holder = manager.create_job("latest", C1).await;
        until_begun(&manager, holder).await;
        let waiting = manager.create_job("latest", C1).await;
        assert_waits(&manager, waiting).await;
        *kept.borrow_mut() = Some(Vec::new());
        complete(&manager, holder).await;
        let newest = manager.create_job("latest", C1).await;
        until("both are told", || kept.borrow().as_ref().is_some_and(|all| all.len() == 2)).await;
        let all = kept.take().expect("they are kept");
        manager.mailboxes().router.send(RouterInput::Demands(all));
        until_begun(&manager, waiting).await;
        assert_waits(&manager, newest).await;
        manager.stop().await;
    }));
}

#[test]
fn with_a_delay_the_newest_begins_after_it_over_a_restart() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let first = manager.create_job("debounced", C1).await;
        let second = manager.create_job("debounced", C1).await;
        let third = manager.create_job("debounced", C1).await;
        let of_other = manager.create_job("debounced", r#"{"customer":"c2"}"#).await;
        for superseded in [first, second] {
            let reason = until_cancelled(&manager, superseded).await;
            assert!(reason.starts_with("superseded by the newer job"), "{reason}");
        }
        let job = manager.job(third);
        let begins_at = job.begins_at().expect("it is delayed");
        assert_eq!(begins_at.0 - job.origin().created.0, 2_000_000_000);
        manager.stop().await;

        let manager = start(folder.path()).await;
        for id in [third, of_other] {
            let job = until_begun(&manager, id).await;
            let began = job.steps().next().and_then(|(_, run)| run.started).expect("it began");
            assert!(began.0 - job.origin().created.0 >= 2_000_000_000);
        }
        manager.stop().await;
    });
}

#[test]
fn the_answer_and_the_row_of_a_delayed_job_say_when_it_begins() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let api = Api::new(&manager).await;
        let created = api.post("/api/workflow/calm", C1).await;
        assert_eq!(created.status, StatusCode::CREATED, "{}", created.text());
        let created: Value = created.json();
        let job = api.get_json(&format!("/api/job/{}", created["id"].as_str().expect("id"))).await;
        assert!(job["startsAt"].is_string(), "{job}");
        assert_eq!(created["startsAt"], job["startsAt"]);
        let found = api.get_json("/api/jobs/search?workflow=calm").await;
        assert_eq!(found["jobs"][0]["startsAt"], job["startsAt"]);
        manager.stop().await;
    });
}

#[test]
fn a_job_that_begins_later_claims_its_place_then() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let api = Api::new(&manager).await;
        let later = api.post("/api/workflow/refuses?after=1s", C1).await;
        assert_eq!(later.status, StatusCode::CREATED, "{}", later.text());
        let later: JobId = later.json()["id"].as_str().expect("an id").parse().expect("an id");
        assert!(manager.job(later).claim().is_none());
        let now = api.post("/api/workflow/refuses", C1).await;
        assert_eq!(now.status, StatusCode::CREATED, "nobody has the place yet");
        let now: JobId = now.json()["id"].as_str().expect("an id").parse().expect("an id");
        assert_waits(&manager, later).await;
        complete(&manager, now).await;
        until_begun(&manager, later).await;
        manager.stop().await;
    });
}

#[test]
fn a_rate_counts_how_often_jobs_begin_over_a_restart() {
    run(|folder| async move {
        let manager = start(folder.path()).await;
        let first = manager.create_job("starts", "{}").await;
        until_begun(&manager, first).await;
        complete(&manager, first).await;
        manager.until_ended(first).await;
        manager.stop().await;
        let manager = start(folder.path()).await;
        let second = manager.create_job("starts", "{}").await;
        assert_waits(&manager, second).await;
        let api = Api::new(&manager).await;
        let why = api.get_json(&format!("/api/job/{second}/why")).await;
        let text = why["why"].as_str().expect("a text");
        assert!(text.contains("waits for a place of limit hourly: 1/h, 0 before it"), "{text}");
        until("it still waits", || waits(&manager.job(second))).await;
        manager.stop().await;
    });
}
