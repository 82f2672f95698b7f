//! The event loop of the bus, which owns the reader and the publisher. It checks brokers and
//! topics, and reports the state of the bus and queues whose messages are lost.

use super::backoff::BrokerBackoff;
use super::client::{ClientEvent, EventContext};
use super::cluster::{TopicAdmin, TopicQuery};
use super::publisher::KafkaPublisher;
use super::reader::{ReaderEvent, ReplyReader};
use super::topic::{TopicInfo, TopicStatus, was_recreated};
use base::clock;
use bus::KafkaSection;
use bus::{BusEvent, BusState, EventSink, Publication, ServedQueues, TopicOffset};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// How long closing waits until replies are settled. The next start reads unsettled ones again.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// The most commands or client events that are handled in one turn of the loop.
const EVENTS_PER_TURN: usize = 512;

/// A command of the bus's owner.
pub(super) enum Command {
    Publish(Publication),
    /// Withdraws the message with this id.
    Withdraw(String),
    SetServed(ServedQueues),
}

/// The lifecycle of the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventLoopPhase {
    Running,
    /// Replies are no longer read. Sending stops once those that were read are settled, or have had
    /// a few seconds to be.
    Stopping,
}

/// Whether the brokers answer.
enum BrokerState {
    /// They do not answer yet, or no longer.
    Unavailable {
        /// The reason; empty before the first check.
        reason: String,
    },
    /// They answered the last check, and at least one could be reached since.
    Available,
}

/// The result of a task about a topic.
enum CompletedTask {
    /// The loss of a queue's messages is journaled.
    LossJournaled(Arc<str>),
    /// The topic of a queue was created, or why it was not. `None`: the reply topic.
    TopicCreated(Option<Arc<str>>, Result<(), String>),
}

/// The checked topics and their statuses, in the same order, or why the brokers do not answer.
type TopicChecks = Result<(Vec<CheckedTopic>, Vec<TopicStatus>), String>;

/// Whose topic was checked.
enum CheckedTopic {
    /// The reply topic.
    Replies,
    /// A queue, and the written offsets of its topic, by partition, from when the check began.
    Queue(Arc<str>, BTreeMap<i32, i64>),
}

/// The task of the bus. It handles commands, events of the client library, checks and timers, one
/// after another.
pub(super) struct EventLoop {
    section: Arc<KafkaSection>,
    sink: EventSink,
    topic_admin: TopicAdmin,
    reader: ReplyReader,
    publisher: KafkaPublisher,
    client_events: mpsc::UnboundedReceiver<ClientEvent>,
    brokers: BrokerState,
    /// The backoff between checks of brokers that are unavailable.
    backoff: BrokerBackoff,
    /// The queues that are served, or were.
    queues: BTreeSet<Arc<str>>,
    /// The longest time that a step waits for a reply, by queue.
    reply_timeouts: BTreeMap<Arc<str>, Duration>,
    /// Queues whose topics are created once their loss is journaled.
    missing_topics: BTreeSet<Arc<str>>,
    /// Queues whose topics ended before their written offsets at the last check, with these
    /// offsets by partition.
    suspected_losses: BTreeMap<Arc<str>, BTreeMap<i32, i64>>,
    /// The check of the topics that is running.
    pending_check: Option<LocalBoxFuture<'static, TopicChecks>>,
    next_check_at: Instant,
    /// The running tasks about topics: creating them, and waiting until a loss is journaled.
    tasks: FuturesUnordered<LocalBoxFuture<'static, CompletedTask>>,
    /// Why the reply topic cannot be read; `None`: it can.
    reply_topic_error: Option<String>,
    /// The last error of the client library since the brokers answered.
    last_error: Option<String>,
    reported_state: BusState,
}

impl EventLoop {
    pub(super) fn new(
        section: Arc<KafkaSection>,
        served: ServedQueues,
        offsets: &[TopicOffset],
        sink: EventSink,
        unconfirmed: Rc<Cell<usize>>,
    ) -> Result<EventLoop, String> {
        let (event_sender, client_events) = mpsc::unbounded_channel();
        let context = EventContext(event_sender);
        let topic_admin = TopicAdmin::new(&section, context.clone())?;
        let reader = ReplyReader::new(section.clone(), offsets, sink.clone(), context.clone())?;
        let publisher =
            KafkaPublisher::new(section.clone(), offsets, sink.clone(), unconfirmed, context)?;
        Ok(EventLoop {
            backoff: BrokerBackoff::from_section(&section),
            section,
            sink,
            topic_admin,
            reader,
            publisher,
            client_events,
            brokers: BrokerState::Unavailable { reason: String::new() },
            queues: served.worker_queues.into_iter().collect(),
            reply_timeouts: served.reply_timeouts,
            missing_topics: BTreeSet::new(),
            suspected_losses: BTreeMap::new(),
            pending_check: None,
            next_check_at: clock::timer_now(),
            tasks: FuturesUnordered::new(),
            reply_topic_error: None,
            last_error: None,
            reported_state: BusState::Disconnected { reason: String::new() },
        })
    }

    /// Runs until the bus is closed.
    pub(super) async fn run(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut phases: watch::Receiver<EventLoopPhase>,
    ) {
        let (mut command_batch, mut client_event_batch) =
            (Vec::with_capacity(EVENTS_PER_TURN), Vec::new());
        let mut settle_deadline: Option<Instant> = None;
        loop {
            if let Err(error) = self.publisher.replace_producer_if_needed() {
                return (self.sink)(BusEvent::Fatal(format!("no producer can be made: {error}")));
            }
            // While the brokers are unavailable, the library would buffer messages. It would send
            // them once the brokers return, before the topics are checked.
            if matches!(self.brokers, BrokerState::Available) {
                self.publisher.send_waiting();
            }
            self.reader.report_offsets();
            self.publisher.report_offsets();
            self.report_state();
            self.start_check_if_needed();
            if settle_deadline.is_some_and(|deadline| self.can_stop(deadline)) {
                break;
            }
            // A deadline that has passed would wake the loop over and over. From then on, the loop
            // waits only for the publisher.
            let deadline = settle_deadline.filter(|deadline| *deadline > clock::timer_now());
            let next_check = Some(self.next_check_at).filter(|_| self.pending_check.is_none());
            let timers = [next_check, deadline, self.publisher.next_timer()];
            let next_wakeup = timers.into_iter().flatten().min();
            let (reader_turn, check) = (self.reader.next_turn(), &mut self.pending_check);
            tokio::select! {
                count = commands.recv_many(&mut command_batch, EVENTS_PER_TURN),
                    if !commands.is_closed() =>
                {
                    if count > 0 {
                        command_batch.drain(..).for_each(|command| self.handle_command(command));
                    }
                }
                _ = self.client_events.recv_many(&mut client_event_batch, EVENTS_PER_TURN) => {
                    client_event_batch.drain(..).for_each(|event| self.handle_client_event(event));
                }
                Some(command) = self.reader.commands.recv() => self.reader.settle(command),
                turn = reader_turn,
                    if settle_deadline.is_none() && self.reader.has_capacity() =>
                {
                    turn.records.into_iter().for_each(|record| self.reader.deliver(record));
                    turn.event.into_iter().for_each(|event| self.handle_reader_event(event));
                }
                checks = async { check.as_mut().unwrap_or(&mut never_completes()).await } => {
                    self.pending_check = None;
                    self.handle_checks(checks);
                }
                Some(task) = self.tasks.next() => self.handle_task(task),
                () = tokio::time::sleep_until(next_wakeup.unwrap_or_else(clock::timer_now)),
                    if next_wakeup.is_some() =>
                {
                    self.publisher.handle_timers();
                }
                () = wait_for_shutdown(&mut phases), if settle_deadline.is_none() => {
                    settle_deadline = Some(clock::timer_now() + SETTLE_TIMEOUT);
                }
            }
        }
        self.brokers = BrokerState::Unavailable { reason: "closed".to_owned() };
        self.report_state();
    }

    /// Returns whether the loop can stop. It waits for unsettled replies until the deadline, and
    /// without limit for messages that are waiting or in flight to available brokers.
    fn can_stop(&self, settle_deadline: Instant) -> bool {
        let unsettled = self.reader.unsettled_count();
        if unsettled > 0 && clock::timer_now() < settle_deadline {
            return false;
        }
        let is_unavailable = matches!(self.brokers, BrokerState::Unavailable { .. });
        let can_stop = self.publisher.is_drained() || is_unavailable;
        if can_stop && unsettled > 0 {
            tracing::warn!(unsettled, "unsettled replies will be read again");
        }
        can_stop
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Publish(message) => self.publisher.enqueue(message),
            Command::Withdraw(id) => self.publisher.withdraw(&id),
            Command::SetServed(served) => {
                // Running jobs, and jobs that are retried, still use the queues of earlier
                // definitions.
                self.queues.extend(served.worker_queues);
                for (queue, timeout) in served.reply_timeouts {
                    let longest_timeout = self.reply_timeouts.entry(queue).or_default();
                    *longest_timeout = timeout.max(*longest_timeout);
                }
                self.publisher.needs_topic_check = true;
            }
        }
    }

    fn handle_client_event(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Delivered { number, result } => {
                self.publisher.handle_delivery_report(number, result)
            }
            ClientEvent::ProducerClosed { last_number } => {
                self.publisher.handle_producer_closed(last_number)
            }
            ClientEvent::AllBrokersDown => {
                if matches!(self.brokers, BrokerState::Available) {
                    let reason = self.last_error.clone();
                    self.mark_unavailable(
                        reason.unwrap_or_else(|| "no broker can be reached".to_owned()),
                    );
                    self.next_check_at = clock::timer_now();
                }
            }
            ClientEvent::Error(reason) => {
                self.last_error = Some(reason);
                self.publisher.check_producer();
            }
        }
    }

    fn handle_reader_event(&mut self, event: ReaderEvent) {
        match event {
            ReaderEvent::PartitionEnd(partition) => self.reader.handle_partition_end(partition),
            ReaderEvent::TopicChanged(reason) => {
                tracing::debug!(reason, "the reply topic has changed");
                self.publisher.needs_topic_check = true;
            }
            ReaderEvent::Stopped(reason) => {
                tracing::debug!(reason, "the library has stopped reading the reply topic");
                // The next check makes reading continue at the next offset.
                self.reader.pause();
                let early_check_at = clock::timer_now() + self.section.reconnect_min.0;
                self.next_check_at = self.next_check_at.min(early_check_at);
            }
            ReaderEvent::Error(reason) => tracing::debug!(reason, "the reply topic cannot be read"),
        }
    }

    // ---- checks of topics

    /// Starts a check of all topics if it is scheduled or was requested, and none is running.
    fn start_check_if_needed(&mut self) {
        let is_available = matches!(self.brokers, BrokerState::Available);
        let is_due = clock::timer_now() >= self.next_check_at;
        // A request does not cut short the backoff of brokers that are unavailable.
        let is_requested = is_available && self.publisher.needs_topic_check;
        if !(is_due || is_requested) || self.pending_check.is_some() {
            return;
        }
        self.publisher.needs_topic_check = false;
        self.next_check_at = clock::timer_now() + self.section.checked_every.0;
        let queues: BTreeSet<Arc<str>> =
            self.queues.iter().chain(self.publisher.queues()).cloned().collect();
        let reply_topic = self.section.reply_topic.clone();
        let mut checked_topics = vec![CheckedTopic::Replies];
        let mut queries = vec![TopicQuery { topic: reply_topic, watermark_partitions: None }];
        // A queue whose loss is not journaled yet is checked once it is.
        for queue in queues.into_iter().filter(|queue| !self.publisher.is_topic_lost(queue)) {
            let written_offsets = self.publisher.written_offsets(&queue);
            queries.push(TopicQuery {
                topic: self.section.topic(&queue),
                watermark_partitions: Some(written_offsets.keys().copied().collect()),
            });
            checked_topics.push(CheckedTopic::Queue(queue, written_offsets));
        }
        let (topic_admin, timeout) = (self.topic_admin.clone(), self.section.request_timeout.0);
        self.pending_check = Some(Box::pin(async move {
            let statuses = topic_admin.inspect_topics(queries, timeout).await?;
            Ok((checked_topics, statuses))
        }));
    }

    fn handle_checks(&mut self, checks: TopicChecks) {
        let (checked_topics, statuses) = match checks {
            Ok(checks) => checks,
            Err(reason) => {
                let reason = match &self.last_error {
                    Some(last_error) => format!("{reason}: {last_error}"),
                    None => reason,
                };
                self.mark_unavailable(reason);
                self.next_check_at = clock::timer_now() + self.backoff.next_delay();
                return;
            }
        };
        let was_unavailable = matches!(self.brokers, BrokerState::Unavailable { .. });
        if was_unavailable {
            tracing::info!(servers = self.section.servers.0.join(","), "connected to the brokers");
        }
        self.backoff = BrokerBackoff::from_section(&self.section);
        self.last_error = None;
        self.brokers = BrokerState::Available;
        self.publisher.handle_brokers_available();
        for (checked_topic, status) in checked_topics.into_iter().zip(statuses) {
            match checked_topic {
                CheckedTopic::Replies => self.handle_reply_topic(&status, was_unavailable),
                CheckedTopic::Queue(queue, written_offsets) => {
                    self.handle_queue_topic(&queue, &written_offsets, status)
                }
            }
        }
    }

    /// Handles the status of the reply topic. If replies were lost, the steps of all queues may
    /// wait in vain, so they are sent again.
    fn handle_reply_topic(&mut self, status: &TopicStatus, was_unavailable: bool) {
        self.reply_topic_error = None;
        let has_lost_replies = match status {
            TopicStatus::Exists(topic) => {
                let has_lost_replies = self.reader.handle_topic_found(topic);
                if was_unavailable {
                    self.reader.start_catch_up(topic);
                }
                has_lost_replies
            }
            TopicStatus::Missing => {
                self.create_topic(None);
                self.reader.handle_topic_missing()
            }
            TopicStatus::Refused(reason) => Err(reason.clone()),
        };
        match has_lost_replies {
            Ok(false) => {}
            Ok(true) => {
                let queues: Vec<Arc<str>> =
                    self.queues.iter().chain(self.publisher.queues()).cloned().collect();
                queues.iter().for_each(|queue| self.report_loss(queue));
            }
            Err(reason) => self.reply_topic_error = Some(reason),
        }
    }

    fn handle_queue_topic(
        &mut self,
        queue: &Arc<str>,
        written_offsets: &BTreeMap<i32, i64>,
        status: TopicStatus,
    ) {
        match status {
            TopicStatus::Missing => {
                self.missing_topics.insert(queue.clone());
                self.report_loss(queue);
            }
            // The topic was lost during the check. It is checked again once that is journaled.
            TopicStatus::Refused(_) | TopicStatus::Exists(_)
                if self.publisher.is_topic_lost(queue) => {}
            TopicStatus::Refused(reason) => self.publisher.mark_topic_unusable(queue, reason),
            TopicStatus::Exists(topic)
                if self.update_suspected_loss(queue, written_offsets, &topic) =>
            {
                let TopicInfo { partitions, watermarks, .. } = topic;
                tracing::warn!(
                    %queue, written = ?written_offsets, partitions, ?watermarks,
                    "a topic ends before what was written to it: it was recreated, and what \
                     waited in it is lost"
                );
                self.report_loss(queue);
            }
            TopicStatus::Exists(topic) => {
                let (name, reply_timeout) =
                    (self.section.topic(queue), self.reply_timeouts.get(queue).copied());
                match topic.retention.check_retention(&name, reply_timeout) {
                    Some(reason) => self.publisher.mark_topic_unusable(queue, reason),
                    None => self.publisher.mark_topic_ready(queue, topic.partitions),
                }
            }
        }
    }

    /// Suspects a loss if a topic ends before its written offsets. Returns whether the last check
    /// suspected it too: one check does not suffice, because a broker may report an old watermark.
    fn update_suspected_loss(
        &mut self,
        queue: &Arc<str>,
        written_offsets: &BTreeMap<i32, i64>,
        topic: &TopicInfo,
    ) -> bool {
        if !was_recreated(written_offsets, topic) {
            self.suspected_losses.remove(queue);
            return false;
        }
        let suspected_loss = self.suspected_losses.insert(queue.clone(), written_offsets.clone());
        suspected_loss.is_some_and(|earlier_offsets| was_recreated(&earlier_offsets, topic))
    }

    /// Reports that the messages of a queue are lost, so that its steps are sent again.
    fn report_loss(&mut self, queue: &Arc<str>) {
        if self.publisher.is_topic_lost(queue) {
            return;
        }
        self.publisher.mark_topic_lost(queue);
        self.suspected_losses.remove(queue);
        let (journaled, is_journaled) = oneshot::channel();
        (self.sink)(BusEvent::QueueMissing { queue: queue.clone(), journaled });
        let queue = queue.clone();
        self.tasks.push(Box::pin(async move {
            // An error means that the manager stops.
            let _ = is_journaled.await;
            CompletedTask::LossJournaled(queue)
        }));
    }

    fn handle_task(&mut self, task: CompletedTask) {
        match task {
            CompletedTask::LossJournaled(queue) => {
                if self.missing_topics.remove(&queue) {
                    self.create_topic(Some(queue));
                } else {
                    self.publisher.resume_after_loss(&queue);
                }
            }
            CompletedTask::TopicCreated(Some(queue), Ok(())) => {
                self.publisher.resume_after_loss(&queue)
            }
            CompletedTask::TopicCreated(Some(queue), Err(error)) => {
                let topic = self.section.topic(&queue);
                let reason = format!("the topic {topic} is missing and cannot be created: {error}");
                self.publisher.mark_topic_unusable(&queue, reason);
            }
            CompletedTask::TopicCreated(None, Ok(())) => self.publisher.needs_topic_check = true,
            CompletedTask::TopicCreated(None, Err(error)) => {
                let topic = &self.section.reply_topic;
                self.reply_topic_error = Some(format!(
                    "the reply topic {topic} is missing and cannot be created: {error}"
                ));
            }
        }
    }

    /// Creates the topic of a queue; `None`: the reply topic.
    fn create_topic(&mut self, queue: Option<Arc<str>>) {
        let (topic_admin, section) = (self.topic_admin.clone(), self.section.clone());
        let (topic, reply_timeout) = match &queue {
            Some(queue) => (section.topic(queue), self.reply_timeouts.get(queue).copied()),
            None => (section.reply_topic.clone(), None),
        };
        self.tasks.push(Box::pin(async move {
            let result = topic_admin.create_topic(&section, &topic, reply_timeout).await;
            CompletedTask::TopicCreated(queue, result)
        }));
    }

    // ---- state

    fn mark_unavailable(&mut self, reason: String) {
        let is_new_reason = match &self.brokers {
            BrokerState::Unavailable { reason: logged_reason } => *logged_reason != reason,
            BrokerState::Available => true,
        };
        if is_new_reason {
            tracing::warn!(
                servers = self.section.servers.0.join(","),
                reason,
                "not connected to the brokers (logged once for each reason)"
            );
        }
        self.brokers = BrokerState::Unavailable { reason };
        // Reading continues only after a check that the topic is still the same.
        self.reader.pause();
    }

    /// Reports the state of the bus if it has changed.
    fn report_state(&mut self) {
        let state = self.state();
        if state != self.reported_state {
            self.reported_state = state.clone();
            (self.sink)(BusEvent::State(state));
        }
    }

    fn state(&self) -> BusState {
        match (&self.brokers, &self.reply_topic_error) {
            (BrokerState::Unavailable { reason }, _) => {
                return BusState::Disconnected { reason: reason.clone() };
            }
            (BrokerState::Available, Some(reason)) => {
                return BusState::Disconnected { reason: reason.clone() };
            }
            (BrokerState::Available, None) => {}
        }
        if let Some(reason) = self.publisher.producer_error() {
            let reason = format!("the brokers reject the producer: {reason}");
            return BusState::Disconnected { reason };
        }
        if !self.reader.has_caught_up() {
            return BusState::CatchingUp;
        }
        let unusable = self.publisher.unusable_queues();
        if unusable.is_empty() {
            return BusState::CONNECTED;
        }
        let reasons: Vec<&str> = unusable.values().map(String::as_str).collect();
        let reason = reasons.join("; ");
        BusState::QueuesUnusable { queues: unusable.into_keys().collect(), reason }
    }
}

/// Waits until the bus is being closed, or was dropped.
async fn wait_for_shutdown(phases: &mut watch::Receiver<EventLoopPhase>) {
    let _ = phases.wait_for(|phase| *phase == EventLoopPhase::Stopping).await;
}

/// Returns a stand-in for a check while none is running.
fn never_completes() -> LocalBoxFuture<'static, TopicChecks> {
    Box::pin(std::future::pending())
}

#[cfg(test)]
mod tests;
