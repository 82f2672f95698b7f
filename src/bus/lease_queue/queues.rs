//! The state of a [`LeaseQueue`](super::LeaseQueue), which is all named queues of one bus: their
//! waiting messages, their messages in flight, and their workers.

use super::in_flight::InFlight;
use super::types::{NotLeased, QueuePosition, RevocationSender, RevokeReason};
use crate::publication::Publication;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The state of a lease queue: the named queues of one bus, and the messages in flight of all of
/// them.
#[derive(Default)]
pub(super) struct LeaseQueueState {
    pub(super) queues: HashMap<Arc<str>, Queue>,
    /// The messages in flight, by id.
    pub(super) in_flight: HashMap<Arc<str>, InFlight>,
    /// When each lease ends, with the id of its message.
    pub(super) lease_ends: BTreeSet<(Instant, Arc<str>)>,
    /// The number of messages that have arrived, which gives each its position.
    pub(super) arrivals: u64,
    pub(super) lending: Lending,
}

/// Whether messages are lent to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lending {
    #[default]
    Open,
    /// No worker receives a message for now: another process may lend them.
    Suspended,
    /// No worker receives a message any more.
    Closed,
}

/// One named queue.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) waiting: BTreeMap<QueuePosition, WaitingMessage>,
    /// The positions of waiting messages, by id. Empty if threads of this process serve the queue.
    pub(super) positions: HashMap<Arc<str>, QueuePosition>,
    /// The number of its messages in flight.
    pub(super) in_flight_count: usize,
    /// The number of threads of this process that serve it.
    pub(super) threads: usize,
    /// The number of its messages in flight that are leased to sessions.
    pub(super) in_flight_to_sessions: usize,
    /// The number of workers without a session that wait for a message now.
    pub(super) receivers: Arc<AtomicUsize>,
    /// The number of workers with a session, whether they wait or not.
    pub(super) sessions: Arc<AtomicUsize>,
    /// When a worker without a session last asked for a message.
    pub(super) last_receive: Option<Instant>,
    /// Notifies threads of this process when a message arrives.
    pub(super) thread_wakeup: Arc<Condvar>,
    /// Notifies those who lease messages when one arrives: workers in other programs, or on a push
    /// bus the endpoint's queue.
    pub(super) receiver_wakeup: Arc<Notify>,
}

/// A message that waits in its queue.
pub(super) struct WaitingMessage {
    pub(super) message: Publication,
    /// The number of its deliveries so far.
    pub(super) deliveries: u32,
    /// Since when it waits.
    pub(super) since: Instant,
}

impl LeaseQueueState {
    /// Returns the queue with this name, and creates it if it does not exist.
    pub(super) fn queue_or_new(&mut self, name: &Arc<str>) -> &mut Queue {
        self.queues.entry(name.clone()).or_default()
    }

    /// Returns the message that is in flight as this delivery.
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

    /// Returns the message that is in flight as this delivery; with `session`, only if that session
    /// has leased it.
    pub(super) fn find_in_flight_of_session(
        &mut self,
        session: Option<&RevocationSender>,
        id: &str,
        delivery: u32,
    ) -> Result<&mut InFlight, NotLeased> {
        let in_flight = self.find_in_flight(id, delivery)?;
        match session {
            Some(session) if !in_flight.is_leased_to(session) => Err(NotLeased::ToAnother),
            Some(_) | None => Ok(in_flight),
        }
    }

    /// Transfers a lease to this session, and notifies the session that had it before.
    pub(super) fn transfer_to_session(&mut self, id: &str, session: &RevocationSender) {
        let Some(in_flight) =
            self.in_flight.get_mut(id).filter(|in_flight| !in_flight.is_leased_to(session))
        else {
            return;
        };
        in_flight.notify_revoked(id, RevokeReason::LeaseEnded);
        let previous_session = in_flight.revocations.replace(session.clone());
        let queue = in_flight.queue.clone();
        self.queue_or_new(&queue).in_flight_to_sessions += usize::from(previous_session.is_none());
    }

    /// Removes and returns the message with this id, if it waits in this queue.
    pub(super) fn remove_waiting(
        &mut self,
        queue: &str,
        id: &str,
    ) -> Option<(QueuePosition, WaitingMessage)> {
        let queue_state = self.queues.get_mut(queue)?;
        let position = queue_state.positions.remove(id)?;
        queue_state.waiting.remove_entry(&position)
    }

    /// Removes and returns the message with this id, if it is in flight.
    pub(super) fn remove_in_flight(&mut self, id: &str) -> Option<InFlight> {
        let in_flight = self.in_flight.remove(id)?;
        self.lease_ends.remove(&(in_flight.until, id.into()));
        let queue = self.queue_or_new(&in_flight.queue);
        queue.in_flight_count = queue.in_flight_count.saturating_sub(1);
        if in_flight.revocations.is_some() {
            queue.in_flight_to_sessions = queue.in_flight_to_sessions.saturating_sub(1);
        }
        Some(in_flight)
    }
}

impl Queue {
    /// Adds a waiting message, and wakes one thread, and one of those who lease messages.
    pub(super) fn insert(&mut self, position: QueuePosition, waiting: WaitingMessage) {
        if self.threads == 0 {
            self.positions.insert(waiting.message.id.as_str().into(), position);
        }
        self.waiting.insert(position, waiting);
        self.thread_wakeup.notify_one();
        self.receiver_wakeup.notify_one();
    }

    /// Returns the size of the next message's body in bytes, at least 1; `None` if no message
    /// waits.
    pub(super) fn next_bytes(&self) -> Option<usize> {
        self.waiting.first_key_value().map(|(_, waiting)| waiting.message.body.len().max(1))
    }

    /// Removes and returns the next message.
    pub(super) fn take_first(&mut self) -> Option<(QueuePosition, WaitingMessage)> {
        let (position, waiting) = self.waiting.pop_first()?;
        if self.threads == 0 {
            self.positions.remove(waiting.message.id.as_str());
        }
        Some((position, waiting))
    }
}
