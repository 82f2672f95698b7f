//! Replies and rejections from workers, and how they are settled.

use super::LeaseQueue;
use super::types::{NotCommitted, NotLeased, ReplyOutcome, WorkerReply};
use crate::delivery::{DeadLetter, Delivery, Disposition, SettleCommand, Settlement};
use crate::event::BusEvent;
use crate::rejection::Rejection;
use bytes::Bytes;
use engine::Sender;
use tokio::sync::mpsc;

impl LeaseQueue {
    /// Takes a worker's reply; answered once what follows from it is committed. It needs no lease:
    /// whoever replies first counts.
    ///
    /// # Errors
    ///
    /// It was not committed, and the worker should send it again.
    pub async fn reply(&self, reply: WorkerReply) -> Result<ReplyOutcome, NotCommitted> {
        let WorkerReply {
            queue,
            id,
            delivery,
            correlation_id,
            attempt,
            kind,
            sender,
            body,
            revocations,
        } = reply;
        let committing = self.deliver(|settlement| {
            let mut delivery = Delivery::new(correlation_id, body, settlement);
            delivery.kind = kind.map(str::to_owned);
            (delivery.attempt, delivery.sender) = (attempt, sender);
            delivery
        });
        let mut outcome = committing.await?;
        match outcome.rejection {
            None if kind == Some("progress") => {
                // Its worker has it in hand, unless another one was given it.
                outcome.until = self.extend(&queue, &id, delivery, None, revocations.as_ref()).ok();
            }
            Some(rejection) if rejection.keeps_attempt() => {}
            None | Some(_) => self.remove(&queue, &id),
        }
        Ok(outcome)
    }

    /// Rejects a message on behalf of its worker: its attempt fails. Returns as
    /// [`LeaseQueue::reply`] does.
    ///
    /// # Errors
    ///
    /// This delivery is not leased any more; or the rejection was not committed.
    pub async fn reject(
        &self,
        id: &str,
        delivery: u32,
        from: Sender,
    ) -> Result<Result<ReplyOutcome, NotCommitted>, NotLeased> {
        let (correlation_id, attempt, dead) = {
            let mut state = self.state();
            let message = &state.find_in_flight(id, delivery)?.message;
            let dead = DeadLetter::from_publication(message, "rejected");
            (message.correlation_id.clone(), message.number_header("attempt"), dead)
        };
        let committing = self.deliver(|settlement| {
            let correlation_id = correlation_id.as_deref().map(str::to_owned);
            let mut delivery = Delivery::new(correlation_id, Bytes::new(), settlement);
            (delivery.attempt, delivery.sender) = (attempt, from);
            delivery.dead_letter = Some(dead);
            delivery
        });
        let outcome = committing.await;
        let settles = |reply_outcome: &ReplyOutcome| {
            !reply_outcome.rejection.is_some_and(Rejection::keeps_attempt)
        };
        if outcome.as_ref().is_ok_and(settles) {
            self.state().remove_in_flight(id);
        }
        Ok(outcome)
    }

    /// Reports a delivery, and waits until it is settled.
    async fn deliver(
        &self,
        delivery: impl FnOnce(Settlement) -> Delivery,
    ) -> Result<ReplyOutcome, NotCommitted> {
        let (to, mut settled) = mpsc::unbounded_channel();
        (self.sink)(BusEvent::Reply(delivery(Settlement::new(0, 0, to))));
        match settled.recv().await {
            Some(SettleCommand { disposition: Disposition::Ack, rejection, failed, .. }) => {
                Ok(ReplyOutcome { rejection, failed, until: None })
            }
            Some(SettleCommand { disposition: Disposition::Requeue, .. }) | None => {
                Err(NotCommitted)
            }
        }
    }
}
