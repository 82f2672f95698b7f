//! Publishes step messages, keeps each until the broker has confirmed it, and makes sure that the
//! queues exist.
//!
//! The [`Backlog`] outlives connections; a [`PublisherConnection`] is one of them. A message is in
//! exactly one place: waiting, parked, delayed, or published on a connection.

use super::backlog::{Backlog, Order};
use super::connection::{self, Pauses, channel_error, fail_point, last_number, millis};
use super::link::{Answered, Link, Published, QueueState, SILENT_AFTER, properties};
use super::queues::Found;
use super::shared::{Phase, Shared, Side, reached};
use crate::bus::{Addressee, Body, BusEvent, BusNotice, ERROR, Publication};
use crate::clock;
use futures_util::StreamExt;
use lapin::Event;
use lapin::protocol::AMQPSoftError;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// How many commands are taken from the inbox at once.
const TAKEN_MAX: usize = 512;

/// The backoff before a negatively confirmed message is sent again. It doubles with each nack, up
/// to the longest pause before a reconnect.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// The delay before a queue is checked again whose state the broker could not tell.
const QUEUE_PAUSE: Duration = Duration::from_secs(5);

/// How often a message may close its channel before it is retried only rarely.
const KILLS_MAX: u32 = 3;

/// Publishes over any number of connections, until the bus is closed.
pub(super) async fn run(
    shared: Rc<Shared>,
    (inbox, looked_for): (mpsc::UnboundedReceiver<Order>, mpsc::UnboundedReceiver<Vec<Arc<str>>>),
    unconfirmed: Rc<Cell<usize>>,
    mut phases: watch::Receiver<Phase>,
) {
    let mut pauses = Pauses::new(shared.settings.reconnect_min, shared.settings.reconnect_max);
    let mut publisher = Publisher {
        backlog: Backlog::of(&shared.settings.served.workers),
        shared: shared.clone(),
        inbox,
        looked_for,
        unconfirmed,
        numbers: 0,
    };
    loop {
        let opened = tokio::select! {
            biased;
            () = reached(&mut phases, Phase::EndPublishing) => break,
            opened = Box::pin(Link::open(&shared)) => opened,
        };
        let end = match opened {
            Ok(mut link) => {
                let since = clock::ticks();
                tracing::info!(
                    server = %shared.address,
                    unconfirmed = publisher.unconfirmed.get(),
                    "publishing step messages"
                );
                shared.board.up(Side::Publisher);
                let end = Box::pin(publisher.serve(&mut link, &mut phases)).await;
                publisher.take_back(&mut link);
                if since.elapsed() >= shared.settings.reconnect_min {
                    pauses.reset();
                }
                if let End::Lost(reason) = &end {
                    shared.board.down(Side::Publisher, reason);
                }
                connection::close(&link.connection).await;
                end
            }
            Err(reason) => End::Lost(reason),
        };
        let End::Lost(reason) = end else { break };
        let pause = pauses.next();
        shared.down(Side::Publisher, &reason, pause);
        tokio::select! {
            () = reached(&mut phases, Phase::EndPublishing) => break,
            () = tokio::time::sleep(pause) => {}
        }
    }
    shared.board.down(Side::Publisher, "closed");
}

enum End {
    /// The bus is closed.
    Closed,
    /// The connection is lost or useless, for this reason.
    Lost(String),
}

struct Publisher {
    shared: Rc<Shared>,
    inbox: mpsc::UnboundedReceiver<Order>,
    /// Requests to check queues on which steps wait.
    looked_for: mpsc::UnboundedReceiver<Vec<Arc<str>>>,
    unconfirmed: Rc<Cell<usize>>,
    backlog: Backlog,
    numbers: u64,
}

/// What the publisher waits for while it is connected.
enum Happened {
    Answered(Answered),
    Passed(lapin::Result<()>),
    Looked(Arc<str>, Found),
    LookedFor(u64, Arc<str>, Found),
    LookFor(Vec<Arc<str>>),
    Heard(Option<Event>),
    Taken,
    Due,
    Ending,
}

impl Publisher {
    async fn serve(&mut self, link: &mut Link, phases: &mut watch::Receiver<Phase>) -> End {
        self.backlog.queues.iter().for_each(|queue| link.look(queue));
        let (mut taken, mut is_ending) = (Vec::with_capacity(TAKEN_MAX), false);
        loop {
            // Withdrawals that came meanwhile must take effect before messages go out.
            let waiting = self.inbox.len();
            let orders: Vec<Order> =
                (0..waiting).map_while(|_| self.inbox.try_recv().ok()).collect();
            self.follow(link, orders);
            if let Err(reason) = self.publish_burst(link).await {
                return End::Lost(reason);
            }
            if let Err(reason) = self.settle_certain(link) {
                return End::Lost(reason);
            }
            // Messages that came back since the burst go out now, for no other event need follow.
            if self.may_publish(link) {
                continue;
            }
            link.raise_barrier();
            if is_ending && self.is_done(link) {
                return End::Closed;
            }
            let due = link
                .looks_again
                .keys()
                .next()
                .into_iter()
                .chain(self.backlog.delayed.keys().next())
                .map(|(at, _)| *at)
                .chain(link.silent_at())
                .min();
            let happened = tokio::select! {
                Some(answered) = link.flight.next() => Happened::Answered(answered),
                Some(passed) = link.barrier.next() => Happened::Passed(passed),
                Some((queue, found)) = link.looks.next() => Happened::Looked(queue, found),
                Some((of, (queue, found))) = link.probes.next() => {
                    Happened::LookedFor(of, queue, found)
                }
                // Not before the last checks have ended: a slow broker gets no more of them.
                Some(queues) = self.looked_for.recv(), if link.probes.is_empty() => {
                    Happened::LookFor(queues)
                }
                event = link.events.next() => Happened::Heard(event),
                count = self.inbox.recv_many(&mut taken, TAKEN_MAX),
                    if !is_ending || !self.inbox.is_closed() =>
                {
                    if count == 0 { Happened::Ending } else { Happened::Taken }
                }
                () = tokio::time::sleep_until(due.unwrap_or_else(clock::ticks)),
                    if due.is_some() => Happened::Due,
                () = reached(phases, Phase::EndPublishing), if !is_ending => Happened::Ending,
            };
            let went_on = match happened {
                Happened::Answered(answered) => self.answered(link, vec![answered]).await,
                Happened::Passed(passed) => self.passed(link, passed).await,
                Happened::Looked(queue, found) => self.looked(link, queue, found),
                Happened::LookedFor(of, queue, found) => {
                    self.looked_for(link, of, queue, &found);
                    Ok(())
                }
                Happened::LookFor(queues) => {
                    queues.iter().for_each(|queue| link.look_for(queue));
                    Ok(())
                }
                Happened::Heard(event) => self.heard(link, event),
                Happened::Taken => {
                    self.follow(link, taken.drain(..));
                    Ok(())
                }
                Happened::Due => {
                    self.due(link);
                    Ok(())
                }
                Happened::Ending => {
                    is_ending = true;
                    Ok(())
                }
            };
            if let Err(reason) = went_on {
                return End::Lost(reason);
            }
        }
    }

    fn follow(&mut self, link: &mut Link, orders: impl IntoIterator<Item = Order>) {
        let forgotten = self.backlog.follow(orders, |withdrawn| link.void(withdrawn));
        self.unconfirmed.set(self.unconfirmed.get().saturating_sub(forgotten));
    }

    /// Publishes all that may go out now, in one write.
    async fn publish_burst(&mut self, link: &mut Link) -> Result<(), String> {
        if self.backlog.waiting.is_empty() {
            return Ok(());
        }
        let (burst, mut answers) = (link.burst(), Vec::new());
        let held = burst.hold();
        let pumped = self.pump(link);
        // The library gets a message only when its future is polled for the first time.
        link.drain(&mut answers);
        drop(held);
        pumped.map_err(|error| self.shared.address.explain(&error))?;
        self.answered(link, answers).await
    }

    /// Settles the messages whose confirms need no barrier.
    fn settle_certain(&mut self, link: &mut Link) -> Result<(), String> {
        let certain = link.certain();
        if !certain.is_empty() {
            fail_point("amqp::confirm").map_err(|error| self.shared.address.explain(&error))?;
        }
        certain.into_iter().for_each(|(id, is_taken)| self.settle(link, id, is_taken));
        Ok(())
    }

    /// Returns whether a message waits and the connection has room for it.
    ///
    /// Messages that wait only for the barrier leave room for as many again, for the broker has
    /// confirmed them. Nothing is given to a blocked connection, because lapin would keep it in
    /// memory. The first message over the budget in bytes still goes out: a single message may be
    /// larger than the budget.
    fn may_publish(&self, link: &Link) -> bool {
        let flight_max = self.shared.settings.unconfirmed_max;
        !self.backlog.waiting.is_empty()
            && !link.is_blocked
            && link.flight.len() < flight_max
            && link.published.len() < 2 * flight_max
            && link.published_bytes < self.shared.settings.unconfirmed_bytes_max
    }

    /// Publishes the waiting messages for which the connection has room.
    fn pump(&mut self, link: &mut Link) -> lapin::Result<()> {
        while self.may_publish(link) {
            let Some(mut held) = self.backlog.waiting.pop_front() else { break };
            let queue = &held.message.to.queue;
            // A caller's queue belongs to the caller: it is neither checked nor declared.
            let foreign =
                (held.message.addressee == Addressee::Caller).then_some(&QueueState::There(0));
            match foreign.or_else(|| link.states.get(queue)) {
                Some(QueueState::There(generation)) => {
                    if std::mem::take(&mut held.again) {
                        (self.shared.sink)(BusEvent::Noted(BusNotice::Resent));
                    }
                    let alone = held.kills > 0
                        || link.body_bytes_max.is_some_and(|max| held.message.body.len() > max);
                    let generation = *generation;
                    self.numbers += 1;
                    let (reply_queue, user) =
                        (&self.shared.settings.reply_queue, self.shared.address.user());
                    let properties = properties(&held.message, reply_queue, user);
                    link.publish(self.numbers, held, generation, alone, properties);
                    fail_point("amqp::publish")?;
                }
                known => {
                    if known.is_none() {
                        self.backlog.queues.insert(queue.clone());
                        link.look(queue);
                    }
                    self.backlog.parked.entry(queue.clone()).or_default().push_back(held);
                }
            }
        }
        Ok(())
    }

    /// Returns whether nothing is left that would end within a short wait.
    fn is_done(&self, link: &Link) -> bool {
        let is_looking = |queue: &Arc<str>| link.states.get(queue) == Some(&QueueState::Looking);
        self.inbox.is_empty()
            && link.published.is_empty()
            && self.backlog.waiting.is_empty()
            && !self.backlog.parked.keys().any(is_looking)
    }

    /// Handles these confirms and all others that are ready.
    async fn answered(
        &mut self,
        link: &mut Link,
        mut answers: Vec<Answered>,
    ) -> Result<(), String> {
        link.drain(&mut answers);
        let mut closed = None;
        for (id, answer) in answers {
            match answer {
                Ok(answer) => link.note(id, answer),
                Err(error) if link.published.get(&id).is_some_and(|published| published.alone) => {
                    self.killed(link, id, &error)?
                }
                Err(error) => closed = Some(error),
            }
        }
        match closed {
            Some(error) => self.channel_closed(link, error).await,
            None => Ok(()),
        }
    }

    async fn passed(&mut self, link: &mut Link, passed: lapin::Result<()>) -> Result<(), String> {
        if let Err(error) = passed {
            return self.channel_closed(link, error).await;
        }
        fail_point("amqp::confirm").map_err(|error| self.shared.address.explain(&error))?;
        let settled = link.settled();
        // Confirms that were not taken yet may tell which messages were returned.
        let mut answers = Vec::new();
        link.drain(&mut answers);
        let (notes, failures): (Vec<Answered>, Vec<Answered>) =
            answers.into_iter().partition(|(_, answer)| answer.is_ok());
        notes
            .into_iter()
            .for_each(|(id, answer)| answer.into_iter().for_each(|answer| link.note(id, answer)));
        settled.into_iter().for_each(|(id, is_taken)| self.settle(link, id, is_taken));
        self.answered(link, failures).await
    }

    fn settle(&mut self, link: &mut Link, id: u64, is_taken: bool) {
        let Some(Published { mut held, generation, lost, .. }) = link.remove(id) else { return };
        let (message, queue) = (held.message.id.as_str(), held.message.to.queue.clone());
        let was_returned = link.was_returned(&held.message);
        if link.is_silent {
            link.is_silent = false;
            tracing::info!("the broker confirms messages again");
            self.shared.board.silent(None);
        }
        if held.is_void && (was_returned || lost || !is_taken) {
            self.one_less();
        } else if was_returned && held.message.addressee == Addressee::Caller {
            self.is_done_with(BusEvent::Unroutable(held.message.receipt));
        } else if was_returned || lost {
            tracing::debug!(message, %queue, "returned or lost with its queue, sent again");
            (self.shared.sink)(BusEvent::Noted(BusNotice::Returned));
            // A message published before its queue was found again says nothing new.
            if link.is_of(generation, &queue) {
                link.look(&queue);
                self.backlog.lost.insert(queue);
            }
            self.backlog.waiting.push_back(held);
        } else if is_taken {
            self.shared.full.borrow_mut().remove(&queue);
            self.is_done_with(BusEvent::Taken(held.message.receipt));
        } else {
            (self.shared.sink)(BusEvent::Noted(BusNotice::Refused));
            let pause = REFUSED_PAUSE
                .saturating_mul(1 << held.refusals.min(16))
                .min(self.shared.settings.reconnect_max);
            tracing::debug!(
                message,
                %queue,
                retry_in_ms = millis(pause),
                "the broker does not take it: its queue may be full"
            );
            held.refusals += 1;
            self.shared.full.borrow_mut().insert(queue);
            self.backlog.delayed.insert((clock::ticks() + pause, id), held);
        }
    }

    /// Reports a message that needs no further work: the broker has it, or it is for a caller whose
    /// queue does not exist.
    fn is_done_with(&self, event: BusEvent) {
        self.one_less();
        (self.shared.sink)(event);
    }

    fn one_less(&self) {
        self.unconfirmed.set(self.unconfirmed.get().saturating_sub(1));
    }

    // ---- channels closed by the broker

    /// Handles the closing of the shared channel. Only a message that is too large causes that; the
    /// others go out again at once.
    async fn channel_closed(&mut self, link: &mut Link, error: lapin::Error) -> Result<(), String> {
        if !link.is_connected() {
            return Err(self.shared.address.explain(&error));
        }
        let error = link.closing_reason(error).await;
        let Some((AMQPSoftError::PRECONDITIONFAILED, said)) = channel_error(&error) else {
            return Err(self.shared.address.explain(&error));
        };
        link.body_bytes_max = last_number(said).or(link.body_bytes_max);
        let size = |published: &Published| published.bytes;
        let largest = link.published.values().map(size).max().unwrap_or_default();
        // The broker names no size. Whichever message it was, the largest is too large as well.
        let is_suspect = |published: &Published| {
            size(published) == largest
                || link.body_bytes_max.is_some_and(|max| size(published) > max)
        };
        for published in link.published.values_mut().filter(|published| is_suspect(published)) {
            published.held.kills += 1;
        }
        tracing::warn!(
            reason = said,
            largest_bytes = largest,
            "a step message closed its channel: such ones get channels of their own"
        );
        self.take_back(link);
        link.reopen().await.map_err(|error| self.shared.address.explain(&error))
    }

    /// Handles the failure of a message that was published on a channel of its own.
    fn killed(&mut self, link: &mut Link, id: u64, error: &lapin::Error) -> Result<(), String> {
        if !link.is_connected() {
            return Err(self.shared.address.explain(error));
        }
        let Some(Published { mut held, .. }) = link.remove(id) else { return Ok(()) };
        if held.is_void {
            self.one_less();
            return Ok(());
        }
        let (message, queue) = (held.message.id.as_str(), &held.message.to.queue);
        let bytes = held.message.body.len();
        let mut pause = if let Some((AMQPSoftError::PRECONDITIONFAILED, said)) =
            channel_error(error)
        {
            link.body_bytes_max = last_number(said).or(link.body_bytes_max);
            held.kills += 1;
            if held.kills < KILLS_MAX { REFUSED_PAUSE } else { self.shared.settings.reconnect_max }
        } else {
            tracing::warn!(message, %queue, %error, "a message could not be published");
            QUEUE_PAUSE
        };
        if held.kills == KILLS_MAX {
            tracing::error!(
                message, %queue, bytes, bytes_max = link.body_bytes_max, %error,
                retry_in_ms = millis(pause),
                "the broker takes no message of this size: raise its max_message_size, or lower \
                 limits.step_message_bytes_max"
            );
        }
        if held.message.addressee == Addressee::Caller && held.kills >= KILLS_MAX {
            // The caller must at least learn that the job has ended.
            held.message.kind = Some(ERROR);
            held.message.body = Body::error(
                &format!(
                    "the result has {bytes} bytes, more than the broker takes: pass large data by \
                     reference"
                ),
                false,
            );
            pause = REFUSED_PAUSE;
        }
        self.backlog.delayed.insert((clock::ticks() + pause, id), held);
        Ok(())
    }

    /// Puts messages without a valid confirm in front of the waiting ones, to be sent again.
    fn take_back(&mut self, link: &mut Link) {
        for (mut held, is_queue_gone) in link.take_back().into_iter().rev() {
            if is_queue_gone {
                self.backlog.lost.insert(held.message.to.queue.clone());
            }
            if held.is_void {
                self.one_less();
                continue;
            }
            held.again = true;
            self.backlog.waiting.push_front(held);
        }
    }

    // ---- queues

    fn looked(&mut self, link: &mut Link, queue: Arc<str>, found: Found) -> Result<(), String> {
        match found {
            Found::There { .. } | Found::Locked if !self.backlog.lost.contains(&queue) => {
                self.found(link, &queue)
            }
            Found::There { .. } | Found::Locked | Found::Missing => self.missing(link, queue),
            Found::Lost(error) if !link.is_connected() => {
                return Err(self.shared.address.explain(&error));
            }
            Found::Lost(error) => self.look_again(link, queue, &error.to_string()),
            Found::Refused(said) => self.look_again(link, queue, &said),
        }
        Ok(())
    }

    /// Handles the repeated check of a queue that existed as of `generation`. If anything newer is
    /// known of the queue, that was handled already.
    fn looked_for(&mut self, link: &mut Link, of: u64, queue: Arc<str>, found: &Found) {
        if matches!(found, Found::Missing) && link.is_of(of, &queue) {
            link.states.insert(queue.clone(), QueueState::Looking);
            self.missing(link, queue);
        }
    }

    fn found(&mut self, link: &mut Link, queue: &Arc<str>) {
        link.found(queue);
        let parked = self.backlog.parked.remove(queue).unwrap_or_default();
        parked.into_iter().rev().for_each(|held| self.backlog.waiting.push_front(held));
    }

    fn missing(&mut self, link: &mut Link, queue: Arc<str>) {
        self.backlog.lost.remove(&queue);
        // Unconfirmed messages that are on their way to the queue stay with this bus. A confirm
        // that comes now is from the lost queue.
        for published in link
            .published
            .values_mut()
            .filter(|published| is_to_worker(&published.held.message, &queue))
        {
            published.lost = true;
        }
        let (taken, answered) = oneshot::channel();
        tracing::debug!(%queue, "the queue is missing or was replaced: it is declared once its \
                                 running steps are journaled as unconfirmed");
        (self.shared.sink)(BusEvent::QueueMissing { queue: queue.clone(), taken });
        let shape = self.shared.shape_of(&queue);
        link.declare_after(queue, shape, answered);
    }

    fn look_again(&mut self, link: &mut Link, queue: Arc<str>, reason: &str) {
        tracing::warn!(
            %queue,
            reason,
            retry_in_ms = millis(QUEUE_PAUSE),
            "the queue cannot be used"
        );
        link.states.insert(queue.clone(), QueueState::Refused);
        self.numbers += 1;
        link.looks_again.insert((clock::ticks() + QUEUE_PAUSE, self.numbers), queue);
    }

    // ---- the rest

    #[allow(clippy::wildcard_enum_match_arm, reason = "lapin's events are non-exhaustive")]
    fn heard(&mut self, link: &mut Link, event: Option<Event>) -> Result<(), String> {
        match event {
            Some(Event::ConnectionBlocked(reason)) => {
                tracing::warn!(reason, "the broker blocks publishing");
                link.is_blocked = true;
                self.shared.board.blocked(Some(reason));
            }
            Some(Event::ConnectionUnblocked) => {
                tracing::info!("the broker takes messages again");
                link.is_blocked = false;
                self.shared.board.blocked(None);
            }
            // Errors of a channel are handled where the channel is used.
            Some(Event::Error(error)) if channel_error(&error).is_none() => {
                return Err(self.shared.address.explain(&error));
            }
            Some(_) => {}
            None => return Err("the connection's events have ended".to_owned()),
        }
        Ok(())
    }

    fn due(&mut self, link: &mut Link) {
        let now = clock::ticks();
        if link.silent_at().is_some_and(|at| at <= now) {
            link.is_silent = true;
            tracing::warn!(
                unconfirmed = link.published.len(),
                "the broker confirms nothing: has the network stopped, or the broker?"
            );
            self.shared.board.silent(Some(SILENT_AFTER));
        }
        while let Some(entry) =
            self.backlog.delayed.first_entry().filter(|entry| entry.key().0 <= now)
        {
            self.backlog.waiting.push_back(entry.remove());
        }
        while let Some(entry) = link.looks_again.first_entry().filter(|entry| entry.key().0 <= now)
        {
            let queue = entry.remove();
            link.look(&queue);
        }
    }
}

fn is_to_worker(message: &Publication, queue: &str) -> bool {
    message.addressee == Addressee::Worker && *message.to.queue == *queue
}
