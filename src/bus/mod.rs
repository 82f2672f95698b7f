//! The bus: how messages go out and replies come in. One trait, several transports: [`amqp`] speaks
//! AMQP 0-9-1 to RabbitMQ, `kafka` (a feature of the build) produces to topics and reads one,
//! [`embedded`] keeps the queues in this process, [`push`] calls web services.
//!
//! A bus decides nothing, and knows nothing of jobs and steps. It takes publications until it is
//! told to close, keeps each until the broker has taken it, and gives back the receipt that came
//! with it. It reports whatever happens through one [`EventSink`].

pub mod amqp;
pub mod desk;
pub mod embedded;
mod event;
#[cfg(feature = "kafka")]
pub mod kafka;
mod look;
pub mod push;
mod receipt;
pub mod topic;

pub use event::{BusEvent, BusNotice, BusState, EventSink, Position, ServiceCall};
pub use look::{QueueDepth, QueueLook, Trouble};
pub use receipt::{Issued, Receipt};

use crate::engine::{QueueDeclaration, Sender, TraceContext};
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Which bus: its name in the settings, and the virtual host that it serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusKey {
    /// The name.
    pub bus: Arc<str>,
    /// The virtual host; empty: the one of the broker's address.
    pub vhost: Arc<str>,
}

/// Where a message goes: a queue of a bus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The bus.
    pub bus: BusKey,
    /// The queue.
    pub queue: Arc<str>,
}

impl fmt::Display for BusKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bus)?;
        if self.vhost.is_empty() { Ok(()) } else { write!(f, " {}", self.vhost) }
    }
}

/// The text of a body that is built when it is sent, not before.
pub trait BodyText: Send + Sync {
    /// The bytes to be sent.
    fn to_bytes(&self) -> Bytes;

    /// How many bytes they are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The body of a message. One that is built when it is sent shares its values, while it waits,
/// with whatever else holds them.
#[derive(Clone)]
pub struct Body(Content);

#[derive(Clone)]
enum Content {
    Text(Bytes),
    Built(Arc<dyn BodyText>),
}

impl Body {
    /// A body that is built when it is sent.
    pub fn built(text: impl BodyText + 'static) -> Body {
        Body(Content::Built(Arc::new(text)))
    }

    /// The body of a message of kind [`ERROR`]: `reason` in one sentence, and whether another
    /// attempt may help.
    pub fn error(reason: &str, retryable: bool) -> Body {
        Bytes::from(serde_json::json!({ "error": reason, "retryable": retryable }).to_string())
            .into()
    }

    /// The bytes to be sent.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            Content::Text(text) => text.clone(),
            Content::Built(text) => text.to_bytes(),
        }
    }

    /// How many bytes they are.
    pub fn len(&self) -> usize {
        match &self.0 {
            Content::Text(text) => text.len(),
            Content::Built(text) => text.len(),
        }
    }

    /// Whether there are none.
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
        Body(Content::Text(text))
    }
}

/// The property `type` of a message that says that something failed (docs/worker-protocol.md).
pub const ERROR: &str = "error";

/// Who reads a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// A worker of ours: its queue is declared where it is missing, and its reply is waited for.
    Worker,
    /// Whoever asked for something. Its queue is its own matter: if it does not exist, nobody reads
    /// the message.
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
    /// A header that holds a text.
    pub fn text(name: &'static str, text: impl Into<Arc<str>>) -> Header {
        Header { name, value: HeaderValue::Text(text.into()) }
    }

    /// A header that holds a number.
    pub fn number(name: &'static str, number: impl Into<i64>) -> Header {
        Header { name, value: HeaderValue::Number(number.into()) }
    }

    /// What the header of that name says, if that is a text.
    pub fn text_in<'h>(headers: &'h [Header], name: &str) -> Option<&'h Arc<str>> {
        match Header::find(headers, name)? {
            HeaderValue::Text(text) => Some(text),
            HeaderValue::Number(_) => None,
        }
    }

    /// What the header of that name says, if that is a whole number that fits.
    pub fn number_in<N: TryFrom<i64>>(headers: &[Header], name: &str) -> Option<N> {
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
    /// Where it goes.
    pub to: Address,
    /// Who reads it there.
    pub addressee: Addressee,
    /// Its id, the same when it is sent again.
    pub id: String,
    /// What a reply to it is recognised by, or what it is a reply to.
    pub correlation_id: Option<Arc<str>>,
    /// The property `type`.
    pub kind: Option<&'static str>,
    /// The priority, 0–9.
    pub priority: Option<u8>,
    /// When it was sent off, in seconds since 1970.
    pub timestamp_s: u64,
    /// The headers.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Body,
    /// What is left of its lease, if it was lent to a worker before its job was rebuilt from the
    /// journal: at a start, or after a panic.
    pub lease: Option<LeaseLeft>,
    /// Whether the broker is to vouch that the manager has sent it. Then a dead letter of it can be
    /// told from a forged one.
    pub names_sender: bool,
    /// How long it is of use.
    pub lifetime: Lifetime,
    /// Given back once the message is taken.
    pub receipt: Receipt,
}

/// How long a message is of use to workers. A broker that does not tell who has it may drop it
/// then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// From when the broker has it; none: for ever.
    pub span: Option<Duration>,
    /// The time by which a worker must have taken it.
    pub until: Option<Instant>,
}

impl Lifetime {
    /// What is left of it for a broker that gets the message now; none: it has no end.
    pub fn left(self, now: Instant) -> Option<Duration> {
        let until = self.until.map(|until| until.saturating_duration_since(now));
        self.span.into_iter().chain(until).min()
    }
}

/// What is left of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLeft {
    /// Which delivery the worker has, from 1.
    pub delivery: u32,
    /// How long it still has it.
    pub left: Duration,
}

impl Publication {
    /// See [`Header::text_in`].
    pub fn text(&self, name: &str) -> Option<&Arc<str>> {
        Header::text_in(&self.headers, name)
    }

    /// See [`Header::number_in`].
    pub fn number<N: TryFrom<i64>>(&self, name: &str) -> Option<N> {
        Header::number_in(&self.headers, name)
    }
}

/// A message that came in: on the reply queue a worker's reply, or a step message that the broker
/// dead-lettered; on a workflow's queue one that asks for a job.
#[derive(Debug)]
pub struct Delivery {
    /// The property `correlation_id`, unparsed.
    pub correlation_id: Option<String>,
    /// The property `type`: absent, `result`, `progress`, `error` or something unknown.
    pub kind: Option<String>,
    /// The attempt that it is about, if the header `attempt` tells: always for a dead letter, and
    /// for a reply if the worker returns the header.
    pub attempt: Option<u32>,
    /// The property `message_id`; read on a workflow's queue, and for a dead letter.
    pub message_id: Option<String>,
    /// The property `reply_to`; read only on a workflow's queue.
    pub reply_to: Option<String>,
    /// The header `depth`; read only on a workflow's queue.
    pub depth: Option<u16>,
    /// The headers `traceparent` and `tracestate`, if they can be read; only on a workflow's queue.
    pub trace: Option<TraceContext>,
    /// Set when the broker dead-lettered a step message (header `x-death`).
    pub dead_letter: Option<DeadLetter>,
    /// Whether the broker delivered it before.
    pub redelivered: bool,
    /// Who sent it.
    pub from: Sender,
    /// The body.
    pub body: Bytes,
    settlement: Settlement,
}

/// Why the broker dead-lettered a step message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The queue it was in.
    pub queue: String,
    /// The broker's word: `rejected`, `expired`, `maxlen`, `delivery_limit`.
    pub reason: String,
}

impl DeadLetter {
    /// The dead letter of this message, with the broker's word.
    pub fn of(message: &Publication, reason: &str) -> DeadLetter {
        DeadLetter { queue: message.to.queue.to_string(), reason: reason.to_owned() }
    }
}

/// What happens to a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is taken: the broker may forget it.
    Ack,
    /// It goes back to its queue.
    Requeue,
}

/// A verdict on the delivery `tag` of the connection `epoch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The delivery tag, unique within its epoch.
    pub tag: u64,
    /// Counts the connections of a consumer; verdicts for earlier ones are void.
    pub epoch: u64,
    /// The verdict.
    pub verdict: Verdict,
    /// Why a reply that is acknowledged changed nothing.
    pub unused: Option<&'static str>,
    /// Why the attempt failed by a result that is acknowledged.
    pub failed: Option<Arc<str>>,
}

/// The way back from a delivery to the bus. Dropped unsettled (its actor panicked) it sends the
/// message back to its queue.
pub struct Settlement {
    tag: u64,
    epoch: u64,
    to: Option<mpsc::UnboundedSender<Settled>>,
    /// The room that the delivery takes among those without a verdict.
    hold: Option<Hold>,
    unused: Option<&'static str>,
    failed: Option<Arc<str>>,
}

/// Something that is dropped with the verdict on a delivery, and then gives back what it holds.
type Hold = Box<dyn Any + Send>;

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settlement({} of {})", self.tag, self.epoch)
    }
}

impl Settlement {
    /// The settlement of delivery `tag`; verdicts go to `to`.
    pub fn new(tag: u64, epoch: u64, to: mpsc::UnboundedSender<Settled>) -> Settlement {
        Settlement { tag, epoch, to: Some(to), hold: None, unused: None, failed: None }
    }

    /// The same, with something that is dropped when it is settled.
    fn holding(self, hold: Option<impl Any + Send>) -> Settlement {
        // Its fields cannot be moved out of it: it settles when it is dropped.
        let mut settlement = self;
        settlement.hold = hold.map(|hold| Box::new(hold) as Hold);
        settlement
    }

    /// The settlement of a delivery for which no broker waits: what a bus reports by itself.
    pub fn none() -> Settlement {
        Settlement { tag: 0, epoch: 0, to: None, hold: None, unused: None, failed: None }
    }

    fn is_void(&self) -> bool {
        self.to.as_ref().is_some_and(mpsc::UnboundedSender::is_closed)
    }

    fn settle(&mut self, verdict: Verdict) {
        if let Some(to) = self.to.take() {
            // A closed channel means that the connection is gone: the broker redelivers by itself.
            let Settlement { tag, epoch, unused, .. } = *self;
            let failed = self.failed.take();
            let _ = to.send(Settled { tag, epoch, verdict, unused, failed });
        }
        self.hold = None;
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        self.settle(Verdict::Requeue);
    }
}

impl Delivery {
    /// A delivery; `settlement` leads back to the bus.
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
            from: Sender::Unknown,
            body,
            settlement,
        }
    }

    /// Takes the message off its queue: only after the commit of what followed from it, if anything
    /// did. A crash in between must redeliver.
    pub fn ack(mut self) {
        self.settlement.settle(Verdict::Ack);
    }

    /// The same for a reply that changed nothing, for this reason.
    pub fn ack_unused(mut self, why: &'static str) {
        self.settlement.unused = Some(why);
        self.ack();
    }

    /// See [`Acknowledge::is_void`].
    pub fn is_void(&self) -> bool {
        self.settlement.is_void()
    }

    /// Keeps only the settlement; the content is dropped.
    pub fn into_settlement(self) -> Acknowledge {
        Acknowledge(self.settlement)
    }
}

/// The right to acknowledge one delivery; dropped, it sends the message back.
#[derive(Debug)]
pub struct Acknowledge(Settlement);

impl From<Settlement> for Acknowledge {
    fn from(settlement: Settlement) -> Acknowledge {
        Acknowledge(settlement)
    }
}

impl Acknowledge {
    /// See [`Delivery::ack`].
    pub fn ack(mut self) {
        self.0.settle(Verdict::Ack);
    }

    /// Notes that the delivery is a reply that changed nothing, for this reason.
    pub fn unused(&mut self, why: &'static str) {
        self.0.unused = Some(why);
    }

    /// Notes that the delivery is a result by which its attempt failed, for this reason.
    pub fn failed(&mut self, why: Arc<str>) {
        self.0.failed = Some(why);
    }

    /// Whether the delivery has gone back to its queue, because its channel is closed: it comes
    /// again.
    pub fn is_void(&self) -> bool {
        self.0.is_void()
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// By a reply, from whoever has the message or from somebody else.
    Answered,
    /// It failed, most likely by time: nobody should work on it any more.
    Failed,
    /// It was cancelled: nobody should work on it any more.
    Cancelled,
}

/// The queues that a bus serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Those of workers.
    pub workers: Vec<Arc<str>>,
    /// Those on which messages ask for jobs.
    pub calls: Vec<Arc<str>>,
    /// The longest time that a step waits for a reply to a message on these queues of workers.
    pub waits: BTreeMap<Arc<str>, Duration>,
    /// How queues are declared where they are missing, as far as workflow files say it.
    pub declared: BTreeMap<Arc<str>, QueueDeclaration>,
}

/// A message transport. Implementations run on the arbiter of their `BusActor`.
pub trait Bus {
    /// Takes a message for publishing; keeps it until it is confirmed, over any number of
    /// connections. Never blocks.
    fn publish(&mut self, message: Publication);

    /// The attempt of a message is over: it is taken back where that is possible.
    fn withdraw(&mut self, _queue: &Arc<str>, _id: &str, _over: Over) {}

    /// How many messages were taken and are not confirmed yet.
    fn unconfirmed(&self) -> usize;

    /// Looks at queues, without changing anything: what is known of each, in the same order.
    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueLook>>;

    /// Steps wait on these queues. Each is looked at; one that is missing is reported as
    /// [`BusEvent::QueueMissing`] and declared, as when it connects.
    fn look_for(&mut self, _queues: Vec<Arc<str>>) {}

    /// How much each queue of its virtual host holds, or why that is unknown.
    fn depths(&mut self) -> LocalBoxFuture<'static, Result<Vec<QueueDepth>, String>> {
        Box::pin(std::future::ready(Err("nobody counts the messages of this bus".to_owned())))
    }

    /// Other workflows are loaded: these are its queues from now on.
    fn serve(&mut self, served: Served);

    /// Stops taking deliveries, waits for confirms until the returned future is dropped, and closes
    /// the connections.
    fn close(&mut self) -> LocalBoxFuture<'static, ()>;
}
