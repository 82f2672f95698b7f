//! The whole line in this process, on the embedded bus: actors, journal, restart.

use bytes::Bytes;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::manager::{TestManager, children_ended, echo, message};
use support::waits::{until, until_async};
use tokio::sync::oneshot;
use workflow_manager::actors::bulk_requests::BulkRedispatch;
use workflow_manager::actors::client_response::{CreateResponse, Erased, RequestError};
use workflow_manager::actors::inputs::RouterInput;
use workflow_manager::bus::embedded::WorkerError;
use workflow_manager::bus::{Address, Publication};
use workflow_manager::engine::{
    Input, JobId, JobState, Message, Operation, Reply, Sender, StepIndex,
};
use workflow_manager::settings::{DurationSetting, Settings};

const CHAIN: &str = "workflows: [{name: chain, steps: [{name: a}, {name: b, depends: [a]}, \
                     {name: c, depends: [b]}]}]";
const FAN: &str = "workflows: [{name: fan, steps: [{name: each, task: t}], tasks: [{name: t, \
                   itemListKey: items, steps: [{name: work}]}]}]";

fn error_of(step: &str) -> Input {
    Input::Reply {
        step: step.to_owned(),
        attempt: Some(1),
        reply: Reply::Error(br#"{"error":"broken"}"#.as_slice().into()),
        from: Sender::Unknown,
    }
}

#[test]
fn a_chain_runs_through_and_keeps_every_digit() {
    actix_rt::System::new().block_on(async {
        let manager = TestManager::with(CHAIN).echo(["a", "b", "c"]).await;
        let text = r#"{"z":12345678901234567890123,"a":0.10,"m":1e400}"#;
        let id = manager.create_job("chain", text).await;
        let job = manager.until_ended(id).await;
        assert_eq!(job.state(), JobState::Completed);
        assert_eq!(job.result().to_text(), text);
        manager.stop().await;
    });
}

#[test]
fn the_same_creation_is_answered_as_before_and_another_is_a_conflict() {
    actix_rt::System::new().block_on(async {
        let workflows = CHAIN.replace("[b]}]}]", "[b]}]}, {name: other, steps: [{name: x}]}]");
        let manager = TestManager::with(&workflows).echo(["b", "c"]).await;
        let id: JobId = "11111111-1111-4111-8111-111111111111".parse().expect("a uuid");
        let ask = |workflow: &'static str, text: &'static str| {
            manager.handle().create(workflow, Some(id), message(text))
        };
        assert_eq!(ask("chain", r#"{"k":1}"#).await, Ok(CreateResponse::New(id)));
        assert_eq!(ask("chain", r#"{"k":1}"#).await, Ok(CreateResponse::Existing(id)));
        assert!(matches!(ask("chain", r#"{"k":2}"#).await, Err(RequestError::Conflict(_))));
        assert!(matches!(ask("other", r#"{"k":1}"#).await, Err(RequestError::Conflict(_))));
        assert_eq!(manager.core().routes.root_count(), 1);
        manager.stop().await;
    });
}

#[test]
fn a_restart_goes_on_where_it_was_and_repeats_only_what_was_open() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let first_calls = Arc::new(AtomicUsize::new(0));
        let counted = first_calls.clone();
        let count_a = move |message: &Publication| {
            counted.fetch_add(1, Ordering::Relaxed);
            echo(message)
        };
        // Nobody works for "b" yet.
        let setup = || TestManager::with(CHAIN).folder(folder.path());
        let manager = setup().worker("a", count_a.clone()).await;
        let mut ids = Vec::new();
        for n in 0..50 {
            ids.push(manager.create_job("chain", &format!("{{\"n\":{n}}}")).await);
        }
        until("every job waits for b", || {
            let waits = |id: &JobId| manager.job(*id).step(StepIndex(0)).output.is_some();
            ids.iter().all(waits)
        })
        .await;
        manager.stop().await;
        assert_eq!(first_calls.load(Ordering::Relaxed), 50);

        let manager = setup().worker("a", count_a).echo(["b", "c"]).await;
        for (n, id) in ids.iter().enumerate() {
            let job = manager.until_ended(*id).await;
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
    actix_rt::System::new().block_on(async {
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
        let setup = || {
            TestManager::with(FAN).folder(folder.path()).set(|settings| {
                settings.fanout.window = 50;
                settings.shutdown.grace = DurationSetting(Duration::from_millis(200));
            })
        };
        let manager = setup().worker("work", some).await;
        let text = serde_json::json!({ "items": list, "top": "x" }).to_string();
        let id = manager.create_job("fan", &text).await;
        manager.until(id, children_ended(100)).await;
        manager.stop().await;
        drop(first);
        let manager = setup().echo(["work"]).await;
        let job = manager.until_ended(id).await;
        assert_eq!(job.state(), JobState::Completed);
        assert_eq!(job.result().to_text(), text);
        manager.stop().await;
    });
}

#[test]
fn a_worker_that_errs_or_panics_fails_the_job_with_its_reason() {
    actix_rt::System::new().block_on(async {
        let fails = |message: &Publication| {
            let text = String::from_utf8_lossy(&message.body.to_bytes()).into_owned();
            assert!(!text.contains("panic"), "as asked");
            Err(WorkerError::from("no such book"))
        };
        let manager = TestManager::with(CHAIN).worker("a", fails).await;
        let erring = manager.create_job("chain", "{}").await;
        let erred = manager.until_ended(erring).await;
        assert_eq!(erred.state(), JobState::Failed);
        assert!(
            erred.reason().is_some_and(
                |reason| reason.contains("step \"a\"") && reason.contains("no such book")
            ),
            "{:?}",
            erred.reason()
        );
        let panicking = manager.create_job("chain", r#"{"panic":true}"#).await;
        let panicked = manager.until_ended(panicking).await;
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
    actix_rt::System::new().block_on(async {
        let few = |settings: &mut Settings| settings.limits.jobs_running_max = 3;
        let manager = TestManager::with(CHAIN).set(few).await;
        for _ in 0..3 {
            manager.create_job("chain", "{}").await;
        }
        let answer = manager.handle().create("chain", None, Message::default()).await;
        assert!(
            matches!(
                &answer,
                Err(RequestError::Overloaded(reason)) if reason.contains("limits.jobs_running_max")
            ),
            "{answer:?}"
        );
        assert_eq!(
            manager.handle().create("nope", None, Message::default()).await,
            Err(RequestError::NotFound)
        );
        manager.stop().await;
    });
}

#[test]
fn with_a_full_journal_nothing_is_answered_until_there_is_room() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let full = |settings: &mut Settings| {
            settings.journal.pages_max = 60;
            settings.journal.full_retry = DurationSetting(Duration::from_millis(20));
            settings.shutdown.grace = DurationSetting(Duration::from_secs(5));
        };
        let manager = TestManager::with(CHAIN).folder(folder.path()).set(full).await;
        let text = serde_json::json!({ "filler": "x".repeat(60_000) }).to_string();
        let mut accepted = Vec::new();
        loop {
            let created = manager.handle().create("chain", None, message(&text));
            let red = || !manager.core().health.can_accept();
            tokio::select! {
                created = created => accepted.push(created.expect("there is room").id()),
                () = until("readiness is red", red) => break, // The one that found no room waits.
            }
            assert!(accepted.len() < 100, "sixty pages hold no hundred such jobs");
        }
        let next = manager.handle().create("chain", None, Message::default()).await;
        assert!(
            matches!(&next, Err(RequestError::Overloaded(reason)) if reason.contains("no room")),
            "{next:?}"
        );
        manager.stop().await;

        let setup = TestManager::with(CHAIN).folder(folder.path());
        let manager = setup.echo(["a", "b", "c"]).await;
        for id in accepted {
            assert_eq!(manager.until_ended(id).await.state(), JobState::Completed);
        }
        manager.stop().await;
    });
}

#[test]
fn what_is_asked_of_a_job_behind_its_deletion_is_asked_of_none() {
    actix_rt::System::new().block_on(async {
        let workflow = "workflows: [{name: two, steps: [{name: a}, {name: b}]}]";
        let fails = |_: &Publication| -> Result<Bytes, WorkerError> { Err("not today".into()) };
        let manager = TestManager::with(workflow).worker("a", fails).await;
        // Failed, and kept for the reply of b; failed and closed.
        for keeps in [true, false] {
            let id = manager.create_job("two", "{}").await;
            manager.until_ended(id).await;
            let router = &manager.mailboxes().router;
            if !keeps {
                router.send(RouterInput::InputForJob(id, error_of("b")));
                manager.until_closed(id).await;
            }
            let (erased, retried) =
                (manager.handle().erase(id), manager.handle().operate(id, Operation::Retry));
            assert_eq!(erased.await, Ok(Erased));
            assert_eq!(retried.await, Err(RequestError::NotFound));
            manager.until_closed(id).await;
            assert!(manager.find_job(id).is_none(), "nothing of it is left");
        }
        manager.stop().await;
    });
}

#[test]
fn a_client_that_goes_takes_its_request_with_it() {
    actix_rt::System::new().block_on(async {
        let manager = TestManager::with(CHAIN).await;
        let free = || manager.handle().creation_permits().available_permits();
        let all = free();
        {
            let mut asked =
                std::pin::pin!(manager.handle().create("chain", None, Message::default()));
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
    actix_rt::System::new().block_on(async {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = seen.clone();
        // One thread, so that the worker sees them in the order of the queue.
        let work = move |message: &Publication| {
            let body = message.body.to_bytes();
            kept.lock().expect("no panic").push(String::from_utf8_lossy(&body).into_owned());
            Ok(body)
        };
        let manager = TestManager::with(FAN).worker("work", work).await;
        let list: Vec<usize> = (0..ITEMS).collect();
        for round in 0..5 {
            let text = serde_json::json!({ "items": list, "round": round }).to_string();
            let id = manager.create_job("fan", &text).await;
            assert_eq!(manager.until_ended(id).await.state(), JobState::Completed);
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
    actix_rt::System::new().block_on(async {
        for (window_bytes, most) in [(1, 1), (3_500, 3), (u64::MAX, 40)] {
            let folder = tempfile::tempdir().expect("a folder");
            let setup = || {
                let setup = TestManager::with(FAN).folder(folder.path());
                setup.set(|settings| settings.fanout.window_bytes = window_bytes)
            };
            // Nobody works yet: what is started waits.
            let manager = setup().await;
            let list: Vec<usize> = (0..ITEMS).collect();
            let text = serde_json::json!({ "items": list, "blob": "x".repeat(1_000) }).to_string();
            let id = manager.create_job("fan", &text).await;
            let job = manager.job(id);
            let started = job.steps().find_map(|(_, run)| Some(run.fan_out.as_ref()?.started()));
            assert_eq!(started, Some(most), "of {window_bytes} bytes");
            manager.stop().await;
            let done = Arc::new(AtomicUsize::new(0));
            let seen = done.clone();
            let work = move |message: &Publication| {
                seen.fetch_add(1, Ordering::Relaxed);
                echo(message)
            };
            let manager = setup().worker("work", work).await;
            let job = manager.until_ended(id).await;
            assert_eq!((job.state(), done.load(Ordering::Relaxed)), (JobState::Completed, ITEMS));
            manager.stop().await;
        }
    });
}

#[test]
fn queues_of_one_name_in_two_virtual_hosts_are_two_queues() {
    const IN_TWO: &str = "workflows: [{name: w, vhosts: [left, right], steps: [{name: q}]}]";
    actix_rt::System::new().block_on(async {
        let manager = TestManager::with(IN_TWO).await;
        let left = manager.create_job("left/w", "{}").await;
        let right = manager.create_job("right/w", "{}").await;
        let is_confirmed = async |id: JobId| {
            let look = manager.handle().inspect_job(id, |job| job.step(StepIndex(0)).confirmed);
            look.await.expect("it is under way")
        };
        // The embedded bus keeps no message over its end, so it confirms none: the test does.
        let router = &manager.mailboxes().router;
        for id in [left, right] {
            let confirmed = Input::Confirmed { step: StepIndex(0), attempt: 1, dispatch: None };
            router.send(RouterInput::InputForJob(id, confirmed));
            until_async("it is confirmed", async || is_confirmed(id).await).await;
        }

        let (taken, is_taken) = oneshot::channel();
        let queue = Address { bus: manager.core().buses.resolve(None, "left"), queue: "q".into() };
        router.send(RouterInput::QueueMissing { queue: queue.clone(), handled: taken });
        is_taken.await.expect("taken");
        assert!(!is_confirmed(left).await, "its message is lost, and sent again");
        assert!(is_confirmed(right).await, "the other queue is there");

        let nothing = manager.handle().redispatch(BulkRedispatch::new(queue)).await;
        assert_eq!(nothing, Ok((0, 0)), "what waits there is with the manager");
        let right = Address { bus: manager.core().buses.resolve(None, "right"), queue: "q".into() };
        let found = manager.handle().redispatch(BulkRedispatch::new(right)).await;
        assert_eq!(found, Ok((1, 1)));
        manager.stop().await;
    });
}
