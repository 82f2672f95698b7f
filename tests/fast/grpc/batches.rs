//! Batches: many messages and many replies as one message of the stream, for workers that take
//! them; others hear and say one thing at a time, as before there were batches.

use super::*;
use tonic::Code;
use workflow_manager::grpc::batch::FromWorkerBatch;
use workflow_manager::grpc::wire::from_worker::Say;
use workflow_manager::grpc::wire::{Hello, Kind, ReplyRequest, StepMessage};

/// A worker that takes batches, and what the manager has said of them.
async fn batch_worker(rig: &Rig) -> GrpcWorker {
    let queues = vec!["price".to_owned()];
    let hello = Hello { queues, batches: true, ..Hello::default() };
    let mut worker = GrpcWorker::open_with(&rig.client, hello, "").await.expect("a stream");
    match worker.receive().await {
        Ok(Some(Tell::Batches(batches))) => assert!(batches.replies_max == 100),
        other => panic!("expected Batches, heard {other:?}"),
    }
    worker
}

/// What the manager says until so many messages have come: each, and how many times it spoke.
async fn messages(worker: &mut GrpcWorker, count: usize) -> (Vec<StepMessage>, usize) {
    let (mut all, mut times) = (Vec::new(), 0);
    while all.len() < count {
        match worker.receive().await {
            Ok(Some(Tell::Batch(batch))) => all.extend(batch.messages),
            Ok(Some(Tell::Message(message))) => all.push(message),
            other => panic!("expected messages, heard {other:?}"),
        }
        times += 1;
    }
    (all, times)
}

/// The verdicts on so many replies.
async fn verdicts(worker: &mut GrpcWorker, count: usize) -> Vec<Taken> {
    let mut all = Vec::new();
    while all.len() < count {
        match worker.receive().await {
            Ok(Some(Tell::Batch(batch))) => all.extend(batch.taken),
            Ok(Some(Tell::Taken(taken))) => all.push(taken),
            other => panic!("expected verdicts, heard {other:?}"),
        }
    }
    all
}

fn result(receipt: &str) -> ReplyRequest {
    ReplyRequest { receipt: receipt.to_owned(), kind: Kind::Result.into(), body: "{}".into() }
}

fn batch(replies: Vec<ReplyRequest>, want: u32) -> Say {
    Say::Batch(FromWorkerBatch { replies, want, surplus: 0 })
}

#[test]
fn messages_that_are_ready_and_replies_go_together() {
    const MESSAGES: usize = 60;
    served(
        |_| {},
        |rig| async move {
            for _ in 0..MESSAGES {
                rig.create("orders", "{}").await;
            }
            rig.until("/api/queue/price", |queue| queue["messages"] == MESSAGES).await;
            let mut worker = batch_worker(&rig).await;
            worker.want(MESSAGES as u32 - 1);
            let (mut had, times) = messages(&mut worker, MESSAGES - 1).await;
            assert!(times <= MESSAGES / 4, "the manager spoke {times} times");
            let replies = had.iter().map(|message| result(&message.receipt)).collect();
            // The credit of a batch is for what comes next.
            worker.send(batch(replies, 1));
            let mut told = Vec::new();
            while told.len() < MESSAGES - 1 || had.len() < MESSAGES {
                match worker.receive().await {
                    Ok(Some(Tell::Batch(batch))) => {
                        told.extend(batch.taken);
                        had.extend(batch.messages);
                    }
                    Ok(Some(Tell::Taken(taken))) => told.push(taken),
                    Ok(Some(Tell::Message(message))) => had.push(message),
                    other => panic!("expected verdicts and a message, heard {other:?}"),
                }
            }
            assert!(told.iter().all(|taken| taken.changed), "{told:?}");
            let receipts: std::collections::BTreeSet<_> =
                told.iter().map(|taken| taken.receipt.as_str()).collect();
            assert_eq!(receipts.len(), MESSAGES - 1, "a verdict for each");
        },
    );
}

#[test]
fn who_does_not_take_batches_hears_one_thing_at_a_time() {
    served(
        |_| {},
        |rig| async move {
            for _ in 0..8 {
                rig.create("orders", "{}").await;
            }
            rig.until("/api/queue/price", |queue| queue["messages"] == 8).await;
            let mut worker = rig.worker(&["price"]).await;
            worker.want(8);
            let mut had = Vec::new();
            for _ in 0..8 {
                had.push(worker.message().await);
            }
            for message in &had {
                worker.reply(&message.receipt, Kind::Result, "{}");
            }
            for _ in 0..8 {
                assert!(taken(&mut worker).await.changed);
            }
        },
    );
}

#[test]
fn a_bad_reply_costs_itself_alone() {
    served(
        |_| {},
        |rig| async move {
            let ids = [rig.create("orders", "{}").await, rig.create("orders", "{}").await];
            let mut worker = batch_worker(&rig).await;
            worker.want(2);
            let (had, _) = messages(&mut worker, 2).await;
            let receipts = [&had[0].receipt, "nonsense", &had[1].receipt, &had[1].receipt];
            let mut replies: Vec<_> = receipts.into_iter().map(result).collect();
            replies[2].kind = 9;
            worker.send(batch(replies, 0));
            let mut told = verdicts(&mut worker, 4).await;
            let whys = |told: &[Taken]| -> Vec<_> {
                let mut whys: Vec<_> = told.iter().map(|taken| taken.why_not.clone()).collect();
                whys.sort();
                whys
            };
            assert_eq!(whys(&told), ["", "", "malformed", "malformed"]);
            told.retain(|taken| taken.changed);
            let changed: Vec<_> = told.iter().map(|taken| taken.receipt.as_str()).collect();
            assert!(changed.contains(&had[0].receipt.as_str()), "{changed:?}");
            assert!(changed.contains(&had[1].receipt.as_str()), "{changed:?}");
            for id in ids {
                rig.job(&id, |job| job["state"] == "completed").await;
            }
            // The same ones again change nothing, each for itself.
            worker.send(batch(had.iter().map(|message| result(&message.receipt)).collect(), 0));
            let told = verdicts(&mut worker, 2).await;
            assert!(told.iter().all(|taken| taken.why_not == "unknown_job"), "{told:?}");
        },
    );
}

#[test]
fn progress_before_the_result_of_its_message_counts() {
    served(
        |_| {},
        |rig| async move {
            let id = rig.create("orders", "{}").await;
            let mut worker = batch_worker(&rig).await;
            worker.want(1);
            let (had, _) = messages(&mut worker, 1).await;
            let result = result(&had[0].receipt);
            let body = r#"{"progress":0.5}"#.into();
            let progress = ReplyRequest { kind: Kind::Progress.into(), body, ..result.clone() };
            worker.send(batch(vec![progress, result], 0));
            let told = verdicts(&mut worker, 2).await;
            assert!(told.iter().all(|taken| taken.changed), "{told:?}");
            rig.job(&id, |job| job["state"] == "completed").await;
        },
    );
}

#[test]
fn a_worker_without_batches_sends_none() {
    served(
        |_| {},
        |rig| async move {
            let mut worker = rig.worker(&["price"]).await;
            worker.send(batch(vec![result("a")], 0));
            let told = refused(&mut worker).await;
            assert_eq!(told.code(), Code::InvalidArgument);
            assert!(told.message().contains("Hello has no `batches`"), "{told}");
        },
    );
}

#[test]
fn a_batch_is_bounded_in_replies_and_in_bytes() {
    let small = |settings: &mut Settings| settings.http.body_bytes_max = 10_000;
    served(small, |rig| async move {
        rig.create("orders", "{}").await;
        let mut worker = batch_worker(&rig).await;
        worker.want(1);
        let (had, _) = messages(&mut worker, 1).await;
        // Too large in sum: it is passed over, and the stream goes on.
        let large = ReplyRequest { body: vec![b'x'; 6000].into(), ..result("a") };
        worker.send(batch(vec![large.clone(), large], 0));
        let told = verdicts(&mut worker, 1).await;
        assert_eq!((told[0].why_not.as_str(), told[0].receipt.as_str()), ("too_large", ""));
        worker.send(batch(vec![result(&had[0].receipt)], 0));
        assert!(verdicts(&mut worker, 1).await[0].changed);
        worker.send(batch((0..101).map(|_| result("")).collect(), 0));
        let told = refused(&mut worker).await;
        assert_eq!(told.code(), Code::InvalidArgument);
        assert!(told.message().contains("a batch has 101 replies"), "{told}");
    });
}

#[test]
fn the_end_of_a_stream_gives_back_all_of_its_batches() {
    served(
        |_| {},
        |rig| async move {
            for _ in 0..20 {
                rig.create("orders", "{}").await;
            }
            let mut first = batch_worker(&rig).await;
            first.want(20);
            messages(&mut first, 20).await;
            drop(first);
            let mut second = batch_worker(&rig).await;
            second.want(20);
            let (had, _) = messages(&mut second, 20).await;
            assert!(had.iter().all(|message| message.delivery == 2), "each counts as delivered");
        },
    );
}
