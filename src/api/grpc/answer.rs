//! What a worker on a stream hears of what it has said.

use super::super::lending::{Receipt, desk_of, own_bus};
use super::super::problem::Problem;
use super::super::token::Caller;
use super::status::{status, word};
use super::wire::to_worker::Say as Tell;
use super::wire::{Gone, Lease, Taken};
use crate::actors::ways::Ways;
use crate::bus::desk::Desk;
use std::sync::Arc;
use tonic::Status;

/// What follows from something that a worker has said.
pub(super) enum Answer {
    Tell(Tell),
    /// A lease was lengthened.
    Extended(Receipt, Lease),
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

/// What a worker hears of something that was committed, or that was not.
pub(super) fn said(told: Result<Taken, Problem>) -> Answer {
    match told {
        Ok(taken) => Answer::Tell(Tell::Taken(taken)),
        Err(problem) => Answer::End(status(&problem)),
    }
}

/// What a worker hears of a message that it does not have.
pub(super) fn refused(receipt: Receipt, text: String, problem: &Problem) -> Answer {
    match problem.reason() {
        Some(reason) => Answer::Gone(receipt, Gone { receipt: text, reason: reason.to_owned() }),
        None => Answer::Tell(Tell::Taken(declined(text, problem))),
    }
}

pub(super) fn declined(receipt: String, problem: &Problem) -> Taken {
    let why_not = word(problem).to_owned();
    Taken { receipt, changed: false, why_not, detail: problem.detail().to_owned() }
}
