//! The desk of the embedded bus, and of one that calls web services: the queues of this process, from
//! which messages are lent. Who takes a message has it until its lease ends; a message that nobody has settled by then is lent again.
//! Threads of this process take messages for good. Any thread may use a desk.

mod desks;
mod lent;
mod lines;
mod loan;
mod receiving;

pub use desks::Desks;
pub use lines::{Counted, Ended, Line, Why};
pub use loan::{
    Borrower, LEASE_MAX, LeaseLook, Lending, Loan, NotCommitted, NotLent, Said, reply_path,
};

use lent::Lent;
use receiving::Next;

use super::{
    BusEvent, DeadLetter, Delivery, EventSink, LeaseLeft, Over, Publication, QueueLook, Settled,
    Settlement, Verdict,
};
use crate::clock;
use crate::engine::{FOREIGN_USER, Sender};
use crate::room::Taken;
use bytes::Bytes;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

/// Priority of a message that names none: the lowest, as with RabbitMQ.
const PRIORITY_DEFAULT: u8 = 0;

/// How long a worker that asked for messages and got none counts as one that is there.
const SEEN_FOR: Duration = Duration::from_secs(60);

/// A lease is reported as this part of it longer than it is, so that not every extension needs a
/// report of its own.
const REPORTED_LONGER_BY: u32 = 8;

/// The queues of a bus.
pub struct Desk {
    state: Mutex<State>,
    /// Told when the first lease that ends is another one.
    ends: Notify,
    lending: Lending,
    sink: EventSink,
}

#[derive(Default)]
struct State {
    queues: HashMap<Arc<str>, Queue>,
    /// The messages that are lent, by their ids.
    lent: HashMap<Arc<str>, Lent>,
    /// When each lease ends.
    ends: BTreeSet<(Instant, Arc<str>)>,
    /// Counts the messages, for their order.
    taken: u64,
    is_closed: bool,
}

#[derive(Default)]
struct Queue {
    waiting: BTreeMap<Place, Waiting>,
    /// Where the messages wait, by their ids; of a queue that no thread of this process serves.
    places: HashMap<Arc<str>, Place>,
    /// How many of its messages are lent.
    lent: usize,
    /// Threads of this process that serve it.
    threads: usize,
    /// How many of those are lent to workers that stay.
    lent_to_lines: usize,
    /// Workers that wait for a message now.
    receivers: Arc<AtomicUsize>,
    /// Workers that stay, whether they wait or not.
    lines: Arc<AtomicUsize>,
    /// When a worker asked last.
    asked: Option<Instant>,
    /// A message has come, for threads and for workers elsewhere.
    arrived: Arc<Condvar>,
    changed: Arc<Notify>,
}

/// The order in a queue: the highest priority first, then who came first.
type Place = (Reverse<u8>, u64);

struct Waiting {
    message: Publication,
    /// How often it was lent.
    deliveries: u32,
    since: Instant,
}

impl Desk {
    /// A desk without messages; it reports to `sink`.
    pub fn new(lending: Lending, sink: EventSink) -> Desk {
        Desk { state: Mutex::default(), ends: Notify::new(), lending, sink }
    }

    /// Puts a message into its queue; one that a worker has stays lent until its lease ends.
    pub(super) fn put(&self, message: Publication) {
        let now = clock::ticks();
        let mut state = self.state();
        state.taken += 1;
        let place = (Reverse(message.priority.unwrap_or(PRIORITY_DEFAULT)), state.taken);
        let queue = message.to.queue.clone();
        // A job that was rebuilt sends its messages again.
        if message.lease.is_some() && state.lent.contains_key(message.id.as_str()) {
            return;
        }
        state.take_waiting(&queue, &message.id);
        let deliveries = message.lease.map_or(0, |lease| lease.delivery);
        match message.lease {
            // One that was lent too often is given up as soon as leases are looked at.
            Some(LeaseLeft { left, delivery })
                if !left.is_zero() || delivery >= self.lending.deliveries_max =>
            {
                // The wall clock may have been set back.
                let until = now + left.min(LEASE_MAX);
                let lent = Lent {
                    queue,
                    place,
                    delivery,
                    deliveries,
                    lease: self.lending.lease,
                    until,
                    reported: Some(until),
                    shortened: None,
                    worker: None,
                    line: None,
                    message,
                };
                self.hold(&mut state, lent);
            }
            Some(_) | None => {
                state.queue(&queue).wait(place, Waiting { message, deliveries, since: now });
            }
        }
    }

    /// Says that so many threads of this process serve a queue.
    pub(super) fn staff(&self, queue: &Arc<str>, threads: usize) {
        self.state().queue(queue).threads = threads;
    }

    /// Takes the next message for good; waits for one. None: the desk is closed.
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

    /// Lends the next message of a queue, if there is one, and room for it. `taken`: room that is
    /// taken for it already.
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
            lease,
            waited: now.saturating_duration_since(since),
            room: taken,
        };
        let (queue, deliveries) = (queue.clone(), delivery);
        let (worker, line) = (borrower.worker.clone(), borrower.line.clone());
        let lent = Lent {
            queue,
            place,
            message,
            delivery,
            deliveries,
            lease,
            until,
            reported: None,
            shortened: None,
            worker,
            line,
        };
        self.hold(&mut state, lent);
        Next::Loan(loan)
    }

    /// Lengthens a lease: it ends so long from now. A message that waits, because its lease has
    /// ended or the process was started again, is lent once more under the same number.
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
    ) -> Result<Duration, NotLent> {
        let mut state = self.state();
        match self.end_in(&mut state, id, delivery, lease) {
            Err(NotLent::NotThere) => {}
            known => return known,
        }
        // The number comes from outside, and is counted from here on.
        if !(1..=self.lending.deliveries_max).contains(&delivery) {
            return Err(NotLent::NotThere);
        }
        let waiting = state.take_waiting(queue, id).ok_or(NotLent::NotThere)?;
        let (place, Waiting { message, deliveries, .. }) = waiting;
        let lease = lease.unwrap_or(self.lending.lease);
        let (until, deliveries) = (clock::ticks() + lease, deliveries.max(delivery));
        let queue = queue.clone();
        // Its name is not known any more.
        let (worker, line) = (None, None);
        let lent = Lent {
            queue,
            place,
            message,
            delivery,
            deliveries,
            lease,
            until,
            reported: None,
            shortened: None,
            worker,
            line,
        };
        self.hold(&mut state, lent);
        Ok(lease)
    }

    /// Gives a message back: its lease ends after this time, and it is lent again.
    ///
    /// # Errors
    ///
    /// This delivery is not lent any more.
    pub fn give_back(&self, id: &str, delivery: u32, after: Duration) -> Result<(), NotLent> {
        self.end_in(&mut self.state(), id, delivery, Some(after)).map(drop)
    }

    /// Forgets a message of a queue, lent or waiting: its attempt is over, by a reply.
    pub fn forget(&self, queue: &Arc<str>, id: &str) {
        self.withdraw(queue, id, Over::Answered);
    }

    /// Forgets a message of a queue, lent or waiting: its attempt is over. A worker that stays and
    /// has it is told.
    pub(super) fn withdraw(&self, queue: &Arc<str>, id: &str, over: Over) {
        let mut state = self.state();
        match state.forget(id) {
            Some(lent) => lent.tell(id, Why::Over(over)),
            None => drop(state.take_waiting(queue, id)),
        }
    }

    /// Whether a message of a queue waits or is lent.
    pub(super) fn has(&self, queue: &str, id: &str) -> bool {
        let state = self.state();
        let is_waiting = |queue: &Queue| queue.places.contains_key(id);
        state.lent.contains_key(id) || state.queues.get(queue).is_some_and(is_waiting)
    }

    /// How many messages of a queue wait, and how many are lent.
    pub(super) fn counts(&self, queue: &str) -> (usize, usize) {
        let state = self.state();
        state.queues.get(queue).map_or((0, 0), |queue| (queue.waiting.len(), queue.lent))
    }

    /// The leases of a queue's messages that end first, up to so many.
    pub fn leases(&self, queue: &str, limit: usize) -> Vec<LeaseLook> {
        let (state, now) = (self.state(), clock::ticks());
        let of_queue = state.ends.iter().filter_map(|(until, id)| {
            let lent = state.lent.get(id).filter(|lent| *lent.queue == *queue)?;
            Some(LeaseLook {
                id: id.clone(),
                worker: lent.worker.clone(),
                delivery: lent.delivery,
                left: until.saturating_duration_since(now),
            })
        });
        of_queue.take(limit).collect()
    }

    /// Whoever has this delivery keeps the message for good: it is not lent again.
    pub(super) fn take_over(&self, id: &str, delivery: u32) -> Option<Publication> {
        let mut state = self.state();
        state.lent_as(id, delivery).ok()?;
        state.forget(id).map(|lent| lent.message)
    }

    /// Forgets a message of a queue if it waits.
    pub(super) fn forget_waiting(&self, queue: &str, id: &str) {
        self.state().take_waiting(queue, id);
    }

    /// Takes a worker's reply; answered once what follows from it is committed: why it changed
    /// nothing, if it did not. It needs no lease: whoever replies first counts.
    ///
    /// # Errors
    ///
    /// It was not committed, and the worker should send it again.
    pub async fn reply(&self, said: Said) -> Result<Option<&'static str>, NotCommitted> {
        let Said { queue, id, delivery, correlation_id, attempt, kind, from, body } = said;
        let unused = self.tell(|settlement| Delivery {
            kind: kind.map(str::to_owned),
            attempt,
            from,
            ..Delivery::new(Some(correlation_id), body, settlement)
        });
        let unused = unused.await?;
        if kind == Some("progress") && unused.is_none() {
            // Its worker has it in hand, unless another one was given it.
            let _ = self.extend(&queue, &id, delivery, None);
        } else if unused != Some(FOREIGN_USER) {
            self.forget(&queue, &id);
        }
        Ok(unused)
    }

    /// A worker refuses a message: its attempt fails. Answered as a reply is.
    ///
    /// # Errors
    ///
    /// This delivery is not lent any more; or it was not committed.
    pub async fn refuse(
        &self,
        id: &str,
        delivery: u32,
        from: Sender,
    ) -> Result<Result<Option<&'static str>, NotCommitted>, NotLent> {
        let (correlation_id, attempt, dead) = {
            let mut state = self.state();
            let message = &state.lent_as(id, delivery)?.message;
            let dead = DeadLetter::of(message, "rejected");
            (message.correlation_id.clone(), message.number("attempt"), dead)
        };
        let unused = self.tell(|settlement| Delivery {
            attempt,
            dead_letter: Some(dead),
            from,
            ..Delivery::new(correlation_id.as_deref().map(str::to_owned), Bytes::new(), settlement)
        });
        let unused = unused.await;
        if unused.as_ref().is_ok_and(|unused| *unused != Some(FOREIGN_USER)) {
            self.state().forget(id);
        }
        Ok(unused)
    }

    /// Reports a delivery, and waits for the verdict on it.
    async fn tell(
        &self,
        delivery: impl FnOnce(Settlement) -> Delivery,
    ) -> Result<Option<&'static str>, NotCommitted> {
        let (to, mut settled) = mpsc::unbounded_channel();
        (self.sink)(BusEvent::Reply(delivery(Settlement::new(0, 0, to))));
        match settled.recv().await {
            Some(Settled { verdict: Verdict::Ack, unused, .. }) => Ok(unused),
            Some(Settled { verdict: Verdict::Requeue, .. }) | None => Err(NotCommitted),
        }
    }

    /// What waits and what is lent.
    pub(super) fn unsettled(&self) -> usize {
        let state = self.state();
        state.queues.values().map(|queue| queue.waiting.len() + queue.lent).sum()
    }

    /// What is known of a queue.
    pub(super) fn look(&self, queue: &Arc<str>) -> QueueLook {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut state = self.state();
        let queue = state.queue(queue);
        let is_seen = queue.asked.is_some_and(|at| at.elapsed() < SEEN_FOR);
        let lines = queue.lines.load(Ordering::Relaxed);
        let receivers = queue.receivers.load(Ordering::Relaxed).max(usize::from(is_seen));
        // Each of the others has one message, or waits.
        let others = receivers.max(queue.lent.saturating_sub(queue.lent_to_lines));
        QueueLook::There {
            messages: count(queue.waiting.len()),
            unacknowledged: Some(queue.lent as u64),
            consumers: count(queue.threads + lines + others),
        }
    }

    /// Lends what has ended again; what was lent too often is given to `dead`. Tells when the next
    /// lease ends.
    fn expired(&self, mut dead: impl FnMut(Publication)) -> Option<Instant> {
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
    pub(super) async fn let_leases_end(desk: Arc<Desk>, mut dead: impl FnMut(Publication)) {
        while !desk.state().is_closed {
            let next = desk.expired(&mut dead);
            match next {
                None => desk.ends.notified().await,
                Some(at) => tokio::select! {
                    () = desk.ends.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    /// Nobody gets a message from now on.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for queue in state.queues.values() {
            queue.arrived.notify_all();
            queue.changed.notify_waiters();
        }
        self.ends.notify_one();
    }

    /// Has a message lent until its lease ends.
    fn hold(&self, state: &mut State, mut lent: Lent) {
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

    /// Has the lease of a delivery end so long from now.
    fn end_in(
        &self,
        state: &mut State,
        id: &str,
        delivery: u32,
        lease: Option<Duration>,
    ) -> Result<Duration, NotLent> {
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
        Ok(left)
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
            self.ends.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn queue(&mut self, name: &Arc<str>) -> &mut Queue {
        self.queues.entry(name.clone()).or_default()
    }

    fn lent_as(&mut self, id: &str, delivery: u32) -> Result<&mut Lent, NotLent> {
        match self.lent.get_mut(id) {
            Some(lent) if lent.delivery == delivery => Ok(lent),
            Some(_) => Err(NotLent::ToAnother),
            None => Err(NotLent::NotThere),
        }
    }

    /// The message with this id, which waits in this queue no more.
    fn take_waiting(&mut self, queue: &str, id: &str) -> Option<(Place, Waiting)> {
        let queue = self.queues.get_mut(queue)?;
        let place = queue.places.remove(id)?;
        queue.waiting.remove_entry(&place)
    }

    fn forget(&mut self, id: &str) -> Option<Lent> {
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
    fn wait(&mut self, place: Place, waiting: Waiting) {
        if self.threads == 0 {
            self.places.insert(waiting.message.id.as_str().into(), place);
        }
        self.waiting.insert(place, waiting);
        self.arrived.notify_one();
        self.changed.notify_one();
    }

    /// How many bytes the body of the next message has.
    fn next_bytes(&self) -> Option<usize> {
        self.waiting.first_key_value().map(|(_, first)| first.message.body.len().max(1))
    }

    /// The next message, which waits no more.
    fn take(&mut self) -> Option<(Place, Waiting)> {
        let (place, first) = self.waiting.pop_first()?;
        if self.threads == 0 {
            self.places.remove(first.message.id.as_str());
        }
        Some((place, first))
    }
}
