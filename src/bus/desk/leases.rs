//! Leases: how they begin, are extended, reported and end.

use super::lent::Lent;
use super::lines::{Line, Why};
use super::queues::{State, Waiting};
use super::{Desk, NotLent};
use crate::bus::Publication;
use crate::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A lease is reported as longer than it is by the lease divided by this, so that not every
/// extension needs a report.
const REPORTED_LONGER_BY: u32 = 8;

impl Desk {
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
        line: Option<&Line>,
    ) -> Result<Instant, NotLent> {
        let mut state = self.state();
        match self.end_in(&mut state, id, delivery, lease) {
            Ok(until) => {
                line.into_iter().for_each(|line| state.pass_on(id, line));
                return Ok(until);
            }
            Err(NotLent::NotThere) => {}
            Err(NotLent::ToAnother) => return Err(NotLent::ToAnother),
        }
        // The number comes from a client, and is counted on from here.
        if !(1..=self.lending.deliveries_max).contains(&delivery) {
            return Err(NotLent::NotThere);
        }
        let waiting = state.take_waiting(queue, id).ok_or(NotLent::NotThere)?;
        let (place, Waiting { message, deliveries, .. }) = waiting;
        let lease = lease.unwrap_or(self.lending.lease);
        let (until, deliveries) = (clock::ticks() + lease, deliveries.max(delivery));
        let line = line.cloned();
        let lent = Lent { deliveries, line, ..Lent::new(message, place, delivery, lease, until) };
        self.hold(&mut state, lent);
        Ok(until)
    }

    /// Returns a message to its queue after the time `after`, when its lease ends. With `session`:
    /// only if that session has leased it.
    ///
    /// # Errors
    ///
    /// This delivery is not leased any more, or another session has it.
    pub fn give_back(
        &self,
        id: &str,
        delivery: u32,
        after: Duration,
        line: Option<&Line>,
    ) -> Result<(), NotLent> {
        let mut state = self.state();
        state.lent_over(line, id, delivery)?;
        self.end_in(&mut state, id, delivery, Some(after)).map(drop)
    }

    /// Requeues the messages whose leases have ended, and gives those that were delivered too often
    /// to `dead`. Returns when the next lease ends.
    fn put_back_ended(&self, mut dead: impl FnMut(Publication)) -> Option<Instant> {
        let now = clock::ticks();
        let mut state = self.state();
        while let Some((until, _)) = state.ends.first() {
            if *until > now {
                return Some(*until);
            }
            let Some((_, id)) = state.ends.pop_first() else { continue };
            let Some(lent) = state.forget(&id) else { continue };
            lent.tell(&id, Why::LeaseEnded);
            let Lent { message, deliveries, .. } = lent;
            if deliveries >= self.lending.deliveries_max {
                dead(message);
                continue;
            }
            let waiting = Waiting { message, deliveries, since: now };
            state.queue(&lent.queue).wait(lent.place, waiting);
        }
        None
    }

    /// Ends leases on time until the lease queue is closed. Messages that were delivered too often
    /// go to `dead`.
    pub(in crate::bus) async fn let_leases_end(desk: Arc<Desk>, mut dead: impl FnMut(Publication)) {
        while !desk.state().is_closed {
            let next = desk.put_back_ended(&mut dead);
            match next {
                None => desk.next_end.notified().await,
                Some(at) => tokio::select! {
                    () = desk.next_end.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    /// Puts a message in flight until its lease ends.
    pub(super) fn hold(&self, state: &mut State, mut lent: Lent) {
        let id: Arc<str> = lent.message.id.as_str().into();
        // A message with this id may be in flight already, if it was dispatched once more.
        if let Some(before) = state.forget(&id) {
            before.tell(&id, Why::LeaseEnded);
        }
        let queue = state.queue(&lent.queue);
        queue.lent += 1;
        queue.lent_to_lines += usize::from(lent.line.is_some());
        let (lease, until) = (lent.lease, lent.until);
        self.report(&mut lent, lease);
        state.lent.insert(id.clone(), lent);
        self.ends_at(state, until, id);
    }

    /// Sets the lease of a delivery to end after `lease` from now, and returns when it ends.
    fn end_in(
        &self,
        state: &mut State,
        id: &str,
        delivery: u32,
        lease: Option<Duration>,
    ) -> Result<Instant, NotLent> {
        let lent = state.lent_as(id, delivery)?;
        let (before, now) = (lent.until, clock::ticks());
        // Without an explicit time a lease never becomes shorter.
        let until = match lease {
            Some(lease) => now + lease,
            None => before.max(now + lent.lease),
        };
        let left = until.saturating_duration_since(now);
        lent.until = until;
        self.report(lent, left);
        state.ends.remove(&(before, id.into()));
        self.ends_at(state, until, id.into());
        Ok(until)
    }

    fn report(&self, lent: &mut Lent, lease: Duration) {
        if self.lending.reports
            && let Some(event) = lent.report(lease / REPORTED_LONGER_BY)
        {
            (self.sink)(event);
        }
    }

    fn ends_at(&self, state: &mut State, until: Instant, id: Arc<str>) {
        state.ends.insert((until, id));
        if state.ends.first().is_some_and(|(first, _)| *first == until) {
            self.next_end.notify_one();
        }
    }
}
