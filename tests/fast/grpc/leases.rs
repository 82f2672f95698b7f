//! The end of a lease is the one that was told, and nobody else gets the message before that.

use super::calls::span;
use super::*;
use std::collections::HashMap;
use workflow_manager::clock;
use workflow_manager::engine::Timestamp;
use workflow_manager::grpc::wire::{Hello, Kind, ReceiveRequest, ReplyRequest, StepMessage};
use workflow_manager::times;

const MESSAGES: u32 = 500;

fn at(time: Option<prost_types::Timestamp>) -> Timestamp {
    let time = time.expect("a time");
    Timestamp(time.seconds * 1_000_000_000 + i64::from(time.nanos))
}

fn hello(seconds: i64) -> Hello {
    let queues = vec!["price".to_owned()];
    Hello { queues, worker: format!("w{seconds}"), lease: span(seconds), ..Hello::default() }
}

async fn create(rig: &Rig, workflow: &str, count: u32) {
    for _ in 0..count {
        rig.create(workflow, "{}").await;
    }
}

/// The ends that were told for these messages, by the ids of the messages.
fn told(messages: &[StepMessage]) -> HashMap<String, Timestamp> {
    messages.iter().map(|message| (message.message_id.clone(), at(message.lease_until))).collect()
}

#[test]
fn the_end_that_is_told_is_the_one_that_the_queue_has() {
    served(
        |_| {},
        |rig| async move {
            let mut worker =
                GrpcWorker::open_with(&rig.client, hello(60), "").await.expect("a stream");
            worker.want(1);
            rig.create("orders", "{}").await;
            let message = worker.message().await;
            let known = async |told: Timestamp| {
                let queue = rig.get("/api/queue/price").await;
                let known =
                    queue["leases"][0]["leaseUntil"].as_str().and_then(times::parse_rfc3339);
                let later = known.expect("a time").0 - told.0;
                // The queue tells it in the same way, which may be early, by what passes meanwhile.
                assert!(later.abs() < 50_000_000, "{later} ns later than told");
            };
            let first = at(message.lease_until);
            known(first).await;
            worker.extend(&message.receipt);
            let Some(Tell::Lease(lease)) = worker.receive().await.expect("heard") else {
                panic!("no lease")
            };
            let extended = at(lease.until);
            assert!(extended > first);
            known(extended).await;

            let mut client = rig.client.clone();
            let progress = ReplyRequest {
                receipt: message.receipt.clone(),
                kind: Kind::Progress.into(),
                body: r#"{"progress":0.5}"#.into(),
            };
            assert!(client.reply(progress).await.expect("taken").into_inner().changed);
            let queue = rig.get("/api/queue/price").await;
            let until = queue["leases"][0]["leaseUntil"].as_str().and_then(times::parse_rfc3339);
            assert!(until.expect("a time") > extended, "progress lengthens it");
            // Over HTTP the answer has room for it.
            let said = rig.post(&format!("{}?type=progress", message.receipt), "{}").await.json();
            let until = said["until"].as_str().and_then(times::parse_rfc3339).expect("a time");
            known(until).await;
        },
    );
}

#[test]
fn a_message_goes_to_nobody_else_before_the_end_that_was_told_also_under_load() {
    served(
        |settings| settings.grpc.credit_max = MESSAGES,
        |rig| async move {
            create(&rig, "orders", MESSAGES).await;
            // Others come and go all the time.
            let load = tokio::task::spawn_local({
                let rig = rig.clone();
                async move {
                    loop {
                        create(&rig, "other", 20).await;
                        let request = ReceiveRequest {
                            queue: "stock".to_owned(),
                            wait: span(0),
                            max: 20,
                            ..ReceiveRequest::default()
                        };
                        let taken = rig.client.clone().receive(request).await.expect("taken");
                        for message in taken.into_inner().messages {
                            let (kind, body) = (Kind::Result.into(), "{}".into());
                            let reply = ReplyRequest { receipt: message.receipt, kind, body };
                            rig.client.clone().reply(reply).await.expect("taken");
                        }
                    }
                }
            });
            let mut first =
                GrpcWorker::open_with(&rig.client, hello(5), "").await.expect("a stream");
            first.want(MESSAGES);
            let mut had = Vec::new();
            for _ in 0..MESSAGES {
                had.push(first.message().await);
            }
            let mut told = told(&had);
            assert_eq!(told.len(), MESSAGES as usize);

            let mut second =
                GrpcWorker::open_with(&rig.client, hello(3600), "").await.expect("a stream");
            second.want(MESSAGES);
            while !told.is_empty() {
                let message = second.message().await;
                let now = clock::now();
                let until = told.remove(&message.message_id).expect("one that was leased before");
                assert!(now >= until, "leased until {until:?}, and leased again at {now:?}");
                assert_eq!(message.delivery, 2);
            }
            load.abort();
        },
    );
}
