//! Converts the messages of `proto/workers.proto` and their fields, for unary calls and streams.

use super::times::{lease_end, parse_duration, timestamp_from_seconds};
use super::wire::{Kind, NackRequest, StepMessage, Taken};
use bus::lease_queue::{LeasedMessage, NotCommitted, ReplyOutcome};
use bus::{Header, Rejection};
use daemon::api::leases::{DELAY_MAX, LEASE_MAX, LEASE_MIN, Receipt, parse_worker_name};
use daemon::api::problem::Problem;
use daemon::api::query::ReplyType;
use std::sync::Arc;
use std::time::Duration;

/// How a worker is connected, as error messages and logs name it.
pub(super) const TRANSPORT: &str = "over gRPC";

/// The shortest and the longest lease.
pub(super) const LEASE_BOUNDS: (Duration, Duration) = (LEASE_MIN, LEASE_MAX);

/// Parses the name of a worker. An empty name means that it has none.
pub(super) fn parse_optional_worker_name(worker: &str) -> Result<Option<Arc<str>>, Problem> {
    if worker.is_empty() { Ok(None) } else { parse_worker_name(worker).map(Some) }
}

/// Parses the kind of a reply.
pub(super) fn parse_kind(kind: i32) -> Result<ReplyType, Problem> {
    match Kind::try_from(kind) {
        Ok(Kind::Result) => Ok(ReplyType::Result),
        Ok(Kind::Error) => Ok(ReplyType::Error),
        Ok(Kind::Progress) => Ok(ReplyType::Progress),
        Err(_) => Err(Problem::malformed(format!(
            "kind is {kind}, expected RESULT (0), ERROR (1) or PROGRESS (2)"
        ))),
    }
}

/// Parses the delay after which a nacked message is requeued. Returns `None` if it must not be
/// requeued.
pub(super) fn parse_delay(request: &NackRequest) -> Result<Option<Duration>, Problem> {
    let delay = parse_duration("delay", request.delay, (Duration::ZERO, DELAY_MAX))?;
    match (request.requeue, delay) {
        (false, Some(_)) => Err(Problem::malformed("delay needs requeue".to_owned())),
        (false, None) => Ok(None),
        (true, delay) => Ok(Some(delay.unwrap_or_default())),
    }
}

/// Converts the outcome of a reply or a nack to the answer for the worker.
///
/// # Errors
///
/// Returns an error if the reply was not committed.
pub(super) fn to_taken(
    receipt: String,
    outcome: Result<ReplyOutcome, NotCommitted>,
) -> Result<Taken, Problem> {
    match outcome {
        Ok(ReplyOutcome { rejection, .. }) => {
            // In the protocol, an empty text means that there is no reason.
            let why_not = rejection.map_or("", Rejection::label).to_owned();
            Ok(Taken { receipt, changed: rejection.is_none(), why_not, detail: String::new() })
        }
        Err(NotCommitted) => {
            Err(Problem::overloaded("the reply was not committed: send it again".to_owned()))
        }
    }
}

/// Converts a leased message to the message of the protocol.
#[allow(clippy::expect_used, reason = "each message to a worker has these headers and this id")]
pub(super) fn to_step_message(queue: &str, vhost: &str, message: &LeasedMessage) -> StepMessage {
    let find_text = |name| Header::find_text(&message.headers, name).map(|text| text.to_string());
    let required_text = |name| find_text(name).expect(name);
    StepMessage {
        receipt: Receipt::format(queue, vhost, message),
        queue: queue.to_owned(),
        correlation_id: message.correlation_id.as_deref().expect("correlation_id").to_owned(),
        message_id: message.id.to_string(),
        workflow: required_text("workflow"),
        job: required_text("job"),
        attempt: Header::find_number(&message.headers, "attempt").expect("attempt"),
        delivery: message.delivery,
        priority: message.priority.map(u32::from),
        traceparent: required_text("traceparent"),
        tracestate: find_text("tracestate"),
        dispatched: Some(timestamp_from_seconds(message.timestamp_s)),
        lease_until: Some(lease_end(message.until)),
        body: message.body.to_bytes(),
        depth: Header::find_number(&message.headers, "depth"),
    }
}
