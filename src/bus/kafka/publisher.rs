//! Produces step messages as records, and turns delivery reports into confirms. A message is in
//! exactly one place: waiting, parked for its topic, delayed, or in the client library.

use super::client::{BATCH_BYTES, Configs, Context, Ending, Told, explain};
use super::cluster::{is_code_of_topic, is_of_topic};
use super::pauses::Pauses;
use super::record::{SPRING_CORRELATION, SPRING_REPLY_TOPIC};
use crate::bus::{
    Body, BusEvent, BusNotice, Delivery, ERROR, EventSink, HeaderValue, Position, Publication,
    Settlement,
};
use crate::clock;
use crate::settings::KafkaSection;
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
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// The most bytes that a record and its batch need besides key, headers and value.
const RECORD_BYTES: usize = 128;

/// How often a message that is no larger than a batch may fail as too large, for that may have been
/// its batch.
const TOO_LARGE_MAX: u32 = 3;

/// A message that is not confirmed.
struct Held {
    message: Publication,
    /// Its size in bytes, with headers.
    bytes: usize,
    refusals: u32,
    /// How many failures were "too large".
    too_large: u32,
    /// It was sent to a topic that no longer exists.
    is_lost: bool,
    /// It was sent before.
    again: bool,
    /// It was withdrawn, and is not sent again.
    is_void: bool,
}

/// What the publisher knows of a queue's topic.
enum Place {
    /// Unknown; it is being checked.
    Unknown,
    /// It exists. Messages are distributed round-robin over its partitions.
    There { partitions: i32, next: i32 },
    /// It cannot be used, for this reason.
    Unfit(String),
    /// It was lost with its messages, and that is not journaled yet.
    Lost,
}

/// Sends step messages, over any number of connections.
pub(super) struct Publisher {
    section: Arc<KafkaSection>,
    sink: EventSink,
    context: Context,
    unconfirmed: Rc<Cell<usize>>,
    producer: Ending<ThreadedProducer<Context>>,
    waiting: VecDeque<Held>,
    parked: HashMap<Arc<str>, VecDeque<Held>>,
    delayed: BTreeMap<(Instant, usize), Held>,
    flight: HashMap<usize, Held>,
    flight_bytes: usize,
    numbers: usize,
    places: HashMap<Arc<str>, Place>,
    /// The offset after the last written message, by queue and partition.
    written: HashMap<Arc<str>, BTreeMap<i32, i64>>,
    /// The offsets among these that were not reported yet.
    untold: BTreeSet<(Arc<str>, i32)>,
    /// Whether topics must be checked.
    pub(super) wants_look: bool,
    /// Whether the producer must be replaced.
    is_outdated: bool,
    /// Why no producer works; `None`: the current one works, as far as is known.
    no_producer: Option<String>,
    /// When a failed producer is replaced, which is also how long the next one is given.
    renewed_at: Option<Instant>,
    pauses: Pauses,
}

impl Publisher {
    pub(super) fn new(
        section: Arc<KafkaSection>,
        positions: &[Position],
        (sink, unconfirmed): (EventSink, Rc<Cell<usize>>),
        context: Context,
    ) -> Result<Publisher, String> {
        let mut written: HashMap<Arc<str>, BTreeMap<i32, i64>> = HashMap::new();
        for Position { topic, partition, offset } in positions {
            if let Some(queue) = topic.strip_prefix(&*section.prefix)
                && **topic != *section.reply_topic
            {
                written.entry(queue.into()).or_default().insert(*partition, *offset);
            }
        }
        let producer = Ending::new(producer(&section, &context)?);
        Ok(Publisher {
            pauses: Pauses::of(&section),
            section,
            sink,
            context,
            unconfirmed,
            producer,
            waiting: VecDeque::new(),
            parked: HashMap::new(),
            delayed: BTreeMap::new(),
            flight: HashMap::new(),
            flight_bytes: 0,
            numbers: 0,
            places: HashMap::new(),
            written,
            untold: BTreeSet::new(),
            wants_look: false,
            is_outdated: false,
            no_producer: None,
            renewed_at: None,
        })
    }

    /// Enqueues a message to be published.
    pub(super) fn take(&mut self, message: Publication) {
        let bytes = size(&message, &self.section.reply_topic);
        if bytes > self.section.message_bytes_max {
            let max = self.section.message_bytes_max;
            return self.give_up(
                message,
                &format!(
                    "the step message has {bytes} bytes with its headers, more than the {max} that \
                     the bus takes (setting message_bytes_max): pass large data by reference"
                ),
            );
        }
        self.waiting.push_back(Held {
            message,
            bytes,
            refusals: 0,
            too_large: 0,
            is_lost: false,
            again: false,
            is_void: false,
        });
    }

    /// Removes a message that the client library does not have. If it has the message, that is not
    /// sent again.
    pub(super) fn withdraw(&mut self, id: &str) {
        let is_it = |held: &Held| held.message.id == id;
        self.flight.values_mut().filter(|held| is_it(held)).for_each(|held| held.is_void = true);
        let queues = self.parked.values_mut().chain(std::iter::once(&mut self.waiting));
        let mut forgotten = 0;
        for held in queues {
            let before = held.len();
            held.retain(|held| !is_it(held));
            forgotten += before - held.len();
        }
        let before = self.delayed.len();
        self.delayed.retain(|_, held| !is_it(held));
        forgotten += before - self.delayed.len();
        (0..forgotten).for_each(|_| self.one_less());
    }

    /// Fails the attempt of a message that no broker will ever accept.
    fn give_up(&self, message: Publication, reason: &str) {
        self.one_less();
        let body = Body::error(reason, false).to_bytes();
        let attempt = message.number("attempt");
        let correlation_id = message.correlation_id.as_deref().map(str::to_owned);
        let delivery = Delivery::new(correlation_id, body, Settlement::none());
        let kind = Some(ERROR.to_owned());
        (self.sink)(BusEvent::Reply(Delivery { kind, attempt, ..delivery }));
    }

    fn one_less(&self) {
        self.unconfirmed.set(self.unconfirmed.get().saturating_sub(1));
    }

    /// Hands waiting messages to the library, as far as there is room.
    pub(super) fn pump(&mut self) {
        while self.flight.len() < self.section.unconfirmed_max
            && (self.flight.is_empty() || self.flight_bytes < self.section.unconfirmed_bytes_max)
        {
            let Some(held) = self.waiting.pop_front() else { return };
            if held.is_void {
                self.one_less();
                continue;
            }
            let queue = held.message.to.queue.clone();
            match self.places.get_mut(&queue) {
                Some(Place::There { partitions, next }) => {
                    let partition = *next % *partitions;
                    *next = (partition + 1) % *partitions;
                    if !self.send(held, partition) {
                        return;
                    }
                }
                Some(Place::Unknown | Place::Unfit(_) | Place::Lost) => self.park(held),
                None => {
                    self.look_at(queue);
                    self.park(held);
                }
            }
        }
    }

    fn park(&mut self, held: Held) {
        self.parked.entry(held.message.to.queue.clone()).or_default().push_back(held);
    }

    fn look_at(&mut self, queue: Arc<str>) {
        self.wants_look = true;
        self.places.insert(queue, Place::Unknown);
    }

    /// Hands a message to the library. Returns `false` if that has no room.
    fn send(&mut self, mut held: Held, partition: i32) -> bool {
        let Some(producer) = self.producer.get() else {
            self.waiting.push_front(held);
            return false;
        };
        let (message, topic) = (&held.message, self.section.topic(&held.message.to.queue));
        let (body, bytes) = (message.body.to_bytes(), held.bytes);
        self.numbers += 1;
        let number = self.numbers;
        let timestamp_ms = i64::try_from(message.timestamp_s).unwrap_or_default() * 1_000;
        let mut record = BaseRecord::with_opaque_to(&topic, number)
            .partition(partition)
            .payload(&body[..])
            .timestamp(timestamp_ms)
            .headers(headers(message, &self.section.reply_topic));
        record.key = message.correlation_id.as_deref().map(str::as_bytes);
        let sent = producer.send(record).map_err(|(error, _)| error);
        match sent {
            Ok(()) => {
                if std::mem::take(&mut held.again) {
                    (self.sink)(BusEvent::Noted(BusNotice::Resent));
                }
                self.flight_bytes += bytes;
                self.flight.insert(number, held);
                true
            }
            Err(error) => {
                let queue_full = KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull);
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                if error == queue_full {
                    self.waiting.push_front(held);
                    return false;
                }
                if is_of_topic(&error) {
                    self.look_at(held.message.to.queue.clone());
                    self.park(held);
                } else {
                    self.refused(held, code);
                }
                true
            }
        }
    }

    /// Removes a message that the library had.
    fn landed(&mut self, number: usize) -> Option<Held> {
        let held = self.flight.remove(&number)?;
        self.flight_bytes = self.flight_bytes.saturating_sub(held.bytes);
        Some(held)
    }

    /// Handles the brokers' report on a message.
    pub(super) fn delivered(&mut self, number: usize, taken: Result<(i32, i64), RDKafkaErrorCode>) {
        let Some(mut held) = self.landed(number) else { return };
        let queue = held.message.to.queue.clone();
        match taken {
            // A message that was sent to a lost topic is lost with it, or arrives twice.
            Ok(_) if std::mem::take(&mut held.is_lost) => {
                (self.sink)(BusEvent::Noted(BusNotice::Returned));
                self.put_back(held);
            }
            Ok((partition, offset)) => {
                self.goes_on();
                self.writes(queue, partition, offset);
                self.one_less();
                (self.sink)(BusEvent::Taken(held.message.receipt));
            }
            Err(code) if is_code_of_topic(code) => {
                (self.sink)(BusEvent::Noted(BusNotice::Returned));
                if !matches!(self.places.get(&queue), Some(Place::Lost)) {
                    self.look_at(queue);
                }
                self.park(held);
            }
            Err(code) => self.refused(held, code),
        }
    }

    /// Records that a message was written at this offset.
    fn writes(&mut self, queue: Arc<str>, partition: i32, offset: i64) {
        let next = self.written.entry(queue.clone()).or_default().entry(partition).or_default();
        // The offset of a message that was sent twice is not always reported.
        if offset >= *next {
            *next = offset + 1;
            self.untold.insert((queue, partition));
        }
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "the library has more than a hundred codes")]
    fn refused(&mut self, mut held: Held, code: RDKafkaErrorCode) {
        let (queue, bytes) = (held.message.to.queue.clone(), held.bytes);
        held.again = true;
        held.refusals += 1;
        held.too_large += u32::from(code == RDKafkaErrorCode::MessageSizeTooLarge);
        match code {
            RDKafkaErrorCode::MessageSizeTooLarge
                if bytes > BATCH_BYTES || held.too_large > TOO_LARGE_MAX =>
            {
                let (topic, max) = (self.section.topic(&queue), self.section.message_bytes_max);
                self.give_up(
                    held.message,
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
                self.give_up(held.message, &reason);
            }
            RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::ClusterAuthorizationFailed => {
                self.unfit(&queue, format!("the brokers refuse what is sent to it: {code}"));
                self.park(held);
            }
            _ => {
                (self.sink)(BusEvent::Noted(BusNotice::Refused));
                let pause = REFUSED_PAUSE
                    .saturating_mul(1 << held.refusals.min(16))
                    .min(self.section.reconnect_max.0.max(REFUSED_PAUSE));
                tracing::debug!(
                    message = held.message.id,
                    %queue,
                    %code,
                    "a message was not taken"
                );
                self.numbers += 1;
                self.delayed.insert((clock::ticks() + pause, self.numbers), held);
            }
        }
    }

    fn put_back(&mut self, mut held: Held) {
        held.again = true;
        self.waiting.push_front(held);
    }

    /// Returns when a message is to be sent again, or the producer replaced.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let delayed = self.delayed.keys().next().map(|(at, _)| *at);
        delayed.into_iter().chain(self.renewed_at).min()
    }

    pub(super) fn due(&mut self) {
        let now = clock::ticks();
        self.is_outdated |= self.renewed_at.take_if(|at| *at <= now).is_some();
        while let Some(entry) = self.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            self.waiting.push_back(entry.remove());
        }
    }

    /// Checks whether the producer has failed for good, because no error says so by itself.
    pub(super) fn look_at_producer(&mut self) {
        if self.renewed_at.is_some() || self.is_outdated {
            return;
        }
        let fatal = self.producer.get().and_then(|producer| producer.client().fatal_error());
        if let Some((_, reason)) = fatal {
            if self.no_producer.as_ref() != Some(&reason) {
                tracing::warn!(reason, "the producer cannot go on (logged once for each reason)");
            }
            self.no_producer = Some(reason);
            self.renewed_at = Some(clock::ticks() + self.pauses.next());
        }
    }

    /// Records that the brokers answered. If the current producer has had time to fail and has not,
    /// it works.
    pub(super) fn looked(&mut self) {
        let is_fatal = |producer: &ThreadedProducer<Context>| producer.client().fatal_error();
        if self.renewed_at.is_none() && self.producer.get().and_then(is_fatal).is_none() {
            self.goes_on();
        }
    }

    fn goes_on(&mut self) {
        if self.no_producer.take().is_some() {
            tracing::info!("the producer goes on");
            self.pauses = Pauses::of(&self.section);
        }
    }

    /// Returns why no producer works, if that is so.
    pub(super) fn no_producer(&self) -> Option<&str> {
        self.no_producer.as_deref()
    }

    /// Replaces a producer that has failed. The messages that the old one still has are reported as
    /// failed, or are sent again when it is closed.
    pub(super) fn renew_if_outdated(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.is_outdated) {
            tracing::info!("another producer takes the place of the one before");
            let next = Ending::new(producer(&self.section, &self.context)?);
            let (last, Context(tell)) = (self.numbers, self.context.clone());
            // Fails only once the loop has ended.
            let told = move || drop(tell.send(Told::ProducerEnded { last }));
            std::mem::replace(&mut self.producer, next).end(told);
        }
        Ok(())
    }

    /// Handles the end of a producer that had messages up to the number `last`. It waits half a
    /// second for its reports; a message without one is sent again.
    pub(super) fn ended(&mut self, last: usize) {
        let mut unreported: Vec<usize> =
            self.flight.keys().copied().filter(|number| *number <= last).collect();
        unreported.sort_unstable();
        for number in unreported.into_iter().rev() {
            let Some(held) = self.landed(number) else { continue };
            (self.sink)(BusEvent::Noted(BusNotice::Returned));
            self.put_back(Held { is_lost: false, ..held });
        }
    }

    // ---- topics

    /// Returns the queues that were published to.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Arc<str>> {
        self.places.keys()
    }

    /// Returns how far the topic of a queue was written, by partition.
    pub(super) fn written(&self, queue: &str) -> BTreeMap<i32, i64> {
        self.written.get(queue).cloned().unwrap_or_default()
    }

    /// Returns whether the loss of a queue's topic is not journaled yet.
    pub(super) fn is_lost(&self, queue: &str) -> bool {
        matches!(self.places.get(queue), Some(Place::Lost))
    }

    pub(super) fn there(&mut self, queue: &Arc<str>, partitions: i32) {
        let next = match self.places.get(queue) {
            Some(Place::There { next, .. }) => *next,
            Some(Place::Unknown | Place::Unfit(_) | Place::Lost) | None => 0,
        };
        self.places.insert(queue.clone(), Place::There { partitions: partitions.max(1), next });
        let parked = self.parked.remove(queue).unwrap_or_default();
        parked.into_iter().rev().for_each(|held| self.waiting.push_front(held));
    }

    pub(super) fn unfit(&mut self, queue: &Arc<str>, reason: String) {
        self.places.insert(queue.clone(), Place::Unfit(reason));
    }

    /// Returns the queues that cannot be used, and why.
    pub(super) fn unfit_queues(&self) -> BTreeMap<Arc<str>, String> {
        let unfit = self.places.iter().filter_map(|(queue, place)| match place {
            Place::Unfit(reason) => Some((queue.clone(), reason.clone())),
            Place::Unknown | Place::There { .. } | Place::Lost => None,
        });
        unfit.collect()
    }

    /// Marks the topic of a queue as lost, with its messages and those on their way to it.
    pub(super) fn lose(&mut self, queue: &Arc<str>) {
        self.places.insert(queue.clone(), Place::Lost);
        // Brokers that lost a topic may also have lost the producer's state. They would refuse all
        // its messages then.
        let written = self.written.get(queue).into_iter().flatten();
        self.is_outdated |= written.into_iter().any(|(_, next)| *next > 0);
        let on_its_way = self.flight.values_mut().filter(|held| held.message.to.queue == *queue);
        on_its_way.for_each(|held| held.is_lost = true);
        for (partition, next) in self.written.get_mut(queue).into_iter().flatten() {
            *next = 0;
            self.untold.insert((queue.clone(), *partition));
        }
    }

    /// Resumes sending after the loss was journaled. Messages go to the topic as it is now.
    pub(super) fn told_of(&mut self, queue: &Arc<str>) {
        if self.is_lost(queue) {
            self.look_at(queue.clone());
        }
    }

    /// Reports how far topics were written.
    pub(super) fn tell_positions(&mut self) {
        for (queue, partition) in std::mem::take(&mut self.untold) {
            let offset = self.written.get(&queue).and_then(|written| written.get(&partition));
            let Some(offset) = offset.copied() else { continue };
            let topic = self.section.topic(&queue).into();
            (self.sink)(BusEvent::Reached(Position { topic, partition, offset }));
        }
    }

    /// Returns whether nothing is left that would end within a short wait.
    pub(super) fn is_done(&self) -> bool {
        self.flight.is_empty() && self.waiting.is_empty()
    }
}

fn producer(
    section: &KafkaSection,
    context: &Context,
) -> Result<ThreadedProducer<Context>, String> {
    let config = Configs::of(section).producer();
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
fn size(message: &Publication, reply_topic: &str) -> usize {
    let headers = properties(message, reply_topic);
    let headers: usize = headers.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
    let key = message.correlation_id.as_deref().map_or(0, str::len);
    message.body.len() + key + headers + RECORD_BYTES
}

#[cfg(test)]
mod tests;
