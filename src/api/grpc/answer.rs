//! What a worker on a stream hears of what it has said.

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

/// What follows from something that a worker has said.
pub(super) enum Answer {
    Tell(Tell),
    /// Something does not count: the worker has the message still, if it had it.
    Kept(Option<Held>, Taken),
    /// A lease was lengthened, by an extension or progress: the worker has this message, by this
    /// text of its receipt.
    Extended(Receipt, String, Tell),
    /// A message is gone.
    Gone(Receipt, Gone),
    /// These messages turn out to be gone.
    Looked(Vec<(Receipt, Gone)>),
    /// The stream cannot go on.
    End(Status),
}

/// The desk on which a message is settled, if the worker may do so.
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

/// What a worker hears of something that was committed, or that was not: then its message, if it
/// had it, goes back with the stream.
pub(super) fn said(told: Result<Taken, Problem>, held: Option<Held>) -> Answer {
    match told {
        // The attempt goes on, and its lease.
        Ok(taken) if Rejected::leaves_the_attempt(&taken.why_not) => Answer::Kept(held, taken),
        Ok(taken) => {
            held.map(Held::let_go);
            Answer::Tell(Tell::Taken(taken))
        }
        Err(problem) => Answer::End(status(&problem)),
    }
}

/// What a worker hears of a message that it does not have.
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

/// What a worker hears of something that is not taken: why it is useless to say it again, or that
/// the stream ends and it should come later.
pub(super) fn declined(receipt: String, held: Option<Held>, problem: &Problem) -> Answer {
    let status = status(problem);
    if status.code() == Code::Unavailable {
        return Answer::End(status);
    }
    Answer::Kept(held, useless(receipt, problem))
}

/// Why it is useless to say something again as it was.
pub(super) fn useless(receipt: String, problem: &Problem) -> Taken {
    let why_not = word(problem).to_owned();
    Taken { receipt, changed: false, why_not, detail: problem.detail().to_owned() }
}
