//! Handles the requests of a worker on its stream: credit, replies, extensions of leases, nacks.

use super::WorkerStream;
use crate::conversions::{LEASE_BOUNDS, parse_delay, parse_kind};
use crate::incoming::IncomingEvent;
use crate::stream_action::{
    StreamAction, action_after_commit, action_after_rejection, action_without_lease,
    authorize_settlement, rejection,
};
use crate::times::{lease_end, parse_duration};
use crate::wire::from_worker::Say;
use crate::wire::to_worker::Say as ToWorkerMessage;
use crate::wire::{ExtendRequest, Lease, NackRequest, ReplyRequest, Taken};
use base::budget;
use bus::lease_queue::ReplyOutcome;
use daemon::api::leases::{self, RECEIPT_BYTES_MAX, Receipt};
use daemon::api::problem::Problem;
use daemon::api::query::ReplyType;
use futures_util::FutureExt;

impl WorkerStream {
    /// Handles a request. A returned problem ends the stream.
    pub(super) fn handle_request(
        &mut self,
        request: Say,
        permit: Option<budget::Permit>,
    ) -> Option<Problem> {
        match request {
            Say::Hello(_) => {
                return Some(Problem::malformed("a worker says Hello once".to_owned()));
            }
            Say::Want(want) => self.add_credit(want.messages),
            Say::Reply(reply) => self.handle_reply(reply, permit),
            Say::Extend(extend) => self.handle_extend(extend),
            Say::Nack(nack) => self.handle_nack(nack),
        }
        None
    }

    fn add_credit(&mut self, messages: u32) {
        let previous = self.credit;
        let limit = self.api.settings.grpc.credit_max;
        self.credit = self.credit.saturating_add(messages).min(limit);
        if previous == 0 && self.credit > 0 && !self.is_draining {
            self.receive_from_all();
        }
    }

    /// Reports why a request is rejected.
    fn reject(&mut self, receipt: String, problem: &Problem) {
        // A text that cannot be a receipt is not kept until the worker reads the report.
        let receipt = if receipt.len() > RECEIPT_BYTES_MAX { String::new() } else { receipt };
        self.enqueue(ToWorkerMessage::Taken(rejection(receipt, problem)));
    }

    fn handle_reply(&mut self, request: ReplyRequest, permit: Option<budget::Permit>) {
        let ReplyRequest { receipt: text, kind: number, body } = request;
        let found = parse_kind(number).and_then(|kind| Ok((kind, Receipt::parse(&text)?)));
        let (kind, receipt) = match found {
            Ok(found) => found,
            Err(problem) => return self.reject(text, &problem),
        };
        let (message, pending) = match kind {
            ReplyType::Progress => (None, &self.actions),
            ReplyType::Result | ReplyType::Error => {
                (self.messages.remove(&receipt.id, receipt.delivery), &self.settlements)
            }
        };
        let (api, caller) = (self.api.clone(), self.caller.clone());
        let from = (caller.sender(), Some(self.session.revocations.clone()));
        pending.push(
            async move {
                let result = match authorize_settlement(&api, &caller, &receipt).await {
                    Ok(lease_queue) => {
                        leases::handle_reply(&lease_queue, receipt.clone(), kind, from, body).await
                    }
                    Err(problem) => return action_after_rejection(text, message, &problem),
                };
                // The permit is held until here.
                drop(permit);
                match result {
                    Ok(ReplyOutcome { rejection: None, .. }) if kind == ReplyType::Progress => {
                        let taken =
                            Taken { receipt: text.clone(), changed: true, ..Taken::default() };
                        StreamAction::Extended(receipt, text, ToWorkerMessage::Taken(taken))
                    }
                    outcome => action_after_commit(text, outcome, message),
                }
            }
            .boxed(),
        );
    }

    fn handle_extend(&mut self, request: ExtendRequest) {
        let ExtendRequest { receipt: text, lease } = request;
        let found = parse_duration("lease", lease, LEASE_BOUNDS);
        let (lease, receipt) = match found.and_then(|lease| Ok((lease, Receipt::parse(&text)?))) {
            Ok(found) => found,
            Err(problem) => return self.reject(text, &problem),
        };
        let (api, caller) = (self.api.clone(), self.caller.clone());
        let session = self.session.revocations.clone();
        self.actions.push(
            async move {
                let extended = match authorize_settlement(&api, &caller, &receipt).await {
                    Ok(_) => leases::extend_lease(&api, &receipt, lease, Some(&session)).await,
                    Err(problem) => Err(problem),
                };
                match extended {
                    Ok(lease) => {
                        let lease = Lease { receipt: text.clone(), until: Some(lease_end(lease)) };
                        StreamAction::Extended(receipt, text, ToWorkerMessage::Lease(lease))
                    }
                    Err(problem) => action_without_lease(receipt, text, None, &problem),
                }
            }
            .boxed(),
        );
    }

    fn handle_nack(&mut self, request: NackRequest) {
        let found = parse_delay(&request);
        let text = request.receipt;
        let (pause, receipt) = match found.and_then(|pause| Ok((pause, Receipt::parse(&text)?))) {
            Ok(found) => found,
            Err(problem) => return self.reject(text, &problem),
        };
        let message = self.messages.remove(&receipt.id, receipt.delivery);
        let (api, caller) = (self.api.clone(), self.caller.clone());
        self.settlements.push(
            async move {
                let result = match authorize_settlement(&api, &caller, &receipt).await {
                    Ok(lease_queue) => {
                        leases::nack(&lease_queue, &receipt, pause, caller.sender()).await
                    }
                    Err(problem) => Err(problem),
                };
                match result {
                    Ok(outcome) => action_after_commit(text, outcome, message),
                    Err(problem) => action_without_lease(receipt, text, message, &problem),
                }
            }
            .boxed(),
        );
    }

    /// Handles an event that is no message.
    pub(super) fn handle_incoming_event(&mut self, event: IncomingEvent) {
        let IncomingEvent::TooLarge(bytes, receipt) = event else { return };
        let max = self.api.settings.http.body_bytes_max;
        let problem = Problem::too_large(format!(
            "the message has {bytes} bytes, more than {max} (setting http.body_bytes_max): say \
             that the attempt failed, or give a smaller result"
        ));
        self.reject(receipt.unwrap_or_default(), &problem);
    }
}
