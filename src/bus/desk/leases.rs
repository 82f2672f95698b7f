//! Leases: how they begin, are lengthened, reported and end.

use super::lent::Lent;
use super::lines::{Line, Why};
use super::queues::{State, Waiting};
use super::{Desk, NotLent};
use crate::bus::Publication;
use crate::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A lease is reported as this part of it longer than it is, so that not every extension needs a
/// report of its own.
const REPORTED_LONGER_BY: u32 = 8;

impl Desk {
    /// Lengthens a lease: it ends so long from now; when that is. A message that waits, because its
    /// lease has ended or the process was started again, is lent once more under the same number.
    /// `line`: of a worker that stays, which has the message from now on; whoever had it over
    /// another line is told.
    ///
    /// # Errors
    ///
    /// This delivery is not lent, and the message does not wait; or threads serve its queue; or no
    /// delivery can have this number.
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
        // The number comes from outside, and is counted from here on.
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

    /// Gives a message back: its lease ends after this time, and it is lent again. `line`: only if
    /// it is lent over this line.
    ///
    /// # Errors
    ///
    /// This delivery is not lent any more, or over another line.
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

    /// Puts messages whose leases have ended back into their queues; what was lent too often is
    /// given to `dead`. Tells when the next lease ends.
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

    /// Lets leases end until the desk is gone; what was lent too often is given to `dead`.
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

    /// Has a message lent until its lease ends.
    pub(super) fn hold(&self, state: &mut State, mut lent: Lent) {
        let id: Arc<str> = lent.message.id.as_str().into();
        // One with this id may be lent already, if it was dispatched once more.
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

    /// Has the lease of a delivery end so long from now; when that is.
    fn end_in(
        &self,
        state: &mut State,
        id: &str,
        delivery: u32,
        lease: Option<Duration>,
    ) -> Result<Instant, NotLent> {
        let lent = state.lent_as(id, delivery)?;
        let (before, now) = (lent.until, clock::ticks());
        // Who names no time loses none.
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
