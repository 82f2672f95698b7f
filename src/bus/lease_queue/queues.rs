//! The state of a lease queue: the messages that wait, those that are in flight, and the workers.

use super::in_flight::InFlight;
use super::types::{NotLeased, QueuePosition, RevocationSender, RevokeReason};
use crate::publication::Publication;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The messages of all queues of a bus.
#[derive(Default)]
pub(super) struct LeaseQueueState {
    pub(super) queues: HashMap<Arc<str>, Queue>,
    /// The messages in flight, by id.
    pub(super) in_flight: HashMap<Arc<str>, InFlight>,
    /// When each lease ends, with the id of its message.
    pub(super) lease_ends: BTreeSet<(Instant, Arc<str>)>,
    /// Counts messages, to keep their order.
    pub(super) arrivals: u64,
    pub(super) is_closed: bool,
}

/// One named queue.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) waiting: BTreeMap<QueuePosition, WaitingMessage>,
    /// The positions of waiting messages, by id. Not kept if threads of this process serve the
    /// queue.
    pub(super) positions: HashMap<Arc<str>, QueuePosition>,
    /// How many of its messages are in flight.
    pub(super) in_flight: usize,
    /// How many threads of this process serve it.
    pub(super) threads: usize,
    /// How many of the messages in flight are leased to sessions.
    pub(super) in_flight_to_sessions: usize,
    /// How many workers wait for a message now.
    pub(super) receivers: Arc<AtomicUsize>,
    /// How many workers with a session are there, whether they wait or not.
    pub(super) sessions: Arc<AtomicUsize>,
    /// When a worker last asked for a message.
    pub(super) last_receive: Option<Instant>,
    /// Notified when a message arrives, for threads of this process (`arrived`) and for workers
    /// elsewhere.
    pub(super) arrived: Arc<Condvar>,
    pub(super) message_arrived: Arc<Notify>,
}

/// A message that waits in its queue.
pub(super) struct WaitingMessage {
    pub(super) message: Publication,
    /// How often it was leased.
    pub(super) deliveries: u32,
    pub(super) since: Instant,
}

impl LeaseQueueState {
    pub(super) fn queue(&mut self, name: &Arc<str>) -> &mut Queue {
        self.queues.entry(name.clone()).or_default()
    }

    pub(super) fn find_in_flight(
        &mut self,
        id: &str,
        delivery: u32,
    ) -> Result<&mut InFlight, NotLeased> {
        match self.in_flight.get_mut(id) {
            Some(in_flight) if in_flight.delivery == delivery => Ok(in_flight),
            Some(_) => Err(NotLeased::ToAnother),
            None => Err(NotLeased::NotFound),
        }
    }

    /// Returns the message in flight as this delivery; with `revocations` only if that session has
    /// it.
    pub(super) fn find_in_flight_over(
        &mut self,
        revocations: Option<&RevocationSender>,
        id: &str,
        delivery: u32,
    ) -> Result<&mut InFlight, NotLeased> {
        let in_flight = self.find_in_flight(id, delivery)?;
        match revocations {
            Some(session) if !in_flight.is_leased_to(session) => Err(NotLeased::ToAnother),
            Some(_) | None => Ok(in_flight),
        }
    }

    /// Transfers a lease to this session, and notifies the session that had it before.
    pub(super) fn transfer_to_session(&mut self, id: &str, session: &RevocationSender) {
        let Some(in_flight) =
            self.in_flight.get_mut(id).filter(|candidate| !candidate.is_leased_to(session))
        else {
            return;
        };
        in_flight.notify_revoked(id, RevokeReason::LeaseEnded);
        let (previous, queue) =
            (in_flight.revocations.replace(session.clone()), in_flight.queue.clone());
        self.queue(&queue).in_flight_to_sessions += usize::from(previous.is_none());
    }

    /// Removes the message with this id if it waits in this queue.
    pub(super) fn remove_waiting(
        &mut self,
        queue: &str,
        id: &str,
    ) -> Option<(QueuePosition, WaitingMessage)> {
        let queue = self.queues.get_mut(queue)?;
        let position = queue.positions.remove(id)?;
        queue.waiting.remove_entry(&position)
    }

    pub(super) fn remove_in_flight(&mut self, id: &str) -> Option<InFlight> {
        let in_flight = self.in_flight.remove(id)?;
        self.lease_ends.remove(&(in_flight.until, id.into()));
        let queue = self.queue(&in_flight.queue);
        queue.in_flight = queue.in_flight.saturating_sub(1);
        let to_session = usize::from(in_flight.revocations.is_some());
        queue.in_flight_to_sessions = queue.in_flight_to_sessions.saturating_sub(to_session);
        Some(in_flight)
    }
}

impl Queue {
    pub(super) fn insert(&mut self, position: QueuePosition, waiting: WaitingMessage) {
        if self.threads == 0 {
            self.positions.insert(waiting.message.id.as_str().into(), position);
        }
        self.waiting.insert(position, waiting);
        self.arrived.notify_one();
        self.message_arrived.notify_one();
    }

    /// Returns the size of the next message's body in bytes, at least 1.
    pub(super) fn next_bytes(&self) -> Option<usize> {
        self.waiting.first_key_value().map(|(_, first)| first.message.body.len().max(1))
    }

    /// Removes and returns the next message.
    pub(super) fn take_first(&mut self) -> Option<(QueuePosition, WaitingMessage)> {
        let (position, first) = self.waiting.pop_first()?;
        if self.threads == 0 {
            self.positions.remove(first.message.id.as_str());
        }
        Some((position, first))
    }
}
