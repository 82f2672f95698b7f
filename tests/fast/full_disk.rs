//! While the disk is full nothing is sent: no worker is late, and what was never sent is withdrawn.

use crate::alone::alone;
use crate::http::serving_in;
use crate::waits::{DEADLINE, until};
use actix_web::http::{Method, StatusCode};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use tokio::sync::oneshot;
use workflow_manager::actors::client_response::OperationResponse;
use workflow_manager::actors::completion_latch::CompletionLatch;
use workflow_manager::actors::inputs::{Inspection, JobInput};
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::actors::manager_handle;
use workflow_manager::bus::QueueStatus;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::engine::{Job, JobId, JobState, Message, StepIndex, StepState};
use workflow_manager::journal::{JobRecords, Reader};
use workflow_manager::load::load_text;
use workflow_manager::settings::Settings;

const WORKFLOWS: &str = "
workflows:
  - name: two
    steps: [{name: a}, {name: b, depends: [a], timeout: 50ms}]
  - name: over
    deadline: 1s
    steps: [{name: a}, {name: nobody, depends: [a]}]
  - name: later
    steps: [{name: b}]
  - name: late
    deadline: 1s
    steps: [{name: never, external: true}]";

/// What is seen of a job, committed or not.
async fn seen<T: Send + 'static>(
    manager: &Manager,
    id: JobId,
    what: impl FnOnce(&Job) -> T + Send + 'static,
) -> T {
    let (answer, seen) = oneshot::channel();
    let see = move |job: &Job| {
        let _ = answer.send(what(job));
    };
    let look = Inspection::new(see, CompletionLatch::new(oneshot::channel().0));
    manager.handles().routes.find(id).expect("it is under way").send(JobInput::Inspect(look));
    seen.await.expect("seen")
}

/// A manager with these workers, and one on queue `a`: once it has a message the disk is full.
async fn start(file: &Path, workers: Workers) -> Manager {
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = file.to_owned();
    let definitions = load_text("test.yaml", WORKFLOWS).expect("valid").definitions;
    let workers = workers.with_worker("a", 1, |message| {
        fail::cfg("journal::write", "return(full)")?;
        Ok(message.body.to_bytes())
    });
    manager::start(settings, definitions, workers).await.expect("starts")
}

async fn a_deadline_passes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let workers = Workers::new().with_worker("b", 1, |message| Ok(message.body.to_bytes()));
    let manager = start(&file, workers).await;
    let message = || Message::parse(b"{}").expect("a message");
    let over = manager.create("over", None, message()).await.expect("created").id();
    // Not by a look: what waits for the commit would be released in another order.
    let running = manager.common().metrics.jobs.with_label_values(&["over", "running"]);
    until("the deadline passes", || (running.get() == 0).then_some(())).await;

    // One commit has the dispatch and the end that withdraws it.
    fail::remove("journal::write");
    let is_over = |id: JobId| (!manager.handles().routes.is_under_way(id)).then_some(());
    until("the job ends once there is room", || is_over(over)).await;
    let kept = Reader::new(&file).load_job(over).expect("read").expect("there").job;
    let nobody = kept.step(StepIndex(1));
    assert_eq!((kept.state(), nobody.attempt), (JobState::Failed, 1), "it was dispatched");
    let later = manager.create("later", None, message()).await.expect("created").id();
    until("what is sent later has come", || is_over(later)).await;
    let bus = manager.handles().buses.resolve(None, "");
    let looks =
        manager_handle::inspect_queues(manager.handles(), &bus, vec!["nobody".into()]).await;
    assert!(
        matches!(looks[..], [QueueStatus::Exists { messages: 0, .. } | QueueStatus::Missing]),
        "{looks:?}"
    );
    manager.stop().await;
}

#[test]
fn a_message_that_its_own_commit_withdraws_is_not_lent() {
    alone("full_disk::a_message_that_its_own_commit_withdraws_is_not_lent", a_deadline_passes());
}

async fn a_timeout_passes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let (attempts, seen_by_b) = mpsc::channel();
    let workers = Workers::new().with_worker("b", 1, move |message| {
        attempts.send(message.id.clone())?;
        Ok(message.body.to_bytes())
    });
    let manager = start(&file, workers).await;
    let message = || Message::parse(b"{}").expect("a message");
    let late = manager.create("late", None, message()).await.expect("created").id();
    let two = manager.create("two", None, message()).await.expect("created").id();

    // The deadline, which waits for nothing, is over long after the timeout.
    let waited = tokio::time::timeout(DEADLINE, async {
        while seen(&manager, late, |job| job.state()).await == JobState::Running {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("in time");
    let b = seen(&manager, two, |job| (job.state(), job.step(StepIndex(1)).clone())).await;
    assert_eq!((b.0, b.1.state, b.1.attempt), (JobState::Running, StepState::Running, 1));
    assert!(seen_by_b.try_recv().is_err(), "nothing is sent while the disk is full");

    fail::remove("journal::write");
    let is_over = || (!manager.handles().routes.is_under_way(two)).then_some(());
    until("the job ends once there is room", is_over).await;
    let kept = Reader::new(&file).load_job(two).expect("read").expect("there").job;
    assert_eq!((kept.state(), kept.step(StepIndex(1)).attempt), (JobState::Completed, 1));
    assert_eq!(seen_by_b.try_iter().count(), 1, "its message was sent once");
    manager.stop().await;
}

#[test]
fn no_attempt_times_out_while_its_message_waits_for_room_on_the_disk() {
    let test = "full_disk::no_attempt_times_out_while_its_message_waits_for_room_on_the_disk";
    alone(test, a_timeout_passes());
}

/// Each read of what is derived, with one job that is committed and not derived.
const LISTS: [&str; 12] = [
    "/api/jobs",
    "/api/jobs?limit=10",
    "/api/jobs/search",
    "/api/jobs/search?workflow=two&count=true",
    "/api/workflows",
    "/api/workflows?all=true",
    "/api/definitions?workflow=two",
    "/api/workflow/two",
    "/api/workflow/two?limit=10",
    "/api/workflow/two?limit=10&states=true",
    "/api/status/two",
    "/api/status/two?job=ID",
];

async fn lists_are_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    serving_in(
        folder.path(),
        WORKFLOWS,
        Workers::new(),
        |_| (),
        |api, common| async move {
            fail::cfg("journal::derive", "return(full)").expect("set");
            let created = api.ask(Method::POST, "/api/workflow/two", &[], "{}").await;
            assert_eq!(created.status, StatusCode::CREATED);
            let id = created.json()["id"].as_str().expect("an id").to_owned();
            until("readiness is red", || common.health.is_journal_waiting().then_some(())).await;
            let words = common.health.checks().remove(0).2;
            assert!(words.contains("no room on the disk"), "{words}");
            // Without a token it tells why under a name of the manager alone.
            for (host, is_told) in [("localhost:8088", true), ("evil.example", false)] {
                let answer = api.get("/readyz", &[("host", host)]).await;
                assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{host}");
                let text = String::from_utf8_lossy(&answer.body);
                assert_eq!(text.contains(&words), is_told, "{host}: {text}");
                assert!(text.contains("[-] journal: "), "{host}: {text}");
            }
            let family = [format!("/api/job/{id}/children")];
            let lists = LISTS.iter().map(|list| list.replace("ID", &id));
            for list in lists.clone().chain(family) {
                let answer = api.get(&list, &[]).await;
                assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{list}");
                assert_eq!(answer.detail(), words, "{list}");
            }
            // What is asked of one job is read from its record.
            for own in ["", "/entries", "/why"] {
                let answer = api.get(&format!("/api/job/{id}{own}"), &[]).await;
                assert_eq!(answer.status, StatusCode::OK, "{own}");
            }
            fail::remove("journal::derive");
            until("there is room", || (!common.health.is_journal_waiting()).then_some(())).await;
            for list in lists {
                let answer = api.get(&list, &[]).await;
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                assert_eq!(answer.status, StatusCode::OK, "{list}");
                let tells = if list.contains("/workflows") || list.contains("/definitions") {
                    text.contains("two") || text.contains("\"running\":1")
                } else {
                    text.contains(&id)
                };
                assert!(tells, "{list}: {text}");
            }
        },
    )
    .await;
}

#[test]
fn while_lists_cannot_follow_they_say_so_and_never_that_there_is_nothing() {
    let test = "full_disk::while_lists_cannot_follow_they_say_so_and_never_that_there_is_nothing";
    alone(test, lists_are_behind());
}

async fn one_waits_for_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = folder.path().join("j.db");
    settings.journal.pages_max = 100;
    let text = "workflows: [{name: w, steps: [{name: by-hand, external: true}]}]";
    let definitions = load_text("test.yaml", text).expect("valid").definitions;
    let manager = manager::start(settings, definitions, Workers::new()).await.expect("starts");
    let small = Message::parse(b"{}").expect("a message");
    let id = manager.create("w", None, small).await.expect("created").id();
    // More than the file may have.
    let large = format!("{{\"k\":\"{}\"}}", "x".repeat(1 << 20));
    let large = Message::parse(large.as_bytes()).expect("a message");
    let mut waits = Box::pin(manager.create("w", None, large));
    let health = &manager.common().health;
    tokio::select! {
        _ = &mut waits => panic!("it is answered before its commit"),
        () = until("readiness is red", || health.is_journal_waiting().then_some(())) => {}
    }
    let cancelled = tokio::time::timeout(DEADLINE, manager.cancel(id)).await.expect("in time");
    assert_eq!(cancelled, Ok(OperationResponse::Job(JobState::Cancelled)));
}

#[test]
fn a_job_is_cancelled_while_what_came_before_waits_for_room() {
    let test = "full_disk::a_job_is_cancelled_while_what_came_before_waits_for_room";
    alone(test, one_waits_for_room());
}
