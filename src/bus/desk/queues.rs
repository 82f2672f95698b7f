//! The queues of a desk: the messages that wait in them, those that are lent, and how many workers
//! there are for them.

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

/// What a desk knows of its messages.
#[derive(Default)]
pub(super) struct State {
    pub(super) queues: HashMap<Arc<str>, Queue>,
    /// The messages that are lent, by their ids.
    pub(super) lent: HashMap<Arc<str>, Lent>,
    /// When each lease ends.
    pub(super) ends: BTreeSet<(Instant, Arc<str>)>,
    /// Counts the messages, for their order.
    pub(super) taken: u64,
    pub(super) is_closed: bool,
}

/// A queue of a desk.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) waiting: BTreeMap<Place, Waiting>,
    /// Where the messages wait, by their ids; of a queue that no thread of this process serves.
    pub(super) places: HashMap<Arc<str>, Place>,
    /// How many of its messages are lent.
    pub(super) lent: usize,
    /// Threads of this process that serve it.
    pub(super) threads: usize,
    /// How many of those are lent to workers that stay.
    pub(super) lent_to_lines: usize,
    /// Workers that wait for a message now.
    pub(super) receivers: Arc<AtomicUsize>,
    /// Workers that stay, whether they wait or not.
    pub(super) lines: Arc<AtomicUsize>,
    /// When a worker asked last.
    pub(super) asked: Option<Instant>,
    /// A message has come, for threads and for workers elsewhere.
    pub(super) arrived: Arc<Condvar>,
    pub(super) changed: Arc<Notify>,
}

/// The order in a queue: the highest priority first, then who came first.
pub(super) type Place = (Reverse<u8>, u64);

/// A message that waits.
pub(super) struct Waiting {
    pub(super) message: Publication,
    /// How often it was lent.
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

    /// What is lent as this delivery; `line`: only if it is lent over this line.
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

    /// Has a message lent over this line from now on. Who had it over another one is told.
    pub(super) fn pass_on(&mut self, id: &str, line: &Line) {
        let Some(lent) = self.lent.get_mut(id).filter(|lent| !lent.is_over(line)) else { return };
        lent.tell(id, Why::LeaseEnded);
        let (before, queue) = (lent.line.replace(line.clone()), lent.queue.clone());
        self.queue(&queue).lent_to_lines += usize::from(before.is_none());
    }

    /// Takes the message with this id out of this queue, if it waits there.
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

    /// How many bytes the body of the next message has.
    pub(super) fn next_bytes(&self) -> Option<usize> {
        self.waiting.first_key_value().map(|(_, first)| first.message.body.len().max(1))
    }

    /// Takes out the next message.
    pub(super) fn take(&mut self) -> Option<(Place, Waiting)> {
        let (place, first) = self.waiting.pop_first()?;
        if self.threads == 0 {
            self.places.remove(first.message.id.as_str());
        }
        Some((place, first))
    }
}
