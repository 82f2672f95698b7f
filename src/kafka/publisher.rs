//! Produces step messages as records, and turns delivery reports into confirms.
//!
//! An unconfirmed message is in exactly one state: waiting to be sent, parked until its topic is
//! ready, delayed by a backoff, or in flight, which means that the client library has it.

mod headers;

use super::backoff::BrokerBackoff;
use super::client::{
    BATCH_BYTES, ClientConfigs, ClientEvent, ClosedOnThread, EventContext, explain,
};
use super::cluster::{is_missing_topic_code, is_missing_topic_error};
use base::clock;
use bus::KafkaSection;
use bus::{
    Body, BusEvent, BusNotice, Delivery, ERROR_KIND, EventSink, Publication, Settlement,
    TopicOffset,
};
use headers::{message_size, to_headers};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Half of the backoff after the first failure of a message. The backoff doubles with each
/// failure, up to the setting `reconnect_max`.
const FAILURE_BACKOFF: Duration = Duration::from_millis(100);

/// How often the backoff doubles at most, so that the shift does not overflow.
const BACKOFF_DOUBLINGS_MAX: u32 = 16;

/// How many times a message that is no larger than a batch may be refused as too large and is sent
/// again. The batch may have been too large instead.
const TOO_LARGE_FAILURES_MAX: u32 = 3;

/// A message that is not confirmed.
struct PendingRecord {
    message: Publication,
    /// An upper bound of its size, with headers.
    bytes: usize,
    /// How often the client library or the brokers refused it.
    failures: u32,
    /// How many of the failures were `MessageSizeTooLarge`.
    too_large_failures: u32,
    /// Whether its topic was lost while it was in flight.
    is_topic_lost: bool,
    /// Whether the next send counts as a resend, which is reported to the manager.
    is_resend: bool,
    /// Whether it was withdrawn while it was in flight, so that it must not be sent again.
    is_withdrawn: bool,
}

/// The state of a queue's topic, as far as the publisher knows.
enum TopicState {
    /// A check is requested or running.
    Unknown,
    /// It exists, with this number of partitions. Messages are sent to them round-robin.
    Ready { partitions: i32, next_partition: i32 },
    /// It cannot be used, for this reason.
    Unusable(String),
    /// It was lost with its messages, and the loss is not journaled yet.
    Lost,
}

/// Sends step messages. It outlives the connections to the brokers.
pub(super) struct KafkaPublisher {
    section: Arc<KafkaSection>,
    sink: EventSink,
    context: EventContext,
    /// The number of unconfirmed messages. The bus increments it, the publisher decrements it.
    unconfirmed: Rc<Cell<usize>>,
    producer: ClosedOnThread<ThreadedProducer<EventContext>>,
    /// Messages that are sent as soon as the limits of messages in flight allow.
    waiting: VecDeque<PendingRecord>,
    /// Messages of queues whose topic is not ready, by queue.
    parked: HashMap<Arc<str>, VecDeque<PendingRecord>>,
    /// Failed messages, by the end of their backoff and a number that makes the key unique.
    delayed: BTreeMap<(Instant, usize), PendingRecord>,
    /// Messages that the client library has, by the number in their delivery report.
    in_flight: HashMap<usize, PendingRecord>,
    /// The sum of their `bytes`.
    in_flight_bytes: usize,
    /// The last number that was assigned. The keys of `delayed` use the same sequence.
    last_number: usize,
    /// The states of the topics, by queue.
    topics: HashMap<Arc<str>, TopicState>,
    /// The offset after the last message that was written, by queue and partition.
    written_offsets: HashMap<Arc<str>, BTreeMap<i32, i64>>,
    /// The queues and partitions whose written offset was not reported yet.
    unreported_offsets: BTreeSet<(Arc<str>, i32)>,
    /// Whether topics must be checked.
    pub(super) needs_topic_check: bool,
    /// Whether the producer must be replaced.
    needs_new_producer: bool,
    /// The last fatal error of a producer; `None` once a producer works.
    producer_error: Option<String>,
    /// When a failed producer is replaced; `None` if no replacement is scheduled.
    replace_producer_at: Option<Instant>,
    /// The backoff between replacements of a producer.
    backoff: BrokerBackoff,
}

impl KafkaPublisher {
    pub(super) fn new(
        section: Arc<KafkaSection>,
        offsets: &[TopicOffset],
        sink: EventSink,
        unconfirmed: Rc<Cell<usize>>,
        context: EventContext,
    ) -> Result<KafkaPublisher, String> {
        let mut written_offsets: HashMap<Arc<str>, BTreeMap<i32, i64>> = HashMap::new();
        for TopicOffset { topic, partition, offset } in offsets {
            // The journal has the offset of the reply topic too, which belongs to the reader.
            if let Some(queue) = topic.strip_prefix(&*section.prefix)
                && **topic != *section.reply_topic
            {
                written_offsets.entry(queue.into()).or_default().insert(*partition, *offset);
            }
        }
        let producer = ClosedOnThread::new(create_producer(&section, &context)?);
        Ok(KafkaPublisher {
            backoff: BrokerBackoff::from_section(&section),
            section,
            sink,
            context,
            unconfirmed,
            producer,
            waiting: VecDeque::new(),
            parked: HashMap::new(),
            delayed: BTreeMap::new(),
            in_flight: HashMap::new(),
            in_flight_bytes: 0,
            last_number: 0,
            topics: HashMap::new(),
            written_offsets,
            unreported_offsets: BTreeSet::new(),
            needs_topic_check: false,
            needs_new_producer: false,
            producer_error: None,
            replace_producer_at: None,
        })
    }

    /// Enqueues a message to be published. A message that is too large fails its attempt.
    pub(super) fn enqueue(&mut self, message: Publication) {
        let bytes = message_size(&message, &self.section.reply_topic);
        if bytes > self.section.message_bytes_max {
            let max = self.section.message_bytes_max;
            return self.fail_attempt(
                message,
                &format!(
                    "the step message has {bytes} bytes with its headers, more than the {max} that \
                     the bus takes (setting message_bytes_max): pass large data by reference"
                ),
            );
        }
        self.waiting.push_back(PendingRecord {
            message,
            bytes,
            failures: 0,
            too_large_failures: 0,
            is_topic_lost: false,
            is_resend: false,
            is_withdrawn: false,
        });
    }

    /// Removes a message that is not in flight. A message in flight is only marked, so that it is
    /// not sent again if it fails.
    pub(super) fn withdraw(&mut self, id: &str) {
        let is_match = |pending: &PendingRecord| pending.message.id == id;
        self.in_flight
            .values_mut()
            .filter(|pending| is_match(pending))
            .for_each(|pending| pending.is_withdrawn = true);
        let queues = self.parked.values_mut().chain(std::iter::once(&mut self.waiting));
        let mut removed_count = 0;
        for queue in queues {
            let len_before = queue.len();
            queue.retain(|pending| !is_match(pending));
            removed_count += len_before - queue.len();
        }
        let len_before = self.delayed.len();
        self.delayed.retain(|_, pending| !is_match(pending));
        removed_count += len_before - self.delayed.len();
        self.subtract_unconfirmed(removed_count);
    }

    /// Fails the attempt of a message that the brokers will never accept: reports an error reply to
    /// it, as if a worker had sent one.
    fn fail_attempt(&self, message: Publication, reason: &str) {
        self.subtract_unconfirmed(1);
        let body = Body::from_reason(reason, false).to_bytes();
        let attempt = message.number_header("attempt");
        let correlation_id = message.correlation_id.as_deref().map(str::to_owned);
        let mut delivery = Delivery::new(correlation_id, body, Settlement::detached());
        delivery.kind = Some(ERROR_KIND.to_owned());
        delivery.attempt = attempt;
        (self.sink)(BusEvent::Reply(delivery));
    }

    fn subtract_unconfirmed(&self, count: usize) {
        self.unconfirmed.set(self.unconfirmed.get().saturating_sub(count));
    }

    /// Hands waiting messages to the client library until a limit of messages in flight is reached.
    pub(super) fn send_waiting(&mut self) {
        while self.in_flight.len() < self.section.unconfirmed_max
            && (self.in_flight.is_empty()
                || self.in_flight_bytes < self.section.unconfirmed_bytes_max)
        {
            let Some(pending) = self.waiting.pop_front() else { return };
            if pending.is_withdrawn {
                self.subtract_unconfirmed(1);
                continue;
            }
            let queue = pending.message.address.queue.clone();
            match self.topics.get_mut(&queue) {
                Some(TopicState::Ready { partitions, next_partition }) => {
                    // The topic may have been recreated with fewer partitions.
                    let partition = *next_partition % *partitions;
                    *next_partition = (partition + 1) % *partitions;
                    if !self.send(pending, partition) {
                        return;
                    }
                }
                Some(TopicState::Unknown | TopicState::Unusable(_) | TopicState::Lost) => {
                    self.park(pending)
                }
                None => {
                    self.request_topic_check(queue);
                    self.park(pending);
                }
            }
        }
    }

    /// Holds a message until the topic of its queue is ready.
    fn park(&mut self, pending: PendingRecord) {
        self.parked.entry(pending.message.address.queue.clone()).or_default().push_back(pending);
    }

    fn request_topic_check(&mut self, queue: Arc<str>) {
        self.needs_topic_check = true;
        self.topics.insert(queue, TopicState::Unknown);
    }

    /// Hands a message to the client library. Returns `false` if the library takes no message now;
    /// the message is then the first in `waiting` again.
    fn send(&mut self, mut pending: PendingRecord, partition: i32) -> bool {
        let Some(producer) = self.producer.get() else {
            self.waiting.push_front(pending);
            return false;
        };
        let message = &pending.message;
        let topic = self.section.topic(&message.address.queue);
        let body = message.body.to_bytes();
        self.last_number += 1;
        let number = self.last_number;
        let timestamp_ms = i64::try_from(message.timestamp_s * 1_000).unwrap_or(i64::MAX);
        let mut record = BaseRecord::with_opaque_to(&topic, number)
            .partition(partition)
            .payload(&body[..])
            .timestamp(timestamp_ms)
            .headers(to_headers(message, &self.section.reply_topic));
        record.key = message.correlation_id.as_deref().map(str::as_bytes);
        match producer.send(record).map_err(|(error, _)| error) {
            Ok(()) => {
                if std::mem::take(&mut pending.is_resend) {
                    (self.sink)(BusEvent::Notice(BusNotice::Resent));
                }
                self.in_flight_bytes += pending.bytes;
                self.in_flight.insert(number, pending);
                true
            }
            Err(KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) => {
                self.waiting.push_front(pending);
                false
            }
            Err(error) if is_missing_topic_error(&error) => {
                self.request_topic_check(pending.message.address.queue.clone());
                self.park(pending);
                true
            }
            Err(error) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                self.handle_failure(pending, code);
                true
            }
        }
    }

    /// Removes a message that the client library no longer has.
    fn remove_in_flight(&mut self, number: usize) -> Option<PendingRecord> {
        let pending = self.in_flight.remove(&number)?;
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(pending.bytes);
        Some(pending)
    }

    /// Handles the delivery report of a message: its partition and offset, or the error.
    pub(super) fn handle_delivery_report(
        &mut self,
        number: usize,
        result: Result<(i32, i64), RDKafkaErrorCode>,
    ) {
        let Some(mut pending) = self.remove_in_flight(number) else { return };
        let queue = pending.message.address.queue.clone();
        // Whatever the report says, the next send is to the topic as it is then.
        let was_topic_lost = std::mem::take(&mut pending.is_topic_lost);
        match result {
            // The message may have been lost with the topic. Delivery is at-least-once, so it is
            // sent again.
            Ok(_) if was_topic_lost => {
                (self.sink)(BusEvent::Notice(BusNotice::Returned));
                self.requeue_first(pending);
            }
            Ok((partition, offset)) => {
                self.clear_producer_error();
                self.record_written(queue, partition, offset);
                self.subtract_unconfirmed(1);
                (self.sink)(BusEvent::Confirmed(pending.message.confirm_token));
            }
            Err(code) if is_missing_topic_code(code) => {
                (self.sink)(BusEvent::Notice(BusNotice::Returned));
                if !matches!(self.topics.get(&queue), Some(TopicState::Lost)) {
                    self.request_topic_check(queue);
                }
                self.park(PendingRecord { is_resend: true, ..pending });
            }
            Err(code) => self.handle_failure(pending, code),
        }
    }

    /// Records that a message was written to a queue's topic at `offset`.
    fn record_written(&mut self, queue: Arc<str>, partition: i32, offset: i64) {
        let next_offset =
            self.written_offsets.entry(queue.clone()).or_default().entry(partition).or_default();
        // The report of a message that the library sent twice may lack its offset, which is then
        // negative.
        if offset >= *next_offset {
            *next_offset = offset + 1;
            self.unreported_offsets.insert((queue, partition));
        }
    }

    /// Handles a message that was refused. A permanent error fails its attempt. If the manager may
    /// not write to its topic, it is parked. Otherwise it is sent again after an exponential
    /// backoff.
    #[allow(clippy::wildcard_enum_match_arm, reason = "the library has more than a hundred codes")]
    fn handle_failure(&mut self, mut pending: PendingRecord, code: RDKafkaErrorCode) {
        let (queue, bytes) = (pending.message.address.queue.clone(), pending.bytes);
        pending.is_resend = true;
        pending.failures += 1;
        pending.too_large_failures += u32::from(code == RDKafkaErrorCode::MessageSizeTooLarge);
        match code {
            RDKafkaErrorCode::MessageSizeTooLarge
                if bytes > BATCH_BYTES || pending.too_large_failures > TOO_LARGE_FAILURES_MAX =>
            {
                let (topic, max) = (self.section.topic(&queue), self.section.message_bytes_max);
                self.fail_attempt(
                    pending.message,
                    &format!(
                        "the step message has {bytes} bytes with its headers, more than the topic \
                         {topic} takes, although the setting message_bytes_max is {max}: raise the \
                         topic's max.message.bytes, or pass large data by reference"
                    ),
                );
            }
            RDKafkaErrorCode::InvalidMessage
            | RDKafkaErrorCode::InvalidRecord
            | RDKafkaErrorCode::PolicyViolation => {
                let reason = format!("the broker refuses the step message: {code}");
                self.fail_attempt(pending.message, &reason);
            }
            RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::ClusterAuthorizationFailed => {
                self.mark_topic_unusable(
                    &queue,
                    format!("the brokers refuse what is sent to it: {code}"),
                );
                self.park(pending);
            }
            _ => {
                (self.sink)(BusEvent::Notice(BusNotice::Nacked));
                let delay = FAILURE_BACKOFF
                    .saturating_mul(1 << pending.failures.min(BACKOFF_DOUBLINGS_MAX))
                    .min(self.section.reconnect_max.0.max(FAILURE_BACKOFF));
                tracing::debug!(
                    message = pending.message.id,
                    %queue,
                    %code,
                    "the brokers did not accept a message"
                );
                self.last_number += 1;
                self.delayed.insert((clock::timer_now() + delay, self.last_number), pending);
            }
        }
    }

    /// Puts a message that was sent before at the front of `waiting`.
    fn requeue_first(&mut self, mut pending: PendingRecord) {
        pending.is_resend = true;
        self.waiting.push_front(pending);
    }

    /// Returns when the next backoff of a message or of the producer ends.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let next_resend_at = self.delayed.keys().next().map(|(resend_at, _)| *resend_at);
        next_resend_at.into_iter().chain(self.replace_producer_at).min()
    }

    /// Handles the backoffs that have ended: messages wait to be sent again, and a failed producer
    /// is marked to be replaced.
    pub(super) fn handle_timers(&mut self) {
        let now = clock::timer_now();
        let is_replacement_due = self.replace_producer_at.take_if(|time| *time <= now).is_some();
        self.needs_new_producer |= is_replacement_due;
        while let Some(entry) = self.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            self.waiting.push_back(entry.remove());
        }
    }

    /// Schedules a replacement if the producer has failed. The fatal error is polled for, because
    /// no event reports it as such.
    pub(super) fn check_producer(&mut self) {
        if self.replace_producer_at.is_some() || self.needs_new_producer {
            return;
        }
        let fatal_error = self.producer.get().and_then(|producer| producer.client().fatal_error());
        if let Some((_, reason)) = fatal_error {
            if self.producer_error.as_ref() != Some(&reason) {
                tracing::warn!(reason, "the producer has failed (logged once for each reason)");
            }
            self.producer_error = Some(reason);
            self.replace_producer_at = Some(clock::timer_now() + self.backoff.next_delay());
        }
    }

    /// Clears the producer's error once the brokers answer and the current producer has not failed.
    pub(super) fn handle_brokers_available(&mut self) {
        let fatal_error = self.producer.get().and_then(|producer| producer.client().fatal_error());
        if self.replace_producer_at.is_none() && fatal_error.is_none() {
            self.clear_producer_error();
        }
    }

    fn clear_producer_error(&mut self) {
        if self.producer_error.take().is_some() {
            tracing::info!("the producer works again");
            self.backoff = BrokerBackoff::from_section(&self.section);
        }
    }

    /// Returns the last fatal error of a producer, unless a producer works.
    pub(super) fn producer_error(&self) -> Option<&str> {
        self.producer_error.as_deref()
    }

    /// Replaces the producer if needed. While the old one is closed, it still reports on messages.
    /// Those without a report are sent again once it is closed.
    pub(super) fn replace_producer_if_needed(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.needs_new_producer) {
            tracing::info!("the producer is replaced by a new one");
            let new_producer = ClosedOnThread::new(create_producer(&self.section, &self.context)?);
            let EventContext(event_sender) = self.context.clone();
            let closed = ClientEvent::ProducerClosed { last_number: self.last_number };
            // Sending fails only once the event loop has ended.
            let on_closed = move || drop(event_sender.send(closed));
            std::mem::replace(&mut self.producer, new_producer).close_on_thread(on_closed);
        }
        Ok(())
    }

    /// Handles the end of a producer that had messages up to `last_number`. Closing it waits for
    /// its delivery reports only for a limited time, so some messages may have none.
    pub(super) fn handle_producer_closed(&mut self, last_number: usize) {
        let mut unreported: Vec<usize> =
            self.in_flight.keys().copied().filter(|number| *number <= last_number).collect();
        unreported.sort_unstable();
        // The last message is put in front first, so that the order is kept.
        for number in unreported.into_iter().rev() {
            let Some(pending) = self.remove_in_flight(number) else { continue };
            (self.sink)(BusEvent::Notice(BusNotice::Returned));
            self.requeue_first(PendingRecord { is_topic_lost: false, ..pending });
        }
    }

    /// Returns the queues whose topics were checked, or must be.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Arc<str>> {
        self.topics.keys()
    }

    /// Returns the offset after the last message that was written to a queue's topic, by partition.
    pub(super) fn written_offsets(&self, queue: &str) -> BTreeMap<i32, i64> {
        self.written_offsets.get(queue).cloned().unwrap_or_default()
    }

    /// Returns whether the loss of a queue's topic is not journaled yet.
    pub(super) fn is_topic_lost(&self, queue: &str) -> bool {
        matches!(self.topics.get(queue), Some(TopicState::Lost))
    }

    /// Marks the topic of a queue as ready, and puts its parked messages at the front of `waiting`.
    pub(super) fn mark_topic_ready(&mut self, queue: &Arc<str>, partitions: i32) {
        let next_partition = match self.topics.get(queue) {
            Some(TopicState::Ready { next_partition, .. }) => *next_partition,
            Some(TopicState::Unknown | TopicState::Unusable(_) | TopicState::Lost) | None => 0,
        };
        let ready = TopicState::Ready { partitions: partitions.max(1), next_partition };
        self.topics.insert(queue.clone(), ready);
        let parked = self.parked.remove(queue).into_iter().flatten();
        parked.rev().for_each(|pending| self.waiting.push_front(pending));
    }

    pub(super) fn mark_topic_unusable(&mut self, queue: &Arc<str>, reason: String) {
        self.topics.insert(queue.clone(), TopicState::Unusable(reason));
    }

    /// Returns the queues whose topics cannot be used, with the reasons.
    pub(super) fn unusable_queues(&self) -> BTreeMap<Arc<str>, String> {
        let queues = self.topics.iter().filter_map(|(queue, state)| match state {
            TopicState::Unusable(reason) => Some((queue.clone(), reason.clone())),
            TopicState::Unknown | TopicState::Ready { .. } | TopicState::Lost => None,
        });
        queues.collect()
    }

    /// Marks the topic of a queue as lost. Messages in flight to it are sent again once they are
    /// reported as written.
    pub(super) fn mark_topic_lost(&mut self, queue: &Arc<str>) {
        self.topics.insert(queue.clone(), TopicState::Lost);
        // Brokers that lost a topic may also have lost the state of the idempotent producer. Then
        // they would refuse all its messages.
        let mut offsets = self.written_offsets.get(queue).into_iter().flatten();
        self.needs_new_producer |= offsets.any(|(_, next_offset)| *next_offset > 0);
        let in_flight =
            self.in_flight.values_mut().filter(|pending| pending.message.address.queue == *queue);
        in_flight.for_each(|pending| pending.is_topic_lost = true);
        for (partition, next_offset) in self.written_offsets.get_mut(queue).into_iter().flatten() {
            *next_offset = 0;
            self.unreported_offsets.insert((queue.clone(), *partition));
        }
    }

    /// Resumes sending to a queue after the loss of its topic was journaled.
    pub(super) fn resume_after_loss(&mut self, queue: &Arc<str>) {
        if self.is_topic_lost(queue) {
            self.request_topic_check(queue.clone());
        }
    }

    /// Reports the written offsets that have changed.
    pub(super) fn report_offsets(&mut self) {
        for (queue, partition) in std::mem::take(&mut self.unreported_offsets) {
            let offset =
                self.written_offsets.get(&queue).and_then(|offsets| offsets.get(&partition));
            let Some(offset) = offset.copied() else { continue };
            let topic = self.section.topic(&queue).into();
            (self.sink)(BusEvent::OffsetReached(TopicOffset { topic, partition, offset }));
        }
    }

    /// Returns whether no message is waiting or in flight. Parked and delayed messages do not
    /// count, because they may take too long to wait for.
    pub(super) fn is_drained(&self) -> bool {
        self.in_flight.is_empty() && self.waiting.is_empty()
    }
}

fn create_producer(
    section: &KafkaSection,
    context: &EventContext,
) -> Result<ThreadedProducer<EventContext>, String> {
    let config = ClientConfigs::new(section).producer_config();
    config.create_with_context(context.clone()).map_err(|error| explain(&error))
}

#[cfg(test)]
mod tests;
