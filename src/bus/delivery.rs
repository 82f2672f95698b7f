//! Deliveries: incoming messages, and how they are settled.

use crate::publication::Publication;
use crate::rejection::Rejection;
use bytes::Bytes;
use engine::{Sender, TraceContext};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use tokio::sync::mpsc;

/// An incoming message: on the reply queue a worker's reply or a dead-lettered step message; on a
/// workflow's queue a call, which asks for a job.
#[derive(Debug)]
pub struct Delivery {
    /// The property `correlation_id`, unparsed.
    pub correlation_id: Option<String>,
    /// The property `type`: absent, `result`, `progress`, `error` or something unknown.
    pub kind: Option<String>,
    /// The number of the attempt, from the header `attempt`; `None` if the worker did not return
    /// the header, or if a dead letter has lost it.
    pub attempt: Option<u32>,
    /// The property `message_id`; read on a workflow's queue, and for a dead letter.
    pub message_id: Option<String>,
    /// The property `reply_to`; read only on a workflow's queue.
    pub reply_to: Option<String>,
    /// The header `depth`; read only on a workflow's queue.
    pub depth: Option<u16>,
    /// The headers `traceparent` and `tracestate`, if they are valid; only on a workflow's queue.
    pub trace: Option<TraceContext>,
    /// Why a step message was dead-lettered (header `x-death`); `None`: this is not a dead letter.
    pub dead_letter: Option<DeadLetter>,
    /// Whether the broker delivered the message before.
    pub redelivered: bool,
    /// The sender.
    pub sender: Sender,
    /// The body.
    pub body: Bytes,
    settlement: Settlement,
}

/// The queue and the reason of a dead-lettered step message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The queue that the message was in.
    pub queue: String,
    /// The broker's reason: `rejected`, `expired`, `maxlen`, `delivery_limit`.
    pub reason: String,
}

impl DeadLetter {
    /// The reason of a message that its worker has rejected.
    pub(crate) const REJECTED: &str = "rejected";

    /// The reason of a message that was delivered too often.
    pub(crate) const DELIVERY_LIMIT: &str = "delivery_limit";

    /// Creates the dead letter of `message`, with this reason.
    pub(crate) fn from_publication(message: &Publication, reason: &str) -> DeadLetter {
        DeadLetter { queue: message.address.queue.to_string(), reason: reason.to_owned() }
    }
}

/// How a delivery is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Acknowledges the message: the broker drops it.
    Ack,
    /// Returns the message to its queue.
    Requeue,
}

/// A command to a bus to settle one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleCommand {
    /// The delivery tag, unique within its epoch.
    pub tag: u64,
    /// The epoch of the connection. A command with an earlier epoch than the consumer's is ignored.
    pub epoch: u64,
    /// How the delivery is settled.
    pub disposition: Disposition,
    /// Why an acknowledged reply changed nothing; `None` if it changed something.
    pub rejection: Option<Rejection>,
    /// Why the attempt failed, if an acknowledged result is one that its step cannot have.
    pub failure: Option<Arc<str>>,
}

/// Settles one delivery at its bus. If it is dropped unsettled, as when an actor panics, it
/// requeues the message.
pub struct Settlement {
    tag: u64,
    epoch: u64,
    /// The channel of the command; `None` once the delivery is settled, or if the settlement is
    /// [detached](Settlement::detached).
    sender: Option<mpsc::UnboundedSender<SettleCommand>>,
    /// Dropped when the delivery is settled; `None`: nothing is released then.
    guard: Option<SettleGuard>,
    rejection: Option<Rejection>,
    failure: Option<Arc<str>>,
}

/// A value that releases a resource of the delivery, such as a permit, when it is dropped.
type SettleGuard = Box<dyn Any + Send>;

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settlement({} of {})", self.tag, self.epoch)
    }
}

impl Settlement {
    /// Creates the settlement of the delivery with this tag and epoch. Its command is sent to
    /// `sender`.
    pub fn new(tag: u64, epoch: u64, sender: mpsc::UnboundedSender<SettleCommand>) -> Settlement {
        Settlement { tag, epoch, sender: Some(sender), guard: None, rejection: None, failure: None }
    }

    /// Adds a guard that is dropped when the delivery is settled.
    pub fn with_guard(self, guard: Option<impl Any + Send>) -> Settlement {
        // Fields cannot be moved out of a type that implements `Drop`.
        let mut settlement = self;
        settlement.guard = guard.map(|guard| Box::new(guard) as SettleGuard);
        settlement
    }

    /// Creates the settlement of a delivery that no broker waits for: it settles nothing.
    pub fn detached() -> Settlement {
        Settlement { tag: 0, epoch: 0, sender: None, guard: None, rejection: None, failure: None }
    }

    fn is_stale(&self) -> bool {
        self.sender.as_ref().is_some_and(mpsc::UnboundedSender::is_closed)
    }

    fn settle(&mut self, disposition: Disposition) {
        if let Some(sender) = self.sender.take() {
            // Sending fails if the channel is closed, as after the loss of the connection. The
            // broker then redelivers the message anyway.
            let Settlement { tag, epoch, rejection, .. } = *self;
            let failure = self.failure.take();
            let _ = sender.send(SettleCommand { tag, epoch, disposition, rejection, failure });
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

    /// Acknowledges the delivery. Must be called only after everything that follows from the
    /// delivery is committed: if the process crashes before that, the broker must redeliver the
    /// message.
    pub fn ack(mut self) {
        self.settlement.settle(Disposition::Ack);
    }

    /// Returns whether the delivery is stale; see [`Acknowledger::is_stale`].
    pub fn is_stale(&self) -> bool {
        self.settlement.is_stale()
    }

    /// Drops the content of the delivery, and returns the right to settle it.
    pub fn into_acknowledger(self) -> Acknowledger {
        Acknowledger(self.settlement)
    }
}

/// The right to acknowledge one delivery. If it is dropped, the message is requeued.
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

    /// Sets why the reply changed nothing.
    pub fn set_rejection(&mut self, reason: Rejection) {
        self.0.rejection = Some(reason);
    }

    /// Sets why the attempt failed, if the delivery is a result that its step cannot have.
    pub fn set_failure(&mut self, reason: Arc<str>) {
        self.0.failure = Some(reason);
    }

    /// Returns whether the delivery can no longer be settled, because its channel is closed. The
    /// broker then redelivers the message.
    pub fn is_stale(&self) -> bool {
        self.0.is_stale()
    }
}
