//! Produces step messages as records, and turns delivery reports into confirms. A message is in
//! exactly one place: waiting, parked for its topic, delayed, or in the client library.

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

/// The backoff before a message is sent again after a failure. It doubles each time, up to the
/// setting `reconnect_max`.
const FAILURE_BACKOFF: Duration = Duration::from_millis(100);

/// The most bytes that a record and its batch need besides key, headers and value.
const RECORD_OVERHEAD_BYTES: usize = 128;

/// How often a message that is no larger than a batch may fail as too large, for that may have been
/// its batch.
const TOO_LARGE_FAILURES_MAX: u32 = 3;

/// A message that is not confirmed.
struct PendingRecord {
    message: Publication,
    /// Its size in bytes, with headers.
    bytes: usize,
    failures: u32,
    /// How many failures were "too large".
    too_large_failures: u32,
    /// It was sent to a topic that no longer exists.
    is_topic_lost: bool,
    /// It was sent before.
    is_resend: bool,
    /// It was withdrawn, and is not sent again.
    is_withdrawn: bool,
}

/// What the publisher knows of a queue's topic.
enum TopicState {
    /// Unknown; it is being checked.
    Unknown,
    /// It exists. Messages are distributed round-robin over its partitions.
    Ready { partitions: i32, next: i32 },
    /// It cannot be used, for this reason.
    Unusable(String),
    /// It was lost with its messages, and that is not journaled yet.
    Lost,
}

/// Sends step messages, over any number of connections.
pub(super) struct KafkaPublisher {
    section: Arc<KafkaSection>,
    sink: EventSink,
    context: EventContext,
    unconfirmed: Rc<Cell<usize>>,
    producer: ClosedOnThread<ThreadedProducer<EventContext>>,
    waiting: VecDeque<PendingRecord>,
    parked: HashMap<Arc<str>, VecDeque<PendingRecord>>,
    delayed: BTreeMap<(Instant, usize), PendingRecord>,
    in_flight: HashMap<usize, PendingRecord>,
    in_flight_bytes: usize,
    last_number: usize,
    topics: HashMap<Arc<str>, TopicState>,
    /// The offset after the last written message, by queue and partition.
    written_offsets: HashMap<Arc<str>, BTreeMap<i32, i64>>,
    /// The offsets among these that were not reported yet.
    unreported_offsets: BTreeSet<(Arc<str>, i32)>,
    /// Whether topics must be checked.
    pub(super) needs_topic_check: bool,
    /// Whether the producer must be replaced.
    needs_new_producer: bool,
    /// Why no producer works; `None`: the current one works, as far as is known.
    producer_error: Option<String>,
    /// When a failed producer is replaced, which is also how long the next one is given.
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
        let mut written: HashMap<Arc<str>, BTreeMap<i32, i64>> = HashMap::new();
        for TopicOffset { topic, partition, offset } in offsets {
            if let Some(queue) = topic.strip_prefix(&*section.prefix)
                && **topic != *section.reply_topic
            {
                written.entry(queue.into()).or_default().insert(*partition, *offset);
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
            written_offsets: written,
            unreported_offsets: BTreeSet::new(),
            needs_topic_check: false,
            needs_new_producer: false,
            producer_error: None,
            replace_producer_at: None,
        })
    }

    /// Enqueues a message to be published.
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

    /// Removes a message that the client library does not have. If it has the message, that is not
    /// sent again.
    pub(super) fn withdraw(&mut self, id: &str) {
        let is_match = |pending: &PendingRecord| pending.message.id == id;
        self.in_flight
            .values_mut()
            .filter(|pending| is_match(pending))
            .for_each(|pending| pending.is_withdrawn = true);
        let queues = self.parked.values_mut().chain(std::iter::once(&mut self.waiting));
        let mut removed = 0;
        for queue in queues {
            let before = queue.len();
            queue.retain(|held| !is_match(held));
            removed += before - queue.len();
        }
        let before = self.delayed.len();
        self.delayed.retain(|_, pending| !is_match(pending));
        removed += before - self.delayed.len();
        (0..removed).for_each(|_| self.decrement_unconfirmed());
    }

    /// Fails the attempt of a message that no broker will ever accept.
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

    /// Hands waiting messages to the library, as far as there is room.
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

    fn park(&mut self, pending: PendingRecord) {
        self.parked.entry(pending.message.address.queue.clone()).or_default().push_back(pending);
    }

    fn request_topic_check(&mut self, queue: Arc<str>) {
        self.needs_topic_check = true;
        self.topics.insert(queue, TopicState::Unknown);
    }

    /// Hands a message to the library. Returns `false` if that has no room.
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
        let sent = producer.send(record).map_err(|(error, _)| error);
        match sent {
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

    /// Removes a message that the library had.
    fn remove_in_flight(&mut self, number: usize) -> Option<PendingRecord> {
        let pending = self.in_flight.remove(&number)?;
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(pending.bytes);
        Some(pending)
    }

    /// Handles the brokers' report on a message.
    pub(super) fn handle_delivery_report(
        &mut self,
        number: usize,
        result: Result<(i32, i64), RDKafkaErrorCode>,
    ) {
        let Some(mut pending) = self.remove_in_flight(number) else { return };
        let queue = pending.message.address.queue.clone();
        match result {
            // A message that was sent to a lost topic is lost with it, or arrives twice.
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

    /// Records that a message was written at this offset.
    fn record_written(&mut self, queue: Arc<str>, partition: i32, offset: i64) {
        let next =
            self.written_offsets.entry(queue.clone()).or_default().entry(partition).or_default();
        // The offset of a message that was sent twice is not always reported.
        if offset >= *next {
            *next = offset + 1;
            self.unreported_offsets.insert((queue, partition));
        }
    }

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
                let pause = FAILURE_BACKOFF
                    .saturating_mul(1 << pending.failures.min(16))
                    .min(self.section.reconnect_max.0.max(FAILURE_BACKOFF));
                tracing::debug!(
                    message = pending.message.id,
                    %queue,
                    %code,
                    "a message was not taken"
                );
                self.last_number += 1;
                self.delayed.insert((clock::timer_now() + pause, self.last_number), pending);
            }
        }
    }

    fn requeue_first(&mut self, mut pending: PendingRecord) {
        pending.is_resend = true;
        self.waiting.push_front(pending);
    }

    /// Returns when a message is to be sent again, or the producer replaced.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let delayed = self.delayed.keys().next().map(|(at, _)| *at);
        delayed.into_iter().chain(self.replace_producer_at).min()
    }

    pub(super) fn handle_timers(&mut self) {
        let now = clock::timer_now();
        self.needs_new_producer |= self.replace_producer_at.take_if(|at| *at <= now).is_some();
        while let Some(entry) = self.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            self.waiting.push_back(entry.remove());
        }
    }

    /// Checks whether the producer has failed for good, because no error says so by itself.
    pub(super) fn check_producer(&mut self) {
        if self.replace_producer_at.is_some() || self.needs_new_producer {
            return;
        }
        let fatal = self.producer.get().and_then(|producer| producer.client().fatal_error());
        if let Some((_, reason)) = fatal {
            if self.producer_error.as_ref() != Some(&reason) {
                tracing::warn!(reason, "the producer cannot go on (logged once for each reason)");
            }
            self.producer_error = Some(reason);
            self.replace_producer_at = Some(clock::timer_now() + self.backoff.next_delay());
        }
    }

    /// Records that the brokers answered. If the current producer has had time to fail and has not,
    /// it works.
    pub(super) fn handle_brokers_available(&mut self) {
        let is_fatal = |producer: &ThreadedProducer<EventContext>| producer.client().fatal_error();
        if self.replace_producer_at.is_none() && self.producer.get().and_then(is_fatal).is_none() {
            self.clear_producer_error();
        }
    }

    fn clear_producer_error(&mut self) {
        if self.producer_error.take().is_some() {
            tracing::info!("the producer goes on");
            self.backoff = BrokerBackoff::from_section(&self.section);
        }
    }

    /// Returns why no producer works, if that is so.
    pub(super) fn producer_error(&self) -> Option<&str> {
        self.producer_error.as_deref()
    }

    /// Replaces a producer that has failed. The messages that the old one still has are reported as
    /// failed, or are sent again when it is closed.
    pub(super) fn replace_producer_if_needed(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.needs_new_producer) {
            tracing::info!("another producer takes the place of the one before");
            let next = ClosedOnThread::new(create_producer(&self.section, &self.context)?);
            let (last, EventContext(event_sender)) = (self.last_number, self.context.clone());
            // Fails only once the loop has ended.
            let on_closed = move || drop(event_sender.send(ClientEvent::ProducerClosed { last }));
            std::mem::replace(&mut self.producer, next).close_on_thread(on_closed);
        }
        Ok(())
    }

    /// Handles the end of a producer that had messages up to the number `last`. It waits half a
    /// second for its reports; a message without one is sent again.
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

    // ---- topics

    /// Returns the queues that were published to.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Arc<str>> {
        self.topics.keys()
    }

    /// Returns how far the topic of a queue was written, by partition.
    pub(super) fn written_offsets(&self, queue: &str) -> BTreeMap<i32, i64> {
        self.written_offsets.get(queue).cloned().unwrap_or_default()
    }

    /// Returns whether the loss of a queue's topic is not journaled yet.
    pub(super) fn is_topic_lost(&self, queue: &str) -> bool {
        matches!(self.topics.get(queue), Some(TopicState::Lost))
    }

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

    pub(super) fn mark_topic_unusable(&mut self, queue: &Arc<str>, reason: String) {
        self.topics.insert(queue.clone(), TopicState::Unusable(reason));
    }

    /// Returns the queues that cannot be used, and why.
    pub(super) fn unusable_queues(&self) -> BTreeMap<Arc<str>, String> {
        let unusable = self.topics.iter().filter_map(|(queue, state)| match state {
            TopicState::Unusable(reason) => Some((queue.clone(), reason.clone())),
            TopicState::Unknown | TopicState::Ready { .. } | TopicState::Lost => None,
        });
        unusable.collect()
    }

    /// Marks the topic of a queue as lost, with its messages and those on their way to it.
    pub(super) fn mark_topic_lost(&mut self, queue: &Arc<str>) {
        self.topics.insert(queue.clone(), TopicState::Lost);
        // Brokers that lost a topic may also have lost the producer's state. They would refuse all
        // its messages then.
        let written = self.written_offsets.get(queue).into_iter().flatten();
        self.needs_new_producer |= written.into_iter().any(|(_, next)| *next > 0);
        let in_flight =
            self.in_flight.values_mut().filter(|pending| pending.message.address.queue == *queue);
        in_flight.for_each(|pending| pending.is_topic_lost = true);
        for (partition, next) in self.written_offsets.get_mut(queue).into_iter().flatten() {
            *next = 0;
            self.unreported_offsets.insert((queue.clone(), *partition));
        }
    }

    /// Resumes sending after the loss was journaled. Messages go to the topic as it is now.
    pub(super) fn resume_after_loss(&mut self, queue: &Arc<str>) {
        if self.is_topic_lost(queue) {
            self.request_topic_check(queue.clone());
        }
    }

    /// Reports how far topics were written.
    pub(super) fn report_offsets(&mut self) {
        for (queue, partition) in std::mem::take(&mut self.unreported_offsets) {
            let offset =
                self.written_offsets.get(&queue).and_then(|written| written.get(&partition));
            let Some(offset) = offset.copied() else { continue };
            let topic = self.section.topic(&queue).into();
            (self.sink)(BusEvent::OffsetReached(TopicOffset { topic, partition, offset }));
        }
    }

    /// Returns whether nothing is left that would end within a short wait.
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

/// Returns the properties of a message as headers, under the names that they have on every bus.
fn properties<'m>(message: &'m Publication, reply_topic: &'m str) -> Vec<(&'m str, Bytes)> {
    let text = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let mut properties = vec![
        ("message_id", text(&message.id)),
        ("reply_to", text(reply_topic)),
        ("content_type", Bytes::from_static(b"application/json")),
        ("app_id", Bytes::from_static(b"workflow-manager")),
        (SPRING_REPLY_TOPIC, text(reply_topic)),
    ];
    if let Some(id) = &message.correlation_id {
        properties.extend([("correlation_id", text(id)), (SPRING_CORRELATION, text(id))]);
    }
    properties.extend(message.kind.map(|kind| ("type", text(kind))));
    let priority = message.priority.map(|priority| ("priority", text(&priority.to_string())));
    properties.extend(priority);
    properties.extend(message.headers.iter().map(|header| match &header.value {
        HeaderValue::Text(value) => (header.name, text(value)),
        HeaderValue::Number(number) => (header.name, text(&number.to_string())),
    }));
    properties
}

fn headers(message: &Publication, reply_topic: &str) -> OwnedHeaders {
    properties(message, reply_topic).iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
        headers.insert(Header { key, value: Some(&value[..]) })
    })
}

/// Returns the size of a message with headers in bytes; never less than brokers count.
fn message_size(message: &Publication, reply_topic: &str) -> usize {
    let headers = properties(message, reply_topic);
    let headers: usize = headers.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
    let key = message.correlation_id.as_deref().map_or(0, str::len);
    message.body.len() + key + headers + RECORD_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests;
