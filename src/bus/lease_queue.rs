//! Lease queues: the queues in this process of the embedded bus and of push buses.
//!
//! One [`LeaseQueue`] holds all named queues of one bus. A message is leased to a worker: it is in
//! flight until it is settled or withdrawn, or the lease ends. If the lease ends, the message waits
//! in its queue again, or becomes a dead letter if it was delivered too often. Threads of this
//! process take messages without a lease. A [`LeaseQueue`] can be used from any thread.

mod in_flight;
mod leases;
mod queues;
mod receive;
mod replies;
mod revocation;
mod types;

pub use types::{
    LEASE_MAX, LeasePolicy, LeaseRevocation, LeaseStatus, LeasedMessage, NotCommitted, NotLeased,
    ReceiveOptions, ReplyOutcome, RevocationSender, RevokeReason, WorkerCountGuard, WorkerReply,
    reply_path,
};

use in_flight::InFlight;
use queues::{LeaseQueueState, Lending, Queue, WaitingMessage};
use types::LeaseResult;

use crate::event::{BusEvent, EventSink};
use crate::publication::{Publication, RemainingLease};
use crate::queue_status::QueueStatus;
use crate::transport::AttemptEnd;
use base::budget::Permit;
use base::clock;
use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The priority of a message without one: the lowest, as in RabbitMQ.
const PRIORITY_DEFAULT: u8 = 0;

/// How long a worker without a session is counted as a consumer after it last asked for a message.
const RECEIVER_COUNTED_FOR: Duration = Duration::from_secs(60);

/// All named queues of one bus, with the leases of their messages. Methods that concern one queue
/// take its name.
pub struct LeaseQueue {
    state: Mutex<LeaseQueueState>,
    /// Notified when a lease is set that ends before all others, and when the lease queue closes.
    next_end_changed: Notify,
    policy: LeasePolicy,
    sink: EventSink,
}

impl LeaseQueue {
    /// Creates a lease queue without messages, which reports to `sink`.
    pub fn new(policy: LeasePolicy, sink: EventSink) -> LeaseQueue {
        LeaseQueue { state: Mutex::default(), next_end_changed: Notify::new(), policy, sink }
    }

    /// Adds a message to its queue. A message with a remaining lease is in flight until the lease
    /// ends.
    pub(super) fn enqueue(&self, message: Publication) {
        let now = clock::timer_now();
        let mut state = self.state();
        state.arrivals += 1;
        let position = (Reverse(message.priority.unwrap_or(PRIORITY_DEFAULT)), state.arrivals);
        let queue = message.address.queue.clone();
        // A job that was rebuilt from the journal sends its messages again.
        if message.lease.is_some() && state.in_flight.contains_key(message.id.as_str()) {
            return;
        }
        state.remove_waiting(&queue, &message.id);
        let deliveries = message.lease.map_or(0, |lease| lease.delivery);
        match message.lease {
            // A message that was delivered too often is in flight too, so that the end of its lease
            // turns it into a dead letter.
            Some(RemainingLease { remaining, delivery })
                if !remaining.is_zero() || delivery >= self.policy.deliveries_max =>
            {
                // The remaining time is too long if the wall clock was set back.
                let until = now + remaining.min(LEASE_MAX);
                let in_flight = InFlight {
                    deliveries,
                    reported_until: Some(until),
                    ..InFlight::new(message, position, delivery, self.policy.lease, until)
                };
                self.insert_in_flight(&mut state, in_flight);
            }
            Some(_) | None => {
                state
                    .queue_or_new(&queue)
                    .insert(position, WaitingMessage { message, deliveries, since: now });
            }
        }
    }

    /// Sets how many threads of this process serve a queue.
    pub(super) fn set_thread_count(&self, queue: &Arc<str>, threads: usize) {
        self.state().queue_or_new(queue).threads = threads;
    }

    /// Takes the next message without a lease, and blocks until there is one. Returns `None` once
    /// the lease queue is closed.
    pub(super) fn take_blocking(&self, queue: &Arc<str>) -> Option<Publication> {
        let mut state = self.state();
        loop {
            let lending = state.lending;
            let queue_state = state.queue_or_new(queue);
            match lending {
                Lending::Closed => return None,
                Lending::Suspended => {}
                Lending::Open => {
                    if let Some((_, waiting)) = queue_state.take_first() {
                        return Some(waiting.message);
                    }
                }
            }
            let thread_wakeup = queue_state.thread_wakeup.clone();
            state = thread_wakeup.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Leases the next message of a queue, if there is one and the budget has a permit for it.
    /// `acquired_permit` is one that the caller has acquired before, with its size in bytes.
    fn try_lease(
        &self,
        queue: &Arc<str>,
        options: &ReceiveOptions,
        acquired_permit: Option<(usize, Permit)>,
    ) -> LeaseResult {
        let now = clock::timer_now();
        let mut state = self.state();
        let queue_state = state.queue_or_new(queue);
        if options.revocations.is_none() {
            queue_state.last_receive = Some(now);
        }
        let Some(bytes) = queue_state.next_bytes() else { return LeaseResult::Empty };
        let permit = match (&options.budget, acquired_permit) {
            (None, _) => None,
            (Some(_), Some((acquired_bytes, permit))) if bytes <= acquired_bytes => Some(permit),
            (Some(budget), _) => match budget.for_size(bytes).try_acquire(bytes) {
                Some(permit) => Some(permit),
                None => return LeaseResult::OverBudget(budget.for_size(bytes).clone(), bytes),
            },
        };
        let Some((position, WaitingMessage { message, deliveries, since })) =
            queue_state.take_first()
        else {
            return LeaseResult::Empty;
        };
        let lease = options.lease.unwrap_or(self.policy.lease);
        let (until, delivery) = (now + lease, deliveries + 1);
        let leased = LeasedMessage {
            id: message.id.as_str().into(),
            correlation_id: message.correlation_id.clone(),
            priority: message.priority,
            timestamp_s: message.timestamp_s,
            headers: message.headers.clone(),
            body: message.body.clone(),
            delivery,
            until,
            waited: now.saturating_duration_since(since),
            permit,
        };
        let (worker, revocations) = (options.worker.clone(), options.revocations.clone());
        let in_flight = InFlight {
            worker,
            revocations,
            ..InFlight::new(message, position, delivery, lease, until)
        };
        self.insert_in_flight(&mut state, in_flight);
        LeaseResult::Leased(leased)
    }

    /// Removes a waiting or in-flight message whose attempt was ended by a reply.
    pub fn remove(&self, queue: &Arc<str>, id: &str) {
        self.withdraw(queue, id, AttemptEnd::Answered);
    }

    /// Removes a waiting or in-flight message whose attempt has ended. The session that has leased
    /// it is notified.
    pub(super) fn withdraw(&self, queue: &Arc<str>, id: &str, end: AttemptEnd) {
        let mut state = self.state();
        match state.remove_in_flight(id) {
            Some(in_flight) => in_flight.notify_revoked(id, RevokeReason::AttemptEnded(end)),
            None => drop(state.remove_waiting(queue, id)),
        }
    }

    /// Returns whether a message is in flight, or waits in this queue.
    pub(super) fn has_message(&self, queue: &str, id: &str) -> bool {
        let state = self.state();
        let is_waiting = |queue: &Queue| queue.positions.contains_key(id);
        state.in_flight.contains_key(id) || state.queues.get(queue).is_some_and(is_waiting)
    }

    /// Returns the number of waiting messages of a queue, and the number of those in flight.
    pub(super) fn waiting_and_in_flight(&self, queue: &str) -> (usize, usize) {
        let state = self.state();
        state.queues.get(queue).map_or((0, 0), |queue| (queue.waiting.len(), queue.in_flight_count))
    }

    /// Returns at most `limit` leases of a queue: those that end first, in the order of their ends.
    pub fn leases(&self, queue: &str, limit: usize) -> Vec<LeaseStatus> {
        let state = self.state();
        let leases = state.lease_ends.iter().filter_map(|(until, id)| {
            let in_flight =
                state.in_flight.get(id).filter(|in_flight| *in_flight.queue == *queue)?;
            Some(LeaseStatus {
                id: id.clone(),
                worker: in_flight.worker.clone(),
                delivery: in_flight.delivery,
                until: *until,
            })
        });
        leases.take(limit).collect()
    }

    /// Removes and returns the message that is in flight as this delivery. It is never leased
    /// again.
    pub(super) fn take_in_flight(&self, id: &str, delivery: u32) -> Option<Publication> {
        let mut state = self.state();
        state.find_in_flight(id, delivery).ok()?;
        state.remove_in_flight(id).map(|in_flight| in_flight.message)
    }

    /// Reports that a message that is in flight as this delivery is handed over to its worker now.
    /// This is for buses that do not report leases.
    pub(super) fn report_handed_over(&self, id: &str, delivery: u32) {
        let mut state = self.state();
        let in_flight = state.find_in_flight(id, delivery).ok();
        if let Some(confirm_token) =
            in_flight.and_then(|in_flight| in_flight.message.confirm_token.try_clone())
        {
            (self.sink)(BusEvent::HandedOver(confirm_token));
        }
    }

    /// Removes a message of a queue if it is waiting.
    pub(super) fn remove_waiting(&self, queue: &str, id: &str) {
        self.state().remove_waiting(queue, id);
    }

    /// Removes and returns all waiting messages of a queue.
    pub(super) fn drain_waiting(&self, queue: &str) -> Vec<Publication> {
        let mut state = self.state();
        let Some(queue_state) = state.queues.get_mut(queue) else { return Vec::new() };
        let waiting_messages = std::iter::from_fn(|| queue_state.take_first());
        waiting_messages.map(|(_, waiting)| waiting.message).collect()
    }

    /// Returns the number of messages of all queues that are waiting or in flight.
    pub(super) fn unsettled(&self) -> usize {
        let state = self.state();
        state.queues.values().map(|queue| queue.waiting.len() + queue.in_flight_count).sum()
    }

    /// Returns the status of a queue.
    pub(super) fn inspect(&self, queue: &Arc<str>) -> QueueStatus {
        let to_u32 = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut state = self.state();
        let queue_state = state.queue_or_new(queue);
        let has_recent_receive = queue_state
            .last_receive
            .is_some_and(|instant| instant.elapsed() < RECEIVER_COUNTED_FOR);
        let sessions = queue_state.sessions.load(Ordering::Relaxed);
        let receivers =
            queue_state.receivers.load(Ordering::Relaxed).max(usize::from(has_recent_receive));
        // Assumes that a worker without a session either has one message or waits for one.
        let workers_without_session = receivers
            .max(queue_state.in_flight_count.saturating_sub(queue_state.in_flight_to_sessions));
        QueueStatus::Exists {
            messages: to_u32(queue_state.waiting.len()),
            unacknowledged: Some(queue_state.in_flight_count as u64),
            consumers: to_u32(queue_state.threads + sessions + workers_without_session),
            is_full: false,
        }
    }

    /// Closes the queues: no worker receives a message any more.
    pub(super) fn close(&self) {
        let mut state = self.state();
        self.set_lending(&mut state, Lending::Closed);
        self.next_end_changed.notify_one();
    }

    /// Suspends the lending of messages, or resumes it. Workers that wait for one return without.
    pub(super) fn set_suspended(&self, is_suspended: bool) {
        let mut state = self.state();
        if state.lending != Lending::Closed {
            let lending = if is_suspended { Lending::Suspended } else { Lending::Open };
            self.set_lending(&mut state, lending);
        }
    }

    fn set_lending(&self, state: &mut LeaseQueueState, lending: Lending) {
        state.lending = lending;
        for queue in state.queues.values() {
            queue.thread_wakeup.notify_all();
            queue.receiver_wakeup.notify_waiters();
        }
    }

    /// Locks the state.
    fn state(&self) -> MutexGuard<'_, LeaseQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
