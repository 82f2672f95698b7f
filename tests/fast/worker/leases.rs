//! Leases: they end, are taken up again, and outlive the process.

use super::{ID, WORKFLOW, give_back, none_waits, receive, reply, tell, until};
use actix_web::http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use support::api::{Answer, Api};
use support::manager::TestManager;
use support::waits::{DEADLINE, until_async};
use workflow_manager::bus::Rejection;
use workflow_manager::bus::lease_queue::{LeasedMessage, ReceiveOptions, WorkerReply};
use workflow_manager::clock;
use workflow_manager::engine::Sender;
use workflow_manager::settings::Settings;

/// Waits until the journal has the lease of a delivery.
async fn until_journaled(api: &Api, message: &Answer) {
    let delivery: u64 = message.header("delivery").parse().expect("a number");
    let is_lease = |entry: &Value| entry["kind"] == "step.leased" && entry["delivery"] == delivery;
    let has_lease =
        |record: &Value| record["entries"].as_array().expect("a list").iter().any(is_lease);
    api.until(&format!("/api/job/{ID}/entries"), has_lease).await;
}

/// Waits until the journal also has that the lease has ended early.
async fn until_journaled_again(api: &Api) {
    let count = |record: &Value| record.to_string().matches("step.leased").count();
    api.until(&format!("/api/job/{ID}/entries"), |record| count(record) > 1).await;
}

/// One manager after the other on the same journal; the second gets what the first leaves.
fn restarted<F: Future<Output = Answer>, S: Future<Output = ()>>(
    first: impl FnOnce(Api) -> F,
    second: impl FnOnce(Api, Answer) -> S,
) {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let setup = || TestManager::with(WORKFLOW).folder(folder.path());
        let message = setup().serve_here(first).await;
        setup().serve_here(|api| second(api, message)).await;
    });
}

#[test]
fn a_lease_that_has_ended_is_taken_up_again_while_nobody_else_has_the_message() {
    TestManager::with(WORKFLOW).set(|settings| settings.embedded.deliveries_max = 3).serve(
        |api| async move {
            api.create_job(&format!("orders?id={ID}"), "{}").await;
            let first = receive(&api, "price/receive").await;
            give_back(&api, &first).await;
            assert_eq!(tell(&api, &first, "extend").await.status, StatusCode::OK);
            none_waits(&api).await;

            give_back(&api, &first).await;
            let second = receive(&api, "price/receive").await;
            assert_eq!(second.header("delivery"), "2");
            let late = tell(&api, &first, "extend").await;
            assert_eq!(late.status, StatusCode::GONE);
            let detail = late.detail();
            assert!(detail.starts_with("lease expired: another worker has"), "{detail}");

            // Progress takes it up as well, and no delivery is forgotten.
            give_back(&api, &second).await;
            let progress = reply(&api, &first, "?type=progress", r#"{"progress":0.5}"#).await;
            assert!(progress["taken"] == true && progress["until"].is_string(), "{progress}");
            none_waits(&api).await;
            give_back(&api, &first).await;
            let third = receive(&api, "price/receive").await;
            assert_eq!((third.header("delivery"), third.header("attempt")), ("3", "1"));
            give_back(&api, &third).await;
            let fourth = receive(&api, "price/receive").await;
            assert_eq!((fourth.header("delivery"), fourth.header("attempt")), ("1", "2"));
            let record = api.get(&format!("/api/job/{ID}/entries"), &[]).await.json();
            assert!(record.to_string().contains("delivery_limit"), "{record}");
        },
    );
}

#[test]
fn a_lease_is_taken_up_again_after_a_restart() {
    // Also by a worker that asks before the manager has taken up all jobs.
    for others in [100, 1000] {
        let first_start = async |api: Api| {
            for _ in 0..others {
                let other = api.post("/api/workflow/ranked", "{}").await;
                assert_eq!(other.status, StatusCode::CREATED);
            }
            api.create_job(&format!("orders?id={ID}"), "{}").await;
            give_back(&api, &receive(&api, "price/receive").await).await;
            receive(&api, "price/receive").await
        };
        let second_start = async |api: Api, message: Answer| {
            let extended = tell(&api, &message, "extend").await;
            let said = String::from_utf8_lossy(&extended.body);
            assert_eq!(extended.status, StatusCode::OK, "{others} others: {said}");
            none_waits(&api).await;
            give_back(&api, &message).await;
            let other = receive(&api, "price/receive").await;
            assert_eq!((message.header("delivery"), other.header("delivery")), ("2", "3"));
            assert_eq!(reply(&api, &message, "", "{}").await, json!({ "taken": true }));
            receive(&api, "ship/receive").await;
        };
        restarted(first_start, second_start);
    }
}

#[test]
fn a_restart_gives_out_nothing_that_a_worker_has() {
    restarted(
        async |api| {
            api.create_job(&format!("orders?id={ID}"), "{}").await;
            give_back(&api, &receive(&api, "price/receive").await).await;
            let message = receive(&api, "price/receive?lease=10m&worker=first").await;
            until_journaled(&api, &message).await;
            message
        },
        async |api, message| {
            until(&api, |job| job["state"] == "running").await;
            none_waits(&api).await;
            let is_leased = |queue: &Value| queue["leases"][0]["messageId"].is_string();
            let queue = api.until("/api/queue/price", is_leased).await;
            assert_eq!(queue["leases"][0]["messageId"], format!("{ID}:price:1"), "{queue}");
            assert_eq!(queue["leases"][0]["delivery"], 2, "{queue}");
            let why = api.get(&format!("/api/job/{ID}/why"), &[]).await.json().to_string();
            assert!(why.contains("a worker has it: delivery 2 of the message"), "{why}");
            assert_eq!(tell(&api, &message, "extend?lease=5m").await.status, StatusCode::OK);
            give_back(&api, &message).await;
            let other = receive(&api, "price/receive").await;
            assert_eq!(other.header("delivery"), "3", "deliveries are counted on");
            assert_eq!(reply(&api, &message, "", "{}").await, json!({ "taken": true }));
            receive(&api, "ship/receive").await;
        },
    );
}

#[test]
fn a_lease_ends_after_a_restart_as_well() {
    restarted(
        async |api| {
            api.create_job(&format!("orders?id={ID}"), "{}").await;
            let message = receive(&api, "price/receive?lease=2s").await;
            until_journaled(&api, &message).await;
            message
        },
        async |api, _| {
            let other = receive(&api, "price/receive?wait=50s").await;
            assert_eq!((other.header("delivery"), other.header("attempt")), ("2", "1"));
        },
    );
}

#[test]
fn what_was_given_back_waits_after_a_restart() {
    restarted(
        async |api| {
            api.create_job(&format!("orders?id={ID}"), "{}").await;
            let message = receive(&api, "price/receive?lease=10m").await;
            until_journaled(&api, &message).await;
            give_back(&api, &message).await;
            until_journaled_again(&api).await;
            message
        },
        async |api, _| {
            let again = receive(&api, "price/receive").await;
            assert_eq!(again.header("delivery"), "2", "deliveries are counted on");
        },
    );
}

#[test]
fn extensions_within_the_journaled_time_write_nothing() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        api.create_job(&format!("orders?id={ID}"), "{}").await;
        let message = receive(&api, "price/receive?lease=10m").await;
        until_journaled(&api, &message).await;
        for _ in 0..100 {
            assert_eq!(tell(&api, &message, "extend").await.status, StatusCode::OK);
        }
        reply(&api, &message, "", "{}").await;
        let record = api.get(&format!("/api/job/{ID}/entries"), &[]).await.json().to_string();
        assert_eq!(record.matches("step.leased").count(), 1, "{record}");
    });
}

#[test]
fn a_delivery_that_cannot_be_takes_nothing_up() {
    TestManager::with(WORKFLOW).set(|settings| settings.embedded.deliveries_max = 3).serve(
        |api| async move {
            api.create_job(&format!("orders?id={ID}"), "{}").await;
            let first = receive(&api, "price/receive").await;
            give_back(&api, &first).await;
            let extend = async |queue: &str, delivery: u32| {
                let path = format!("/api/queue/{queue}/message/{ID}:price:1/{delivery}/extend");
                api.post(&path, "").await
            };
            for (queue, delivery) in
                [("price", 0), ("price", 4), ("price", 4_000_000_000), ("ship", 1), ("nowhere", 1)]
            {
                let answer = extend(queue, delivery).await;
                assert_eq!(answer.status, StatusCode::GONE, "{queue} {delivery}");
                assert!(answer.detail().starts_with("lease expired"), "{}", answer.detail());
            }
            let second = receive(&api, "price/receive").await;
            assert_eq!((second.header("delivery"), second.header("attempt")), ("2", "1"));
            // The largest that can be is counted, and the message is not given out once more.
            give_back(&api, &second).await;
            assert_eq!(extend("price", 3).await.status, StatusCode::OK);
            let path = format!("/api/queue/price/message/{ID}:price:1/3/nack?requeue=true");
            assert_eq!(api.post(&path, "").await.status, StatusCode::OK);
            assert_eq!(receive(&api, "price/receive").await.header("attempt"), "2");
        },
    );
}

#[test]
fn restarts_do_not_add_to_the_deliveries_that_a_message_has() {
    let twice = |settings: &mut Settings| settings.embedded.deliveries_max = 2;
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        for delivery in ["1", "2"] {
            let lend = async |api: Api| {
                if delivery == "1" {
                    api.create_job(&format!("orders?id={ID}"), "{}").await;
                }
                let message = receive(&api, "price/receive?wait=50s&lease=1s").await;
                assert_eq!(
                    (message.header("delivery"), message.header("attempt")),
                    (delivery, "1")
                );
                until_journaled(&api, &message).await;
            };
            TestManager::with(WORKFLOW).folder(folder.path()).set(twice).serve_here(lend).await;
        }
        let last = async |api: Api| {
            let message = receive(&api, "price/receive?wait=50s").await;
            assert_eq!((message.header("delivery"), message.header("attempt")), ("1", "2"));
        };
        TestManager::with(WORKFLOW).folder(folder.path()).set(twice).serve_here(last).await;
    });
}

#[test]
fn who_names_no_time_loses_none() {
    restarted(
        async |api| {
            api.create_job(&format!("orders?id={ID}"), "{}").await;
            let message = receive(&api, "price/receive?lease=2h").await;
            until_journaled(&api, &message).await;
            message
        },
        async |api, message| {
            let before = api.get("/api/queue/price", &[]).await.json()["leases"][0].clone();
            let told = reply(&api, &message, "?type=progress", r#"{"progress":0.5}"#).await;
            assert_eq!(told["taken"], true);
            assert_eq!(tell(&api, &message, "extend").await.status, StatusCode::OK);
            let after = api.get("/api/queue/price", &[]).await.json()["leases"][0].clone();
            let hour = |lease: &Value| lease["leaseUntil"].as_str().map(|at| at[..13].to_owned());
            assert!(hour(&after) >= hour(&before), "{before} {after}");
        },
    );
}

#[test]
fn a_lease_that_changes_all_the_time_is_journaled_now_and_then() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        api.create_job(&format!("orders?id={ID}"), "{}").await;
        let message = receive(&api, "price/receive?lease=10m").await;
        for _ in 0..100 {
            tell(&api, &message, "extend?lease=1s").await;
            tell(&api, &message, "extend?lease=12h").await;
        }
        reply(&api, &message, "", "{}").await;
        let record = api.get(&format!("/api/job/{ID}/entries"), &[]).await.json().to_string();
        let leases = record.matches("step.leased").count();
        assert!(leases < 50, "{leases} entries");
    });
}

/// Programs that contain the manager may give its lease queues any reply.
#[test]
fn a_reply_that_names_no_attempt_ends_none() {
    actix_rt::System::new().block_on(async {
        let manager = TestManager::with(WORKFLOW).await;
        manager.create_job("orders", "{}").await;
        let bus = manager.core().buses.resolve(None, "");
        let lease_queue =
            until_async("the bus is started", async || manager.core().lease_queues.find(&bus))
                .await;
        let (queue, end): (Arc<str>, _) = ("price".into(), clock::timer_now() + DEADLINE);
        let received = lease_queue.receive(&queue, &ReceiveOptions::default(), end).await;
        let LeasedMessage { id, delivery, .. } = received.expect("the message");
        for correlation_id in [None, Some("of nothing".to_owned())] {
            let reply = WorkerReply {
                queue: queue.clone(),
                id: id.to_string(),
                delivery,
                correlation_id,
                attempt: None,
                kind: None,
                sender: Sender::Unknown,
                body: "{}".into(),
                revocations: None,
            };
            let outcome = lease_queue.reply(reply).await.expect("an outcome");
            assert!(outcome.rejection.is_some_and(Rejection::keeps_attempt), "{outcome:?}");
        }
        assert!(lease_queue.extend(&queue, &id, delivery, None, None).is_ok(), "it is still there");
        manager.stop().await;
    });
}
