//! Publishes step messages, keeps each until the broker has confirmed it, and makes sure that the
//! queues exist.
//!
//! The [`Backlog`] outlives connections; a [`PublisherConnection`] is one of them. A message is in
//! exactly one place: waiting, parked, delayed, or published on a connection.

mod queue_checks;

use super::backlog::{Backlog, PublisherCommand};
use super::connection::{
    self, ReconnectBackoff, channel_error, fail_point, millis, parse_size_limit,
};
use super::publisher_connection::{
    NumberedConfirm, PublishedMessage, PublisherConnection, QUEUE_RECHECK_DELAY, QueueState,
    UNRESPONSIVE_AFTER, properties,
};
use super::queues::QueueCheck;
use super::state::{AmqpState, ShutdownPhase, Side, wait_for_phase};
use base::clock;
use bus::{Addressee, Body, BusEvent, BusNotice, ERROR_KIND};
use futures_util::StreamExt;
use lapin::Event;
use lapin::protocol::AMQPSoftError;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How many commands are taken from the inbox at once.
const COMMANDS_PER_TURN: usize = 512;

/// The backoff before a negatively confirmed message is sent again. It doubles with each nack, up
/// to the longest pause before a reconnect.
const NACK_BACKOFF: Duration = Duration::from_millis(100);

/// How often a message may close its channel before it is retried only rarely.
const CHANNEL_CLOSURES_MAX: u32 = 3;

/// Publishes over any number of connections, until the bus is closed.
pub(super) async fn run(
    state: Rc<AmqpState>,
    (inbox, recheck_requests): (
        mpsc::UnboundedReceiver<PublisherCommand>,
        mpsc::UnboundedReceiver<Vec<Arc<str>>>,
    ),
    unconfirmed: Rc<Cell<usize>>,
    mut phases: watch::Receiver<ShutdownPhase>,
) {
    let mut backoff =
        ReconnectBackoff::new(state.settings.reconnect_min, state.settings.reconnect_max);
    let mut publisher = Publisher {
        backlog: Backlog::new(&state.settings.served.worker_queues),
        state: state.clone(),
        inbox,
        recheck_requests,
        unconfirmed,
        last_number: 0,
    };
    loop {
        let opened = tokio::select! {
            biased;
            () = wait_for_phase(&mut phases, ShutdownPhase::StopPublishing) => break,
            opened = Box::pin(PublisherConnection::open(&state)) => opened,
        };
        let end = match opened {
            Ok(mut link) => {
                let since = clock::timer_now();
                tracing::info!(
                    server = %state.address,
                    unconfirmed = publisher.unconfirmed.get(),
                    "publishing step messages"
                );
                state.state_reporter.set_up(Side::Publisher);
                let end = Box::pin(publisher.serve(&mut link, &mut phases)).await;
                publisher.requeue_unsettled(&mut link);
                if since.elapsed() >= state.settings.reconnect_min {
                    backoff.reset();
                }
                if let PublishEnd::Lost(reason) = &end {
                    state.state_reporter.set_down(Side::Publisher, reason);
                }
                connection::close(&link.connection).await;
                end
            }
            Err(reason) => PublishEnd::Lost(reason),
        };
        let PublishEnd::Lost(reason) = end else { break };
        let pause = backoff.next_delay();
        state.report_down(Side::Publisher, &reason, pause);
        tokio::select! {
            () = wait_for_phase(&mut phases, ShutdownPhase::StopPublishing) => break,
            () = tokio::time::sleep(pause) => {}
        }
    }
    state.state_reporter.set_down(Side::Publisher, "closed");
}

enum PublishEnd {
    /// The bus is closed.
    Closed,
    /// The connection is lost or useless, for this reason.
    Lost(String),
}

struct Publisher {
    state: Rc<AmqpState>,
    inbox: mpsc::UnboundedReceiver<PublisherCommand>,
    /// Requests to check queues on which steps wait.
    recheck_requests: mpsc::UnboundedReceiver<Vec<Arc<str>>>,
    unconfirmed: Rc<Cell<usize>>,
    backlog: Backlog,
    last_number: u64,
}

/// What the publisher waits for while it is connected.
enum PublisherEvent {
    Confirmed(NumberedConfirm),
    BarrierPassed(lapin::Result<()>),
    QueueChecked(Arc<str>, QueueCheck),
    QueueRechecked(u64, Arc<str>, QueueCheck),
    RecheckRequested(Vec<Arc<str>>),
    ConnectionEvent(Option<Event>),
    CommandsReceived,
    TimerDue,
    Closing,
}

impl Publisher {
    #[allow(clippy::too_many_lines, reason = "one select and one match over its events")]
    async fn serve(
        &mut self,
        link: &mut PublisherConnection,
        phases: &mut watch::Receiver<ShutdownPhase>,
    ) -> PublishEnd {
        self.backlog.known_queues.iter().for_each(|queue| link.check_queue(queue));
        let (mut command_batch, mut is_ending) = (Vec::with_capacity(COMMANDS_PER_TURN), false);
        loop {
            // Withdrawals that came meanwhile must take effect before messages go out.
            let waiting = self.inbox.len();
            let commands: Vec<PublisherCommand> =
                (0..waiting).map_while(|_| self.inbox.try_recv().ok()).collect();
            self.apply_commands(link, commands);
            if let Err(reason) = self.publish_burst(link).await {
                return PublishEnd::Lost(reason);
            }
            if let Err(reason) = self.settle_unambiguous(link) {
                return PublishEnd::Lost(reason);
            }
            // Messages that came back since the burst go out now, for no other event need follow.
            if self.can_publish(link) {
                continue;
            }
            link.start_barrier();
            if is_ending && self.is_drained(link) {
                return PublishEnd::Closed;
            }
            let due = link
                .scheduled_checks
                .keys()
                .next()
                .into_iter()
                .chain(self.backlog.delayed.keys().next())
                .map(|(at, _)| *at)
                .chain(link.unresponsive_at())
                .min();
            let event = tokio::select! {
                Some(one) = link.pending_confirms.next() => PublisherEvent::Confirmed(one),
                Some(passed) = link.barrier.next() => PublisherEvent::BarrierPassed(passed),
                Some((queue, found)) = link.queue_checks.next() => {
                    PublisherEvent::QueueChecked(queue, found)
                }
                Some((of, (queue, found))) = link.queue_rechecks.next() => {
                    PublisherEvent::QueueRechecked(of, queue, found)
                }
                // Not before the last checks have ended: a slow broker gets no more of them.
                Some(queues) = self.recheck_requests.recv(), if link.queue_rechecks.is_empty() => {
                    PublisherEvent::RecheckRequested(queues)
                }
                event = link.events.next() => PublisherEvent::ConnectionEvent(event),
                count = self.inbox.recv_many(&mut command_batch, COMMANDS_PER_TURN),
                    if !is_ending || !self.inbox.is_closed() =>
                {
                    if count > 0 { PublisherEvent::CommandsReceived }
                    else { PublisherEvent::Closing }
                }
                () = tokio::time::sleep_until(due.unwrap_or_else(clock::timer_now)),
                    if due.is_some() => PublisherEvent::TimerDue,
                () = wait_for_phase(phases, ShutdownPhase::StopPublishing), if !is_ending => {
                    PublisherEvent::Closing
                }
            };
            let handled = match event {
                PublisherEvent::Confirmed(answered) => {
                    self.handle_confirms(link, vec![answered]).await
                }
                PublisherEvent::BarrierPassed(passed) => self.handle_barrier(link, passed).await,
                PublisherEvent::QueueChecked(queue, found) => {
                    self.handle_queue_check(link, queue, found)
                }
                PublisherEvent::QueueRechecked(of, queue, found) => {
                    self.handle_queue_recheck(link, of, queue, &found);
                    Ok(())
                }
                PublisherEvent::RecheckRequested(queues) => {
                    queues.iter().for_each(|queue| link.recheck_queue(queue));
                    Ok(())
                }
                PublisherEvent::ConnectionEvent(event) => self.handle_connection_event(link, event),
                PublisherEvent::CommandsReceived => {
                    self.apply_commands(link, command_batch.drain(..));
                    Ok(())
                }
                PublisherEvent::TimerDue => {
                    self.handle_timers(link);
                    Ok(())
                }
                PublisherEvent::Closing => {
                    is_ending = true;
                    Ok(())
                }
            };
            if let Err(reason) = handled {
                return PublishEnd::Lost(reason);
            }
        }
    }

    fn apply_commands(
        &mut self,
        link: &mut PublisherConnection,
        commands: impl IntoIterator<Item = PublisherCommand>,
    ) {
        let removed = self.backlog.apply(commands, |withdrawn| link.mark_withdrawn(withdrawn));
        self.unconfirmed.set(self.unconfirmed.get().saturating_sub(removed));
    }

    /// Publishes all that may go out now, in one write.
    async fn publish_burst(&mut self, link: &mut PublisherConnection) -> Result<(), String> {
        if self.backlog.waiting.is_empty() {
            return Ok(());
        }
        let (burst, mut answers) = (link.burst(), Vec::new());
        let burst_guard = burst.hold();
        let published = self.publish_waiting(link);
        // The library gets a message only when its future is polled for the first time.
        link.drain_confirms(&mut answers);
        drop(burst_guard);
        published.map_err(|error| self.state.address.explain(&error))?;
        self.handle_confirms(link, answers).await
    }

    /// Settles the messages whose confirms need no barrier.
    fn settle_unambiguous(&mut self, link: &mut PublisherConnection) -> Result<(), String> {
        let confirms = link.take_unambiguous();
        if !confirms.is_empty() {
            fail_point("amqp::confirm").map_err(|error| self.state.address.explain(&error))?;
        }
        confirms.into_iter().for_each(|(id, is_ack)| self.settle(link, id, is_ack));
        Ok(())
    }

    /// Returns whether a message waits and the connection has room for it.
    ///
    /// Messages that wait only for the barrier leave room for as many again, for the broker has
    /// confirmed them. Nothing is given to a blocked connection, because lapin would keep it in
    /// memory. The first message over the budget in bytes still goes out: a single message may be
    /// larger than the budget.
    fn can_publish(&self, link: &PublisherConnection) -> bool {
        let flight_max = self.state.settings.unconfirmed_max;
        !self.backlog.waiting.is_empty()
            && !link.is_blocked
            && link.pending_confirms.len() < flight_max
            && link.published.len() < 2 * flight_max
            && link.published_bytes < self.state.settings.unconfirmed_bytes_max
    }

    /// Publishes the waiting messages for which the connection has room.
    fn publish_waiting(&mut self, link: &mut PublisherConnection) -> lapin::Result<()> {
        while self.can_publish(link) {
            let Some(mut pending) = self.backlog.waiting.pop_front() else { break };
            let queue = &pending.message.address.queue;
            // A caller's queue belongs to the caller: it is neither checked nor declared.
            let caller_queue =
                (pending.message.addressee == Addressee::Caller).then_some(&QueueState::Exists(0));
            match caller_queue.or_else(|| link.queue_states.get(queue)) {
                Some(QueueState::Exists(generation)) => {
                    if std::mem::take(&mut pending.is_resend) {
                        (self.state.sink)(BusEvent::Notice(BusNotice::Resent));
                    }
                    let needs_own_channel = pending.channel_closures > 0
                        || link.body_bytes_max.is_some_and(|max| pending.message.body.len() > max);
                    let generation = *generation;
                    self.last_number += 1;
                    let (reply_queue, user) =
                        (&self.state.settings.reply_queue, self.state.address.user());
                    let properties = properties(&pending.message, reply_queue, user);
                    link.publish(
                        self.last_number,
                        pending,
                        generation,
                        needs_own_channel,
                        properties,
                    );
                    fail_point("amqp::publish")?;
                }
                known => {
                    if known.is_none() {
                        self.backlog.known_queues.insert(queue.clone());
                        link.check_queue(queue);
                    }
                    self.backlog.parked.entry(queue.clone()).or_default().push_back(pending);
                }
            }
        }
        Ok(())
    }

    /// Returns whether nothing is left that would end within a short wait.
    fn is_drained(&self, link: &PublisherConnection) -> bool {
        let is_checking =
            |queue: &Arc<str>| link.queue_states.get(queue) == Some(&QueueState::Checking);
        self.inbox.is_empty()
            && link.published.is_empty()
            && self.backlog.waiting.is_empty()
            && !self.backlog.parked.keys().any(is_checking)
    }

    /// Handles these confirms and all others that are ready.
    async fn handle_confirms(
        &mut self,
        link: &mut PublisherConnection,
        mut answers: Vec<NumberedConfirm>,
    ) -> Result<(), String> {
        link.drain_confirms(&mut answers);
        let mut closed = None;
        for (id, answer) in answers {
            match answer {
                Ok(answer) => link.note_confirm(id, answer),
                Err(error)
                    if link
                        .published
                        .get(&id)
                        .is_some_and(|published| published.has_own_channel) =>
                {
                    self.handle_own_channel_failure(link, id, &error)?
                }
                Err(error) => closed = Some(error),
            }
        }
        match closed {
            Some(error) => self.handle_channel_closed(link, error).await,
            None => Ok(()),
        }
    }

    async fn handle_barrier(
        &mut self,
        link: &mut PublisherConnection,
        passed: lapin::Result<()>,
    ) -> Result<(), String> {
        if let Err(error) = passed {
            return self.handle_channel_closed(link, error).await;
        }
        fail_point("amqp::confirm").map_err(|error| self.state.address.explain(&error))?;
        let settled = link.take_before_barrier();
        // Confirms that were not taken yet may tell which messages were returned.
        let mut answers = Vec::new();
        link.drain_confirms(&mut answers);
        let (notes, failures): (Vec<NumberedConfirm>, Vec<NumberedConfirm>) =
            answers.into_iter().partition(|(_, answer)| answer.is_ok());
        notes.into_iter().for_each(|(id, answer)| {
            answer.into_iter().for_each(|answer| link.note_confirm(id, answer))
        });
        settled.into_iter().for_each(|(id, is_ack)| self.settle(link, id, is_ack));
        self.handle_confirms(link, failures).await
    }

    fn settle(&mut self, link: &mut PublisherConnection, id: u64, is_ack: bool) {
        let Some(PublishedMessage {
            mut pending,
            queue_generation: generation,
            is_queue_lost: lost,
            ..
        }) = link.remove(id)
        else {
            return;
        };
        let (message, queue) = (pending.message.id.as_str(), pending.message.address.queue.clone());
        let was_returned = link.take_return(&pending.message);
        if link.is_unresponsive {
            link.is_unresponsive = false;
            tracing::info!("the broker confirms messages again");
            self.state.state_reporter.set_unresponsive(None);
        }
        if pending.is_withdrawn && (was_returned || lost || !is_ack) {
            self.decrement_unconfirmed();
        } else if was_returned && pending.message.addressee == Addressee::Caller {
            self.report_done(BusEvent::Unroutable(pending.message.confirm_token));
        } else if was_returned || lost {
            tracing::debug!(message, %queue, "returned or lost with its queue, sent again");
            (self.state.sink)(BusEvent::Notice(BusNotice::Returned));
            // A message published before its queue was found again says nothing new.
            if link.is_current_generation(generation, &queue) {
                link.check_queue(&queue);
                self.backlog.lost_queues.insert(queue);
            }
            self.backlog.waiting.push_back(pending);
        } else if is_ack {
            self.state.full_queues.borrow_mut().remove(&queue);
            self.report_done(BusEvent::Confirmed(pending.message.confirm_token));
        } else {
            (self.state.sink)(BusEvent::Notice(BusNotice::Nacked));
            let pause = NACK_BACKOFF
                .saturating_mul(1 << pending.nacks.min(16))
                .min(self.state.settings.reconnect_max);
            tracing::debug!(
                message,
                %queue,
                retry_in_ms = millis(pause),
                "the broker does not take it: its queue may be full"
            );
            pending.nacks += 1;
            self.state.full_queues.borrow_mut().insert(queue);
            self.backlog.delayed.insert((clock::timer_now() + pause, id), pending);
        }
    }

    /// Reports a message that needs no further work: the broker has it, or it is for a caller whose
    /// queue does not exist.
    fn report_done(&self, event: BusEvent) {
        self.decrement_unconfirmed();
        (self.state.sink)(event);
    }

    fn decrement_unconfirmed(&self) {
        self.unconfirmed.set(self.unconfirmed.get().saturating_sub(1));
    }

    // ---- channels closed by the broker

    /// Handles the closing of the shared channel. Only a message that is too large causes that; the
    /// others go out again at once.
    async fn handle_channel_closed(
        &mut self,
        link: &mut PublisherConnection,
        error: lapin::Error,
    ) -> Result<(), String> {
        if !link.is_connected() {
            return Err(self.state.address.explain(&error));
        }
        let error = link.closing_reason(error).await;
        let Some((AMQPSoftError::PRECONDITIONFAILED, broker_text)) = channel_error(&error) else {
            return Err(self.state.address.explain(&error));
        };
        link.body_bytes_max = parse_size_limit(broker_text).or(link.body_bytes_max);
        let size = |published: &PublishedMessage| published.body_bytes;
        let largest = link.published.values().map(size).max().unwrap_or(0);
        // The broker names no size. Whichever message it was, the largest is too large as well.
        let is_suspect = |published: &PublishedMessage| {
            size(published) == largest
                || link.body_bytes_max.is_some_and(|max| size(published) > max)
        };
        for published in link.published.values_mut().filter(|published| is_suspect(published)) {
            published.pending.channel_closures += 1;
        }
        tracing::warn!(
            reason = broker_text,
            largest_bytes = largest,
            "a step message closed its channel: such ones get channels of their own"
        );
        self.requeue_unsettled(link);
        link.reopen_channel().await.map_err(|error| self.state.address.explain(&error))
    }

    /// Handles the failure of a message that was published on a channel of its own.
    fn handle_own_channel_failure(
        &mut self,
        link: &mut PublisherConnection,
        id: u64,
        error: &lapin::Error,
    ) -> Result<(), String> {
        if !link.is_connected() {
            return Err(self.state.address.explain(error));
        }
        let Some(PublishedMessage { mut pending, .. }) = link.remove(id) else {
            return Ok(());
        };
        if pending.is_withdrawn {
            self.decrement_unconfirmed();
            return Ok(());
        }
        let (message, queue) = (pending.message.id.as_str(), &pending.message.address.queue);
        let bytes = pending.message.body.len();
        let mut pause =
            if let Some((AMQPSoftError::PRECONDITIONFAILED, broker_text)) = channel_error(error) {
                link.body_bytes_max = parse_size_limit(broker_text).or(link.body_bytes_max);
                pending.channel_closures += 1;
                if pending.channel_closures < CHANNEL_CLOSURES_MAX {
                    NACK_BACKOFF
                } else {
                    self.state.settings.reconnect_max
                }
            } else {
                tracing::warn!(message, %queue, %error, "a message could not be published");
                QUEUE_RECHECK_DELAY
            };
        if pending.channel_closures == CHANNEL_CLOSURES_MAX {
            tracing::error!(
                message, %queue, bytes, bytes_max = link.body_bytes_max, %error,
                retry_in_ms = millis(pause),
                "the broker takes no message of this size: raise its max_message_size, or lower \
                 limits.step_message_bytes_max"
            );
        }
        if pending.message.addressee == Addressee::Caller
            && pending.channel_closures >= CHANNEL_CLOSURES_MAX
        {
            // The caller must at least learn that the job has ended.
            pending.message.kind = Some(ERROR_KIND);
            pending.message.body = Body::from_error(
                &format!(
                    "the result has {bytes} bytes, more than the broker takes: pass large data by \
                     reference"
                ),
                false,
            );
            pause = NACK_BACKOFF;
        }
        self.backlog.delayed.insert((clock::timer_now() + pause, id), pending);
        Ok(())
    }

    /// Puts messages without a valid confirm in front of the waiting ones, to be sent again.
    fn requeue_unsettled(&mut self, link: &mut PublisherConnection) {
        for (mut pending, is_queue_gone) in link.take_unsettled().into_iter().rev() {
            if is_queue_gone {
                self.backlog.lost_queues.insert(pending.message.address.queue.clone());
            }
            if pending.is_withdrawn {
                self.decrement_unconfirmed();
                continue;
            }
            pending.is_resend = true;
            self.backlog.waiting.push_front(pending);
        }
    }

    // ---- the rest

    #[allow(clippy::wildcard_enum_match_arm, reason = "lapin's events are non-exhaustive")]
    fn handle_connection_event(
        &mut self,
        link: &mut PublisherConnection,
        event: Option<Event>,
    ) -> Result<(), String> {
        match event {
            Some(Event::ConnectionBlocked(reason)) => {
                tracing::warn!(reason, "the broker blocks publishing");
                link.is_blocked = true;
                self.state.state_reporter.set_blocked(Some(reason));
            }
            Some(Event::ConnectionUnblocked) => {
                tracing::info!("the broker takes messages again");
                link.is_blocked = false;
                self.state.state_reporter.set_blocked(None);
            }
            // Errors of a channel are handled where the channel is used.
            Some(Event::Error(error)) if channel_error(&error).is_none() => {
                return Err(self.state.address.explain(&error));
            }
            Some(_) => {}
            None => return Err("the connection's events have ended".to_owned()),
        }
        Ok(())
    }

    fn handle_timers(&mut self, link: &mut PublisherConnection) {
        let now = clock::timer_now();
        if link.unresponsive_at().is_some_and(|at| at <= now) {
            link.is_unresponsive = true;
            tracing::warn!(
                unconfirmed = link.published.len(),
                "the broker confirms nothing: has the network stopped, or the broker?"
            );
            self.state.state_reporter.set_unresponsive(Some(UNRESPONSIVE_AFTER));
        }
        while let Some(entry) =
            self.backlog.delayed.first_entry().filter(|entry| entry.key().0 <= now)
        {
            self.backlog.waiting.push_back(entry.remove());
        }
        while let Some(entry) =
            link.scheduled_checks.first_entry().filter(|entry| entry.key().0 <= now)
        {
            let queue = entry.remove();
            link.check_queue(&queue);
        }
    }
}
