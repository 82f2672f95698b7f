//! Handles replies and rejections of workers.

use super::LeaseQueue;
use super::types::{NotCommitted, NotLeased, ReplyOutcome, WorkerReply};
use crate::delivery::{DeadLetter, Delivery, Disposition, SettleCommand, Settlement};
use crate::event::BusEvent;
use crate::rejection::Rejection;
use bytes::Bytes;
use engine::Sender;
use tokio::sync::mpsc;

/// The kind of a reply that reports progress.
const PROGRESS_KIND: &str = "progress";

impl LeaseQueue {
    /// Delivers a worker's reply, and returns once everything that follows from it is committed.
    /// The worker needs no lease: the first reply to a message counts, whichever worker sends it.
    ///
    /// # Errors
    ///
    /// Returns an error if the reply was not committed, in which case the worker should send it
    /// again.
    pub async fn reply(&self, reply: WorkerReply) -> Result<ReplyOutcome, NotCommitted> {
        let WorkerReply {
            queue,
            id,
            delivery: delivery_number,
            correlation_id,
            attempt,
            kind,
            sender,
            body,
            revocations,
        } = reply;
        let commit = self.deliver(|settlement| {
            let mut reply_delivery = Delivery::new(correlation_id, body, settlement);
            reply_delivery.kind = kind.map(str::to_owned);
            (reply_delivery.attempt, reply_delivery.sender) = (attempt, sender);
            reply_delivery
        });
        let mut outcome = commit.await?;
        match outcome.rejection {
            None if kind == Some(PROGRESS_KIND) => {
                // Progress extends the lease, unless another worker has leased the message.
                outcome.until =
                    self.extend(&queue, &id, delivery_number, None, revocations.as_ref()).ok();
            }
            // The attempt goes on, so the worker keeps the message.
            Some(rejection) if rejection.keeps_attempt() => {}
            // Any other reply settles the message, also one that came too late.
            None | Some(_) => self.remove(&queue, &id),
        }
        Ok(outcome)
    }

    /// Rejects a message on behalf of its worker, so that its attempt fails. The inner result is
    /// that of [`LeaseQueue::reply`].
    ///
    /// # Errors
    ///
    /// Returns an error if this delivery is not leased any more. The inner error means that the
    /// worker's rejection was not committed, and may be sent again.
    pub async fn reject(
        &self,
        id: &str,
        delivery_number: u32,
        sender: Sender,
    ) -> Result<Result<ReplyOutcome, NotCommitted>, NotLeased> {
        let (correlation_id, attempt, dead_letter) = {
            let mut state = self.state();
            let message = &state.find_in_flight(id, delivery_number)?.message;
            let dead_letter = DeadLetter::from_publication(message, DeadLetter::REJECTED);
            (message.correlation_id.clone(), message.number_header("attempt"), dead_letter)
        };
        let commit = self.deliver(|settlement| {
            let correlation_id = correlation_id.as_deref().map(str::to_owned);
            let mut reply_delivery = Delivery::new(correlation_id, Bytes::new(), settlement);
            (reply_delivery.attempt, reply_delivery.sender) = (attempt, sender);
            reply_delivery.dead_letter = Some(dead_letter);
            reply_delivery
        });
        let outcome = commit.await;
        // `rejection` is the manager's: why it did not accept what the worker sent. The correlation
        // id is that of the message itself: if it names no attempt, there is none that goes on.
        let ends_attempt = |outcome: &ReplyOutcome| match outcome.rejection {
            Some(rejection @ Rejection::ByJob(_)) => !rejection.keeps_attempt(),
            Some(
                Rejection::NoCorrelationId
                | Rejection::MalformedCorrelationId
                | Rejection::UnknownJob,
            )
            | None => true,
        };
        if outcome.as_ref().is_ok_and(ends_attempt) {
            self.state().remove_in_flight(id);
        }
        Ok(outcome)
    }

    /// Reports the delivery that `build_delivery` creates, and waits until it is settled.
    async fn deliver(
        &self,
        build_delivery: impl FnOnce(Settlement) -> Delivery,
    ) -> Result<ReplyOutcome, NotCommitted> {
        let (sender, mut commands) = mpsc::unbounded_channel();
        // The channel serves this delivery alone, so the tag and the epoch distinguish nothing.
        (self.sink)(BusEvent::Reply(build_delivery(Settlement::new(0, 0, sender))));
        match commands.recv().await {
            Some(SettleCommand { disposition: Disposition::Ack, rejection, failure, .. }) => {
                Ok(ReplyOutcome { rejection, failure, until: None })
            }
            Some(SettleCommand { disposition: Disposition::Requeue, .. }) | None => {
                Err(NotCommitted)
            }
        }
    }
}
