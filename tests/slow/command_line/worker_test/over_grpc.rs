//! `worker-test --bus grpc`: workers with a stream.

use super::{Kit, assert_failed, assert_passed, case};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use support::grpc::{GrpcWorker, try_connect};
use workflow_manager::grpc::wire::to_worker::Say as Tell;
use workflow_manager::grpc::wire::{Kind, StepMessage};

const OPTIONS: [&str; 5] = ["price", "--bus", "grpc", "--within", "10s"];

/// What a worker does with a message.
enum Does {
    Replies(Kind, Vec<u8>),
    RepliesTwice,
    /// Replies once its lease is extended; stops when it is told that it no longer has the message.
    Extends,
    PutsBack,
}

/// A worker with a stream, which it opens again when it ends. Then it sends again what was not
/// answered, unless it forgets it. It ends with this value.
struct StreamWorker {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StreamWorker {
    fn start(address: &str, work: impl Fn(&StepMessage) -> Does + Send + 'static) -> StreamWorker {
        let address = address.strip_prefix("grpc://").expect("an address of gRPC").to_owned();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let mut unanswered = HashMap::new();
                while !ends.load(Ordering::Relaxed) {
                    let Some(client) = try_connect(address.parse().unwrap()).await else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    if let Ok(stream) = GrpcWorker::open(&client, &["price"]).await {
                        serve(stream, &work, &mut unanswered).await;
                    }
                }
            });
        });
        StreamWorker { is_over, thread: Some(thread) }
    }
}

/// Serves a stream until it ends.
async fn serve(
    mut stream: GrpcWorker,
    work: &(impl Fn(&StepMessage) -> Does + Send),
    unanswered: &mut HashMap<String, (Kind, Vec<u8>)>,
) {
    for (receipt, (kind, body)) in &*unanswered {
        stream.reply(receipt, *kind, body.clone());
    }
    stream.want(4);
    while let Ok(Some(told)) = stream.receive().await {
        match told {
            Tell::Message(message) => {
                let receipt = message.receipt.clone();
                match work(&message) {
                    Does::Replies(kind, body) => {
                        stream.reply(&receipt, kind, body.clone());
                        unanswered.insert(receipt, (kind, body));
                    }
                    Does::RepliesTwice => {
                        stream.reply(&receipt, Kind::Result, "{}");
                        stream.reply(&receipt, Kind::Result, "{}");
                    }
                    Does::Extends => stream.extend(&receipt),
                    Does::PutsBack => stream.nack(&receipt, true),
                }
                stream.want(1);
            }
            Tell::Lease(lease) => stream.reply(&lease.receipt, Kind::Result, "{}"),
            Tell::Taken(taken) => drop(unanswered.remove(&taken.receipt)),
            Tell::Gone(_) | Tell::Drain(_) => {}
            Tell::Batches(_) | Tell::Batch(_) => panic!("a batch that nobody asked for"),
        }
    }
}

impl Drop for StreamWorker {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(thread::panicking() || ended.is_ok(), "the worker panicked");
    }
}

fn echo(message: &StepMessage) -> Does {
    Does::Replies(Kind::Result, message.body.to_vec())
}

fn is_object(message: &StepMessage) -> bool {
    message.body.starts_with(b"{") && message.body.ends_with(b"}")
}

#[test]
fn a_worker_over_grpc_that_keeps_the_protocol_passes() {
    let kit = Kit::start(&OPTIONS);
    let _worker = StreamWorker::start(&kit.address, echo);
    let ran = kit.end();
    assert_eq!(ran.code, Some(0), "{ran}");
    assert!(ran.stdout.starts_with("1..13\nok 1 - answers a message\n"), "{ran}");
    for name in [
        "answers a message",
        "comes back after a connection that was cut before the reply",
        "goes on after a reply whose answer was lost",
        "bears a message that is not JSON",
        "bears an empty message",
        "bears a message of 1 MiB",
        "answers each of 100 messages once",
        "keeps every digit, escapes and the order of keys",
    ] {
        assert_passed(&ran, name);
    }
}

#[test]
fn a_worker_over_grpc_that_puts_back_for_ever_what_it_cannot_read_fails() {
    let kit = Kit::start(&OPTIONS);
    let _worker = StreamWorker::start(&kit.address, |message| {
        if is_object(message) { echo(message) } else { Does::PutsBack }
    });
    let ran = kit.end();
    assert_eq!(ran.code, Some(1), "{ran}");
    for name in ["bears a message that is not JSON", "bears an empty message"] {
        assert_failed(&ran, name, "it puts the message back again and again: 4 deliveries");
    }
    assert_passed(&ran, "answers each of 100 messages once");
}

#[test]
fn a_worker_over_grpc_that_answers_twice_fails() {
    let kit = Kit::start(&OPTIONS);
    let _worker = StreamWorker::start(&kit.address, |_| Does::RepliesTwice);
    let ran = kit.end();
    assert_eq!(ran.code, Some(1), "{ran}");
    assert_passed(&ran, "answers a message");
    assert_failed(&ran, "answers each of 100 messages once", "was answered 2 times");
}

#[test]
fn a_worker_over_grpc_is_told_that_its_attempt_is_over() {
    let kit = Kit::start(&OPTIONS);
    let _worker = StreamWorker::start(&kit.address, |_| Does::Extends);
    let ran = kit.end();
    assert_eq!(ran.code, Some(0), "{ran}");
    let lines = case(&ran, "stops when its attempt is over");
    assert!(lines[0].starts_with("ok "), "{ran}");
    assert_passed(&ran, "asks for more time, or reports progress, before its lease ends");
}

#[test]
fn a_worker_over_grpc_whose_stream_ends_with_a_message_in_hand_has_it_again() {
    let kit = Kit::start(&["price", "--bus", "grpc", "--within", "10s"]);
    let address = kit.address.strip_prefix("grpc://").unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, again) = runtime.block_on(async {
        let client = try_connect(address).await.unwrap();
        let mut stream = GrpcWorker::open(&client, &["price"]).await.unwrap();
        stream.want(1);
        let first = stream.message().await;
        drop(stream);
        let mut stream = GrpcWorker::open(&client, &["price"]).await.unwrap();
        stream.want(1);
        (first, stream.message().await)
    });
    // Its connection is closed with it.
    drop(runtime);
    assert_eq!((first.message_id, first.delivery, again.delivery), (again.message_id, 1, 2));
    let worker = StreamWorker::start(&kit.address, echo);
    let ran = kit.end();
    drop(worker);
    assert_eq!(ran.code, Some(0), "{ran}");
}
