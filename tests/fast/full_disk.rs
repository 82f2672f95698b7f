//! While the disk is full nothing is sent: no worker is late, and what was never sent is withdrawn.

use crate::alone::alone;
use actix_web::http::StatusCode;
use std::path::Path;
use std::sync::mpsc;
use support::manager::{Setup, TestManager, echo, message};
use support::waits::{until, until_async, within};
use tokio::sync::oneshot;
use workflow_manager::actors::client_response::OperationResponse;
use workflow_manager::actors::completion_latch::CompletionLatch;
use workflow_manager::actors::inputs::{Inspection, JobInput};
use workflow_manager::actors::manager::Manager;
use workflow_manager::bus::{Publication, QueueStatus};
use workflow_manager::engine::{Job, JobId, JobState, StepIndex, StepState};
use workflow_manager::journal::{JobRecords, Reader};

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
    manager.core().routes.find(id).expect("it is under way").send(JobInput::Inspect(look));
    seen.await.expect("seen")
}

/// Prepares a manager with a worker on queue `a`: once that has a message the disk is full.
fn setup(file: &Path) -> Setup {
    TestManager::with(WORKFLOWS).journal(file).worker("a", |message| {
        fail::cfg("journal::write", "return(full)")?;
        echo(message)
    })
}

async fn a_deadline_passes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let manager = setup(&file).echo(["b"]).await;
    let over = manager.create_job("over", "{}").await;
    // Not by a look: what waits for the commit would be released in another order.
    let running = manager.core().metrics.jobs.with_label_values(&["over", "running"]);
    until("the deadline passes", || running.get() == 0).await;

    // One commit has the dispatch and the end that withdraws it.
    fail::remove("journal::write");
    manager.until_closed(over).await;
    let kept = Reader::new(&file).load_job(over).expect("read").expect("there").job;
    let nobody = kept.step(StepIndex(1));
    assert_eq!((kept.state(), nobody.attempt), (JobState::Failed, 1), "it was dispatched");
    let later = manager.create_job("later", "{}").await;
    manager.until_closed(later).await;
    let bus = manager.core().buses.resolve(None, "");
    let looks = manager.handle().inspect_queues(&bus, vec!["nobody".into()]).await;
    assert!(
        matches!(looks[..], [QueueStatus::Exists { messages: 0, .. } | QueueStatus::Missing]),
        "{looks:?}"
    );
    manager.stop().await;
}

#[test]
fn a_message_that_its_own_commit_withdraws_is_not_leased() {
    alone("full_disk::a_message_that_its_own_commit_withdraws_is_not_leased", a_deadline_passes());
}

async fn a_timeout_passes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let (attempts, seen_by_b) = mpsc::channel();
    let counted = move |message: &Publication| {
        attempts.send(message.id.clone())?;
        echo(message)
    };
    let manager = setup(&file).worker("b", counted).await;
    let late = manager.create_job("late", "{}").await;
    let two = manager.create_job("two", "{}").await;

    // The deadline, which waits for nothing, is over long after the timeout.
    until_async("the deadline passes", async || {
        seen(&manager, late, |job| job.state()).await != JobState::Running
    })
    .await;
    let b = seen(&manager, two, |job| (job.state(), job.step(StepIndex(1)).clone())).await;
    assert_eq!((b.0, b.1.state, b.1.attempt), (JobState::Running, StepState::Running, 1));
    assert!(seen_by_b.try_recv().is_err(), "nothing is sent while the disk is full");

    fail::remove("journal::write");
    manager.until_closed(two).await;
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

async fn a_reader_projects_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    fail::cfg("journal::derive", "return(full)").expect("a failpoint");
    let manager = TestManager::with(WORKFLOWS).journal(&file).echo(["b"]).await;
    let later = manager.create_job("later", "{}").await;
    until("the disk is full", || manager.core().health.journal_wait().is_some()).await;
    manager.until_closed(later).await;

    // There is room again, and a list is asked for before the journal tries once more.
    fail::remove("journal::derive");
    assert_eq!(manager.core().reader.count_running_root_jobs().expect("read"), []);
    until("everything is accepted again", || manager.core().health.can_accept()).await;
    manager.stop().await;
}

#[test]
fn there_is_room_again_whoever_was_the_first_to_write() {
    let test = "full_disk::there_is_room_again_whoever_was_the_first_to_write";
    alone(test, a_reader_projects_first());
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
    TestManager::with(WORKFLOWS)
        .folder(folder.path())
        .serve_here(|api| async move {
            let health = &api.state().health;
            fail::cfg("journal::derive", "return(full)").expect("set");
            let id = api.create_job("two", "{}").await;
            until("readiness is red", || health.is_journal_waiting()).await;
            let words = health.checks().remove(0).message;
            assert!(words.contains("no room on the disk"), "{words}");
            // Without a token it tells why under a name of the manager alone.
            for (host, is_told) in [("localhost:8088", true), ("evil.example", false)] {
                let answer = api.get("/readyz", &[("host", host)]).await;
                assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{host}");
                let text = answer.text();
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
            until("there is room", || !health.is_journal_waiting()).await;
            for list in lists {
                let answer = api.get(&list, &[]).await;
                let text = answer.text();
                assert_eq!(answer.status, StatusCode::OK, "{list}");
                let tells = if list.contains("/workflows") || list.contains("/definitions") {
                    text.contains("two") || text.contains("\"running\":1")
                } else {
                    text.contains(&id)
                };
                assert!(tells, "{list}: {text}");
            }
        })
        .await;
}

#[test]
fn while_lists_cannot_follow_they_say_so_and_never_that_there_is_nothing() {
    let test = "full_disk::while_lists_cannot_follow_they_say_so_and_never_that_there_is_nothing";
    alone(test, lists_are_behind());
}

async fn one_waits_for_room() {
    let setup = TestManager::with("workflows: [{name: w, steps: [{name: sign, external: true}]}]");
    let manager = setup.set(|settings| settings.journal.pages_max = 100).await;
    let id = manager.create_job("w", "{}").await;
    // More than the file may have.
    let large = message(&format!("{{\"k\":\"{}\"}}", "x".repeat(1 << 20)));
    let mut waits = Box::pin(manager.handle().create("w", None, large));
    let health = &manager.core().health;
    tokio::select! {
        _ = &mut waits => panic!("it is answered before its commit"),
        () = until("readiness is red", || health.is_journal_waiting()) => {}
    }
    let cancelled = within("it is cancelled", manager.handle().cancel(id, None)).await;
    assert_eq!(cancelled, Ok(OperationResponse::Job(JobState::Cancelled)));
}

#[test]
fn a_job_is_cancelled_while_what_came_before_waits_for_room() {
    let test = "full_disk::a_job_is_cancelled_while_what_came_before_waits_for_room";
    alone(test, one_waits_for_room());
}
