//! The bus: how step messages go out and replies come in. One trait, several transports: [`amqp`]
//! speaks AMQP 0-9-1 to RabbitMQ, [`embedded`] keeps the queues in this process.
//!
//! A bus never decides anything. It takes messages until it was told to close, keeps each until the
//! broker has confirmed it, and reports what happens through one [`EventSink`].

pub mod amqp;
pub mod embedded;

use crate::engine::{Caller, JobId, Message, StepIndex};
use amqp::Hold;
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use std::fmt;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// The body of a message. That of a JSON message is built when it is sent, not before: what waits
/// shares its values with its job, and with all other messages of the same input.
#[derive(Clone, Debug)]
pub struct Body(Content);

#[derive(Clone, Debug)]
enum Content {
    Text(Bytes),
    Message(Message),
}

impl Body {
    /// The bytes to be sent.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            Content::Text(text) => text.clone(),
            Content::Message(message) => message.to_text().into(),
        }
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        match &self.0 {
            Content::Text(text) => text.len(),
            Content::Message(message) => message.encoded_len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Message> for Body {
    fn from(message: Message) -> Body {
        Body(Content::Message(message))
    }
}

impl From<Bytes> for Body {
    fn from(text: Bytes) -> Body {
        Body(Content::Text(text))
    }
}

/// A step message on its way to a queue (SPEC §4).
#[derive(Clone, Debug)]
pub struct StepMessage {
    /// The job or child job.
    pub job: JobId,
    /// The top-level job.
    pub root: JobId,
    /// The workflow's full name.
    pub workflow: Arc<str>,
    /// The step's position, given back with the confirm.
    pub step: StepIndex,
    /// The step's name.
    pub step_name: Arc<str>,
    /// Which dispatch of the step this is, from 1.
    pub attempt: u32,
    /// The queue it goes to.
    pub queue: Arc<str>,
    /// The AMQP message priority, 0–9.
    pub priority: Option<u8>,
    /// W3C trace context of the dispatch.
    pub traceparent: String,
    /// When it was dispatched, in seconds since 1970.
    pub timestamp_s: u64,
    /// To a workflow's queue: how many levels of calls and child jobs are above the job that it
    /// asks for, without that one.
    pub depth: Option<u16>,
    /// The step's input.
    pub body: Body,
}

impl StepMessage {
    /// `<job UUID>:<step>`
    pub fn correlation_id(&self) -> String {
        format!("{}:{}", self.job, self.step_name)
    }

    /// `<job UUID>:<step>:<attempt>`
    pub fn message_id(&self) -> String {
        format!("{}:{}:{}", self.job, self.step_name, self.attempt)
    }
}

/// What a caller is told: how its job ended, or why there is none (SPEC §4).
#[derive(Debug)]
pub struct CallerAnswer {
    /// Who asked.
    pub caller: Caller,
    /// The workflow's full name.
    pub workflow: Arc<str>,
    /// The job; of a refusal the one that there is not.
    pub job: JobId,
    /// Whether it is `type: error`.
    pub is_error: bool,
    /// When it was sent off, in seconds since 1970.
    pub timestamp_s: u64,
    /// The result, or the error.
    pub body: Body,
    /// What follows once the broker has it.
    pub receipt: Receipt,
}

/// What becomes of an answer that the broker has taken.
#[derive(Debug)]
pub enum Receipt {
    /// The job hears of it.
    Job {
        /// The caller's number in the job.
        caller: u32,
        /// Which end of the job the answer is to.
        end: u32,
    },
    /// Of a refusal: the message that is refused has done its part.
    Refusal(Acknowledge),
}

impl CallerAnswer {
    /// `<job UUID>:__end__:<end>:<caller>`: the same when an answer is sent again.
    pub fn message_id(&self) -> String {
        match self.receipt {
            Receipt::Job { caller, end } => format!("{}:__end__:{end}:{caller}", self.job),
            Receipt::Refusal(_) => format!("{}:__end__", self.job),
        }
    }

    /// The body of a `type: error`.
    pub fn error(reason: &str, retryable: bool) -> Body {
        Bytes::from(serde_json::json!({ "error": reason, "retryable": retryable }).to_string())
            .into()
    }
}

/// What a bus sends.
#[derive(Debug)]
pub enum BusMessage {
    /// To a worker.
    Step(StepMessage),
    /// To whoever asked for a job.
    Answer(CallerAnswer),
}

impl From<StepMessage> for BusMessage {
    fn from(message: StepMessage) -> BusMessage {
        BusMessage::Step(message)
    }
}

impl BusMessage {
    /// The queue that it goes to.
    pub fn queue(&self) -> &Arc<str> {
        match self {
            BusMessage::Step(message) => &message.queue,
            BusMessage::Answer(answer) => &answer.caller.reply_to,
        }
    }

    /// Whether it is a step message to that queue.
    pub fn is_step_for(&self, queue: &str) -> bool {
        matches!(self, BusMessage::Step(message) if *message.queue == *queue)
    }

    /// Its property `message_id`.
    pub fn message_id(&self) -> String {
        match self {
            BusMessage::Step(message) => message.message_id(),
            BusMessage::Answer(answer) => answer.message_id(),
        }
    }

    /// Its body.
    pub fn body(&self) -> &Body {
        match self {
            BusMessage::Step(message) => &message.body,
            BusMessage::Answer(answer) => &answer.body,
        }
    }

    /// Job, step and attempt, for the log.
    pub fn place(&self) -> (JobId, &str, u32) {
        match self {
            BusMessage::Step(message) => (message.job, &message.step_name, message.attempt),
            BusMessage::Answer(answer) => {
                (answer.job, "__end__", answer.caller.attempt.unwrap_or_default())
            }
        }
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
    /// The attempt that it is about, where the header `attempt` tells: of a dead letter always, of
    /// a reply if the worker gives it back.
    pub attempt: Option<u32>,
    /// The property `message_id`; looked at on a workflow's queue alone.
    pub message_id: Option<String>,
    /// The property `reply_to`; looked at on a workflow's queue alone.
    pub reply_to: Option<String>,
    /// The header `depth`; looked at on a workflow's queue alone.
    pub depth: Option<u16>,
    /// Set when the broker dead-lettered a step message (header `x-death`).
    pub dead_letter: Option<DeadLetter>,
    /// Whether the broker delivered it before.
    pub redelivered: bool,
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

/// What becomes of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is taken: the broker may forget it.
    Ack,
    /// It goes back to its queue.
    Requeue,
}

/// A verdict on the delivery `tag` of the connection `epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The delivery tag, unique within its epoch.
    pub tag: u64,
    /// Counts the connections of a consumer; verdicts for earlier ones are void.
    pub epoch: u64,
    /// The verdict.
    pub verdict: Verdict,
}

/// The way back from a delivery to the bus. Dropped unsettled (its actor panicked) it sends the
/// message back to its queue.
#[derive(Debug)]
pub struct Settlement {
    tag: u64,
    epoch: u64,
    to: Option<mpsc::UnboundedSender<Settled>>,
    /// What the delivery takes of the room for those without a verdict.
    hold: Option<Hold>,
}

impl Settlement {
    /// The settlement of delivery `tag`; verdicts go to `to`.
    pub fn new(tag: u64, epoch: u64, to: mpsc::UnboundedSender<Settled>) -> Settlement {
        Settlement { tag, epoch, to: Some(to), hold: None }
    }

    /// With what is let go when it is settled.
    fn holding(self, hold: Option<Hold>) -> Settlement {
        // Its fields cannot be moved out of it, for it settles when it is dropped.
        let mut settlement = self;
        settlement.hold = hold;
        settlement
    }

    /// Of a delivery that nobody waits for: the embedded bus.
    pub fn none() -> Settlement {
        Settlement { tag: 0, epoch: 0, to: None, hold: None }
    }

    fn is_void(&self) -> bool {
        self.to.as_ref().is_some_and(mpsc::UnboundedSender::is_closed)
    }

    fn settle(&mut self, verdict: Verdict) {
        if let Some(to) = self.to.take() {
            // A closed channel means that the connection is gone: the broker redelivers by itself.
            let _ = to.send(Settled { tag: self.tag, epoch: self.epoch, verdict });
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
            dead_letter: None,
            redelivered: false,
            body,
            settlement,
        }
    }

    /// Takes the message off its queue. Only after the commit of what followed from it: a crash
    /// between must redeliver.
    pub fn ack(mut self) {
        self.settlement.settle(Verdict::Ack);
    }

    /// See [`Acknowledge::is_void`].
    pub fn is_void(&self) -> bool {
        self.settlement.is_void()
    }

    /// Parts the settlement from the content, which is consumed.
    pub fn into_settlement(self) -> Acknowledge {
        Acknowledge(self.settlement)
    }
}

/// The right to acknowledge one delivery; dropped, it sends the message back.
#[derive(Debug)]
pub struct Acknowledge(Settlement);

impl Acknowledge {
    /// See [`Delivery::ack`].
    pub fn ack(mut self) {
        self.0.settle(Verdict::Ack);
    }

    /// Whether the delivery has gone back to its queue, because its channel is closed: it comes
    /// again.
    pub fn is_void(&self) -> bool {
        self.0.is_void()
    }
}

/// Whether a bus can do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusState {
    /// Not yet connected, or between two connections; with the last error.
    Disconnected {
        /// Why, in one line; empty before the first try.
        reason: String,
    },
    /// Both connections are open.
    Connected,
    /// The broker blocks publishers (an alarm); acks go on.
    Blocked {
        /// The broker's words.
        reason: String,
    },
}

impl fmt::Display for BusState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BusState::Disconnected { reason } if reason.is_empty() => {
                f.write_str("not connected yet")
            }
            BusState::Disconnected { reason } => write!(f, "not connected: {reason}"),
            BusState::Connected => f.write_str("connected"),
            BusState::Blocked { reason } => write!(f, "publishing blocked by the broker: {reason}"),
        }
    }
}

/// What a bus reports.
#[derive(Debug)]
pub enum BusEvent {
    /// A message came in on the reply queue.
    Delivered(Delivery),
    /// A message came in on a workflow's queue.
    Called {
        /// The workflow's name, without the virtual host.
        workflow: Arc<str>,
        /// The message.
        delivery: Delivery,
    },
    /// The broker has taken the answer to a caller.
    Answered {
        /// The job.
        job: JobId,
        /// What follows from it.
        receipt: Receipt,
        /// The broker had no queue of that name: the answer is gone.
        is_unroutable: bool,
    },
    /// The broker has taken responsibility for a step message.
    Confirmed {
        /// The job or child job.
        job: JobId,
        /// The step.
        step: StepIndex,
        /// The attempt.
        attempt: u32,
    },
    /// A message could not be read, whatever it was to be: it is off its queue.
    Unreadable {
        /// The queue it came on.
        queue: Arc<str>,
        /// What is wrong with it.
        reason: String,
        /// Its property `correlation_id`, as far as it can be read.
        correlation_id: Option<String>,
        /// The size of its body.
        bytes: usize,
        /// Whether it was put aside; dropped else.
        is_kept: bool,
    },
    /// The state changed.
    State(BusState),
    /// A queue is not there, so what was in it is lost. The bus declares it and goes on once
    /// `taken` is answered (or dropped): by then all its running steps are journaled as unconfirmed
    /// (SPEC §4).
    QueueMissing {
        /// The queue.
        queue: Arc<str>,
        /// Answered after the commit.
        taken: oneshot::Sender<()>,
    },
    /// The bus cannot work at all, whatever is tried again: another process consumes the reply
    /// queue. The daemon ends.
    Refused(String),
    /// Something of one message that only a log can tell: a returned message, a negative confirm.
    Noted(Notice),
}

/// Counted events of single messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The broker returned a message as unroutable; it is sent again.
    Returned,
    /// The broker refused a message (nack of a publish); it is sent again.
    Refused,
    /// A message was sent again after a connection was lost.
    Resent,
}

/// What is known of a queue at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueLook {
    /// It is there.
    There {
        /// Messages that wait in it; those that a worker has are not counted.
        messages: u32,
        /// Messages that a worker has and has not acknowledged, some seconds ago; none: it is not
        /// told.
        unacknowledged: Option<u64>,
        /// Workers that consume from it.
        consumers: u32,
    },
    /// It is not there.
    Missing,
    /// It cannot be told, for this reason.
    Unknown(String),
}

/// How much a queue holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// The queue.
    pub queue: String,
    /// Messages that wait or that a worker has, some seconds ago; none: it is not known.
    pub messages: Option<u64>,
}

/// Where a bus reports; it may be called from any thread and never blocks.
pub type EventSink = Arc<dyn Fn(BusEvent) + Send + Sync>;

/// A message transport. Implementations run on the arbiter of their `BusActor`.
pub trait Bus {
    /// Takes a message for publishing; keeps it until it is confirmed, over any number of
    /// connections. Never blocks.
    fn publish(&mut self, message: BusMessage);

    /// How many messages were taken and are not confirmed yet.
    fn unconfirmed(&self) -> usize;

    /// Looks at a queue, without changing anything.
    fn inspect(&mut self, queue: Arc<str>) -> LocalBoxFuture<'static, QueueLook>;

    /// How much each queue of its virtual host holds, where somebody can tell, or why that is not
    /// known now.
    fn depths(&mut self) -> LocalBoxFuture<'static, Result<Vec<QueueDepth>, String>> {
        Box::pin(std::future::ready(Err("nobody counts the messages of this bus".to_owned())))
    }

    /// Other workflows are loaded: from now on these are the queues of steps, and these the
    /// workflows that take messages on queues of their own.
    fn serve(&mut self, queues: Vec<Arc<str>>, workflows: Vec<Arc<str>>);

    /// Stops taking deliveries, gives unconfirmed messages until the returned future is dropped,
    /// closes the connections.
    fn close(&mut self) -> LocalBoxFuture<'static, ()>;
}
