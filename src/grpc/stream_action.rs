//! What a stream does in response to a worker's request.

use super::conversions::to_taken;
use super::session_messages::SessionMessage;
use super::status::{rejection_code, to_status};
use super::wire::to_worker::Say as ToWorkerMessage;
use super::wire::{Gone, Taken};
use bus::lease_queue::{LeaseQueue, NotCommitted, ReplyOutcome};

use daemon::api::leases::{Receipt, embedded_bus, find_lease_queue};
use daemon::api::problem::Problem;
use daemon::api::state::ApiState;
use daemon::api::token::Authenticated;
use std::sync::Arc;
use tonic::{Code, Status};

/// What a stream does in response to a worker's request.
pub(super) enum StreamAction {
    Send(ToWorkerMessage),
    /// Reports that the request is rejected. The session keeps the message, if it had it.
    Rejected(Option<SessionMessage>, Taken),
    /// Reports that a lease was extended, explicitly or by progress. The session has this message,
    /// with this text of its receipt.
    Extended(Receipt, String, ToWorkerMessage),
    /// Reports that a message is no longer the worker's.
    Revoked(Receipt, Gone),
    /// Reports these messages whose attempts have ended.
    AttemptsChecked(Vec<(Receipt, Gone)>),
    /// Closes the stream.
    Close(Status),
}

/// Returns the lease queue of a message, if the caller may settle it there.
pub(super) async fn authorize_settlement(
    api: &Arc<ApiState>,
    caller: &Authenticated,
    receipt: &Receipt,
) -> Result<Arc<LeaseQueue>, Problem> {
    let lease_queue = find_lease_queue(api, &receipt.vhost)?;
    caller.check_settle_access(api, &embedded_bus(api, &receipt.vhost), receipt).await?;
    Ok(lease_queue)
}

pub(super) fn server_stopping() -> Status {
    Status::unavailable("the manager stops: connect again, and send what is not answered once more")
}

/// Returns the action after a reply was committed, or failed to be. If it failed, the message
/// returns to its queue with the stream.
pub(super) fn action_after_commit(
    receipt: String,
    outcome: Result<ReplyOutcome, NotCommitted>,
    message: Option<SessionMessage>,
) -> StreamAction {
    let keeps_attempt = matches!(
        &outcome,
        Ok(ReplyOutcome { rejection: Some(rejection), .. }) if rejection.keeps_attempt()
    );
    match to_taken(receipt, outcome) {
        // The attempt continues, and so does its lease.
        Ok(taken) if keeps_attempt => StreamAction::Rejected(message, taken),
        Ok(taken) => {
            message.map(SessionMessage::disarm);
            StreamAction::Send(ToWorkerMessage::Taken(taken))
        }
        Err(problem) => StreamAction::Close(to_status(&problem)),
    }
}

/// Returns the action after a request about a message that the worker does not have.
pub(super) fn action_without_lease(
    receipt: Receipt,
    text: String,
    message: Option<SessionMessage>,
    problem: &Problem,
) -> StreamAction {
    match problem.reason() {
        Some(reason) => {
            message.map(SessionMessage::disarm);
            StreamAction::Revoked(receipt, Gone { receipt: text, reason: reason.to_owned() })
        }
        None => action_after_rejection(text, message, problem),
    }
}

/// Returns the action after a rejected request: the reason why repeating it is useless, or the end
/// of the stream if the worker should retry later.
pub(super) fn action_after_rejection(
    receipt: String,
    message: Option<SessionMessage>,
    problem: &Problem,
) -> StreamAction {
    let status = to_status(problem);
    if status.code() == Code::Unavailable {
        return StreamAction::Close(status);
    }
    StreamAction::Rejected(message, rejection(receipt, problem))
}

/// Builds the answer that says why repeating a request is useless.
pub(super) fn rejection(receipt: String, problem: &Problem) -> Taken {
    let why_not = rejection_code(problem).to_owned();
    Taken { receipt, changed: false, why_not, detail: problem.detail().to_owned() }
}
