//! What a stream does in response to a worker's request.

use super::super::lending::{Receipt, desk_of, own_bus};
use super::super::problem::Problem;
use super::super::token::Caller;
use super::hands::Held;
use super::status::{status, word};
use super::wire::to_worker::Say as Tell;
use super::wire::{Gone, Taken};
use crate::actors::ways::Ways;
use crate::bus::desk::Desk;
use crate::engine::Rejected;
use std::sync::Arc;
use tonic::{Code, Status};

/// What a stream does in response to a worker's request.
pub(super) enum Answer {
    Tell(Tell),
    /// Reports that the request is rejected. The session keeps the message, if it had it.
    Kept(Option<Held>, Taken),
    /// Reports that a lease was extended, explicitly or by progress. The session has this message,
    /// with this text of its receipt.
    Extended(Receipt, String, Tell),
    /// Reports that a message is no longer the worker's.
    Gone(Receipt, Gone),
    /// Reports these messages whose attempts have ended.
    Looked(Vec<(Receipt, Gone)>),
    /// Closes the stream.
    End(Status),
}

/// Returns the lease queue of a message, if the caller may settle it there.
pub(super) async fn settled(
    ways: &Ways,
    caller: &Caller,
    receipt: &Receipt,
) -> Result<Arc<Desk>, Problem> {
    let desk = desk_of(ways, &receipt.vhost)?;
    caller.may_settle(ways, &own_bus(ways, &receipt.vhost), receipt).await?;
    Ok(desk)
}

pub(super) fn closed() -> Status {
    Status::unavailable("the manager stops: connect again, and send what is not answered once more")
}

/// Returns the action after a reply was committed, or failed to be. If it failed, the message
/// returns to its queue with the stream.
pub(super) fn said(told: Result<Taken, Problem>, held: Option<Held>) -> Answer {
    match told {
        // The attempt continues, and so does its lease.
        Ok(taken) if Rejected::leaves_the_attempt(&taken.why_not) => Answer::Kept(held, taken),
        Ok(taken) => {
            held.map(Held::let_go);
            Answer::Tell(Tell::Taken(taken))
        }
        Err(problem) => Answer::End(status(&problem)),
    }
}

/// Returns the action after a request about a message that the worker does not have.
pub(super) fn refused(
    receipt: Receipt,
    text: String,
    held: Option<Held>,
    problem: &Problem,
) -> Answer {
    match problem.reason() {
        Some(reason) => {
            held.map(Held::let_go);
            Answer::Gone(receipt, Gone { receipt: text, reason: reason.to_owned() })
        }
        None => declined(text, held, problem),
    }
}

/// Returns the action after a rejected request: the reason why repeating it is useless, or the end
/// of the stream if the worker should retry later.
pub(super) fn declined(receipt: String, held: Option<Held>, problem: &Problem) -> Answer {
    let status = status(problem);
    if status.code() == Code::Unavailable {
        return Answer::End(status);
    }
    Answer::Kept(held, useless(receipt, problem))
}

/// Builds the answer that says why repeating a request is useless.
pub(super) fn useless(receipt: String, problem: &Problem) -> Taken {
    let why_not = word(problem).to_owned();
    Taken { receipt, changed: false, why_not, detail: problem.detail().to_owned() }
}
