//! What jobs under way hold in memory is bounded, and nothing waits for room that never comes.

use actix_web::http::StatusCode;
use std::path::Path;
use support::api::Api;
use support::manager::{TestManager, message};
use support::waits::{until, until_async};
use workflow_manager::actors::client_response::{CreateResponse, OperationResponse, RequestError};
use workflow_manager::actors::inputs::{JobInput, RouterInput};
use workflow_manager::actors::manager::Manager;
use workflow_manager::clock;
use workflow_manager::engine::{
    Input, JobId, JobState, Message, Millis, Operation, Reply, StepIndex, Timestamp,
};

/// Each job waits for a person; an item waits too.
const WORKFLOWS: &str = "workflows: [
  { name: work, steps: [ { name: work }, { name: then, depends: [ work ] } ] },
  { name: late, deadline: 4s, steps: [ { name: sign, external: true } ] },
  { name: sign, steps: [ { name: sign, external: true },
                         { name: then, external: true, depends: [ sign ] } ] },
  { name: timed, steps: [ { name: timed, timeout: 1h } ] },
  { name: a, steps: [ { name: a } ] }, { name: b, steps: [ { name: b } ] },
  { name: c, steps: [ { name: c } ] },
  { name: fan, steps: [ { name: each, task: t } ],
    tasks: [ { name: t, itemListKey: items, steps: [ { name: sign, external: true } ] } ] } ]";

const KIB: usize = 1 << 10;

/// A manager whose journal stays in this folder.
async fn start(folder: &Path, jobs_bytes_max: usize) -> TestManager {
    let setup = TestManager::with(WORKFLOWS).folder(folder);
    setup.set(|settings| settings.limits.jobs_bytes_max = jobs_bytes_max).await
}

fn of_size(bytes: usize) -> Message {
    message(&format!("{{\"text\":\"{}\"}}", "x".repeat(bytes)))
}

/// A job that waits for a person.
async fn create(manager: &Manager, bytes: usize) -> Result<JobId, RequestError> {
    manager.handle().create("sign", None, of_size(bytes)).await.map(CreateResponse::id)
}

/// A job whose message no worker takes: it stays in memory.
async fn create_in_memory(manager: &Manager, bytes: usize) -> Result<JobId, RequestError> {
    manager.handle().create("work", None, of_size(bytes)).await.map(CreateResponse::id)
}

fn signed(step: &str, bytes: usize) -> Operation {
    let reply = Reply::Result(of_size(bytes).to_text().into());
    Operation::Reply { step: step.to_owned(), reply }
}

#[test]
fn what_would_exceed_the_memory_of_jobs_is_refused_until_others_have_ended() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = start(folder.path(), 100 * KIB).await;
        let large = create_in_memory(&manager, 200 * KIB)
            .await
            .expect("alone it has room, whatever its size");
        let refused = create_in_memory(&manager, 1).await.expect_err("no room beside it");
        assert!(
            matches!(
                &refused,
                RequestError::Overloaded(why) if why.contains("limits.jobs_bytes_max")
            ),
            "{refused:?}"
        );
        assert_eq!(
            manager.handle().cancel(large, None).await,
            Ok(OperationResponse::Job(JobState::Cancelled))
        );
        let memory = &manager.core().memory;
        until("it is gone", || memory.used_bytes() == 0).await;
        let first = create_in_memory(&manager, 40 * KIB).await.expect("room");
        let second = create_in_memory(&manager, 30 * KIB).await.expect("room");
        create_in_memory(&manager, 40 * KIB).await.expect_err("too large");
        // Replies pass, and count.
        let held = memory.used_bytes();
        manager.handle().operate(first, signed("work", 50 * KIB)).await.expect("a reply passes");
        assert!(memory.used_bytes() >= held + 50 * KIB, "its output counts");
        create_in_memory(&manager, 1).await.expect_err("more is held than may be");
        // An ended job comes back only where there is room.
        let failed = Reply::Error(br#"{"error":"why"}"#.as_slice().into());
        let fails = Operation::Reply { step: "work".to_owned(), reply: failed };
        manager.handle().operate(second, fails).await.expect("a reply passes");
        manager.until_closed(second).await;
        let again = manager.handle().operate(second, Operation::Retry).await.expect_err("no room");
        assert!(matches!(&again, RequestError::Overloaded(why) if why.contains("jobs_bytes_max")));
        manager.handle().operate(first, signed("then", 1)).await.expect("a reply passes");
        until("all is given back", || memory.used_bytes() == 0).await;
        manager.handle().operate(second, Operation::Retry).await.expect("room");
        manager.stop().await;
    });
}

#[test]
fn without_memory_a_fan_out_goes_on_with_one_child_job_at_a_time() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        // The fan-out alone holds more.
        let manager = start(folder.path(), 1).await;
        let list: Vec<String> = (0..4).map(|item| format!("{item}{}", "x".repeat(KIB))).collect();
        let body = serde_json::json!({ "items": list }).to_string();
        let fan = manager.create_job("fan", &body).await;
        for done in 0..list.len() {
            let running = || {
                let running = manager.core().reader.load_running_jobs(0, 100).expect("reads");
                running.into_iter().map(|(_, id)| id).filter(|id| *id != fan).collect::<Vec<_>>()
            };
            let children = until("the next one runs", || {
                Some(running()).filter(|children| !children.is_empty())
            })
            .await;
            assert_eq!(children.len(), 1, "after {done}");
            let id = children[0];
            manager.handle().operate(id, signed("sign", 1)).await.expect("a reply passes");
            manager.until_closed(id).await;
        }
        manager.until_closed(fan).await;
        assert_eq!(manager.job(fan).state(), JobState::Completed);
        // The actor of the last job releases its share when it stops, a moment later.
        until("all memory is released", || manager.core().memory.used_bytes() == 0).await;
        manager.stop().await;
    });
}

#[test]
fn jobs_that_only_wait_rest_and_come_back_for_whatever_comes() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = start(folder.path(), 100 * KIB).await;
        let late =
            manager.handle().create("late", None, of_size(40 * KIB)).await.expect("created").id();
        let mut jobs = Vec::new();
        for _ in 0..6 {
            // Those before it are on their way to rest.
            let created = async || match create(&manager, 40 * KIB).await {
                Err(RequestError::Overloaded(_)) => None,
                created => Some(created.expect("created")),
            };
            jobs.push(until_async("there is room", created).await);
        }
        let (memory, metrics) = (&manager.core().memory, &manager.core().metrics);
        until("most of them rest", || metrics.jobs_passivated.get() >= 5).await;
        assert!(memory.used_bytes() <= 100 * KIB, "{}", memory.render_summary());
        let running = metrics.jobs.with_label_values(&["sign", "running"]);
        until("all are counted", || running.get() == 6).await;
        assert_eq!(manager.core().routes.root_count(), 7);
        assert!(jobs.iter().all(|id| manager.core().routes.is_active(*id)));
        // What is due ends one by itself.
        manager.until(late, |job| job.state() == JobState::Failed).await;
        // Under its id a client gets the same job, or a conflict.
        let again = manager.handle().create("sign", Some(jobs[0]), of_size(40 * KIB)).await;
        assert_eq!(again, Ok(CreateResponse::Existing(jobs[0])));
        let other = manager.handle().create("sign", Some(jobs[1]), of_size(1)).await;
        assert!(matches!(other, Err(RequestError::Conflict(_))), "{other:?}");
        for (n, id) in jobs.iter().enumerate() {
            if n == 2 {
                let cancelled = manager.handle().cancel(*id, None).await;
                assert_eq!(cancelled, Ok(OperationResponse::Job(JobState::Cancelled)));
                continue;
            }
            // One after the other, without a pause between them: they keep their order.
            let (first, second) = (
                manager.handle().operate(*id, signed("sign", 30 * KIB)),
                manager.handle().operate(*id, signed("then", 1)),
            );
            first.await.expect("a reply passes");
            second.await.expect("a reply passes");
            assert_eq!(manager.job(*id).state(), JobState::Completed);
        }
        until("all is given back", || memory.used_bytes() == 0).await;
        assert_eq!((metrics.jobs_passivated.get(), running.get()), (0, 0));
        assert!(manager.core().routes.is_empty());
        manager.stop().await;
    });
}

#[test]
fn a_start_takes_up_what_has_room_and_the_rest_as_room_comes() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = start(folder.path(), 1 << 30).await;
        let mut jobs = Vec::new();
        for _ in 0..6 {
            let created = manager.handle().create("work", None, of_size(40 * KIB)).await;
            jobs.push(created.expect("created").id());
        }
        manager.stop().await;

        let manager = start(folder.path(), 100 * KIB).await;
        let (memory, metrics) = (&manager.core().memory, &manager.core().metrics);
        until("two have room", || metrics.job_trees_waiting.get() == 4).await;
        let told = memory.render_summary();
        assert!(told.contains("4 are still to be taken up"), "{told}");
        assert!(memory.used_bytes() <= 100 * KIB, "{told}");
        let running = metrics.jobs.with_label_values(&["work", "running"]);
        until("all are counted", || running.get() == 6).await;
        let refused = create(&manager, 1).await.expect_err("those of before come first");
        assert!(
            matches!(&refused, RequestError::Overloaded(why) if why.contains("jobs_bytes_max"))
        );
        // What is asked of one that is not taken up brings it in.
        let last = jobs.pop().expect("six");
        assert_eq!(
            manager.handle().cancel(last, None).await,
            Ok(OperationResponse::Job(JobState::Cancelled))
        );
        for id in jobs {
            manager.handle().operate(id, signed("work", 1)).await.expect("a reply passes");
            manager.handle().operate(id, signed("then", 1)).await.expect("a reply passes");
            assert_eq!(manager.job(id).state(), JobState::Completed);
        }
        until("all is given back", || memory.used_bytes() == 0).await;
        assert_eq!((metrics.job_trees_waiting.get(), running.get()), (0, 0));
        create(&manager, 1).await.expect("room");
        manager.stop().await;
    });
}

#[test]
fn what_jobs_at_rest_wait_for_is_told_with_the_longest_waits() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = start(folder.path(), 1 << 30).await;
        let api = Api::new(&manager).await;
        let mut jobs = Vec::new();
        for queue in ["a", "b", "c"] {
            jobs.push(
                manager.handle().create(queue, None, of_size(1)).await.expect("created").id(),
            );
            let path = format!("/api/queue/{queue}/receive?lease=1h");
            assert_eq!(api.post(&path, "").await.status, StatusCode::OK);
        }
        manager.stop().await;

        // One has room.
        let manager = start(folder.path(), 1).await;
        let pending = &manager.core().metrics.job_trees_waiting;
        until("two are at rest", || pending.get() == 2).await;
        let looked = manager.handle().queue_report().await;
        assert_eq!(pending.get(), 2, "a look brings none back");
        let mut told: Vec<(String, JobId)> = looked
            .oldest
            .iter()
            .map(|(address, wait)| (address.queue.to_string(), wait.job))
            .collect();
        told.sort_by(|one, other| one.0.cmp(&other.0));
        let expected = ["a", "b", "c"].map(str::to_owned).into_iter().zip(jobs);
        assert_eq!(told, expected.collect::<Vec<_>>());
        manager.stop().await;
    });
}

/// Returns when the running attempt of a job times out; none: its time has not begun.
fn timeout_at(manager: &TestManager, id: JobId) -> Option<Timestamp> {
    manager.job(id).next_timer()
}

#[test]
fn the_attempt_of_a_job_at_rest_begins_when_its_message_is_handed_over() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = start(folder.path(), 1 << 30).await;
        let mut jobs = Vec::new();
        for _ in 0..2 {
            jobs.push(
                manager.handle().create("timed", None, of_size(1)).await.expect("created").id(),
            );
        }
        manager.stop().await;

        let manager = start(folder.path(), 1).await;
        let at_rest = |manager: &TestManager| {
            jobs.iter().copied().find(|id| manager.core().routes.is_passivated(*id))
        };
        let id = until("one is at rest", || at_rest(&manager)).await;
        assert_eq!(timeout_at(&manager, id), None, "nobody has its message");
        let before = clock::now();
        let created = manager.job(id).origin().created;
        // As a bus tells it.
        let input = Input::Begun { step: StepIndex(0), attempt: 1 };
        let told = Box::new(JobInput::MessageUpdate { job_created: created, input });
        manager.mailboxes().router.send(RouterInput::ForwardToJob(id, told));
        let hour = |begun: Timestamp| begun.after(Some(Millis(3_600_000))).expect("a time");
        let ends = until("it is written down", || timeout_at(&manager, id)).await;
        assert!(hour(before) <= ends && ends <= hour(clock::now()), "{before:?} {ends:?}");
        manager.stop().await;

        let manager = start(folder.path(), 1).await;
        until("one is at rest", || at_rest(&manager)).await;
        assert_eq!(timeout_at(&manager, id), Some(ends));
        manager.stop().await;
    });
}
