//! The face of the stub manager over gRPC: streams of workers, and single calls.

use super::calls::{
    BODY_BYTES_MAX, CONNECTIONS_MAX, CallAnswer, CallSender, DELAY_MAX, DeliveredMessage,
    LEASE_RANGE, MESSAGES_MAX, NoAnswer, PENDING_CALLS_MAX, StreamNumber, WAIT_DEFAULT, WAIT_MAX,
    WorkerCall, parse_reply_path,
};
use super::event_log::ReplyKind;
use super::messages::WORKFLOW;
use base::clock;
use daemon::api::leases::RECEIPT_BYTES_MAX;
use daemon::settings::DurationSetting;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use grpc::batch::FromWorkerBatch;
use grpc::stub::{self, Status, StubCall, StubLimits, StubStream};
use grpc::wire::from_worker::Say;
use grpc::wire::to_worker::Say as ToWorkerMessage;
use grpc::wire::{
    Batches, ExtendRequest, Gone, Hello, Kind, Lease, NackRequest, ReceiveAnswer, ReceiveRequest,
    ReplyRequest, StepMessage, Taken,
};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::mpsc;

pub(super) use grpc::stub::StubServer as Server;

/// Why a request was not understood.
const MALFORMED: &str = "malformed";

/// Starts a server in the background, and returns its address. With port 0 the system chooses a
/// port.
pub(super) fn serve(listen: SocketAddr, calls: CallSender) -> io::Result<(Server, SocketAddr)> {
    let limits = StubLimits { message_bytes_max: BODY_BYTES_MAX, calls_max: CONNECTIONS_MAX };
    let (sender, receiver) = mpsc::channel(PENDING_CALLS_MAX);
    let (server, address) = stub::serve(listen, sender, limits)?;
    actix_rt::spawn(handle_calls(receiver, calls));
    Ok((server, address))
}

/// Handles each call of a server in a task of its own, until the server has stopped.
async fn handle_calls(mut stub_calls: mpsc::Receiver<StubCall>, calls: CallSender) {
    while let Some(stub_call) = stub_calls.recv().await {
        let calls = calls.clone();
        actix_rt::spawn(async move {
            // Answering fails if the worker has disconnected.
            match stub_call {
                StubCall::Work(stream) => serve_stream(stream, calls).await,
                StubCall::Receive(request, responder) => {
                    drop(responder.send(handle_receive(request, &calls).await))
                }
                StubCall::Reply(ReplyRequest { receipt, kind, body }, responder) => {
                    let call = reply_call(kind, body);
                    drop(responder.send(settle_alone(&calls, receipt, call).await))
                }
                StubCall::Extend(ExtendRequest { receipt, lease }, responder) => {
                    let call = extend_call(lease.map(Duration::try_from));
                    drop(responder.send(extend_alone(&calls, receipt, call).await))
                }
                StubCall::Nack(request, responder) => {
                    let (receipt, call) = nack_call(request);
                    drop(responder.send(settle_alone(&calls, receipt, call).await))
                }
            }
        });
    }
}

/// Serves the stream of a worker until it ends. Then its messages return to the queue.
async fn serve_stream(mut stream: StubStream, calls: CallSender) {
    let Some(Say::Hello(hello)) = stream.next().await else {
        return stream.end(Status::invalid_argument("the first message is not Hello")).await;
    };
    let number = next_stream_number();
    match open(&hello, number, &calls).await {
        Ok((queue, lease)) => {
            if hello.batches {
                // An error means that the worker has disconnected, which the session notices.
                let batches = Batches::with_bytes_max(BODY_BYTES_MAX);
                let _ = stream.send(ToWorkerMessage::Batches(batches)).await;
            }
            let end = serve_session(&mut stream, &queue, lease, number, &calls).await;
            // There is no answer: the lease queue drops its responder.
            let _ = calls.send(queue, None, Some(number), WorkerCall::EndStream).await;
            if let Err(status) = end {
                stream.end(status).await;
            }
        }
        Err(status) => stream.end(status).await,
    }
}

/// Returns a number that no other stream has.
fn next_stream_number() -> StreamNumber {
    use std::sync::atomic::{AtomicU64, Ordering};
    static STREAMS: AtomicU64 = AtomicU64::new(0);
    STREAMS.fetch_add(1, Ordering::Relaxed)
}

/// Opens the session of a stream. Returns its queue and its lease.
async fn open(
    hello: &Hello,
    number: StreamNumber,
    calls: &CallSender,
) -> Result<(String, Option<Duration>), Status> {
    let lease = parse("lease", hello.lease.map(Duration::try_from), LEASE_RANGE);
    let lease = lease.map_err(Status::invalid_argument)?;
    for queue in &hello.queues {
        match calls.send(queue.clone(), None, Some(number), WorkerCall::OpenStream).await {
            Ok(CallAnswer::UnknownQueue(detail)) => return Err(Status::not_found(detail)),
            Ok(_) => {}
            Err(NoAnswer) => return Err(not_now()),
        }
    }
    let queue = hello.queues.first().cloned();
    let queue = queue.ok_or_else(|| Status::invalid_argument("Hello has no queues"))?;
    Ok((queue, lease))
}

/// Gives the worker the messages that it wants, and answers what it says, until it closes its half
/// or disconnects.
async fn serve_session(
    stream: &mut StubStream,
    queue: &str,
    lease: Option<Duration>,
    number: StreamNumber,
    calls: &CallSender,
) -> Result<(), Status> {
    let mut credit = 0_u32;
    // One at most.
    let mut receives = FuturesUnordered::new();
    loop {
        if credit > 0 && receives.is_empty() {
            let call = WorkerCall::Receive { wait: WAIT_MAX, lease, max: 1 };
            receives.push(calls.send(queue.to_owned(), None, Some(number), call).boxed_local());
        }
        let messages = tokio::select! {
            said = stream.next() => match said {
                None => return Ok(()),
                Some(Say::Hello(_)) => {
                    return Err(Status::invalid_argument("a worker says Hello once"));
                }
                Some(Say::Want(want)) => {
                    credit = credit.saturating_add(want.messages);
                    Vec::new()
                }
                Some(Say::Reply(ReplyRequest { receipt, kind, body })) => {
                    vec![settle(calls, number, receipt, reply_call(kind, body)).await?]
                }
                Some(Say::Extend(ExtendRequest { receipt, lease })) => {
                    let call = extend_call(lease.map(Duration::try_from));
                    vec![settle(calls, number, receipt, call).await?]
                }
                Some(Say::Nack(request)) => {
                    let (receipt, call) = nack_call(request);
                    vec![settle(calls, number, receipt, call).await?]
                }
                Some(Say::Batch(FromWorkerBatch { replies, want, surplus })) => {
                    if surplus > 0 {
                        return Err(Status::invalid_argument("a batch has too many replies"));
                    }
                    let mut answers = Vec::new();
                    for ReplyRequest { receipt, kind, body } in replies {
                        let call = reply_call(kind, body);
                        answers.push(settle(calls, number, receipt, call).await?);
                    }
                    credit = credit.saturating_add(want);
                    answers
                }
            },
            Some(answer) = receives.next() => match answer {
                Ok(CallAnswer::Messages(delivered)) => {
                    credit = credit.saturating_sub(delivered.len() as u32);
                    delivered.iter().map(to_step_message).map(ToWorkerMessage::Message).collect()
                }
                Ok(_) | Err(NoAnswer) => return Err(not_now()),
            },
        };
        for message in messages {
            if stream.send(message).await.is_err() {
                return Ok(());
            }
        }
    }
}

fn not_now() -> Status {
    Status::unavailable("worker-test does not take this now: try again")
}

/// Answers what was said of a message on a stream.
async fn settle(
    calls: &CallSender,
    number: StreamNumber,
    receipt: String,
    call: Result<WorkerCall, String>,
) -> Result<ToWorkerMessage, Status> {
    let answer = match about(calls, Some(number), &receipt, call).await {
        Ok(answer) => answer.map_err(|NoAnswer| not_now())?,
        Err(detail) => {
            let receipt = if receipt.len() > RECEIPT_BYTES_MAX { String::new() } else { receipt };
            return Ok(ToWorkerMessage::Taken(rejected(receipt, MALFORMED, detail)));
        }
    };
    Ok(match answer {
        CallAnswer::Taken(Ok(())) => ToWorkerMessage::Taken(accepted(receipt)),
        CallAnswer::Taken(Err(reason)) => {
            ToWorkerMessage::Taken(rejected(receipt, reason, String::new()))
        }
        CallAnswer::Extended(until) => ToWorkerMessage::Lease(stub::lease(receipt, until)),
        CallAnswer::Gone { reason, .. } => {
            ToWorkerMessage::Gone(Gone { receipt, reason: reason.to_owned() })
        }
        CallAnswer::UnknownQueue(detail) => {
            ToWorkerMessage::Taken(rejected(receipt, MALFORMED, detail))
        }
        CallAnswer::Messages(_) => return Err(not_now()),
    })
}

/// Sends a call about the message with this receipt. The error says why it is malformed.
async fn about(
    calls: &CallSender,
    stream: Option<StreamNumber>,
    receipt: &str,
    call: Result<WorkerCall, String>,
) -> Result<Result<CallAnswer, NoAnswer>, String> {
    let call = call?;
    let (queue, delivery) = parse_reply_path(receipt)?;
    Ok(calls.send(queue, Some(delivery), stream, call).await)
}

/// Sends a call without a stream. An error of the lease queue is a status.
async fn send_alone(
    calls: &CallSender,
    receipt: &str,
    call: Result<WorkerCall, String>,
) -> Result<CallAnswer, Status> {
    match about(calls, None, receipt, call).await.map_err(Status::invalid_argument)? {
        Ok(CallAnswer::Gone { reason, consequence }) => {
            Err(stub::gone(reason, &format!("{reason}: {consequence}")))
        }
        Ok(CallAnswer::UnknownQueue(detail)) => Err(Status::not_found(detail)),
        Ok(answer) => Ok(answer),
        Err(NoAnswer) => Err(not_now()),
    }
}

/// Answers a reply or a nack without a stream.
async fn settle_alone(
    calls: &CallSender,
    receipt: String,
    call: Result<WorkerCall, String>,
) -> Result<Taken, Status> {
    match send_alone(calls, &receipt, call).await? {
        CallAnswer::Taken(Err(reason)) => Ok(rejected(receipt, reason, String::new())),
        CallAnswer::Taken(Ok(()))
        | CallAnswer::Messages(_)
        | CallAnswer::Extended(_)
        | CallAnswer::Gone { .. }
        | CallAnswer::UnknownQueue(_) => Ok(accepted(receipt)),
    }
}

/// Answers an extension without a stream.
async fn extend_alone(
    calls: &CallSender,
    receipt: String,
    call: Result<WorkerCall, String>,
) -> Result<Lease, Status> {
    match send_alone(calls, &receipt, call).await? {
        CallAnswer::Extended(until) => Ok(stub::lease(receipt, until)),
        // A message that nobody has sent.
        CallAnswer::Messages(_)
        | CallAnswer::Taken(_)
        | CallAnswer::Gone { .. }
        | CallAnswer::UnknownQueue(_) => {
            Err(stub::gone("unknown step", "unknown step: stop working on it"))
        }
    }
}

/// Answers a request for messages without a stream.
async fn handle_receive(
    request: ReceiveRequest,
    calls: &CallSender,
) -> Result<ReceiveAnswer, Status> {
    let ReceiveRequest { queue, lease, wait, max, .. } = request;
    let parse_call = || {
        let max = max.max(1) as usize;
        if max > MESSAGES_MAX {
            return Err(format!("max is {max}, expected 1 to {MESSAGES_MAX}"));
        }
        let wait = parse("wait", wait.map(Duration::try_from), (Duration::ZERO, WAIT_MAX))?;
        let lease = parse("lease", lease.map(Duration::try_from), LEASE_RANGE)?;
        Ok(WorkerCall::Receive { wait: wait.unwrap_or(WAIT_DEFAULT), lease, max })
    };
    let call = parse_call().map_err(Status::invalid_argument)?;
    match calls.send(queue, None, None, call).await {
        Ok(CallAnswer::Messages(delivered)) => {
            Ok(ReceiveAnswer { messages: delivered.iter().map(to_step_message).collect() })
        }
        Ok(CallAnswer::UnknownQueue(detail)) => Err(Status::not_found(detail)),
        Ok(_) | Err(NoAnswer) => Err(not_now()),
    }
}

fn accepted(receipt: String) -> Taken {
    Taken { receipt, changed: true, ..Taken::default() }
}

fn rejected(receipt: String, why_not: &str, detail: String) -> Taken {
    Taken { receipt, changed: false, why_not: why_not.to_owned(), detail }
}

fn reply_call(kind: i32, body: bytes::Bytes) -> Result<WorkerCall, String> {
    let kind = match Kind::try_from(kind) {
        Ok(Kind::Result) => ReplyKind::Result,
        Ok(Kind::Error) => ReplyKind::Error,
        Ok(Kind::Progress) => ReplyKind::Progress,
        Err(_) => return Err(format!("kind is {kind}, expected 0, 1 or 2")),
    };
    Ok(WorkerCall::Reply { kind, body })
}

fn extend_call<E>(lease: Option<Result<Duration, E>>) -> Result<WorkerCall, String> {
    Ok(WorkerCall::Extend { lease: parse("lease", lease, LEASE_RANGE)? })
}

/// Returns the receipt and the call of a nack.
fn nack_call(request: NackRequest) -> (String, Result<WorkerCall, String>) {
    let NackRequest { receipt, requeue, delay } = request;
    let delay = parse("delay", delay.map(Duration::try_from), (Duration::ZERO, DELAY_MAX));
    let to_call =
        |delay: Option<Duration>| WorkerCall::Nack { requeue, delay: delay.unwrap_or_default() };
    (receipt, delay.map(to_call))
}

/// Checks that a duration is within the range, which includes both bounds.
fn parse<E>(
    name: &str,
    duration: Option<Result<Duration, E>>,
    (min, max): (Duration, Duration),
) -> Result<Option<Duration>, String> {
    match duration {
        None => Ok(None),
        Some(Ok(duration)) if (min..=max).contains(&duration) => Ok(Some(duration)),
        Some(_) => Err(format!(
            "{name} is out of range, expected a time from {} to {}",
            DurationSetting(min),
            DurationSetting(max)
        )),
    }
}

fn to_step_message(delivered: &DeliveredMessage) -> StepMessage {
    let message = &delivered.message;
    let mut step_message = StepMessage {
        receipt: delivered.reply_path(""),
        queue: message.queue.clone(),
        correlation_id: message.correlation_id(),
        message_id: message.id(),
        workflow: WORKFLOW.to_owned(),
        job: message.job.to_string(),
        attempt: message.attempt,
        delivery: delivered.delivery,
        traceparent: message.traceparent(),
        body: message.body.clone().into(),
        ..StepMessage::default()
    };
    stub::set_times(&mut step_message, clock::now(), delivered.until);
    step_message
}
