//! Sessions of workers, and the release of messages. A worker with a session is notified when one
//! of its leases is revoked, and may release messages on which it has not begun to work.

use super::LeaseQueue;
use super::in_flight::InFlight;
use super::queues::{Lending, Queue, WaitingMessage};
use super::types::{NotLeased, RevocationSender, WorkerCountGuard};
use crate::event::BusEvent;
use crate::publication::RemainingLease;
use base::clock;
use std::sync::Arc;
use std::time::Duration;

impl LeaseQueue {
    /// Counts a session as a worker of this queue until the returned guard is dropped.
    pub fn register_session(&self, queue: &Arc<str>) -> WorkerCountGuard {
        WorkerCountGuard::new(&self.state().queue_or_new(queue).sessions)
    }

    /// Returns whether a message of this queue waits or is in flight.
    pub fn has_message_in(&self, queue: &str, id: &str) -> bool {
        let state = self.state();
        let is_waiting = |queue: &Queue| queue.positions.contains_key(id);
        state.in_flight.get(id).is_some_and(|in_flight| *in_flight.queue == *queue)
            || state.queues.get(queue).is_some_and(is_waiting)
    }

    /// Returns whether the lease queue is closed: no worker receives a message any more.
    pub fn is_closed(&self) -> bool {
        self.state().lending == Lending::Closed
    }

    /// Returns whether messages are lent to workers now.
    pub fn is_lending(&self) -> bool {
        self.state().lending == Lending::Open
    }

    /// Returns whether this session has leased this delivery of a message.
    pub fn is_leased_to(&self, id: &str, delivery: u32, session: &RevocationSender) -> bool {
        self.state().find_in_flight_of_session(Some(session), id, delivery).is_ok()
    }

    /// Requeues a message whose worker has not begun to work on it, without counting the delivery.
    /// With `session`, only if that session has leased it.
    ///
    /// # Errors
    ///
    /// Returns an error if this delivery is not leased any more, or if another session has leased
    /// it.
    pub fn release(
        &self,
        id: &str,
        delivery: u32,
        session: Option<&RevocationSender>,
    ) -> Result<(), NotLeased> {
        let mut state = self.state();
        state.find_in_flight_of_session(session, id, delivery)?;
        let Some(in_flight) = state.remove_in_flight(id) else { return Err(NotLeased::NotFound) };
        let InFlight { queue, position, message, deliveries, reported_until, .. } = in_flight;
        let deliveries = deliveries - 1;
        // Report that the lease has ended, so that the message is not in flight after a restart.
        if let (Some(_), Some(confirm_token)) = (reported_until, message.confirm_token.try_clone())
        {
            let lease = RemainingLease { delivery: deliveries, remaining: Duration::ZERO };
            (self.sink)(BusEvent::Leased { confirm_token, lease });
        }
        let waiting = WaitingMessage { message, deliveries, since: clock::timer_now() };
        state.queue_or_new(&queue).insert(position, waiting);
        Ok(())
    }
}
