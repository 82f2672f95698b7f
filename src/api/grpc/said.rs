//! Converts the fields of `proto/workers.proto`, which unary calls and streams share.

use super::super::lending::{DELAY_MAX, LEASE_MAX, LEASE_MIN, Receipt, named};
use super::super::problem::Problem;
use super::super::query::ReplyType;
use super::spans::{at_second, span, until};
use super::wire::{Kind, NackRequest, StepMessage, Taken};
use crate::bus::Header;
use crate::bus::desk::{Loan, NotCommitted, Told};
use std::sync::Arc;
use std::time::Duration;

/// How a worker connects, for messages to it.
pub(super) const WAY: &str = "over gRPC";

/// The shortest and the longest lease.
pub(super) const LEASES: (Duration, Duration) = (LEASE_MIN, LEASE_MAX);

/// Parses the name that a worker gives itself, if it does.
pub(super) fn name_of(worker: &str) -> Result<Option<Arc<str>>, Problem> {
    if worker.is_empty() { Ok(None) } else { named(worker).map(Some) }
}

pub(super) fn kind(number: i32) -> Result<ReplyType, Problem> {
    match Kind::try_from(number) {
        Ok(Kind::Result) => Ok(ReplyType::Result),
        Ok(Kind::Error) => Ok(ReplyType::Error),
        Ok(Kind::Progress) => Ok(ReplyType::Progress),
        Err(_) => Err(Problem::malformed(format!(
            "kind is {number}, expected RESULT (0), ERROR (1) or PROGRESS (2)"
        ))),
    }
}

/// Parses the delay of a requeue; `None`: the message is rejected.
pub(super) fn pause(request: &NackRequest) -> Result<Option<Duration>, Problem> {
    let pause = span("delay", request.delay, (Duration::ZERO, DELAY_MAX))?;
    match (request.requeue, pause) {
        (false, Some(_)) => Err(Problem::malformed("delay needs requeue".to_owned())),
        (false, None) => Ok(None),
        (true, pause) => Ok(Some(pause.unwrap_or_default())),
    }
}

/// What became of a reply.
pub(super) fn taken(receipt: String, told: Result<Told, NotCommitted>) -> Result<Taken, Problem> {
    match told {
        Ok(Told { unused: why_not, .. }) => {
            let (changed, why_not) = (why_not.is_none(), why_not.unwrap_or_default().to_owned());
            Ok(Taken { receipt, changed, why_not, detail: String::new() })
        }
        Err(NotCommitted) => {
            Err(Problem::overloaded("the reply was not committed: send it again".to_owned()))
        }
    }
}

/// Converts a leased message.
pub(super) fn message(queue: &str, vhost: &str, loan: &Loan) -> StepMessage {
    let text = |name| Header::text_in(&loan.headers, name).map(|text| text.to_string());
    StepMessage {
        receipt: Receipt::text(queue, vhost, loan),
        queue: queue.to_owned(),
        correlation_id: loan.correlation_id.as_deref().unwrap_or_default().to_owned(),
        message_id: loan.id.to_string(),
        workflow: text("workflow").unwrap_or_default(),
        job: text("job").unwrap_or_default(),
        attempt: Header::number_in(&loan.headers, "attempt").unwrap_or_default(),
        delivery: loan.delivery,
        priority: loan.priority.map(u32::from),
        traceparent: text("traceparent").unwrap_or_default(),
        tracestate: text("tracestate"),
        dispatched: Some(at_second(loan.timestamp_s)),
        lease_until: Some(until(loan.until)),
        body: loan.body.to_bytes(),
        depth: Header::number_in(&loan.headers, "depth"),
    }
}
