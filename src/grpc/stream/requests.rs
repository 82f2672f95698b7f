//! Handles the requests of a worker on its stream: credit, replies, extensions of leases, and
//! nacks.

use super::{StreamEnd, WorkerStream};
use crate::batch::{FromWorkerBatch, REPLIES_MAX};
use crate::conversions::{LEASE_BOUNDS, parse_delay, parse_kind};
use crate::incoming::{IncomingEvent, IncomingSignals};
use crate::status::to_status;
use crate::stream_action::{
    StreamAction, action_after_commit, action_after_rejection, action_without_lease,
    authorize_settlement, rejection,
};
use crate::times::{lease_end, parse_duration};
use crate::wire::from_worker::Say;
use crate::wire::to_worker::Say as ToWorkerMessage;
use crate::wire::{ExtendRequest, FromWorker, Lease, NackRequest, ReplyRequest, Taken};
use base::{budget, clock};
use bus::lease_queue::ReplyOutcome;
use bytes::Bytes;
use daemon::api::leases::{self, RECEIPT_BYTES_MAX, Receipt};
use daemon::api::problem::Problem;
use daemon::api::query::ReplyType;
use futures_util::FutureExt;
use std::sync::Arc;
use tonic::{Status, Streaming};

/// Covers the bytes of what a worker has said until all of it is handled.
type Permit = Arc<budget::Permit>;

impl WorkerStream {
    /// Handles what the worker has said, and all that has come behind it, as far as there is room.
    pub(super) fn take_burst(
        &mut self,
        first: Result<Option<FromWorker>, Status>,
        inbound: &mut Streaming<FromWorker>,
        signals: &mut IncomingSignals,
    ) -> Option<StreamEnd> {
        let requests_max = self.api.settings.grpc.credit_max as usize;
        let active_before = self.settlements.len();
        let mut next = Some(first);
        while let Some(incoming) = next {
            let end = self.handle_incoming(incoming, signals);
            if end.is_some() {
                return end;
            }
            let active = self.settlements.len() + self.actions.len() + self.backlog.len();
            let can_read = !self.is_closed && active < requests_max;
            next = can_read.then(|| inbound.message().now_or_never()).flatten();
        }
        let replies = self.settlements.len() - active_before;
        let in_hand = self.messages.len();
        self.next_burst = self.pacer.end_burst(replies, in_hand, clock::timer_now());
        None
    }

    /// Handles what the worker has said, or the end of its half.
    fn handle_incoming(
        &mut self,
        incoming: Result<Option<FromWorker>, Status>,
        signals: &mut IncomingSignals,
    ) -> Option<StreamEnd> {
        match incoming {
            Ok(Some(FromWorker { say: request })) => {
                // The permits arrive in the order of the messages.
                let permit = signals.permits.try_recv().ok().map(Arc::new);
                let problem = request.and_then(|say| self.handle_request(say, permit))?;
                return Some(StreamEnd::Error(to_status(&problem)));
            }
            // A stream that was reset also yields `None`, but it has an event.
            Ok(None) => match signals.events.try_recv() {
                Ok(IncomingEvent::Aborted) => return Some(StreamEnd::Disconnected),
                Ok(event) => self.handle_incoming_event(event),
                Err(_) => self.close_inbound(),
            },
            Err(status) => return Some(StreamEnd::Error(status)),
        }
        None
    }

    /// Handles a request. `permit` covers the bytes of the request. Returns the problem with which
    /// the stream ends, if the request breaks the protocol.
    fn handle_request(&mut self, request: Say, permit: Option<Permit>) -> Option<Problem> {
        match request {
            Say::Hello(_) => {
                return Some(Problem::malformed("a worker says Hello once".to_owned()));
            }
            Say::Want(want) => self.add_credit(want.messages),
            Say::Reply(reply) => self.handle_reply(reply, permit),
            Say::Extend(extend) => self.handle_extend(extend),
            Say::Nack(nack) => self.handle_nack(nack),
            Say::Batch(batch) => return self.handle_batch(batch, permit),
        }
        None
    }

    /// Handles each request of a batch. `permit` covers the bytes of all.
    fn handle_batch(&mut self, batch: FromWorkerBatch, permit: Option<Permit>) -> Option<Problem> {
        let FromWorkerBatch { replies, want, surplus } = batch;
        if !self.session.batches {
            let problem = "a batch from a worker whose Hello has no `batches`";
            return Some(Problem::malformed(problem.to_owned()));
        }
        if surplus > 0 {
            let length = replies.len() + surplus;
            return Some(Problem::malformed(format!(
                "a batch has {length} replies, expected {REPLIES_MAX} at most"
            )));
        }
        for reply in replies {
            // Otherwise, a small body that is kept would keep the bytes of the whole batch.
            let body = Bytes::copy_from_slice(&reply.body);
            self.handle_reply(ReplyRequest { body, ..reply }, permit.clone());
        }
        if want > 0 {
            self.add_credit(want);
        }
        None
    }

    /// Adds credit up to the setting `grpc.credit_max`, and starts to receive.
    fn add_credit(&mut self, messages: u32) {
        let previous = self.credit;
        let limit = self.api.settings.grpc.credit_max;
        self.credit = self.credit.saturating_add(messages).min(limit);
        if previous == 0 && self.credit > 0 && !self.is_draining {
            self.receive_from_all();
        }
    }

    /// Reports to the worker why its request is rejected.
    fn reject(&mut self, receipt: String, problem: &Problem) {
        // The report waits in memory until the worker reads it, so a huge receipt is left out.
        let receipt = if receipt.len() > RECEIPT_BYTES_MAX { String::new() } else { receipt };
        self.enqueue(ToWorkerMessage::Taken(rejection(receipt, problem)));
    }

    /// Commits a reply. Progress extends the lease, and other replies settle the message.
    fn handle_reply(&mut self, request: ReplyRequest, permit: Option<Permit>) {
        let ReplyRequest { receipt: receipt_text, kind, body } = request;
        let parsed = parse_kind(kind)
            .and_then(|reply_type| Ok((reply_type, Receipt::parse(&receipt_text)?)));
        let (reply_type, receipt) = match parsed {
            Ok(parsed) => parsed,
            Err(problem) => return self.reject(receipt_text, &problem),
        };
        let (message, active_requests) = match reply_type {
            ReplyType::Progress => (None, &self.actions),
            ReplyType::Result | ReplyType::Error => {
                (self.messages.remove(&receipt.id, receipt.delivery), &self.settlements)
            }
        };
        let (api, principal) = (self.api.clone(), self.principal.clone());
        let sender = (principal.sender(), Some(self.session.revocations.clone()));
        active_requests.push(
            async move {
                let result = match authorize_settlement(&api, &principal, &receipt).await {
                    Ok(lease_queue) => {
                        let receipt = receipt.clone();
                        leases::handle_reply(&lease_queue, receipt, reply_type, sender, body).await
                    }
                    Err(problem) => return action_after_rejection(receipt_text, message, &problem),
                };
                // The permit covers the body until its commit.
                drop(permit);
                match result {
                    Ok(ReplyOutcome { rejection: None, .. })
                        if reply_type == ReplyType::Progress =>
                    {
                        let confirmation = ToWorkerMessage::Taken(Taken {
                            receipt: receipt_text.clone(),
                            changed: true,
                            ..Taken::default()
                        });
                        StreamAction::Extended { receipt, receipt_text, confirmation }
                    }
                    outcome => action_after_commit(receipt_text, outcome, message),
                }
            }
            .boxed(),
        );
    }

    /// Extends a lease.
    fn handle_extend(&mut self, request: ExtendRequest) {
        let ExtendRequest { receipt: receipt_text, lease } = request;
        let parsed = parse_duration("lease", lease, LEASE_BOUNDS)
            .and_then(|duration| Ok((duration, Receipt::parse(&receipt_text)?)));
        let (duration, receipt) = match parsed {
            Ok(parsed) => parsed,
            Err(problem) => return self.reject(receipt_text, &problem),
        };
        let (api, principal) = (self.api.clone(), self.principal.clone());
        let session = self.session.revocations.clone();
        self.actions.push(
            async move {
                let result = match authorize_settlement(&api, &principal, &receipt).await {
                    Ok(_) => leases::extend_lease(&api, &receipt, duration, Some(&session)).await,
                    Err(problem) => Err(problem),
                };
                match result {
                    Ok(end) => {
                        let confirmation = ToWorkerMessage::Lease(Lease {
                            receipt: receipt_text.clone(),
                            until: Some(lease_end(end)),
                        });
                        StreamAction::Extended { receipt, receipt_text, confirmation }
                    }
                    Err(problem) => action_without_lease(receipt, receipt_text, None, &problem),
                }
            }
            .boxed(),
        );
    }

    /// Returns a message to its queue, or makes its attempt fail.
    fn handle_nack(&mut self, request: NackRequest) {
        let parsed =
            parse_delay(&request).and_then(|delay| Ok((delay, Receipt::parse(&request.receipt)?)));
        let receipt_text = request.receipt;
        let (delay, receipt) = match parsed {
            Ok(parsed) => parsed,
            Err(problem) => return self.reject(receipt_text, &problem),
        };
        let message = self.messages.remove(&receipt.id, receipt.delivery);
        let (api, principal) = (self.api.clone(), self.principal.clone());
        self.settlements.push(
            async move {
                let result = match authorize_settlement(&api, &principal, &receipt).await {
                    Ok(lease_queue) => {
                        leases::nack(&api, &lease_queue, &receipt, delay, principal.sender()).await
                    }
                    Err(problem) => Err(problem),
                };
                match result {
                    Ok(outcome) => action_after_commit(receipt_text, outcome, message),
                    Err(problem) => action_without_lease(receipt, receipt_text, message, &problem),
                }
            }
            .boxed(),
        );
    }

    /// Rejects a request that was too large. Other events are ignored here.
    pub(super) fn handle_incoming_event(&mut self, event: IncomingEvent) {
        let IncomingEvent::TooLarge(bytes, receipt) = event else { return };
        let bytes_max = self.api.settings.http.body_bytes_max;
        let problem = Problem::too_large(format!(
            "the message has {bytes} bytes, more than {bytes_max} (setting http.body_bytes_max): \
             say that the attempt failed, or give a smaller result"
        ));
        self.reject(receipt.unwrap_or_default(), &problem);
    }
}
