//! The life cycle of leases: extends, reports and expires them, and requeues their messages.

use super::LeaseQueue;
use super::in_flight::InFlight;
use super::queues::{LeaseQueueState, WaitingMessage};
use super::types::{NotLeased, RevocationSender, RevokeReason};
use crate::publication::Publication;
use base::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A lease is reported as longer than it is, by its length divided by this. So not every extension
/// needs a report.
const REPORT_SLACK_DIVISOR: u32 = 8;

impl LeaseQueue {
    /// Sets a lease to end after the duration `lease` from now, and returns when it ends. With
    /// `None`, the duration is the one for which it was granted, and the lease never becomes
    /// shorter. A waiting message, whose lease has ended or was lost by a restart, is leased again
    /// under the same delivery number. With `session`, the lease is transferred to that session,
    /// and the session that had it before is notified.
    ///
    /// # Errors
    ///
    /// Returns an error if another delivery of the message is in flight, if the message is neither
    /// in flight nor waiting, if threads of this process serve its queue, or if no delivery can
    /// have this number.
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
                if let Some(session) = session {
                    state.transfer_to_session(id, session);
                }
                return Ok(until);
            }
            Err(NotLeased::NotFound) => {}
            Err(NotLeased::ToAnother) => return Err(NotLeased::ToAnother),
        }
        // A client has sent the number, and the next deliveries are counted from it.
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

    /// Returns a message to its queue after `delay`, by setting its lease to end then. With
    /// `session`, only if that session has leased it.
    ///
    /// # Errors
    ///
    /// Returns an error if this delivery is not leased any more, or if another session has leased
    /// it.
    pub fn requeue_after(
        &self,
        id: &str,
        delivery: u32,
        delay: Duration,
        session: Option<&RevocationSender>,
    ) -> Result<(), NotLeased> {
        let mut state = self.state();
        state.find_in_flight_of_session(session, id, delivery)?;
        self.set_lease(&mut state, id, delivery, Some(delay)).map(drop)
    }

    /// Requeues the messages whose leases have ended. Those that were delivered too often are
    /// removed instead, and passed to `handle_dead_letter`. Returns when the next lease ends;
    /// `None` if there is no lease.
    fn requeue_expired(&self, mut handle_dead_letter: impl FnMut(Publication)) -> Option<Instant> {
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
                handle_dead_letter(message);
                continue;
            }
            let waiting = WaitingMessage { message, deliveries, since: now };
            state.queue_or_new(&in_flight.queue).insert(in_flight.position, waiting);
        }
        None
    }

    /// Requeues messages when their leases end, until the lease queue is closed. Messages that were
    /// delivered too often are passed to `handle_dead_letter`.
    pub(crate) async fn run_lease_expiry(
        lease_queue: Arc<LeaseQueue>,
        mut handle_dead_letter: impl FnMut(Publication),
    ) {
        while !lease_queue.is_closed() {
            match lease_queue.requeue_expired(&mut handle_dead_letter) {
                None => lease_queue.next_end_changed.notified().await,
                Some(next_end) => tokio::select! {
                    () = lease_queue.next_end_changed.notified() => {}
                    () = tokio::time::sleep_until(next_end) => {}
                },
            }
        }
    }

    /// Adds a message in flight, reports its lease, and schedules its end.
    pub(super) fn insert_in_flight(&self, state: &mut LeaseQueueState, mut in_flight: InFlight) {
        let id: Arc<str> = in_flight.message.id.as_str().into();
        // A message with this id may be in flight already, if it was dispatched once more.
        if let Some(previous) = state.remove_in_flight(&id) {
            previous.notify_revoked(&id, RevokeReason::LeaseEnded);
        }
        let queue = state.queue_or_new(&in_flight.queue);
        queue.in_flight_count += 1;
        queue.in_flight_to_sessions += usize::from(in_flight.revocations.is_some());
        let (lease, until) = (in_flight.lease, in_flight.until);
        self.report_lease(&mut in_flight, lease);
        state.in_flight.insert(id.clone(), in_flight);
        self.schedule_end(state, until, id);
    }

    /// Sets the lease of a delivery to end after the duration `lease` from now, and returns when it
    /// ends. With `None`, the duration is the one for which it was granted.
    fn set_lease(
        &self,
        state: &mut LeaseQueueState,
        id: &str,
        delivery: u32,
        lease: Option<Duration>,
    ) -> Result<Instant, NotLeased> {
        let in_flight = state.find_in_flight(id, delivery)?;
        let (previous_end, now) = (in_flight.until, clock::timer_now());
        let until = match lease {
            Some(lease) => now + lease,
            // Without an explicit duration a lease never becomes shorter.
            None => previous_end.max(now + in_flight.lease),
        };
        in_flight.until = until;
        self.report_lease(in_flight, until.saturating_duration_since(now));
        state.lease_ends.remove(&(previous_end, id.into()));
        self.schedule_end(state, until, id.into());
        Ok(until)
    }

    /// Reports the end of a lease of this length, if leases are reported and the last report is no
    /// longer valid.
    fn report_lease(&self, in_flight: &mut InFlight, lease: Duration) {
        if self.policy.reports_leases
            && let Some(event) = in_flight.record_report(lease / REPORT_SLACK_DIVISOR)
        {
            (self.sink)(event);
        }
    }

    /// Schedules the end of a lease, and wakes the expiry task if it is the earliest.
    fn schedule_end(&self, state: &mut LeaseQueueState, until: Instant, id: Arc<str>) {
        state.lease_ends.insert((until, id));
        if state.lease_ends.first().is_some_and(|(first, _)| *first == until) {
            self.next_end_changed.notify_one();
        }
    }
}
