//! Message buses: how messages leave and replies come in.
//!
//! One trait, [`Bus`], has several implementations: [`amqp`] speaks AMQP 0-9-1 to RabbitMQ, `kafka`
//! (a feature of the build) produces to topics and consumes one, [`embedded`] keeps the queues in
//! this process, [`push`] calls web services.
//!
//! A bus decides nothing and knows nothing of jobs and steps. It accepts publications until it is
//! closed, keeps each until the broker has confirmed it, and then returns the publication's confirm
//! token. It reports all that happens through one [`EventSink`].

mod confirm_token;
pub mod embedded;
pub mod event;
pub mod event_topic;
mod kafka_section;
mod kind;
pub mod lease_queue;
pub mod push;
mod queue_status;
mod rejection;

pub use confirm_token::{ConfirmPayload, ConfirmToken};
pub use event::{BusEvent, BusNotice, BusState, CallOutcome, EventSink, TopicOffset};
pub use kafka_section::{KafkaSection, Properties, check_topic};
pub use kind::{BusCapabilities, BusKind, EMBEDDED_REPLY_QUEUE, Withdrawal};
pub use queue_status::{EndpointFailure, QueueDepth, QueueStatus};
pub use rejection::Rejection;

use bytes::Bytes;
use engine::{Message, QueueDeclaration, Sender, TraceContext};
use futures_util::future::LocalBoxFuture;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Identifies a bus: its name in the settings, and the virtual host that it serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusKey {
    /// The name.
    pub name: Arc<str>,
    /// The virtual host; empty means the one of the broker's address.
    pub vhost: Arc<str>,
}

/// The destination of a message: a queue of a bus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The bus.
    pub bus: BusKey,
    /// The queue.
    pub queue: Arc<str>,
}

impl fmt::Display for BusKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if self.vhost.is_empty() { Ok(()) } else { write!(f, " {}", self.vhost) }
    }
}

/// A message body that is built only when it is sent.
pub trait LazyBody: Send + Sync {
    /// Builds the bytes to be sent.
    fn to_bytes(&self) -> Bytes;

    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Returns whether the body is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The body of a message. A body that is built when it is sent shares its values with their other
/// owners while it waits.
#[derive(Clone)]
pub struct Body(BodyContent);

#[derive(Clone)]
enum BodyContent {
    Ready(Bytes),
    Lazy(Arc<dyn LazyBody>),
}

impl Body {
    /// Creates a body that is built when it is sent.
    pub fn from_lazy(text: impl LazyBody + 'static) -> Body {
        Body(BodyContent::Lazy(Arc::new(text)))
    }

    /// Creates the body of a message of kind [`ERROR_KIND`]: `reason` in one sentence, and whether
    /// another attempt may help.
    pub fn from_error(reason: &str, retryable: bool) -> Body {
        Bytes::from(serde_json::json!({ "error": reason, "retryable": retryable }).to_string())
            .into()
    }

    /// Returns the bytes to be sent.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            BodyContent::Ready(text) => text.clone(),
            BodyContent::Lazy(text) => text.to_bytes(),
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            BodyContent::Ready(text) => text.len(),
            BodyContent::Lazy(text) => text.len(),
        }
    }

    /// Returns whether the body is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.len())
    }
}

impl From<Bytes> for Body {
    fn from(text: Bytes) -> Body {
        Body(BodyContent::Ready(text))
    }
}

impl LazyBody for Message {
    fn to_bytes(&self) -> Bytes {
        self.to_text().into()
    }

    fn len(&self) -> usize {
        self.encoded_len()
    }
}

impl From<Message> for Body {
    fn from(message: Message) -> Body {
        Body::from_lazy(message)
    }
}

/// The property `type` of a message that reports a failure (docs/worker-protocol.md).
pub const ERROR_KIND: &str = "error";

/// Who reads a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// A worker. Its queue is declared where it is missing, and its reply is awaited.
    Worker,
    /// Whoever asked for something. The queue belongs to the caller: if it does not exist, nobody
    /// reads the message.
    Caller,
}

/// A header of a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: HeaderValue,
}

/// The value of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValue {
    /// A text.
    Text(Arc<str>),
    /// A whole number.
    Number(i64),
}

impl Header {
    /// Creates a header that holds a text.
    pub fn from_text(name: &'static str, text: impl Into<Arc<str>>) -> Header {
        Header { name, value: HeaderValue::Text(text.into()) }
    }

    /// Creates a header that holds a number.
    pub fn from_number(name: &'static str, number: impl Into<i64>) -> Header {
        Header { name, value: HeaderValue::Number(number.into()) }
    }

    /// Returns the value of the named header, if it is a text.
    pub fn find_text<'h>(headers: &'h [Header], name: &str) -> Option<&'h Arc<str>> {
        match Header::find(headers, name)? {
            HeaderValue::Text(text) => Some(text),
            HeaderValue::Number(_) => None,
        }
    }

    /// Returns the value of the named header, if it is a whole number that fits `N`.
    pub fn find_number<N: TryFrom<i64>>(headers: &[Header], name: &str) -> Option<N> {
        match Header::find(headers, name)? {
            HeaderValue::Number(number) => N::try_from(*number).ok(),
            HeaderValue::Text(_) => None,
        }
    }

    fn find<'h>(headers: &'h [Header], name: &str) -> Option<&'h HeaderValue> {
        headers.iter().find(|header| header.name == name).map(|header| &header.value)
    }
}

/// A message on its way to a queue (docs/worker-protocol.md).
#[derive(Debug)]
pub struct Publication {
    /// The destination.
    pub address: Address,
    /// Who reads it there.
    pub addressee: Addressee,
    /// The message id. It stays the same when the message is sent again.
    pub id: String,
    /// The correlation id: replies carry it, and a reply names the message that it answers.
    pub correlation_id: Option<Arc<str>>,
    /// The property `type`.
    pub kind: Option<&'static str>,
    /// The priority, 0–9.
    pub priority: Option<u8>,
    /// When the message was created, in seconds since 1970.
    pub timestamp_s: u64,
    /// The headers.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Body,
    /// The remaining lease, if a worker had leased the message before its job was rebuilt from the
    /// journal (at a start, or after a panic).
    pub lease: Option<RemainingLease>,
    /// Whether the broker must verify the sender (property `user-id`). A dead letter of the message
    /// can then be told from a forged one.
    pub sets_user_id: bool,
    /// How long the message is of use.
    pub lifetime: Lifetime,
    /// Returned to the sender once the message is confirmed.
    pub confirm_token: ConfirmToken,
}

/// How long a message is of use to workers. A broker that does not report who has the message may
/// drop it after that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// The time to live from when the broker has the message; `None`: it does not expire.
    pub ttl: Option<Duration>,
    /// The time by which a worker must have taken the message.
    pub take_by: Option<Instant>,
}

impl Lifetime {
    /// Returns the time to live for a broker that gets the message now; `None`: it does not expire.
    pub fn remaining(self, now: Instant) -> Option<Duration> {
        let until = self.take_by.map(|until| until.saturating_duration_since(now));
        self.ttl.into_iter().chain(until).min()
    }
}

/// The rest of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemainingLease {
    /// The number of the delivery that the worker has, from 1.
    pub delivery: u32,
    /// How long the lease still lasts.
    pub remaining: Duration,
}

impl Publication {
    /// Returns the value of a text header; see [`Header::find_text`].
    pub fn text_header(&self, name: &str) -> Option<&Arc<str>> {
        Header::find_text(&self.headers, name)
    }

    /// Returns the value of a number header; see [`Header::find_number`].
    pub fn number_header<N: TryFrom<i64>>(&self, name: &str) -> Option<N> {
        Header::find_number(&self.headers, name)
    }
}

/// An incoming message: on the reply queue a worker's reply or a dead-lettered step message; on a
/// workflow's queue a call, which asks for a job.
#[derive(Debug)]
pub struct Delivery {
    /// The property `correlation_id`, unparsed.
    pub correlation_id: Option<String>,
    /// The property `type`: absent, `result`, `progress`, `error` or something unknown.
    pub kind: Option<String>,
    /// The attempt, from the header `attempt`. A dead letter always has it; a reply has it if the
    /// worker returns the header.
    pub attempt: Option<u32>,
    /// The property `message_id`; read on a workflow's queue, and for a dead letter.
    pub message_id: Option<String>,
    /// The property `reply_to`; read only on a workflow's queue.
    pub reply_to: Option<String>,
    /// The header `depth`; read only on a workflow's queue.
    pub depth: Option<u16>,
    /// The headers `traceparent` and `tracestate`, if they are valid; only on a workflow's queue.
    pub trace: Option<TraceContext>,
    /// Set if the broker dead-lettered a step message (header `x-death`).
    pub dead_letter: Option<DeadLetter>,
    /// Whether the broker delivered the message before.
    pub redelivered: bool,
    /// The sender.
    pub sender: Sender,
    /// The body.
    pub body: Bytes,
    settlement: Settlement,
}

/// Why the broker dead-lettered a step message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The queue that the message was in.
    pub queue: String,
    /// The broker's reason: `rejected`, `expired`, `maxlen`, `delivery_limit`.
    pub reason: String,
}

impl DeadLetter {
    /// Creates the dead letter of `message`, with the broker's reason.
    pub fn from_publication(message: &Publication, reason: &str) -> DeadLetter {
        DeadLetter { queue: message.address.queue.to_string(), reason: reason.to_owned() }
    }
}

/// How a delivery is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Acknowledged: the broker may forget the message.
    Ack,
    /// The message goes back to its queue.
    Requeue,
}

/// A verdict on the delivery `tag` of the connection `epoch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleCommand {
    /// The delivery tag, unique within its epoch.
    pub tag: u64,
    /// The epoch of the connection. Commands for earlier connections of the consumer are void.
    pub epoch: u64,
    /// How the delivery is settled.
    pub disposition: Disposition,
    /// Why the engine rejected the reply, if an acknowledged reply changed nothing.
    pub rejection: Option<Rejection>,
    /// Why the attempt failed by a result that is acknowledged.
    pub failed: Option<Arc<str>>,
}

/// Settles one delivery at its bus. Dropped unsettled (because its actor panicked) it requeues the
/// message.
pub struct Settlement {
    tag: u64,
    epoch: u64,
    to: Option<mpsc::UnboundedSender<SettleCommand>>,
    /// Releases the permit of a delivery that is not settled yet.
    guard: Option<SettleGuard>,
    rejection: Option<Rejection>,
    failed: Option<Arc<str>>,
}

/// A value that is dropped when the delivery is settled, and releases what it holds.
type SettleGuard = Box<dyn Any + Send>;

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settlement({} of {})", self.tag, self.epoch)
    }
}

impl Settlement {
    /// Creates the settlement of delivery `tag`; its command goes to `to`.
    pub fn new(tag: u64, epoch: u64, to: mpsc::UnboundedSender<SettleCommand>) -> Settlement {
        Settlement { tag, epoch, to: Some(to), guard: None, rejection: None, failed: None }
    }

    /// Adds a guard that is dropped when the delivery is settled.
    pub fn with_guard(self, guard: Option<impl Any + Send>) -> Settlement {
        // Fields cannot be moved out of a type that implements `Drop`.
        let mut settlement = self;
        settlement.guard = guard.map(|hold| Box::new(hold) as SettleGuard);
        settlement
    }

    /// Creates the settlement of a delivery that no broker waits for: the bus itself reports it.
    pub fn detached() -> Settlement {
        Settlement { tag: 0, epoch: 0, to: None, guard: None, rejection: None, failed: None }
    }

    fn is_stale(&self) -> bool {
        self.to.as_ref().is_some_and(mpsc::UnboundedSender::is_closed)
    }

    fn settle(&mut self, disposition: Disposition) {
        if let Some(to) = self.to.take() {
            // The channel is closed if the connection is gone. The broker redelivers by itself
            // then.
            let Settlement { tag, epoch, rejection, .. } = *self;
            let failed = self.failed.take();
            let _ = to.send(SettleCommand { tag, epoch, disposition, rejection, failed });
        }
        self.guard = None;
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        self.settle(Disposition::Requeue);
    }
}

impl Delivery {
    /// Creates a delivery that is settled through `settlement`.
    pub fn new(correlation_id: Option<String>, body: Bytes, settlement: Settlement) -> Delivery {
        Delivery {
            correlation_id,
            kind: None,
            attempt: None,
            message_id: None,
            reply_to: None,
            depth: None,
            trace: None,
            dead_letter: None,
            redelivered: false,
            sender: Sender::Unknown,
            body,
            settlement,
        }
    }

    /// Acknowledges the delivery. Call this only after the commit of what followed from it, if
    /// anything did: after a crash in between the broker must redeliver.
    pub fn ack(mut self) {
        self.settlement.settle(Disposition::Ack);
    }

    /// Acknowledges a reply that changed nothing, for this reason.
    pub fn ack_rejected(mut self, reason: Rejection) {
        self.settlement.rejection = Some(reason);
        self.ack();
    }

    /// Returns whether the delivery is stale; see [`Acknowledger::is_stale`].
    pub fn is_stale(&self) -> bool {
        self.settlement.is_stale()
    }

    /// Drops the content and keeps only the right to settle the delivery.
    pub fn into_acknowledger(self) -> Acknowledger {
        Acknowledger(self.settlement)
    }
}

/// The right to acknowledge one delivery. Dropped, it requeues the message.
#[derive(Debug)]
pub struct Acknowledger(Settlement);

impl From<Settlement> for Acknowledger {
    fn from(settlement: Settlement) -> Acknowledger {
        Acknowledger(settlement)
    }
}

impl Acknowledger {
    /// Acknowledges the delivery; see [`Delivery::ack`].
    pub fn ack(mut self) {
        self.0.settle(Disposition::Ack);
    }

    /// Records why the reply changed nothing.
    pub fn set_rejection(&mut self, reason: Rejection) {
        self.0.rejection = Some(reason);
    }

    /// Notes that the delivery is a result by which its attempt failed, for this reason.
    pub fn failed(&mut self, why: Arc<str>) {
        self.0.failed = Some(why);
    }

    /// Whether the delivery has gone back to its queue, because its channel is closed: it comes
    /// again.
    pub fn is_stale(&self) -> bool {
        self.0.is_stale()
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// It got a reply, from whoever has the message or from another worker.
    Answered,
    /// It failed, most likely by its timeout: no worker should continue with it.
    Failed,
    /// It was cancelled: no worker should continue with it.
    Cancelled,
}

/// The queues that a bus serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedQueues {
    /// The queues of workers.
    pub worker_queues: Vec<Arc<str>>,
    /// The workflow queues, on which calls ask for jobs.
    pub call_queues: Vec<Arc<str>>,
    /// The longest time that a step waits for a reply to a message, by worker queue.
    pub reply_timeouts: BTreeMap<Arc<str>, Duration>,
    /// How missing queues are declared, as far as workflow files specify it.
    pub declarations: BTreeMap<Arc<str>, QueueDeclaration>,
}

/// A message transport. Implementations run on the arbiter of their `BusActor`.
pub trait Bus {
    /// Accepts a message and keeps it until it is confirmed, over any number of connections. Never
    /// blocks.
    fn publish(&mut self, message: Publication);

    /// Withdraws the message of an attempt that has ended, where the bus can do that.
    fn withdraw(&mut self, _queue: &Arc<str>, _id: &str, _end: AttemptEnd) {}

    /// Returns the number of messages that were accepted and are not confirmed.
    fn unconfirmed(&self) -> usize;

    /// Inspects queues without changing anything, and returns their statuses in the same order.
    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueStatus>>;

    /// Checks queues on which steps wait. Each missing queue is reported as
    /// [`BusEvent::QueueMissing`] and then declared, as after connecting.
    fn ensure_queues(&mut self, _queues: Vec<Arc<str>>) {}

    /// Returns the depth of each queue of the virtual host.
    ///
    /// # Errors
    ///
    /// The depths are unknown; the text says why.
    fn poll_depths(&mut self) -> LocalBoxFuture<'static, Result<Vec<QueueDepth>, String>> {
        Box::pin(std::future::ready(Err("nobody counts the messages of this bus".to_owned())))
    }

    /// Replaces the served queues after other workflows were loaded.
    fn set_served(&mut self, served: ServedQueues);

    /// Stops consuming, waits for confirms until the returned future is dropped, and closes the
    /// connections.
    fn close(&mut self) -> LocalBoxFuture<'static, ()>;
}
