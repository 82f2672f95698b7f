//! Replies and rejections from workers, and how they are settled.

use super::{LeaseQueue, NotCommitted, NotLeased, Told, WorkerReply};
use crate::bus::{BusEvent, DeadLetter, Delivery, Disposition, SettleCommand, Settlement};
use crate::engine::{Rejected, Sender};
use bytes::Bytes;
use tokio::sync::mpsc;

impl LeaseQueue {
    /// Takes a worker's reply; answered once what follows from it is committed. It needs no lease:
    /// whoever replies first counts.
    ///
    /// # Errors
    ///
    /// It was not committed, and the worker should send it again.
    pub async fn reply(&self, reply: WorkerReply) -> Result<Told, NotCommitted> {
        let WorkerReply {
            queue,
            id,
            delivery,
            correlation_id,
            attempt,
            kind,
            sender: from,
            body,
            revocations: line,
        } = reply;
        let told = self.deliver(|settlement| Delivery {
            kind: kind.map(str::to_owned),
            attempt,
            sender: from,
            ..Delivery::new(Some(correlation_id), body, settlement)
        });
        let mut told = told.await?;
        match told.unused {
            None if kind == Some("progress") => {
                // Its worker has it in hand, unless another one was given it.
                told.until = self.extend(&queue, &id, delivery, None, line.as_ref()).ok();
            }
            Some(why) if Rejected::keeps_attempt(why) => {}
            None | Some(_) => self.remove(&queue, &id),
        }
        Ok(told)
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
    ) -> Result<Result<Told, NotCommitted>, NotLeased> {
        let (correlation_id, attempt, dead) = {
            let mut state = self.state();
            let message = &state.find_in_flight(id, delivery)?.message;
            let dead = DeadLetter::from_publication(message, "rejected");
            (message.correlation_id.clone(), message.number_header("attempt"), dead)
        };
        let told = self.deliver(|settlement| Delivery {
            attempt,
            dead_letter: Some(dead),
            sender: from,
            ..Delivery::new(correlation_id.as_deref().map(str::to_owned), Bytes::new(), settlement)
        });
        let told = told.await;
        let settles = |told: &Told| !told.unused.is_some_and(Rejected::keeps_attempt);
        if told.as_ref().is_ok_and(settles) {
            self.state().remove_in_flight(id);
        }
        Ok(told)
    }

    /// Reports a delivery, and waits until it is settled.
    async fn deliver(
        &self,
        delivery: impl FnOnce(Settlement) -> Delivery,
    ) -> Result<Told, NotCommitted> {
        let (to, mut settled) = mpsc::unbounded_channel();
        (self.sink)(BusEvent::Reply(delivery(Settlement::new(0, 0, to))));
        match settled.recv().await {
            Some(SettleCommand {
                disposition: Disposition::Ack,
                rejection: unused,
                failed,
                ..
            }) => Ok(Told { unused, failed, until: None }),
            Some(SettleCommand { disposition: Disposition::Requeue, .. }) | None => {
                Err(NotCommitted)
            }
        }
    }
}
