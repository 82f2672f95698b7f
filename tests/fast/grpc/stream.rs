//! A worker on a stream: credit, messages, replies, leases, and the stream's end.

use super::*;
use workflow_manager::grpc::wire::{Hello, Kind, Lease, ReceiveRequest};

#[test]
fn a_worker_takes_messages_and_replies_on_one_stream() {
    served(
        |_| {},
        |rig| async move {
            let mut worker = rig.worker(&["price"]).await;
            worker.want(1);
            let body = r#"{"cents":1740.50,"long":12345678901234567890}"#;
            let id = rig.create("orders", body).await;
            let message = worker.message().await;
            assert_eq!(message.body, body, "every digit, and nothing around it");
            assert_eq!(message.correlation_id, format!("{id}:price"));
            assert_eq!(message.message_id, format!("{id}:price:1"));
            assert_eq!((message.queue.as_str(), message.workflow.as_str()), ("price", "orders"));
            assert_eq!((message.job, message.attempt, message.delivery), (id.clone(), 1, 1));
            assert_eq!((message.priority, message.depth), (None, None));
            assert!(message.traceparent.starts_with("00-"));
            let (sent, until) =
                (message.dispatched.expect("a time"), message.lease_until.expect("a time"));
            assert!((290..=301).contains(&(until.seconds - sent.seconds)), "{sent:?} {until:?}");
            let queue = rig.get("/api/queue/price").await;
            assert_eq!(queue["leases"][0]["worker"], "w1", "{queue}");
            worker.reply(&message.receipt, Kind::Result, r#"{"ok":1.50}"#);
            let told = taken(&mut worker).await;
            assert_eq!((told.receipt, told.changed), (message.receipt.clone(), true));
            assert_eq!((told.why_not.as_str(), told.detail.as_str()), ("", ""));
            // After the commit.
            let result = rig.api.get(&format!("/api/job/{id}/result"), &[]).await;
            assert_eq!(result.body, br#"{"ok":1.50}"#);
            worker.reply(&message.receipt, Kind::Result, "{}");
            let told = taken(&mut worker).await;
            assert!(!told.changed && told.why_not == "unknown_job", "{told:?}");
            worker.close();
            assert_eq!(worker.receive().await.expect("ends well"), None);
        },
    );
}

#[test]
fn no_more_messages_come_than_are_wanted() {
    served(
        |settings| settings.grpc.credit_max = 4,
        |rig| async move {
            let mut worker = rig.worker(&["price"]).await;
            for _ in 0..9 {
                rig.create("orders", "{}").await;
            }
            let leased = |leased: u64| move |queue: &Value| queue["unacknowledged"] == leased;
            rig.until("/api/queue/price", |queue| queue["messages"] == 9).await;
            worker.want(1);
            worker.want(2);
            let mut had = Vec::new();
            for _ in 0..3 {
                had.push(worker.message().await);
            }
            // An answer comes behind what was leased before it.
            worker.extend(&had[0].receipt);
            assert!(matches!(worker.receive().await, Ok(Some(Tell::Lease(_)))));
            let queue = rig.until("/api/queue/price", leased(3)).await;
            assert_eq!(queue["messages"], 6);
            // More than the limit is the limit.
            worker.want(u32::MAX);
            for _ in 0..4 {
                had.push(worker.message().await);
            }
            worker.extend(&had[0].receipt);
            assert!(matches!(worker.receive().await, Ok(Some(Tell::Lease(_)))));
            let queue = rig.until("/api/queue/price", leased(7)).await;
            assert_eq!(
                (&queue["messages"], &queue["consumers"]),
                (&Value::from(2), &Value::from(1))
            );
            let ids: std::collections::BTreeSet<_> =
                had.iter().map(|message| message.message_id.as_str()).collect();
            assert_eq!(ids.len(), 7, "each once");
        },
    );
}

#[test]
fn one_stream_serves_several_queues() {
    served(
        |_| {},
        |rig| async move {
            let mut worker = rig.worker(&["price", "stock"]).await;
            worker.want(2);
            rig.create("other", "{}").await;
            assert_eq!(worker.message().await.queue, "stock");
            rig.create("orders", "{}").await;
            assert_eq!(worker.message().await.queue, "price");
        },
    );
}

#[test]
fn the_end_of_a_stream_gives_all_back_at_once() {
    served(
        |_| {},
        |rig| async move {
            let id = rig.create("orders", "{}").await;
            // Broken off: it may be what the message does to its workers.
            for delivery in 1..=2 {
                let mut worker = rig.worker(&["price"]).await;
                worker.want(10);
                assert_eq!(worker.message().await.delivery, delivery);
                drop(worker);
            }
            // Ended in order: it is not.
            for _ in 0..3 {
                let mut worker = rig.worker(&["price"]).await;
                worker.want(10);
                assert_eq!(worker.message().await.delivery, 3);
                worker.close();
                assert_eq!(worker.receive().await.expect("ends well"), None);
            }
            // Another one waits already.
            let mut waits = rig.worker(&["price"]).await;
            let mut worker = rig.worker(&["price"]).await;
            worker.want(1);
            assert_eq!(worker.message().await.delivery, 3);
            waits.want(1);
            drop(worker);
            let message = waits.message().await;
            assert_eq!(message.delivery, 4);
            waits.reply(&message.receipt, Kind::Result, "{}");
            assert!(taken(&mut waits).await.changed);
            rig.job(&id, |job| job["state"] == "completed").await;
        },
    );
}

#[test]
fn a_message_that_breaks_every_stream_fails_its_attempt() {
    served(
        |settings| settings.embedded.deliveries_max = 3,
        |rig| async move {
            let id = rig.create("orders", "{}").await;
            for attempt in 1..=2 {
                for delivery in 1..=3 {
                    let mut worker = rig.worker(&["price"]).await;
                    worker.want(1);
                    let message = worker.message().await;
                    assert_eq!((message.attempt, message.delivery), (attempt, delivery));
                }
            }
            let job = rig.job(&id, |job| job["state"] == "failed").await;
            assert!(job["reason"].to_string().contains("delivery_limit"), "{job}");
        },
    );
}

#[test]
fn what_is_over_is_gone_at_once() {
    served(
        |_| {},
        |rig| async move {
            let mut worker = rig.worker(&["price", "hasty"]).await;
            worker.want(10);
            let id = rig.create("orders", "{}").await;
            let cancelled = worker.message().await;
            rig.post(&format!("/api/job/{id}/cancel"), "").await;
            let told = gone(&mut worker).await;
            assert_eq!((told.receipt, told.reason.as_str()), (cancelled.receipt, "cancelled"));
            rig.create("hurried", "{}").await;
            let late = worker.message().await;
            let told = gone(&mut worker).await;
            assert_eq!((told.receipt, told.reason.as_str()), (late.receipt, "timed out"));
            // Somebody else replies, over HTTP: the receipt is the Reply-To there.
            rig.create("orders", "{}").await;
            let settled = worker.message().await;
            assert_eq!(rig.post(&settled.receipt, "{}").await.json()["taken"], true);
            let told = gone(&mut worker).await;
            assert_eq!((told.receipt, told.reason.as_str()), (settled.receipt, "settled"));
        },
    );
}

#[test]
fn what_was_settled_by_hand_is_gone_after_a_while() {
    served(
        |settings| settings.grpc.keep_alive = DurationSetting(Duration::from_millis(50)),
        |rig| async move {
            let mut worker = rig.worker(&["price"]).await;
            worker.want(1);
            let id = rig.create("orders", "{}").await;
            let message = worker.message().await;
            rig.post(&format!("/api/job/{id}/step/price"), "{}").await;
            let told = gone(&mut worker).await;
            assert_eq!((told.receipt, told.reason.as_str()), (message.receipt, "settled"));
        },
    );
}

#[test]
fn a_lease_ends_is_extended_and_is_taken_up_again() {
    served(
        |_| {},
        |rig| async move {
            let second = prost_types::Duration { seconds: 1, nanos: 0 };
            let queues = vec!["price".to_owned()];
            let hello = Hello { queues, lease: Some(second), ..Hello::default() };
            let mut worker = GrpcWorker::open_with(&rig.client, hello, "").await.expect("a stream");
            worker.want(1);
            rig.create("orders", "{}").await;
            let message = worker.message().await;
            let told = gone(&mut worker).await;
            assert_eq!((&told.receipt, told.reason.as_str()), (&message.receipt, "lease expired"));
            // Nobody else has it: it is this worker's again.
            worker.extend(&message.receipt);
            let until = match worker.receive().await {
                Ok(Some(Tell::Lease(Lease { receipt, until }))) if receipt == message.receipt => {
                    until
                }
                other => panic!("{other:?}"),
            };
            assert!(until.expect("a time").seconds >= message.lease_until.expect("a time").seconds);
            worker.reply(&message.receipt, Kind::Progress, r#"{"progress":0.5}"#);
            assert!(taken(&mut worker).await.changed);
            rig.until("/api/queue/price", |queue| queue["unacknowledged"] == 1).await;
            // Given back, to another one.
            worker.nack(&message.receipt, true);
            assert!(taken(&mut worker).await.changed);
            let mut other = rig.worker(&["price"]).await;
            other.want(1);
            let again = other.message().await;
            assert_eq!((again.message_id, again.delivery), (message.message_id, 2));
            worker.extend(&message.receipt);
            assert_eq!(gone(&mut worker).await.reason, "lease expired");
            worker.nack(&message.receipt, false);
            assert_eq!(gone(&mut worker).await.reason, "lease expired");
            // A reply needs no lease, and the other one hears of it.
            worker.reply(&message.receipt, Kind::Result, "{}");
            assert!(taken(&mut worker).await.changed);
            assert_eq!(gone(&mut other).await.reason, "settled");
        },
    );
}

#[test]
fn errors_and_refusals_fail_the_attempt() {
    served(
        |_| {},
        |rig| async move {
            let mut worker = rig.worker(&["price"]).await;
            worker.want(1);
            let id = rig.create("orders", "{}").await;
            let first = worker.message().await;
            worker.nack(&first.receipt, false);
            assert!(taken(&mut worker).await.changed);
            worker.want(1);
            let second = worker.message().await;
            assert_eq!((second.attempt, second.delivery), (2, 1));
            worker.reply(&second.receipt, Kind::Error, r#"{"error":"no such price"}"#);
            assert!(taken(&mut worker).await.changed);
            let job = rig.job(&id, |job| job["state"] == "failed").await;
            assert!(job["reason"].to_string().contains("no such price"), "{job}");
        },
    );
}

#[test]
fn a_bad_message_costs_itself_alone() {
    served(
        |settings| settings.http.body_bytes_max = 100_000,
        |rig| async move {
            let mut worker = rig.worker(&["price"]).await;
            worker.want(1);
            rig.create("orders", "{}").await;
            let message = worker.message().await;
            for (receipt, kind, body, why, detail) in [
                ("nonsense", 0, "{}".to_owned(), "malformed", "the receipt is \"nonsense\""),
                ("/api/queue/price/message/x/1/reply", 0, "{}".to_owned(), "malformed", "id"),
                (message.receipt.as_str(), 7, "{}".to_owned(), "malformed", "kind is 7"),
                (message.receipt.as_str(), 0, "x".repeat(100_001), "too_large", "100000"),
            ] {
                let (to, body) = (receipt.to_owned(), body.into());
                let reply = workflow_manager::grpc::wire::ReplyRequest { receipt: to, kind, body };
                worker.send(workflow_manager::grpc::wire::from_worker::Say::Reply(reply));
                let told = taken(&mut worker).await;
                assert_eq!((told.receipt.as_str(), told.why_not.as_str()), (receipt, why));
                assert!(!told.changed && told.detail.contains(detail), "{told:?}");
            }
            worker.reply(&message.receipt, Kind::Result, "x".repeat(99_000));
            assert!(taken(&mut worker).await.changed, "as over HTTP: a failed attempt");
            worker.want(1);
            let again = worker.message().await;
            assert_eq!(again.attempt, 2);
            worker.reply(&again.receipt, Kind::Result, "{}");
            assert!(taken(&mut worker).await.changed);
        },
    );
}

#[test]
fn streams_are_counted_as_workers_while_they_are_open() {
    served(
        |_| {},
        |rig| async move {
            let consumers = |count: u64| move |queue: &Value| queue["consumers"] == count;
            let first = rig.worker(&["price"]).await;
            let mut second = rig.worker(&["price", "stock"]).await;
            second.want(5);
            rig.until("/api/queue/price", consumers(2)).await;
            rig.until("/api/queue/stock", consumers(1)).await;
            drop((first, second));
            rig.until("/api/queue/price", consumers(0)).await;
            rig.until("/api/queue/stock", consumers(0)).await;
        },
    );
}

#[test]
fn what_is_said_last_is_done_or_its_message_goes_back_at_once() {
    type Say = fn(&mut GrpcWorker, &str);
    let last: [(&str, Say); 4] = [
        ("a reply", |worker, receipt| worker.reply(receipt, Kind::Result, "{}")),
        ("progress", |worker, receipt| worker.reply(receipt, Kind::Progress, "{}")),
        ("an extension", GrpcWorker::extend),
        ("a refusal", |worker, receipt| worker.nack(receipt, true)),
    ];
    served(
        |_| {},
        |rig| async move {
            for round in 0..400 {
                let (name, say) = last[round % last.len()];
                let id = rig.create("orders", "{}").await;
                let mut first = rig.worker(&["price"]).await;
                first.want(1);
                let message = first.message().await;
                say(&mut first, &message.receipt);
                // The stream breaks off at another moment each time.
                for _ in 0..round % 11 {
                    tokio::task::yield_now().await;
                }
                drop(first);
                let mut second = rig.worker(&["price"]).await;
                second.want(1);
                tokio::select! {
                    _ = rig.job(&id, |job| job["state"] == "completed") => {
                        assert_eq!(name, "a reply");
                    }
                    message = second.message() => {
                        assert_eq!(message.correlation_id, format!("{id}:price"), "after {name}");
                        second.reply(&message.receipt, Kind::Result, "{}");
                        taken(&mut second).await;
                        rig.job(&id, |job| job["state"] == "completed").await;
                    }
                }
            }
        },
    );
}

#[test]
fn bad_progress_leaves_the_message_with_its_worker() {
    served(
        |_| {},
        |rig| async move {
            rig.create("orders", "{}").await;
            for delivery in 1..=2 {
                let mut worker = rig.worker(&["price"]).await;
                worker.want(1);
                let message = worker.message().await;
                assert_eq!(message.delivery, delivery);
                for body in [r#"{"progress":1.5}"#, "[]"] {
                    worker.reply(&message.receipt, Kind::Progress, body);
                    let told = taken(&mut worker).await;
                    assert_eq!((told.changed, told.why_not.as_str()), (false, "bad_progress"));
                }
                worker.extend(&message.receipt);
                let extended = worker.receive().await;
                assert!(matches!(extended, Ok(Some(Tell::Lease(_)))), "{extended:?}");
            }
        },
    );
}

/// Opens a stream as soon as there is a place for it: then one that was broken off has ended.
async fn open_when_free(rig: &Rig) -> GrpcWorker {
    let open = async || GrpcWorker::open(&rig.client, &["price"]).await.ok();
    until_async("a place", open).await
}

#[test]
fn a_message_belongs_to_the_stream_that_spoke_of_it_last() {
    type Say = fn(&mut GrpcWorker, &str);
    let says: [Say; 2] = [GrpcWorker::extend, |worker, receipt| {
        worker.reply(receipt, Kind::Progress, r#"{"progress":0.5}"#);
    }];
    let long = |settings: &mut Settings| {
        settings.embedded.lease = DurationSetting(Duration::from_secs(3600));
        settings.grpc.streams_max = 2;
    };
    for say in says {
        served(long, |rig| async move {
            rig.create("orders", "{}").await;
            // By a call of its own first: then no stream has it.
            let request = ReceiveRequest { queue: "price".to_owned(), ..Default::default() };
            let given = rig.client.clone().receive(request).await.expect("an answer");
            let receipt = given.into_inner().messages[0].receipt.clone();
            let mut worker = open_when_free(&rig).await;
            say(&mut worker, &receipt);
            worker.receive().await.expect("an answer");
            for round in 0..20 {
                let mut next = open_when_free(&rig).await;
                say(&mut next, &receipt);
                next.receive().await.expect("an answer");
                // With that it is gone, whether the worker reads so or not.
                if round % 2 == 0 {
                    assert_eq!(gone(&mut worker).await.reason, "lease expired");
                }
                drop(worker);
                drop(open_when_free(&rig).await);
                assert_eq!(leased(&rig.get("/api/queue/price").await), 1, "round {round}");
                worker = next;
            }
            // The last one gives it back at once, although it was never leased to that stream.
            drop(worker);
            rig.until("/api/queue/price", |queue| leased(queue) == 0).await;
            let mut last = open_when_free(&rig).await;
            last.want(1);
            assert_eq!(last.message().await.delivery, 2);
        });
    }
}

#[test]
fn a_worker_serves_a_queue_that_only_a_job_under_way_still_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("workflows.yaml");
    let named = file.clone();
    served(
        |settings| settings.workflows = vec![named],
        |rig| async move {
            let id = rig.create("orders", "{}").await;
            let after = "workflows: [ { name: orders, steps: [ { name: cost } ] } ]";
            std::fs::write(&file, after).expect("written");
            assert_eq!(rig.post("/api/reload", "").await.status, StatusCode::OK);
            let mut worker = rig.worker(&["cost", "price"]).await;
            worker.want(1);
            let message = worker.message().await;
            assert_eq!(message.correlation_id, format!("{id}:price"));
            worker.reply(&message.receipt, Kind::Result, "{}");
            assert!(taken(&mut worker).await.changed);
            let mut misspelt = rig.worker(&["prise"]).await;
            let why = refused(&mut misspelt).await;
            assert!(why.message().contains("nor a job under way has it"), "{why}");
        },
    );
}
