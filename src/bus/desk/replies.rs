//! What workers say of messages: replies and refusals, and the verdicts on them.

use super::{Desk, NotCommitted, NotLent, Said};
use crate::bus::{BusEvent, DeadLetter, Delivery, Settled, Settlement, Verdict};
use crate::engine::{Rejected, Sender};
use bytes::Bytes;
use tokio::sync::mpsc;

impl Desk {
    /// Takes a worker's reply; answered once what follows from it is committed: why it changed
    /// nothing, if it did not. It needs no lease: whoever replies first counts.
    ///
    /// # Errors
    ///
    /// It was not committed, and the worker should send it again.
    pub async fn reply(&self, said: Said) -> Result<Option<&'static str>, NotCommitted> {
        let Said { queue, id, delivery, correlation_id, attempt, kind, from, body, line } = said;
        let unused = self.tell(|settlement| Delivery {
            kind: kind.map(str::to_owned),
            attempt,
            from,
            ..Delivery::new(Some(correlation_id), body, settlement)
        });
        let unused = unused.await?;
        match unused {
            None if kind == Some("progress") => {
                // Its worker has it in hand, unless another one was given it.
                let _ = self.extend(&queue, &id, delivery, None, line.as_ref());
            }
            Some(why) if Rejected::leaves_the_attempt(why) => {}
            None | Some(_) => self.forget(&queue, &id),
        }
        Ok(unused)
    }

    /// A worker refuses a message: its attempt fails. Answered as a reply is.
    ///
    /// # Errors
    ///
    /// This delivery is not lent any more; or it was not committed.
    pub async fn refuse(
        &self,
        id: &str,
        delivery: u32,
        from: Sender,
    ) -> Result<Result<Option<&'static str>, NotCommitted>, NotLent> {
        let (correlation_id, attempt, dead) = {
            let mut state = self.state();
            let message = &state.lent_as(id, delivery)?.message;
            let dead = DeadLetter::of(message, "rejected");
            (message.correlation_id.clone(), message.number("attempt"), dead)
        };
        let unused = self.tell(|settlement| Delivery {
            attempt,
            dead_letter: Some(dead),
            from,
            ..Delivery::new(correlation_id.as_deref().map(str::to_owned), Bytes::new(), settlement)
        });
        let unused = unused.await;
        if matches!(unused, Ok(why) if !why.is_some_and(Rejected::leaves_the_attempt)) {
            self.state().forget(id);
        }
        Ok(unused)
    }

    /// Reports a delivery, and waits for the verdict on it.
    async fn tell(
        &self,
        delivery: impl FnOnce(Settlement) -> Delivery,
    ) -> Result<Option<&'static str>, NotCommitted> {
        let (to, mut settled) = mpsc::unbounded_channel();
        (self.sink)(BusEvent::Reply(delivery(Settlement::new(0, 0, to))));
        match settled.recv().await {
            Some(Settled { verdict: Verdict::Ack, unused, .. }) => Ok(unused),
            Some(Settled { verdict: Verdict::Requeue, .. }) | None => Err(NotCommitted),
        }
    }
}
