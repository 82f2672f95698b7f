//! Leases: how they begin, are extended, reported and end.

use super::LeaseQueue;
use super::in_flight::InFlight;
use super::queues::{LeaseQueueState, WaitingMessage};
use super::types::{NotLeased, RevocationSender, RevokeReason};
use crate::publication::Publication;
use base::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A lease is reported as longer than it is by the lease divided by this, so that not every
/// extension needs a report.
const REPORT_SLACK_DIVISOR: u32 = 8;

impl LeaseQueue {
    /// Extends a lease to end after `lease` from now, and returns when it ends. A waiting message,
    /// whose lease has ended or was lost by a restart, is leased again under the same delivery
    /// number. With `session`, that session has the message from now on, and any other session that
    /// had it is notified.
    ///
    /// # Errors
    ///
    /// This delivery is not in flight and the message does not wait; or threads serve its queue; or
    /// no delivery can have this number.
    pub fn extend(
        &self,
        queue: &Arc<str>,
        id: &str,
        delivery: u32,
        lease: Option<Duration>,
        session: Option<&RevocationSender>,
    ) -> Result<Instant, NotLeased> {
        let mut state = self.state();
        match self.set_lease(&mut state, id, delivery, lease) {
            Ok(until) => {
                session
                    .into_iter()
                    .for_each(|new_session| state.transfer_to_session(id, new_session));
                return Ok(until);
            }
            Err(NotLeased::NotFound) => {}
            Err(NotLeased::ToAnother) => return Err(NotLeased::ToAnother),
        }
        // The number comes from a client, and is counted on from here.
        if !(1..=self.policy.deliveries_max).contains(&delivery) {
            return Err(NotLeased::NotFound);
        }
        let waiting = state.remove_waiting(queue, id).ok_or(NotLeased::NotFound)?;
        let (position, WaitingMessage { message, deliveries, .. }) = waiting;
        let lease = lease.unwrap_or(self.policy.lease);
        let (until, deliveries) = (clock::timer_now() + lease, deliveries.max(delivery));
        let revocations = session.cloned();
        let in_flight = InFlight {
            deliveries,
            revocations,
            ..InFlight::new(message, position, delivery, lease, until)
        };
        self.insert_in_flight(&mut state, in_flight);
        Ok(until)
    }

    /// Returns a message to its queue after the time `after`, when its lease ends. With `session`:
    /// only if that session has leased it.
    ///
    /// # Errors
    ///
    /// This delivery is not leased any more, or another session has it.
    pub fn requeue_after(
        &self,
        id: &str,
        delivery: u32,
        after: Duration,
        session: Option<&RevocationSender>,
    ) -> Result<(), NotLeased> {
        let mut state = self.state();
        state.find_in_flight_over(session, id, delivery)?;
        self.set_lease(&mut state, id, delivery, Some(after)).map(drop)
    }

    /// Requeues the messages whose leases have ended, and gives those that were delivered too often
    /// to `dead`. Returns when the next lease ends.
    fn requeue_expired(&self, mut dead: impl FnMut(Publication)) -> Option<Instant> {
        let now = clock::timer_now();
        let mut state = self.state();
        while let Some((until, _)) = state.lease_ends.first() {
            if *until > now {
                return Some(*until);
            }
            let Some((_, id)) = state.lease_ends.pop_first() else { continue };
            let Some(in_flight) = state.remove_in_flight(&id) else { continue };
            in_flight.notify_revoked(&id, RevokeReason::LeaseEnded);
            let InFlight { message, deliveries, .. } = in_flight;
            if deliveries >= self.policy.deliveries_max {
                dead(message);
                continue;
            }
            let waiting = WaitingMessage { message, deliveries, since: now };
            state.queue(&in_flight.queue).insert(in_flight.position, waiting);
        }
        None
    }

    /// Ends leases on time until the lease queue is closed. Messages that were delivered too often
    /// go to `dead`.
    pub(crate) async fn run_lease_expiry(
        lease_queue: Arc<LeaseQueue>,
        mut dead: impl FnMut(Publication),
    ) {
        while !lease_queue.state().is_closed {
            let next = lease_queue.requeue_expired(&mut dead);
            match next {
                None => lease_queue.next_end_changed.notified().await,
                Some(at) => tokio::select! {
                    () = lease_queue.next_end_changed.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    /// Puts a message in flight until its lease ends.
    pub(super) fn insert_in_flight(&self, state: &mut LeaseQueueState, mut in_flight: InFlight) {
        let id: Arc<str> = in_flight.message.id.as_str().into();
        // A message with this id may be in flight already, if it was dispatched once more.
        if let Some(previous) = state.remove_in_flight(&id) {
            previous.notify_revoked(&id, RevokeReason::LeaseEnded);
        }
        let queue = state.queue(&in_flight.queue);
        queue.in_flight += 1;
        queue.in_flight_to_sessions += usize::from(in_flight.revocations.is_some());
        let (lease, until) = (in_flight.lease, in_flight.until);
        self.report_lease(&mut in_flight, lease);
        state.in_flight.insert(id.clone(), in_flight);
        self.schedule_end(state, until, id);
    }

    /// Sets the lease of a delivery to end after `lease` from now, and returns when it ends.
    fn set_lease(
        &self,
        state: &mut LeaseQueueState,
        id: &str,
        delivery: u32,
        lease: Option<Duration>,
    ) -> Result<Instant, NotLeased> {
        let in_flight = state.find_in_flight(id, delivery)?;
        let (before, now) = (in_flight.until, clock::timer_now());
        // Without an explicit time a lease never becomes shorter.
        let until = match lease {
            Some(lease) => now + lease,
            None => before.max(now + in_flight.lease),
        };
        let left = until.saturating_duration_since(now);
        in_flight.until = until;
        self.report_lease(in_flight, left);
        state.lease_ends.remove(&(before, id.into()));
        self.schedule_end(state, until, id.into());
        Ok(until)
    }

    fn report_lease(&self, in_flight: &mut InFlight, lease: Duration) {
        if self.policy.reports_leases
            && let Some(event) = in_flight.next_report(lease / REPORT_SLACK_DIVISOR)
        {
            (self.sink)(event);
        }
    }

    fn schedule_end(&self, state: &mut LeaseQueueState, until: Instant, id: Arc<str>) {
        state.lease_ends.insert((until, id));
        if state.lease_ends.first().is_some_and(|(first, _)| *first == until) {
            self.next_end_changed.notify_one();
        }
    }
}
