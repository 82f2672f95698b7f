//! The state of a lease queue: the messages that wait, those that are in flight, and the workers.

use super::NotLent;
use super::lent::Lent;
use super::lines::{Line, Why};
use crate::bus::Publication;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The messages of all queues of a bus.
#[derive(Default)]
pub(super) struct State {
    pub(super) queues: HashMap<Arc<str>, Queue>,
    /// The messages in flight, by id.
    pub(super) lent: HashMap<Arc<str>, Lent>,
    /// When each lease ends, with the id of its message.
    pub(super) ends: BTreeSet<(Instant, Arc<str>)>,
    /// Counts messages, to keep their order.
    pub(super) taken: u64,
    pub(super) is_closed: bool,
}

/// One named queue.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) waiting: BTreeMap<Place, Waiting>,
    /// The positions of waiting messages, by id. Not kept if threads of this process serve the
    /// queue.
    pub(super) places: HashMap<Arc<str>, Place>,
    /// How many of its messages are in flight.
    pub(super) lent: usize,
    /// How many threads of this process serve it.
    pub(super) threads: usize,
    /// How many of the messages in flight are leased to sessions.
    pub(super) lent_to_lines: usize,
    /// How many workers wait for a message now.
    pub(super) receivers: Arc<AtomicUsize>,
    /// How many workers with a session are there, whether they wait or not.
    pub(super) lines: Arc<AtomicUsize>,
    /// When a worker last asked for a message.
    pub(super) asked: Option<Instant>,
    /// Notified when a message arrives, for threads of this process (`arrived`) and for workers
    /// elsewhere.
    pub(super) arrived: Arc<Condvar>,
    pub(super) changed: Arc<Notify>,
}

/// The order in a queue: the highest priority first, then the first to arrive.
pub(super) type Place = (Reverse<u8>, u64);

/// A message that waits in its queue.
pub(super) struct Waiting {
    pub(super) message: Publication,
    /// How often it was leased.
    pub(super) deliveries: u32,
    pub(super) since: Instant,
}

impl State {
    pub(super) fn queue(&mut self, name: &Arc<str>) -> &mut Queue {
        self.queues.entry(name.clone()).or_default()
    }

    pub(super) fn lent_as(&mut self, id: &str, delivery: u32) -> Result<&mut Lent, NotLent> {
        match self.lent.get_mut(id) {
            Some(lent) if lent.delivery == delivery => Ok(lent),
            Some(_) => Err(NotLent::ToAnother),
            None => Err(NotLent::NotThere),
        }
    }

    /// Returns the message in flight as this delivery; with `revocations` only if that session has
    /// it.
    pub(super) fn lent_over(
        &mut self,
        line: Option<&Line>,
        id: &str,
        delivery: u32,
    ) -> Result<&mut Lent, NotLent> {
        let lent = self.lent_as(id, delivery)?;
        match line {
            Some(line) if !lent.is_over(line) => Err(NotLent::ToAnother),
            Some(_) | None => Ok(lent),
        }
    }

    /// Transfers a lease to this session, and notifies the session that had it before.
    pub(super) fn pass_on(&mut self, id: &str, line: &Line) {
        let Some(lent) = self.lent.get_mut(id).filter(|lent| !lent.is_over(line)) else { return };
        lent.tell(id, Why::LeaseEnded);
        let (before, queue) = (lent.line.replace(line.clone()), lent.queue.clone());
        self.queue(&queue).lent_to_lines += usize::from(before.is_none());
    }

    /// Removes the message with this id if it waits in this queue.
    pub(super) fn take_waiting(&mut self, queue: &str, id: &str) -> Option<(Place, Waiting)> {
        let queue = self.queues.get_mut(queue)?;
        let place = queue.places.remove(id)?;
        queue.waiting.remove_entry(&place)
    }

    pub(super) fn forget(&mut self, id: &str) -> Option<Lent> {
        let lent = self.lent.remove(id)?;
        self.ends.remove(&(lent.until, id.into()));
        let queue = self.queue(&lent.queue);
        queue.lent = queue.lent.saturating_sub(1);
        let of_line = usize::from(lent.line.is_some());
        queue.lent_to_lines = queue.lent_to_lines.saturating_sub(of_line);
        Some(lent)
    }
}

impl Queue {
    pub(super) fn wait(&mut self, place: Place, waiting: Waiting) {
        if self.threads == 0 {
            self.places.insert(waiting.message.id.as_str().into(), place);
        }
        self.waiting.insert(place, waiting);
        self.arrived.notify_one();
        self.changed.notify_one();
    }

    /// Returns the size of the next message's body in bytes, at least 1.
    pub(super) fn next_bytes(&self) -> Option<usize> {
        self.waiting.first_key_value().map(|(_, first)| first.message.body.len().max(1))
    }

    /// Removes and returns the next message.
    pub(super) fn take(&mut self) -> Option<(Place, Waiting)> {
        let (place, first) = self.waiting.pop_first()?;
        if self.threads == 0 {
            self.places.remove(first.message.id.as_str());
        }
        Some((place, first))
    }
}
