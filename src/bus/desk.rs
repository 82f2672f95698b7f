//! The lease queues of a bus in this process: the embedded bus has them, and so does the bus that
//! calls web services.
//!
//! A worker that takes a message has it until its lease ends. A message that is not settled by then
//! is leased again. Threads of this process take messages for good. Any thread may use a
//! [`LeaseQueue`].

mod desks;
mod leases;
mod lent;
mod lines;
mod loan;
mod queues;
mod receiving;
mod replies;

pub use desks::Desks;
pub use lines::{Counted, Ended, Line, Why};
pub use loan::{
    Borrower, LEASE_MAX, LeaseLook, Lending, Loan, NotCommitted, NotLent, Said, Told, reply_path,
};

use lent::Lent;
use queues::{Queue, State, Waiting};
use receiving::Next;

use super::{BusEvent, EventSink, LeaseLeft, Over, Publication, QueueLook};
use crate::clock;
use crate::room::Taken;
use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The priority of a message without one: the lowest, as in RabbitMQ.
const PRIORITY_DEFAULT: u8 = 0;

/// How long a worker that asked for messages and got none is counted as present.
const SEEN_FOR: Duration = Duration::from_secs(60);

/// All queues of one bus, whose messages are leased to workers.
pub struct Desk {
    state: Mutex<State>,
    /// Notified when another lease becomes the first to end, and when the lease queue closes.
    next_end: Notify,
    lending: Lending,
    sink: EventSink,
}

impl Desk {
    /// Creates a lease queue without messages, which reports to `sink`.
    pub fn new(lending: Lending, sink: EventSink) -> Desk {
        Desk { state: Mutex::default(), next_end: Notify::new(), lending, sink }
    }

    /// Puts a message into its queue. A message with a remaining lease stays in flight until that
    /// ends.
    pub(super) fn put(&self, message: Publication) {
        let now = clock::ticks();
        let mut state = self.state();
        state.taken += 1;
        let place = (Reverse(message.priority.unwrap_or(PRIORITY_DEFAULT)), state.taken);
        let queue = message.to.queue.clone();
        // A job that was rebuilt from the journal sends its messages again.
        if message.lease.is_some() && state.lent.contains_key(message.id.as_str()) {
            return;
        }
        state.take_waiting(&queue, &message.id);
        let deliveries = message.lease.map_or(0, |lease| lease.delivery);
        match message.lease {
            // A message that was delivered too often becomes a dead letter at the next check of
            // leases.
            Some(LeaseLeft { left, delivery })
                if !left.is_zero() || delivery >= self.lending.deliveries_max =>
            {
                // The wall clock may have been set back.
                let until = now + left.min(LEASE_MAX);
                let lent = Lent {
                    deliveries,
                    reported: Some(until),
                    ..Lent::new(message, place, delivery, self.lending.lease, until)
                };
                self.hold(&mut state, lent);
            }
            Some(_) | None => {
                state.queue(&queue).wait(place, Waiting { message, deliveries, since: now });
            }
        }
    }

    /// Sets how many threads of this process serve a queue.
    pub(super) fn staff(&self, queue: &Arc<str>, threads: usize) {
        self.state().queue(queue).threads = threads;
    }

    /// Takes the next message for good, and blocks until there is one. Returns `None` once the
    /// lease queue is closed.
    pub(super) fn next(&self, queue: &Arc<str>) -> Option<Publication> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            let queue = state.queue(queue);
            if let Some((_, first)) = queue.take() {
                return Some(first.message);
            }
            let arrived = queue.arrived.clone();
            state = arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Leases the next message of a queue, if there is one and the budget has room for it.
    /// `acquired` is a permit that was acquired for this, with its size in bytes.
    fn lend(&self, queue: &Arc<str>, borrower: &Borrower, taken: Option<(usize, Taken)>) -> Next {
        let now = clock::ticks();
        let mut state = self.state();
        let place_of = state.queue(queue);
        if borrower.line.is_none() {
            place_of.asked = Some(now);
        }
        let Some(bytes) = place_of.next_bytes() else { return Next::None };
        let taken = match (&borrower.room, taken) {
            (None, _) => None,
            (Some(_), Some((enough, taken))) if bytes <= enough => Some(taken),
            (Some(room), _) => match room.of(bytes).take(bytes) {
                Some(taken) => Some(taken),
                None => return Next::NoRoom(room.of(bytes).clone(), bytes),
            },
        };
        let Some((place, Waiting { message, deliveries, since })) = place_of.take() else {
            return Next::None;
        };
        let lease = borrower.lease.unwrap_or(self.lending.lease);
        let (until, delivery) = (now + lease, deliveries + 1);
        let loan = Loan {
            id: message.id.as_str().into(),
            correlation_id: message.correlation_id.clone(),
            priority: message.priority,
            timestamp_s: message.timestamp_s,
            headers: message.headers.clone(),
            body: message.body.clone(),
            delivery,
            until,
            waited: now.saturating_duration_since(since),
            room: taken,
        };
        let (worker, line) = (borrower.worker.clone(), borrower.line.clone());
        let lent = Lent { worker, line, ..Lent::new(message, place, delivery, lease, until) };
        self.hold(&mut state, lent);
        Next::Loan(loan)
    }

    /// Removes a waiting or in-flight message whose attempt was ended by a reply.
    pub fn forget(&self, queue: &Arc<str>, id: &str) {
        self.withdraw(queue, id, Over::Answered);
    }

    /// Removes a waiting or in-flight message whose attempt has ended. The session that has leased
    /// it is notified.
    pub(super) fn withdraw(&self, queue: &Arc<str>, id: &str, over: Over) {
        let mut state = self.state();
        match state.forget(id) {
            Some(lent) => lent.tell(id, Why::Over(over)),
            None => drop(state.take_waiting(queue, id)),
        }
    }

    /// Returns whether a message is in flight, or waits in this queue.
    pub(super) fn has(&self, queue: &str, id: &str) -> bool {
        let state = self.state();
        let is_waiting = |queue: &Queue| queue.places.contains_key(id);
        state.lent.contains_key(id) || state.queues.get(queue).is_some_and(is_waiting)
    }

    /// Returns how many messages of a queue wait, and how many are in flight.
    pub(super) fn counts(&self, queue: &str) -> (usize, usize) {
        let state = self.state();
        state.queues.get(queue).map_or((0, 0), |queue| (queue.waiting.len(), queue.lent))
    }

    /// Returns the leases of a queue that end first, at most `limit`.
    pub fn leases(&self, queue: &str, limit: usize) -> Vec<LeaseLook> {
        let state = self.state();
        let of_queue = state.ends.iter().filter_map(|(until, id)| {
            let lent = state.lent.get(id).filter(|lent| *lent.queue == *queue)?;
            Some(LeaseLook {
                id: id.clone(),
                worker: lent.worker.clone(),
                delivery: lent.delivery,
                until: *until,
            })
        });
        of_queue.take(limit).collect()
    }

    /// Removes an in-flight message so that it is not leased again: whoever has this delivery keeps
    /// it for good.
    pub(super) fn take_over(&self, id: &str, delivery: u32) -> Option<Publication> {
        let mut state = self.state();
        state.lent_as(id, delivery).ok()?;
        state.forget(id).map(|lent| lent.message)
    }

    /// Reports that the worker with this delivery starts on it. Used where leases are not reported.
    pub(super) fn begun(&self, id: &str, delivery: u32) {
        let mut state = self.state();
        let lent = state.lent_as(id, delivery).ok();
        if let Some(receipt) = lent.and_then(|lent| lent.message.receipt.again()) {
            (self.sink)(BusEvent::Begun(receipt));
        }
    }

    /// Removes a message of a queue if it waits.
    pub(super) fn forget_waiting(&self, queue: &str, id: &str) {
        self.state().take_waiting(queue, id);
    }

    /// Takes all waiting messages of a queue, for good.
    pub(super) fn take_waiting(&self, queue: &str) -> Vec<Publication> {
        let mut state = self.state();
        let Some(queue) = state.queues.get_mut(queue) else { return Vec::new() };
        std::iter::from_fn(|| queue.take()).map(|(_, waiting)| waiting.message).collect()
    }

    /// Returns the number of messages that wait or are in flight.
    pub(super) fn unsettled(&self) -> usize {
        let state = self.state();
        state.queues.values().map(|queue| queue.waiting.len() + queue.lent).sum()
    }

    /// Returns the status of a queue.
    pub(super) fn look(&self, queue: &Arc<str>) -> QueueLook {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut state = self.state();
        let queue = state.queue(queue);
        let is_seen = queue.asked.is_some_and(|at| at.elapsed() < SEEN_FOR);
        let lines = queue.lines.load(Ordering::Relaxed);
        let receivers = queue.receivers.load(Ordering::Relaxed).max(usize::from(is_seen));
        // A worker without a session has one message, or waits for one.
        let others = receivers.max(queue.lent.saturating_sub(queue.lent_to_lines));
        QueueLook::There {
            messages: count(queue.waiting.len()),
            unacknowledged: Some(queue.lent as u64),
            consumers: count(queue.threads + lines + others),
            is_full: false,
        }
    }

    /// Closes the queues: nobody gets a message any more.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for queue in state.queues.values() {
            queue.arrived.notify_all();
            queue.changed.notify_waiters();
        }
        self.next_end.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
