//! The whole line in this process, on the embedded bus: actors, journal, restart.

use bytes::Bytes;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::waits::{DEADLINE, until};
use tokio::sync::oneshot;
use workflow_manager::actors::bulk_requests::BulkRedispatch;
use workflow_manager::actors::client_response::{CreateResponse, Erased, RequestError};
use workflow_manager::actors::inputs::RouterInput;
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::actors::manager_handle;
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::bus::{Address, Publication};
use workflow_manager::engine::{
    Input, Job, JobId, JobState, Message, Operation, Reply, Sender, StepIndex,
};
use workflow_manager::load::load_text;
use workflow_manager::settings::{DurationSetting, Settings};

const CHAIN: &str = "workflows: [{name: chain, steps: [{name: a}, {name: b, depends: [a]}, \
                     {name: c, depends: [b]}]}]";
const FAN: &str = "workflows: [{name: fan, steps: [{name: each, task: t}], tasks: [{name: t, \
                   itemListKey: items, steps: [{name: work}]}]}]";

fn settings(folder: &Path) -> Settings {
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = folder.join("j.db");
    settings.shutdown.grace = DurationSetting(Duration::from_secs(5));
    settings
}

async fn start(settings: Settings, workflow: &str, workers: Workers) -> Manager {
    let loaded = load_text("test.yaml", workflow).expect("valid");
    manager::start(settings, loaded.definitions, workers).await.expect("starts")
}

fn echo(message: &Publication) -> Result<Bytes, WorkerError> {
    Ok(message.body.to_bytes())
}

fn message(text: &str) -> Message {
    Message::parse(text.as_bytes()).expect("a message")
}

async fn create(manager: &Manager, workflow: &str, text: &str) -> JobId {
    let answer = manager.create(workflow, None, message(text)).await;
    answer.expect("created").id()
}

async fn ended(manager: &Manager, id: JobId) -> Job {
    until("the job ends", || {
        manager
            .common()
            .reader
            .load_job(id)
            .expect("reads")
            .map(|found| found.job)
            .filter(|job| job.state() != JobState::Running)
    })
    .await
}

fn error_of(step: &str) -> Input {
    Input::Reply {
        step: step.to_owned(),
        attempt: Some(1),
        reply: Reply::Error(br#"{"error":"broken"}"#.as_slice().into()),
        from: Sender::Unknown,
    }
}

fn on_a_system(test: impl Future<Output = ()>) {
    actix_rt::System::new().block_on(test);
}

#[test]
fn a_chain_runs_through_and_keeps_every_digit() {
    on_a_system(async {
        let folder = tempfile::tempdir().expect("a folder");
        let workers = Workers::new()
            .with_worker("a", 1, echo)
            .with_worker("b", 1, echo)
            .with_worker("c", 1, echo);
        let manager = start(settings(folder.path()), CHAIN, workers).await;
        let text = r#"{"z":12345678901234567890123,"a":0.10,"m":1e400}"#;
        let id = create(&manager, "chain", text).await;
        let job = ended(&manager, id).await;
        assert_eq!(job.state(), JobState::Completed);
        assert_eq!(job.result().to_text(), text);
        manager.stop().await;
    });
}

#[test]
fn the_same_creation_is_answered_as_before_and_another_is_a_conflict() {
    on_a_system(async {
        let folder = tempfile::tempdir().expect("a folder");
        let workflows = CHAIN.replace("[b]}]}]", "[b]}]}, {name: other, steps: [{name: x}]}]");
        let manager = start(
            settings(folder.path()),
            &workflows,
            Workers::new().with_worker("b", 1, echo).with_worker("c", 1, echo),
        )
        .await;
        let id: JobId = "11111111-1111-4111-8111-111111111111".parse().expect("a uuid");
        let ask = |workflow: &'static str, text: &'static str| {
            manager.create(workflow, Some(id), message(text))
        };
        assert_eq!(ask("chain", r#"{"k":1}"#).await, Ok(CreateResponse::New(id)));
        assert_eq!(ask("chain", r#"{"k":1}"#).await, Ok(CreateResponse::Existing(id)));
        assert!(matches!(ask("chain", r#"{"k":2}"#).await, Err(RequestError::Conflict(_))));
        assert!(matches!(ask("other", r#"{"k":1}"#).await, Err(RequestError::Conflict(_))));
        assert_eq!(manager.handles().routes.root_count(), 1);
        manager.stop().await;
    });
}

#[test]
fn a_restart_goes_on_where_it_was_and_repeats_only_what_was_open() {
    on_a_system(async {
        let folder = tempfile::tempdir().expect("a folder");
        let first_calls = Arc::new(AtomicUsize::new(0));
        let counted = first_calls.clone();
        let count_a = move |message: &Publication| {
            counted.fetch_add(1, Ordering::Relaxed);
            echo(message)
        };
        // Nobody works for "b" yet.
        let manager = start(
            settings(folder.path()),
            CHAIN,
            Workers::new().with_worker("a", 1, count_a.clone()),
        )
        .await;
        let mut ids = Vec::new();
        for n in 0..50 {
            ids.push(create(&manager, "chain", &format!("{{\"n\":{n}}}")).await);
        }
        until("every job waits for b", || {
            let waits = |id: &JobId| {
                manager.common().reader.load_job(*id).expect("reads").is_some_and(|found| {
                    found.job.steps().next().is_some_and(|(_, run)| run.output.is_some())
                })
            };
            ids.iter().all(waits).then_some(())
        })
        .await;
        manager.stop().await;
        assert_eq!(first_calls.load(Ordering::Relaxed), 50);

        let workers = Workers::new()
            .with_worker("a", 1, count_a)
            .with_worker("b", 2, echo)
            .with_worker("c", 1, echo);
        let manager = start(settings(folder.path()), CHAIN, workers).await;
        for (n, id) in ids.iter().enumerate() {
            let job = ended(&manager, *id).await;
            assert_eq!(
                (job.state(), job.result().to_text()),
                (JobState::Completed, format!("{{\"n\":{n}}}"))
            );
        }
        assert_eq!(first_calls.load(Ordering::Relaxed), 50, "what was settled is not repeated");
        manager.stop().await;
    });
}

#[test]
fn a_restart_in_the_middle_of_a_fan_out_loses_no_child() {
    on_a_system(async {
        let folder = tempfile::tempdir().expect("a folder");
        let items = 300usize;
        let list: Vec<usize> = (0..items).collect();
        // A hundred are answered; then the worker holds on until it is let go, after the stop.
        let first = Arc::new(AtomicUsize::new(0));
        let limited = first.clone();
        let some = move |message: &Publication| {
            let n = limited.fetch_add(1, Ordering::Relaxed);
            while n >= 100 && Arc::strong_count(&limited) > 1 {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            echo(message)
        };
        let mut settings_small = settings(folder.path());
        settings_small.fanout.window = 50;
        settings_small.shutdown.grace = DurationSetting(Duration::from_millis(200));
        let manager =
            start(settings_small.clone(), FAN, Workers::new().with_worker("work", 1, some)).await;
        let id =
            create(&manager, "fan", &serde_json::json!({ "items": list, "top": "x" }).to_string())
                .await;
        until("a hundred children have ended", || {
            let found = manager.common().reader.load_job(id).expect("reads")?;
            let ended = found.job.steps().next()?.1.fan_out.as_ref()?.ended();
            (ended >= 100).then_some(())
        })
        .await;
        manager.stop().await;
        drop(first);
        let manager = start(settings_small, FAN, Workers::new().with_worker("work", 2, echo)).await;
        let job = ended(&manager, id).await;
        assert_eq!(job.state(), JobState::Completed);
        assert_eq!(
            job.result().to_text(),
            serde_json::json!({ "items": list, "top": "x" }).to_string()
        );
        manager.stop().await;
    });
}

#[test]
fn a_worker_that_errs_or_panics_fails_the_job_with_its_reason() {
    on_a_system(async {
        let folder = tempfile::tempdir().expect("a folder");
        let workers = Workers::new().with_worker("a", 1, |message: &Publication| {
            let text = String::from_utf8_lossy(&message.body.to_bytes()).into_owned();
            assert!(!text.contains("panic"), "as asked");
            Err(WorkerError::from("no such book"))
        });
        let manager = start(settings(folder.path()), CHAIN, workers).await;
        let erring = create(&manager, "chain", "{}").await;
        let erred = ended(&manager, erring).await;
        assert_eq!(erred.state(), JobState::Failed);
        assert!(
            erred.reason().is_some_and(
                |reason| reason.contains("step \"a\"") && reason.contains("no such book")
            ),
            "{:?}",
            erred.reason()
        );
        let panicking = create(&manager, "chain", r#"{"panic":true}"#).await;
        let panicked = ended(&manager, panicking).await;
        assert!(
            panicked.reason().is_some_and(
                |reason| reason.contains("dead-lettered") && reason.contains("rejected")
            ),
            "{:?}",
            panicked.reason()
        );
        manager.stop().await;
    });
}

#[test]
fn limits_are_answered_not_suffered() {
    on_a_system(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut few = settings(folder.path());
        few.limits.jobs_running_max = 3;
        let manager = start(few, CHAIN, Workers::new()).await;
        for _ in 0..3 {
            create(&manager, "chain", "{}").await;
        }
        let answer = manager.create("chain", None, Message::default()).await;
        assert!(
            matches!(
                &answer,
                Err(RequestError::Overloaded(reason)) if reason.contains("limits.jobs_running_max")
            ),
            "{answer:?}"
        );
        assert_eq!(
            manager.create("nope", None, Message::default()).await,
            Err(RequestError::NotFound)
        );
        manager.stop().await;
    });
}

#[test]
fn with_a_full_journal_nothing_is_answered_until_there_is_room() {
    on_a_system(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut full = settings(folder.path());
        full.journal.pages_max = 60;
        full.journal.full_retry = DurationSetting(Duration::from_millis(20));
        let manager = start(full.clone(), CHAIN, Workers::new()).await;
        let text = serde_json::json!({ "filler": "x".repeat(60_000) }).to_string();
        let mut accepted = Vec::new();
        loop {
            let created = manager.create("chain", None, message(&text));
            let red = || (!manager.common().health.can_accept()).then_some(());
            tokio::select! {
                created = created => accepted.push(created.expect("there is room").id()),
                () = until("readiness is red", red) => break, // The one that found no room waits.
            }
            assert!(accepted.len() < 100, "sixty pages hold no hundred such jobs");
        }
        let next = manager.create("chain", None, Message::default()).await;
        assert!(
            matches!(&next, Err(RequestError::Overloaded(reason)) if reason.contains("no room")),
            "{next:?}"
        );
        manager.stop().await;

        let manager = start(
            settings(folder.path()),
            CHAIN,
            Workers::new()
                .with_worker("a", 1, echo)
                .with_worker("b", 1, echo)
                .with_worker("c", 1, echo),
        )
        .await;
        for id in accepted {
            assert_eq!(ended(&manager, id).await.state(), JobState::Completed);
        }
        manager.stop().await;
    });
}

#[test]
fn what_is_asked_of_a_job_behind_its_deletion_is_asked_of_none() {
    on_a_system(async {
        let folder = tempfile::tempdir().expect("a folder");
        let workflow = "workflows: [{name: two, steps: [{name: a}, {name: b}]}]";
        let fails = |_: &Publication| -> Result<Bytes, WorkerError> { Err("not today".into()) };
        let manager =
            start(settings(folder.path()), workflow, Workers::new().with_worker("a", 1, fails))
                .await;
        // Failed, and kept for the reply of b; failed and closed.
        for keeps in [true, false] {
            let id = create(&manager, "two", "{}").await;
            ended(&manager, id).await;
            let router = &manager.handles().mailboxes().router;
            if !keeps {
                router.send(RouterInput::InputForJob(id, error_of("b")));
                until("it is closed", || {
                    (!manager.handles().routes.is_under_way(id)).then_some(())
                })
                .await;
            }
            let (erased, retried) = (manager.erase(id), manager.operate(id, Operation::Retry));
            assert_eq!(erased.await, Ok(Erased));
            assert_eq!(retried.await, Err(RequestError::NotFound));
            until("nothing of it is left", || {
                (!manager.handles().routes.is_under_way(id)).then_some(())
            })
            .await;
            assert!(manager.common().reader.load_job(id).expect("reads").is_none());
        }
        manager.stop().await;
    });
}

#[test]
fn a_client_that_goes_takes_its_request_with_it() {
    on_a_system(async {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = start(settings(folder.path()), CHAIN, Workers::new()).await;
        let free = || manager.common().creation_permits.available_permits();
        let all = free();
        {
            let mut asked = std::pin::pin!(manager.create("chain", None, Message::default()));
            assert!(futures_util::poll!(&mut asked).is_pending());
            assert_eq!(free(), all - 1);
        }
        assert_eq!(free(), all);
        manager.stop().await;
    });
}

#[test]
fn items_reach_their_queue_in_the_order_of_the_list() {
    const ITEMS: usize = 1_000;
    on_a_system(async {
        let folder = tempfile::tempdir().expect("a folder");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = seen.clone();
        // One thread, so that the worker sees them in the order of the queue.
        let workers = Workers::new().with_worker("work", 1, move |message: &Publication| {
            let body = message.body.to_bytes();
            kept.lock().expect("no panic").push(String::from_utf8_lossy(&body).into_owned());
            Ok(body)
        });
        let manager = start(settings(folder.path()), FAN, workers).await;
        let list: Vec<usize> = (0..ITEMS).collect();
        for round in 0..5 {
            let id = create(
                &manager,
                "fan",
                &serde_json::json!({ "items": list, "round": round }).to_string(),
            )
            .await;
            assert_eq!(ended(&manager, id).await.state(), JobState::Completed);
            let expected: Vec<String> =
                list.iter().map(|n| format!(r#"{{"item":{n},"round":{round}}}"#)).collect();
            assert_eq!(std::mem::take(&mut *seen.lock().expect("no panic")), expected);
        }
        manager.stop().await;
    });
}

#[test]
fn child_jobs_under_way_are_bounded_in_bytes_and_one_is_always_started() {
    const ITEMS: usize = 40;
    on_a_system(async {
        for (window_bytes, most) in [(1, 1), (3_500, 3), (u64::MAX, 40)] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut bounded = settings(folder.path());
            bounded.fanout.window_bytes = window_bytes;
            // Nobody works yet: what is started waits.
            let manager = start(bounded.clone(), FAN, Workers::new()).await;
            let list: Vec<usize> = (0..ITEMS).collect();
            let id = create(
                &manager,
                "fan",
                &serde_json::json!({ "items": list, "blob": "x".repeat(1_000) }).to_string(),
            )
            .await;
            let job = manager.common().reader.load_job(id).expect("reads").expect("there").job;
            let started = job.steps().find_map(|(_, run)| Some(run.fan_out.as_ref()?.started()));
            assert_eq!(started, Some(most), "of {window_bytes} bytes");
            manager.stop().await;
            let done = Arc::new(AtomicUsize::new(0));
            let seen = done.clone();
            let work = move |message: &Publication| {
                seen.fetch_add(1, Ordering::Relaxed);
                echo(message)
            };
            let manager = start(bounded, FAN, Workers::new().with_worker("work", 1, work)).await;
            let job = ended(&manager, id).await;
            assert_eq!((job.state(), done.load(Ordering::Relaxed)), (JobState::Completed, ITEMS));
            manager.stop().await;
        }
    });
}

#[test]
fn queues_of_one_name_in_two_virtual_hosts_are_two_queues() {
    const IN_TWO: &str = "workflows: [{name: w, vhosts: [left, right], steps: [{name: q}]}]";
    on_a_system(async {
        let folder = tempfile::tempdir().expect("a folder");
        let manager = start(settings(folder.path()), IN_TWO, Workers::new()).await;
        let left = create(&manager, "left/w", "{}").await;
        let right = create(&manager, "right/w", "{}").await;
        let is_confirmed = async |id: JobId| {
            let look = manager_handle::inspect_job(manager.handles(), id, |job| {
                job.step(StepIndex(0)).confirmed
            });
            look.await.expect("it is under way")
        };
        // The embedded bus keeps no message over its end, so it confirms none: the test does.
        let router = &manager.handles().mailboxes().router;
        for id in [left, right] {
            let confirmed = Input::Confirmed { step: StepIndex(0), attempt: 1, dispatch: None };
            router.send(RouterInput::InputForJob(id, confirmed));
            let waited = tokio::time::timeout(DEADLINE, async {
                while !is_confirmed(id).await {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
            waited.await.expect("confirmed");
        }

        let (taken, is_taken) = oneshot::channel();
        let queue =
            Address { bus: manager.handles().buses.resolve(None, "left"), queue: "q".into() };
        router.send(RouterInput::QueueMissing { queue: queue.clone(), handled: taken });
        is_taken.await.expect("taken");
        assert!(!is_confirmed(left).await, "its message is lost, and sent again");
        assert!(is_confirmed(right).await, "the other queue is there");

        let nothing =
            manager_handle::redispatch(manager.handles(), BulkRedispatch::new(queue)).await;
        assert_eq!(nothing, Ok((0, 0)), "what waits there is with the manager");
        let right =
            Address { bus: manager.handles().buses.resolve(None, "right"), queue: "q".into() };
        let found = manager_handle::redispatch(manager.handles(), BulkRedispatch::new(right)).await;
        assert_eq!(found, Ok((1, 1)));
        manager.stop().await;
    });
}
