//! Workers that stay. Each has a line to the desk, on which it hears that it no longer has a
//! message. When it goes, it gives back at once what it has.

use super::lent::Lent;
use super::queues::{Queue, Waiting};
use super::{Desk, NotLent};
use crate::bus::{BusEvent, LeaseLeft, Over};
use crate::clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// The way to a worker that stays. It holds no more than one [`Ended`] for each message lent to it.
pub type Line = UnboundedSender<Ended>;

/// A worker no longer has a message, although it has not given it up itself.
#[derive(Debug)]
pub struct Ended {
    /// The id of the message.
    pub id: Arc<str>,
    /// Which delivery it was.
    pub delivery: u32,
    /// Why.
    pub why: Why,
}

/// Why a worker no longer has a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its lease has ended.
    LeaseEnded,
    /// The attempt is over.
    Over(Over),
}

impl Desk {
    /// Counts a worker of this queue as long as what is returned is held, whether it waits or not.
    pub fn attend(&self, queue: &Arc<str>) -> Counted {
        Counted::new(&self.state().queue(queue).lines)
    }

    /// Whether a message of this queue waits or is lent.
    pub fn has_in(&self, queue: &str, id: &str) -> bool {
        let state = self.state();
        let is_waiting = |queue: &Queue| queue.places.contains_key(id);
        state.lent.get(id).is_some_and(|lent| *lent.queue == *queue)
            || state.queues.get(queue).is_some_and(is_waiting)
    }

    /// Whether nobody gets a message any more.
    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Whether a delivery of a message is lent over this line.
    pub fn lends(&self, id: &str, delivery: u32, line: &Line) -> bool {
        self.state().lent_over(Some(line), id, delivery).is_ok()
    }

    /// Takes a message back from a worker that has not begun to work on it: it waits as if it had
    /// not been lent. `line`: only if it is lent over this line.
    ///
    /// # Errors
    ///
    /// This delivery is not lent any more, or over another line.
    pub fn take_back(&self, id: &str, delivery: u32, line: Option<&Line>) -> Result<(), NotLent> {
        let mut state = self.state();
        state.lent_over(line, id, delivery)?;
        let Some(lent) = state.forget(id) else { return Err(NotLent::NotThere) };
        let Lent { queue, place, message, deliveries, reported, .. } = lent;
        let deliveries = deliveries - 1;
        // It waits after a restart as well.
        if let (Some(_), Some(receipt)) = (reported, message.receipt.again()) {
            let lease = LeaseLeft { delivery: deliveries, left: Duration::ZERO };
            (self.sink)(BusEvent::Leased { receipt, lease });
        }
        let waiting = Waiting { message, deliveries, since: clock::ticks() };
        state.queue(&queue).wait(place, waiting);
        Ok(())
    }
}

impl Lent {
    /// Tells a worker that stays that it no longer has the message.
    pub(super) fn tell(&self, id: &str, why: Why) {
        if let Some(line) = &self.line {
            // An error means that the worker has gone.
            let _ = line.send(Ended { id: id.into(), delivery: self.delivery, why });
        }
    }
}

/// Counts a worker as long as it is held.
pub struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
