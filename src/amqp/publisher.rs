//! Publishes step messages, keeps each until the broker has confirmed it, and makes sure that the
//! queues exist.
//!
//! The [`Backlog`] outlives each [`PublisherConnection`]. A message is in exactly one state:
//! waiting, parked or delayed in the backlog, or published on the connection.

mod channel_failures;
mod queue_checks;

use super::addresses::Reconnects;
use super::backlog::{Backlog, PublisherCommand};
use super::connection::{channel_error, fail_point, millis};
use super::message_properties::build_properties;
use super::publisher_connection::{
    NumberedConfirm, PublishedMessage, PublisherConnection, QueueState, RecordedConfirm,
    UNRESPONSIVE_AFTER,
};
use super::queues::QueueCheck;
use super::state::{AmqpState, ShutdownPhase, Side, wait_for_phase};
use base::clock;
use bus::{Addressee, BusEvent, BusNotice};
use futures_util::StreamExt;
use lapin::Event;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The most commands that are received at once.
const COMMANDS_PER_TURN: usize = 512;

/// The delay before a nacked message is sent again. It doubles with each nack, up to the setting
/// `reconnect_max`.
const NACK_BACKOFF: Duration = Duration::from_millis(100);

/// How often the delay doubles at most, so that the shift does not overflow.
const NACK_DOUBLINGS_MAX: u32 = 16;

/// After how many nacks of one message its channel counts as refused.
const CHANNEL_NACKS: u32 = 3;

/// How long a channel is kept at least before it is replaced because the broker refuses messages.
const CHANNEL_AGE_MIN: Duration = Duration::from_secs(2);

/// How often the broker may close a channel because of a message before the message is retried
/// only with the longest delay.
const CHANNEL_CLOSURES_MAX: u32 = 3;

/// Publishes, and reconnects, until the bus is closed.
pub(super) async fn run(
    state: Rc<AmqpState>,
    commands: mpsc::UnboundedReceiver<PublisherCommand>,
    recheck_requests: mpsc::UnboundedReceiver<Vec<Arc<str>>>,
    unconfirmed: Rc<Cell<usize>>,
    mut phases: watch::Receiver<ShutdownPhase>,
) {
    let mut reconnects =
        Reconnects::new(state.settings.reconnect_min, state.settings.reconnect_max);
    let mut publisher = Publisher {
        backlog: Backlog::new(&state.settings.served.worker_queues),
        state: state.clone(),
        commands,
        recheck_requests,
        unconfirmed,
        last_number: 0,
    };
    loop {
        let address = state.addresses.current();
        let result = tokio::select! {
            biased;
            () = wait_for_phase(&mut phases, ShutdownPhase::StopPublishing) => break,
            result = Box::pin(PublisherConnection::open(&state, address.clone())) => result,
        };
        let end = match result {
            Ok(mut connection) => {
                let connected_at = clock::timer_now();
                tracing::info!(
                    server = %address,
                    unconfirmed = publisher.unconfirmed.get(),
                    "publishing step messages"
                );
                state.report_up(Side::Publisher, &address);
                let end = Box::pin(publisher.serve(&mut connection, &mut phases)).await;
                publisher.requeue_unsettled(&mut connection);
                if connected_at.elapsed() >= state.settings.reconnect_min {
                    reconnects.reset();
                }
                if let PublishEnd::Lost(reason) = &end {
                    state.state_reporter.set_down(Side::Publisher, reason);
                }
                connection.close().await;
                end
            }
            Err(reason) => PublishEnd::Lost(reason),
        };
        let PublishEnd::Lost(reason) = end else { break };
        let delay = reconnects.next_delay(&state.addresses, &address);
        state.report_down(Side::Publisher, &address, &reason, delay);
        tokio::select! {
            () = wait_for_phase(&mut phases, ShutdownPhase::StopPublishing) => break,
            () = tokio::time::sleep(delay) => {}
        }
    }
    state.state_reporter.set_down(Side::Publisher, "closed");
}

/// Why publishing on a connection has ended.
enum PublishEnd {
    /// The bus is closed.
    Closed,
    /// The connection is lost or useless, for this reason.
    Lost(String),
}

/// The publishing side of the bus.
struct Publisher {
    state: Rc<AmqpState>,
    commands: mpsc::UnboundedReceiver<PublisherCommand>,
    /// Receives requests to check queues on which steps wait.
    recheck_requests: mpsc::UnboundedReceiver<Vec<Arc<str>>>,
    /// The number of messages that the broker has not confirmed yet, sent or not.
    unconfirmed: Rc<Cell<usize>>,
    backlog: Backlog,
    /// The last number given to a published message or a scheduled check.
    last_number: u64,
}

/// What the publisher waits for while it is connected.
enum PublisherEvent {
    /// A message was confirmed, or its channel failed.
    Confirmed(NumberedConfirm),
    BarrierPassed(lapin::Result<()>),
    /// A queue was checked or declared.
    QueueChecked(Arc<str>, QueueCheck),
    /// A queue that existed with this generation was checked again.
    QueueRechecked(u64, Arc<str>, QueueCheck),
    RecheckRequested(Vec<Arc<str>>),
    /// An event of the connection; `None`: there are no further events.
    ConnectionEvent(Option<Event>),
    CommandsReceived,
    TimerDue,
    /// The bus is being closed.
    Closing,
}

impl Publisher {
    /// Publishes until the bus is closed or the connection is lost.
    #[allow(clippy::too_many_lines, reason = "one select and one match over its events")]
    async fn serve(
        &mut self,
        connection: &mut PublisherConnection,
        phases: &mut watch::Receiver<ShutdownPhase>,
    ) -> PublishEnd {
        self.backlog.known_queues.iter().for_each(|queue| connection.check_queue(queue));
        let (mut command_batch, mut is_closing) = (Vec::with_capacity(COMMANDS_PER_TURN), false);
        loop {
            // Withdrawals that have arrived must take effect before messages are sent.
            let arrived_count = self.commands.len();
            let commands: Vec<PublisherCommand> =
                (0..arrived_count).map_while(|_| self.commands.try_recv().ok()).collect();
            self.apply_commands(connection, commands);
            if let Err(reason) = Publisher::renew_refused_channel(connection).await {
                return PublishEnd::Lost(reason);
            }
            if let Err(reason) = self.publish_burst(connection).await {
                return PublishEnd::Lost(reason);
            }
            if let Err(reason) = self.settle_unambiguous(connection) {
                return PublishEnd::Lost(reason);
            }
            // Messages that were returned since the burst are sent at once, because there may be no
            // further event.
            if self.can_publish(connection) {
                continue;
            }
            connection.start_barrier();
            if let Some(reason) = self.find_reason_to_leave(connection) {
                return PublishEnd::Lost(reason);
            }
            if is_closing && self.is_drained(connection) {
                return PublishEnd::Closed;
            }
            let next_timer = connection
                .scheduled_checks
                .keys()
                .next()
                .into_iter()
                .chain(self.backlog.delayed.keys().next())
                .map(|(time, _)| *time)
                .chain(connection.unresponsive_at())
                .chain(connection.overdue_at().filter(|_| self.state.addresses.are_several()))
                .min();
            let event = tokio::select! {
                Some(confirm) = connection.pending_confirms.next() => {
                    PublisherEvent::Confirmed(confirm)
                }
                Some(result) = connection.barrier.next() => PublisherEvent::BarrierPassed(result),
                Some((queue, check)) = connection.queue_checks.next() => {
                    PublisherEvent::QueueChecked(queue, check)
                }
                Some((generation, (queue, check))) = connection.queue_rechecks.next() => {
                    PublisherEvent::QueueRechecked(generation, queue, check)
                }
                // Only after the previous checks have ended, so that a slow broker is not flooded.
                Some(queues) = self.recheck_requests.recv(),
                    if connection.queue_rechecks.is_empty() =>
                {
                    PublisherEvent::RecheckRequested(queues)
                }
                event = connection.events.next() => PublisherEvent::ConnectionEvent(event),
                count = self.commands.recv_many(&mut command_batch, COMMANDS_PER_TURN),
                    if !is_closing || !self.commands.is_closed() =>
                {
                    if count > 0 { PublisherEvent::CommandsReceived }
                    else { PublisherEvent::Closing }
                }
                () = tokio::time::sleep_until(next_timer.unwrap_or_else(clock::timer_now)),
                    if next_timer.is_some() => PublisherEvent::TimerDue,
                () = wait_for_phase(phases, ShutdownPhase::StopPublishing), if !is_closing => {
                    PublisherEvent::Closing
                }
            };
            let result = match event {
                PublisherEvent::Confirmed(confirm) => {
                    self.handle_confirms(connection, vec![confirm]).await
                }
                PublisherEvent::BarrierPassed(result) => {
                    self.handle_barrier(connection, result).await
                }
                PublisherEvent::QueueChecked(queue, check) => {
                    self.handle_queue_check(connection, queue, check)
                }
                PublisherEvent::QueueRechecked(generation, queue, check) => {
                    self.handle_queue_recheck(connection, generation, queue, &check);
                    Ok(())
                }
                PublisherEvent::RecheckRequested(queues) => {
                    queues.iter().for_each(|queue| connection.recheck_queue(queue));
                    Ok(())
                }
                PublisherEvent::ConnectionEvent(event) => {
                    self.handle_connection_event(connection, event)
                }
                PublisherEvent::CommandsReceived => {
                    self.apply_commands(connection, command_batch.drain(..));
                    Ok(())
                }
                PublisherEvent::TimerDue => {
                    self.handle_timers(connection);
                    Ok(())
                }
                PublisherEvent::Closing => {
                    is_closing = true;
                    Ok(())
                }
            };
            if let Err(reason) = result {
                return PublishEnd::Lost(reason);
            }
        }
    }

    /// Applies commands to the backlog and to the published messages.
    fn apply_commands(
        &mut self,
        connection: &mut PublisherConnection,
        commands: impl IntoIterator<Item = PublisherCommand>,
    ) {
        let removed_count = self.backlog.apply(commands, |ids| connection.mark_withdrawn(ids));
        self.unconfirmed.set(self.unconfirmed.get().saturating_sub(removed_count));
    }

    /// Publishes the waiting messages that the connection can take, in one write.
    ///
    /// # Errors
    ///
    /// Returns the reason if the connection is lost.
    async fn publish_burst(&mut self, connection: &mut PublisherConnection) -> Result<(), String> {
        if self.backlog.waiting.is_empty() {
            return Ok(());
        }
        let (burst, mut confirms) = (connection.burst(), Vec::new());
        let burst_guard = burst.hold();
        let result = self.publish_waiting(connection);
        // lapin receives a message only when its future is polled for the first time.
        connection.drain_confirms(&mut confirms);
        drop(burst_guard);
        result.map_err(|error| connection.address.explain(&error))?;
        self.handle_confirms(connection, confirms).await
    }

    /// Settles the messages whose confirms can be trusted without a barrier.
    fn settle_unambiguous(&mut self, connection: &mut PublisherConnection) -> Result<(), String> {
        let confirms = connection.take_unambiguous_confirms();
        if !confirms.is_empty() {
            fail_point("amqp::confirm").map_err(|error| connection.address.explain(&error))?;
        }
        confirms.into_iter().for_each(|confirm| self.settle(connection, confirm));
        Ok(())
    }

    /// Returns whether a message waits and may be published now.
    ///
    /// Messages that wait only for the barrier are confirmed by the broker. So the connection may
    /// have twice as many published messages as pending confirms. Nothing is published on a blocked
    /// connection, because lapin would buffer it. The last message may exceed the limit in bytes,
    /// because a single message may be larger than the limit.
    fn can_publish(&self, connection: &PublisherConnection) -> bool {
        let unconfirmed_max = self.state.settings.unconfirmed_max;
        !self.backlog.waiting.is_empty()
            && !connection.is_blocked
            && connection.pending_confirms.len() < unconfirmed_max
            && connection.published.len() < 2 * unconfirmed_max
            && connection.published_bytes < self.state.settings.unconfirmed_bytes_max
    }

    /// Publishes the waiting messages that may be published now, and parks those whose queue is not
    /// known to exist.
    fn publish_waiting(&mut self, connection: &mut PublisherConnection) -> lapin::Result<()> {
        while self.can_publish(connection) {
            let Some(mut pending) = self.backlog.waiting.pop_front() else { break };
            let queue = &pending.message.address.queue;
            // The queue of a caller belongs to the caller, so it is neither checked nor declared.
            // No queue that was checked has generation 0.
            let queue_state = match pending.message.addressee {
                Addressee::Caller => Some(QueueState::Exists(0)),
                Addressee::Worker => connection.queue_states.get(queue).copied(),
            };
            match queue_state {
                Some(QueueState::Exists(generation)) => {
                    if std::mem::take(&mut pending.is_resend) {
                        (self.state.sink)(BusEvent::Notice(BusNotice::Resent));
                    }
                    let needs_own_channel = pending.channel_closures > 0
                        || connection
                            .body_bytes_max
                            .is_some_and(|max| pending.message.body.len() > max);
                    self.last_number += 1;
                    let (reply_queue, user) =
                        (&self.state.settings.reply_queue, self.state.addresses.user());
                    let properties = build_properties(&pending.message, reply_queue, user);
                    connection.publish(
                        self.last_number,
                        pending,
                        generation,
                        needs_own_channel,
                        properties,
                    );
                    fail_point("amqp::publish")?;
                }
                Some(QueueState::Checking | QueueState::Unusable) | None => {
                    if queue_state.is_none() {
                        self.backlog.known_queues.insert(queue.clone());
                        connection.check_queue(queue);
                    }
                    self.backlog.parked.entry(queue.clone()).or_default().push_back(pending);
                }
            }
        }
        Ok(())
    }

    /// Returns whether nothing remains that is likely to be confirmed soon.
    fn is_drained(&self, connection: &PublisherConnection) -> bool {
        let is_checking =
            |queue: &Arc<str>| connection.queue_states.get(queue) == Some(&QueueState::Checking);
        self.commands.is_empty()
            && connection.published.is_empty()
            && self.backlog.waiting.is_empty()
            && !self.backlog.parked.keys().any(is_checking)
    }

    /// Handles these confirms and all others that are ready.
    ///
    /// # Errors
    ///
    /// Returns the reason if the connection is lost or useless.
    async fn handle_confirms(
        &mut self,
        connection: &mut PublisherConnection,
        mut confirms: Vec<NumberedConfirm>,
    ) -> Result<(), String> {
        connection.drain_confirms(&mut confirms);
        let mut shared_channel_error = None;
        for (number, result) in confirms {
            match result {
                Ok(confirm) => connection.record_confirm(number, confirm),
                Err(error)
                    if connection
                        .published
                        .get(&number)
                        .is_some_and(|published| published.has_own_channel) =>
                {
                    self.handle_own_channel_failure(connection, number, &error)?
                }
                Err(error) => shared_channel_error = Some(error),
            }
        }
        match shared_channel_error {
            Some(error) => self.handle_channel_closed(connection, error).await,
            None => Ok(()),
        }
    }

    /// Settles the confirms before the barrier, now that it has passed.
    async fn handle_barrier(
        &mut self,
        connection: &mut PublisherConnection,
        result: lapin::Result<()>,
    ) -> Result<(), String> {
        if let Err(error) = result {
            return self.handle_channel_closed(connection, error).await;
        }
        fail_point("amqp::confirm").map_err(|error| connection.address.explain(&error))?;
        let trusted_confirms = connection.take_confirms_before_barrier();
        // The next confirms may carry the returns of the messages that these confirm.
        let mut confirms = Vec::new();
        connection.drain_confirms(&mut confirms);
        let mut failures = Vec::new();
        for (number, result) in confirms {
            match result {
                Ok(confirm) => connection.record_confirm(number, confirm),
                Err(error) => failures.push((number, Err(error))),
            }
        }
        trusted_confirms.into_iter().for_each(|confirm| self.settle(connection, confirm));
        self.handle_confirms(connection, failures).await
    }

    /// Settles a published message whose confirm can be trusted: reports it, or sends it again.
    fn settle(&mut self, connection: &mut PublisherConnection, confirm: RecordedConfirm) {
        let RecordedConfirm { number, is_ack } = confirm;
        let Some(PublishedMessage { mut pending, queue_generation, is_queue_lost, .. }) =
            connection.remove(number)
        else {
            return;
        };
        let (message, queue) = (pending.message.id.as_str(), pending.message.address.queue.clone());
        let was_returned = connection.take_return(&pending.message);
        if connection.is_unresponsive {
            connection.is_unresponsive = false;
            tracing::info!("the broker confirms messages again");
            self.state.state_reporter.set_unresponsive(None);
        }
        if pending.is_withdrawn && (was_returned || is_queue_lost || !is_ack) {
            self.decrement_unconfirmed();
        } else if was_returned && pending.message.addressee == Addressee::Caller {
            self.report_done(BusEvent::Unroutable(pending.message.confirm_token));
        } else if was_returned || is_queue_lost {
            tracing::debug!(message, %queue, "returned or lost with its queue: it is sent again");
            (self.state.sink)(BusEvent::Notice(BusNotice::Returned));
            // If the generation is outdated, the queue was checked or declared after the message
            // was published.
            if connection.is_current_generation(queue_generation, &queue) {
                connection.check_queue(&queue);
                self.backlog.lost_queues.insert(queue);
            }
            self.backlog.waiting.push_back(pending);
        } else if is_ack {
            self.state.full_queues.borrow_mut().remove(&queue);
            self.report_done(BusEvent::Confirmed(pending.message.confirm_token));
        } else {
            (self.state.sink)(BusEvent::Notice(BusNotice::Nacked));
            let delay = NACK_BACKOFF
                .saturating_mul(1 << pending.nacks.min(NACK_DOUBLINGS_MAX))
                .min(self.state.settings.reconnect_max);
            tracing::debug!(
                message,
                %queue,
                retry_in_ms = millis(delay),
                "the broker nacked it: its queue may be full"
            );
            pending.nacks += 1;
            connection.is_channel_refused |= pending.nacks >= CHANNEL_NACKS;
            self.state.full_queues.borrow_mut().insert(queue);
            self.backlog.delayed.insert((clock::timer_now() + delay, number), pending);
        }
    }

    /// Reports that a message is done: the broker has confirmed it, or it cannot be routed.
    fn report_done(&self, event: BusEvent) {
        self.decrement_unconfirmed();
        (self.state.sink)(event);
    }

    fn decrement_unconfirmed(&self) {
        self.unconfirmed.set(self.unconfirmed.get().saturating_sub(1));
    }

    /// Handles an event of the connection: reports whether the broker blocks publishing.
    ///
    /// # Errors
    ///
    /// Returns the reason if the connection is lost.
    #[allow(clippy::wildcard_enum_match_arm, reason = "lapin's events are non-exhaustive")]
    fn handle_connection_event(
        &mut self,
        connection: &mut PublisherConnection,
        event: Option<Event>,
    ) -> Result<(), String> {
        match event {
            Some(Event::ConnectionBlocked(reason)) => {
                tracing::warn!(reason, "the broker blocks publishing");
                connection.is_blocked = true;
                self.state.state_reporter.set_blocked(Some(reason));
            }
            Some(Event::ConnectionUnblocked) => {
                tracing::info!("the broker accepts messages again");
                connection.is_blocked = false;
                connection.unblocked_at = clock::timer_now();
                self.state.state_reporter.set_blocked(None);
            }
            // Errors of a channel are handled where the channel is used.
            Some(Event::Error(error)) if channel_error(&error).is_none() => {
                return Err(connection.address.explain(&error));
            }
            Some(_) => {}
            None => return Err("the connection's events have ended".to_owned()),
        }
        Ok(())
    }

    /// Handles timers that are due: for an unresponsive broker, delayed messages, and scheduled
    /// checks.
    fn handle_timers(&mut self, connection: &mut PublisherConnection) {
        let now = clock::timer_now();
        if connection.unresponsive_at().is_some_and(|time| time <= now) {
            connection.is_unresponsive = true;
            tracing::warn!(
                unconfirmed = connection.published.len(),
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
            connection.scheduled_checks.first_entry().filter(|entry| entry.key().0 <= now)
        {
            let queue = entry.remove();
            connection.check_queue(&queue);
        }
    }
}
