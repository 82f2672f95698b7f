//! Single calls, for clients without streams.

use super::*;
use tonic::Code;
use workflow_manager::grpc::wire::{
    ExtendRequest, Kind, NackRequest, ReceiveRequest, ReplyRequest, StepMessage,
};

pub(super) fn span(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

async fn receive(rig: &Rig, max: u32) -> Vec<StepMessage> {
    let request = ReceiveRequest {
        queue: "price".to_owned(),
        worker: "w2".to_owned(),
        wait: span(if max == 0 { 50 } else { 0 }),
        max,
        ..ReceiveRequest::default()
    };
    rig.client.clone().receive(request).await.expect("taken").into_inner().messages
}

fn reply(receipt: &str, kind: Kind, body: &'static str) -> ReplyRequest {
    ReplyRequest { receipt: receipt.to_owned(), kind: kind.into(), body: body.into() }
}

#[test]
fn a_client_without_streams_receives_and_replies() {
    served(
        |_| {},
        |rig| async move {
            let mut client = rig.client.clone();
            assert_eq!(receive(&rig, 1).await, [], "at once, and nothing is there");
            // One that waits is counted, and is given what comes.
            let waits = tokio::task::spawn_local({
                let rig = rig.clone();
                async move { receive(&rig, 0).await }
            });
            rig.until("/api/queue/price", |queue| queue["consumers"] == 1).await;
            let id = rig.create("orders", r#"{"a":0.10}"#).await;
            let message = waits.await.expect("it ends").pop().expect("a message");
            assert_eq!((message.body.as_ref(), message.delivery), (&br#"{"a":0.10}"#[..], 1));
            let progress = reply(&message.receipt, Kind::Progress, r#"{"progress":0.25}"#);
            assert!(client.reply(progress).await.expect("taken").into_inner().changed);
            rig.job(&id, |job| job["steps"][0]["progress"] == 0.25).await;
            let extend = ExtendRequest { receipt: message.receipt.clone(), lease: span(7200) };
            let lease = client.extend(extend).await.expect("extended").into_inner();
            let (was, is) = (message.lease_until.expect("a time"), lease.until.expect("a time"));
            assert!(is.seconds > was.seconds + 6000, "{was:?} {is:?}");
            let result = reply(&message.receipt, Kind::Result, r#"{"b":1e400}"#);
            let taken = client.reply(result.clone()).await.expect("taken").into_inner();
            assert_eq!((taken.receipt, taken.changed), (message.receipt.clone(), true));
            let again = client.reply(result).await.expect("taken").into_inner();
            assert_eq!((again.changed, again.why_not.as_str()), (false, "unknown_job"));
            let extend = ExtendRequest { receipt: message.receipt, lease: None };
            let over = client.extend(extend).await.expect_err("over");
            assert_eq!(over.code(), Code::FailedPrecondition);
            assert_eq!(over.metadata().get("reason").expect("a reason"), "settled");
        },
    );
}

#[test]
fn several_messages_come_at_once_and_go_back_again() {
    served(
        |_| {},
        |rig| async move {
            for _ in 0..3 {
                rig.create("orders", "{}").await;
            }
            rig.until("/api/queue/price", |queue| queue["messages"] == 3).await;
            let messages = receive(&rig, 2).await;
            assert_eq!(messages.len(), 2);
            let mut client = rig.client.clone();
            let nack = |requeue, delay| NackRequest {
                receipt: messages[0].receipt.clone(),
                requeue,
                delay,
            };
            let alone = client.nack(nack(false, span(1))).await.expect_err("delay alone");
            assert!(alone.message().contains("delay needs requeue"), "{alone}");
            assert!(client.nack(nack(true, None)).await.expect("taken").into_inner().changed);
            let there = |queue: &Value| queue["messages"] == 2 && queue["unacknowledged"] == 1;
            rig.until("/api/queue/price", there).await;
            let again = client.nack(nack(true, None)).await.expect_err("not its own any more");
            assert_eq!(again.metadata().get("reason").expect("a reason"), "lease expired");
        },
    );
}

#[test]
fn what_is_out_of_bounds_is_told() {
    served(
        |settings| settings.http.waiters_max = 1,
        |rig| async move {
            let mut client = rig.client.clone();
            let of = |change: fn(&mut ReceiveRequest)| {
                let mut request =
                    ReceiveRequest { queue: "price".to_owned(), ..ReceiveRequest::default() };
                change(&mut request);
                request
            };
            for (request, words) in [
                (of(|request| request.max = 101), "max is 101"),
                (of(|request| request.wait = span(51)), "wait is 51"),
                (of(|request| request.lease = span(0)), "lease is 0"),
                (of(|request| request.lease = span(-1)), "lease is -1"),
                (of(|request| request.worker = "w".repeat(101)), "worker has 101 characters"),
            ] {
                let told = client.receive(request).await.expect_err("refused");
                assert_eq!(told.code(), Code::InvalidArgument, "{told}");
                assert!(told.message().contains(words), "{told}");
            }
            let receipt = "x".repeat(100_000);
            let told = client.reply(reply(&receipt, Kind::Result, "{}")).await.expect_err("no");
            assert!(told.message().contains("the receipt is") && told.message().len() < 1000);
            let waits = tokio::task::spawn_local({
                let rig = rig.clone();
                async move { receive(&rig, 0).await }
            });
            rig.until("/api/queue/price", |queue| queue["consumers"] == 1).await;
            let told = client.receive(of(|_| {})).await.expect_err("one waits already");
            assert_eq!(told.code(), Code::Unavailable);
            assert!(told.message().contains("http.waiters_max"), "{told}");
            waits.abort();
        },
    );
}
