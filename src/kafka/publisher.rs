//! Produces step messages as records, and turns delivery reports into confirms. An unconfirmed
//! message is in exactly one state: waiting, parked until its topic is ready, delayed by a backoff,
//! or in flight, in the client library.

use super::backoff::BrokerBackoff;
use super::client::{
    BATCH_BYTES, ClientConfigs, ClientEvent, ClosedOnThread, EventContext, explain,
};
use super::cluster::{is_missing_topic_code, is_missing_topic_error};
use super::record::{SPRING_CORRELATION, SPRING_REPLY_TOPIC};
use base::clock;
use bus::KafkaSection;
use bus::{
    Body, BusEvent, BusNotice, Delivery, ERROR_KIND, EventSink, HeaderValue, Publication,
    Settlement, TopicOffset,
};
use bytes::Bytes;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Half of the backoff before a message is sent again after its first failure. It doubles each
/// time, up to the setting `reconnect_max`.
const FAILURE_BACKOFF: Duration = Duration::from_millis(100);

/// An upper bound of the bytes of a record and its batch besides key, headers and value.
const RECORD_OVERHEAD_BYTES: usize = 128;

/// How often a message that is no larger than a batch may fail as too large. Its batch may have
/// been too large instead.
const TOO_LARGE_FAILURES_MAX: u32 = 3;

/// A message that is not confirmed.
struct PendingRecord {
    message: Publication,
    /// Its size in bytes, with headers.
    bytes: usize,
    failures: u32,
    /// How many of the failures were `MessageSizeTooLarge`.
    too_large_failures: u32,
    /// Whether the topic that it was sent to was lost since.
    is_topic_lost: bool,
    is_resend: bool,
    /// Whether it was withdrawn, so that it must not be sent again.
    is_withdrawn: bool,
}

/// The state of a queue's topic, as the last check found it.
enum TopicState {
    /// It must be checked, or its check is active.
    Unknown,
    /// It exists. `next` is the next partition of the round-robin.
    Ready { partitions: i32, next: i32 },
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
    unconfirmed: Rc<Cell<usize>>,
    producer: ClosedOnThread<ThreadedProducer<EventContext>>,
    /// Messages that are sent as soon as the limits allow.
    waiting: VecDeque<PendingRecord>,
    /// Messages of queues whose topic is not ready, by queue.
    parked: HashMap<Arc<str>, VecDeque<PendingRecord>>,
    /// Failed messages, by the end of their backoff and a number that makes the key unique.
    delayed: BTreeMap<(Instant, usize), PendingRecord>,
    /// Messages that the client library has, by number.
    in_flight: HashMap<usize, PendingRecord>,
    in_flight_bytes: usize,
    last_number: usize,
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
    backoff: BrokerBackoff,
}

impl KafkaPublisher {
    pub(super) fn new(
        section: Arc<KafkaSection>,
        offsets: &[TopicOffset],
        (sink, unconfirmed): (EventSink, Rc<Cell<usize>>),
        context: EventContext,
    ) -> Result<KafkaPublisher, String> {
        let mut written_offsets: HashMap<Arc<str>, BTreeMap<i32, i64>> = HashMap::new();
        for TopicOffset { topic, partition, offset } in offsets {
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

    /// Removes a message that is not in flight. One in flight is marked, so that it is not sent
    /// again.
    pub(super) fn withdraw(&mut self, id: &str) {
        let is_match = |pending: &PendingRecord| pending.message.id == id;
        self.in_flight
            .values_mut()
            .filter(|pending| is_match(pending))
            .for_each(|pending| pending.is_withdrawn = true);
        let queues = self.parked.values_mut().chain(std::iter::once(&mut self.waiting));
        let mut removed = 0;
        for queue in queues {
            let len_before = queue.len();
            queue.retain(|pending| !is_match(pending));
            removed += len_before - queue.len();
        }
        let len_before = self.delayed.len();
        self.delayed.retain(|_, pending| !is_match(pending));
        removed += len_before - self.delayed.len();
        (0..removed).for_each(|_| self.decrement_unconfirmed());
    }

    /// Fails the attempt of a message that the brokers will never accept.
    fn fail_attempt(&self, message: Publication, reason: &str) {
        self.decrement_unconfirmed();
        let body = Body::from_error(reason, false).to_bytes();
        let attempt = message.number_header("attempt");
        let correlation_id = message.correlation_id.as_deref().map(str::to_owned);
        let mut delivery = Delivery::new(correlation_id, body, Settlement::detached());
        delivery.kind = Some(ERROR_KIND.to_owned());
        delivery.attempt = attempt;
        (self.sink)(BusEvent::Reply(delivery));
    }

    fn decrement_unconfirmed(&self) {
        self.unconfirmed.set(self.unconfirmed.get().saturating_sub(1));
    }

    /// Hands waiting messages to the library until a limit of messages in flight is reached.
    pub(super) fn send_waiting(&mut self) {
        while self.in_flight.len() < self.section.unconfirmed_max
            && (self.in_flight.is_empty()
                || self.in_flight_bytes < self.section.unconfirmed_bytes_max)
        {
            let Some(pending) = self.waiting.pop_front() else { return };
            if pending.is_withdrawn {
                self.decrement_unconfirmed();
                continue;
            }
            let queue = pending.message.address.queue.clone();
            match self.topics.get_mut(&queue) {
                Some(TopicState::Ready { partitions, next }) => {
                    let partition = *next % *partitions;
                    *next = (partition + 1) % *partitions;
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

    /// Hands a message to the library. Returns `false` if nothing can be sent now: then the message
    /// stays the next one.
    fn send(&mut self, mut pending: PendingRecord, partition: i32) -> bool {
        let Some(producer) = self.producer.get() else {
            self.waiting.push_front(pending);
            return false;
        };
        let (message, topic) =
            (&pending.message, self.section.topic(&pending.message.address.queue));
        let (body, bytes) = (message.body.to_bytes(), pending.bytes);
        self.last_number += 1;
        let number = self.last_number;
        let timestamp_ms = i64::try_from(message.timestamp_s * 1_000).unwrap_or(i64::MAX);
        let mut record = BaseRecord::with_opaque_to(&topic, number)
            .partition(partition)
            .payload(&body[..])
            .timestamp(timestamp_ms)
            .headers(headers(message, &self.section.reply_topic));
        record.key = message.correlation_id.as_deref().map(str::as_bytes);
        match producer.send(record).map_err(|(error, _)| error) {
            Ok(()) => {
                if std::mem::take(&mut pending.is_resend) {
                    (self.sink)(BusEvent::Notice(BusNotice::Resent));
                }
                self.in_flight_bytes += bytes;
                self.in_flight.insert(number, pending);
                true
            }
            Err(error) => {
                let queue_full = KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull);
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                if error == queue_full {
                    self.waiting.push_front(pending);
                    return false;
                }
                if is_missing_topic_error(&error) {
                    self.request_topic_check(pending.message.address.queue.clone());
                    self.park(pending);
                } else {
                    self.handle_failure(pending, code);
                }
                true
            }
        }
    }

    /// Removes a message that the library no longer has.
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
        match result {
            // The message may be lost with the topic, so it is sent again: at least once.
            Ok(_) if std::mem::take(&mut pending.is_topic_lost) => {
                (self.sink)(BusEvent::Notice(BusNotice::Returned));
                self.requeue_first(pending);
            }
            Ok((partition, offset)) => {
                self.clear_producer_error();
                self.record_written(queue, partition, offset);
                self.decrement_unconfirmed();
                (self.sink)(BusEvent::Confirmed(pending.message.confirm_token));
            }
            Err(code) if is_missing_topic_code(code) => {
                (self.sink)(BusEvent::Notice(BusNotice::Returned));
                if !matches!(self.topics.get(&queue), Some(TopicState::Lost)) {
                    self.request_topic_check(queue);
                }
                self.park(pending);
            }
            Err(code) => self.handle_failure(pending, code),
        }
    }

    /// Records that a message was written at `offset`.
    fn record_written(&mut self, queue: Arc<str>, partition: i32, offset: i64) {
        let next_offset =
            self.written_offsets.entry(queue.clone()).or_default().entry(partition).or_default();
        // The report of a message that was sent twice may lack its offset.
        if offset >= *next_offset {
            *next_offset = offset + 1;
            self.unreported_offsets.insert((queue, partition));
        }
    }

    /// Sends a failed message again after a backoff, unless the error is permanent.
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
                    .saturating_mul(1 << pending.failures.min(16))
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

    /// Makes a message that was sent before the next one to be sent.
    fn requeue_first(&mut self, mut pending: PendingRecord) {
        pending.is_resend = true;
        self.waiting.push_front(pending);
    }

    /// Returns when the next backoff ends, of a message or of the producer.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let delayed = self.delayed.keys().next().map(|(resend_at, _)| *resend_at);
        delayed.into_iter().chain(self.replace_producer_at).min()
    }

    /// Handles the backoffs that have ended.
    pub(super) fn handle_timers(&mut self) {
        let now = clock::timer_now();
        let is_replacement_due = self.replace_producer_at.take_if(|time| *time <= now).is_some();
        self.needs_new_producer |= is_replacement_due;
        while let Some(entry) = self.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            self.waiting.push_back(entry.remove());
        }
    }

    /// Polls for a fatal error of the producer, because no event reports it as such.
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

    /// Replaces the producer if needed. The messages that the old one still has are reported as
    /// failed, or are sent again once it is closed.
    pub(super) fn replace_producer_if_needed(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.needs_new_producer) {
            tracing::info!("the producer is replaced by a new one");
            let new_producer = ClosedOnThread::new(create_producer(&self.section, &self.context)?);
            let (last, EventContext(event_sender)) = (self.last_number, self.context.clone());
            // Sending fails only once the event loop has ended.
            let on_closed = move || drop(event_sender.send(ClientEvent::ProducerClosed { last }));
            std::mem::replace(&mut self.producer, new_producer).close_on_thread(on_closed);
        }
        Ok(())
    }

    /// Handles the end of a producer whose last message has the number `last`. Closing it waits
    /// for its reports, but not without limit: a message without a report is sent again.
    pub(super) fn handle_producer_closed(&mut self, last: usize) {
        let mut unreported: Vec<usize> =
            self.in_flight.keys().copied().filter(|number| *number <= last).collect();
        unreported.sort_unstable();
        for number in unreported.into_iter().rev() {
            let Some(pending) = self.remove_in_flight(number) else { continue };
            (self.sink)(BusEvent::Notice(BusNotice::Returned));
            self.requeue_first(PendingRecord { is_topic_lost: false, ..pending });
        }
    }

    /// Returns the queues to which messages were published.
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

    /// Marks the topic of a queue as ready, and unparks its messages.
    pub(super) fn mark_topic_ready(&mut self, queue: &Arc<str>, partitions: i32) {
        let next = match self.topics.get(queue) {
            Some(TopicState::Ready { next, .. }) => *next,
            Some(TopicState::Unknown | TopicState::Unusable(_) | TopicState::Lost) | None => 0,
        };
        self.topics
            .insert(queue.clone(), TopicState::Ready { partitions: partitions.max(1), next });
        let parked = self.parked.remove(queue).into_iter().flatten();
        parked.rev().for_each(|pending| self.waiting.push_front(pending));
    }

    /// Marks the topic of a queue as unusable, for this reason.
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

    /// Marks the topic of a queue as lost, with its messages and those in flight to it.
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

    /// Returns whether no message is waiting or in flight. Others may take too long to wait for.
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

/// Returns the properties of a message as headers, with the same names as on every bus.
fn properties<'m>(message: &'m Publication, reply_topic: &'m str) -> Vec<(&'m str, Bytes)> {
    let to_bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let mut properties = vec![
        ("message_id", to_bytes(&message.id)),
        ("reply_to", to_bytes(reply_topic)),
        ("content_type", Bytes::from_static(b"application/json")),
        ("app_id", Bytes::from_static(b"workflow-manager")),
        (SPRING_REPLY_TOPIC, to_bytes(reply_topic)),
    ];
    if let Some(id) = &message.correlation_id {
        properties.extend([("correlation_id", to_bytes(id)), (SPRING_CORRELATION, to_bytes(id))]);
    }
    properties.extend(message.kind.map(|kind| ("type", to_bytes(kind))));
    let priority = message.priority.map(|priority| ("priority", to_bytes(&priority.to_string())));
    properties.extend(priority);
    properties.extend(message.headers.iter().map(|header| match &header.value {
        HeaderValue::Text(value) => (header.name, to_bytes(value)),
        HeaderValue::Number(number) => (header.name, to_bytes(&number.to_string())),
    }));
    properties
}

fn headers(message: &Publication, reply_topic: &str) -> OwnedHeaders {
    properties(message, reply_topic).iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
        headers.insert(Header { key, value: Some(&value[..]) })
    })
}

/// Returns an upper bound of the size that brokers count for a message, in bytes.
fn message_size(message: &Publication, reply_topic: &str) -> usize {
    let headers = properties(message, reply_topic);
    let header_bytes: usize =
        headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    let key_bytes = message.correlation_id.as_deref().map_or(0, str::len);
    message.body.len() + key_bytes + header_bytes + RECORD_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests;
