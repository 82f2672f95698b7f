//! Decides what a stream does after a worker's request.

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

/// What a stream does after a worker's request, or after its check of attempts.
pub(super) enum StreamAction {
    /// Sends an answer to the worker.
    Send(ToWorkerMessage),
    /// Reports that the request is rejected. If it was for a message of the session, the session
    /// keeps the message.
    Rejected(Option<SessionMessage>, Taken),
    /// Confirms that a lease was extended, by request or by progress. The session adopts the
    /// message.
    Extended {
        /// The receipt of the message.
        receipt: Receipt,
        /// The receipt as the worker sent it.
        receipt_text: String,
        /// The confirmation for the worker.
        confirmation: ToWorkerMessage,
    },
    /// Reports that the worker no longer has the message with this receipt.
    Revoked(Receipt, Gone),
    /// Ends the check of attempts, and reports the messages whose attempts have ended.
    AttemptsChecked(Vec<(Receipt, Gone)>),
    /// Closes the stream with this status.
    Close(Status),
}

/// Returns the lease queue of a message, if the principal may settle it there.
pub(super) async fn authorize_settlement(
    api: &Arc<ApiState>,
    principal: &Authenticated,
    receipt: &Receipt,
) -> Result<Arc<LeaseQueue>, Problem> {
    let lease_queue = find_lease_queue(api, &receipt.vhost)?;
    principal.check_settle_access(api, &embedded_bus(api, &receipt.vhost), receipt).await?;
    Ok(lease_queue)
}

/// Builds the status of a stream that ends because the manager stops.
pub(super) fn server_stopping() -> Status {
    Status::unavailable("the manager stops: connect again, and send what is not answered once more")
}

/// Builds the status of a stream that ends because another process may lend the messages.
pub(super) fn suspended(reason: Option<&str>) -> Status {
    Status::unavailable(reason.unwrap_or("no message is lent now: connect again"))
}

/// Returns the action after the commit of a reply or a nack. If it was not committed, the stream is
/// closed, and the message returns to its queue.
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
        // The attempt continues, so the worker keeps its lease.
        Ok(taken) if keeps_attempt => StreamAction::Rejected(message, taken),
        Ok(taken) => {
            message.map(SessionMessage::disarm);
            StreamAction::Send(ToWorkerMessage::Taken(taken))
        }
        Err(problem) => StreamAction::Close(to_status(&problem)),
    }
}

/// Returns the action after a request for a message has failed. If the problem has a reason, the
/// worker no longer has the message. Otherwise the request is rejected.
pub(super) fn action_without_lease(
    receipt: Receipt,
    receipt_text: String,
    message: Option<SessionMessage>,
    problem: &Problem,
) -> StreamAction {
    match problem.reason() {
        Some(reason) => {
            message.map(SessionMessage::disarm);
            let notice = Gone { receipt: receipt_text, reason: reason.to_owned() };
            StreamAction::Revoked(receipt, notice)
        }
        None => action_after_rejection(receipt_text, message, problem),
    }
}

/// Returns the action after a rejected request. The stream is closed if the worker should retry the
/// request later, or if the manager failed.
pub(super) fn action_after_rejection(
    receipt: String,
    message: Option<SessionMessage>,
    problem: &Problem,
) -> StreamAction {
    let status = to_status(problem);
    if matches!(status.code(), Code::Unavailable | Code::Internal) {
        return StreamAction::Close(status);
    }
    StreamAction::Rejected(message, rejection(receipt, problem))
}

/// Builds the answer to a request that the worker must not retry.
pub(super) fn rejection(receipt: String, problem: &Problem) -> Taken {
    let why_not = rejection_code(problem).to_owned();
    Taken { receipt, changed: false, why_not, detail: problem.detail().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_closed_after_a_request_that_the_worker_should_send_again() {
        let is_closed_after = |problem: fn(String) -> Problem| {
            let action = action_after_rejection(String::new(), None, &problem("why".to_owned()));
            matches!(action, StreamAction::Close(_))
        };
        assert!(is_closed_after(Problem::overloaded) && is_closed_after(Problem::internal));
        assert!(!is_closed_after(Problem::forbidden) && !is_closed_after(Problem::malformed));
    }
}
