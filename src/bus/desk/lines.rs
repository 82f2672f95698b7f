//! Workers with a session. Each is notified when a lease is revoked. When its session ends, it
//! returns its messages at once.

use super::lent::Lent;
use super::queues::{Queue, Waiting};
use super::{Desk, NotLent};
use crate::bus::{BusEvent, LeaseLeft, Over};
use crate::clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// Notifies a session of revoked leases. It holds at most one [`LeaseRevocation`] for each message
/// leased to the session.
pub type Line = UnboundedSender<Ended>;

/// A lease that ended although the worker has not settled it.
#[derive(Debug)]
pub struct Ended {
    /// The id of the message.
    pub id: Arc<str>,
    /// The number of the delivery.
    pub delivery: u32,
    /// Why it ended.
    pub why: Why,
}

/// Why a lease was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The time of the lease is over.
    LeaseEnded,
    /// The attempt has ended.
    Over(Over),
}

impl Desk {
    /// Counts a session as a worker of this queue until the returned guard is dropped.
    pub fn attend(&self, queue: &Arc<str>) -> Counted {
        Counted::new(&self.state().queue(queue).lines)
    }

    /// Returns whether a message of this queue waits or is in flight.
    pub fn has_in(&self, queue: &str, id: &str) -> bool {
        let state = self.state();
        let is_waiting = |queue: &Queue| queue.places.contains_key(id);
        state.lent.get(id).is_some_and(|lent| *lent.queue == *queue)
            || state.queues.get(queue).is_some_and(is_waiting)
    }

    /// Returns whether the lease queue is closed: nobody gets a message any more.
    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Returns whether this session has leased this delivery of a message.
    pub fn lends(&self, id: &str, delivery: u32, line: &Line) -> bool {
        self.state().lent_over(Some(line), id, delivery).is_ok()
    }

    /// Takes a message back from a worker that has not begun to work on it. It waits again, and the
    /// delivery is not counted. With `session`: only if that session has leased it.
    ///
    /// # Errors
    ///
    /// This delivery is not leased any more, or another session has it.
    pub fn take_back(&self, id: &str, delivery: u32, line: Option<&Line>) -> Result<(), NotLent> {
        let mut state = self.state();
        state.lent_over(line, id, delivery)?;
        let Some(lent) = state.forget(id) else { return Err(NotLent::NotThere) };
        let Lent { queue, place, message, deliveries, reported, .. } = lent;
        let deliveries = deliveries - 1;
        // The message must also wait after a restart.
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
    /// Notifies the session, if the worker has one, that it no longer has the message.
    pub(super) fn tell(&self, id: &str, why: Why) {
        if let Some(line) = &self.line {
            // The channel is closed if the session has ended.
            let _ = line.send(Ended { id: id.into(), delivery: self.delivery, why });
        }
    }
}

/// Counts one worker until it is dropped.
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
