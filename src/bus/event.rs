//! The events that a bus reports, and its state.

use crate::confirm_token::ConfirmToken;
use crate::delivery::Delivery;
use crate::publication::RemainingLease;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The state of a bus's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusState {
    /// Not connected yet, or between two connections.
    Disconnected {
        /// The last error in one line; empty before the first attempt to connect.
        reason: String,
    },
    /// Publishing and consuming.
    Connected {
        /// The nodes of the broker that are used, as host and port; empty if there is no choice of
        /// them.
        nodes: Vec<String>,
    },
    /// Connected and publishing, but still reading the replies that arrived before it connected.
    CatchingUp,
    /// Connected, but some queues cannot be used as they are.
    QueuesUnusable {
        /// The queues.
        queues: Vec<Arc<str>>,
        /// What is wrong with them, in one line, as a continuation of "connected, but".
        reason: String,
    },
    /// Connected, but the broker does not confirm messages. The network or the broker may have
    /// stopped.
    Unresponsive {
        /// The time without a confirm, at least.
        elapsed: Duration,
    },
    /// The broker blocks publishers because of a resource alarm. Deliveries are still acknowledged.
    Blocked {
        /// The broker's reason.
        reason: String,
    },
}

impl BusState {
    /// The state of a bus that publishes and consumes, and has no choice of nodes.
    pub const CONNECTED: BusState = BusState::Connected { nodes: Vec::new() };
}

impl fmt::Display for BusState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BusState::Disconnected { reason } if reason.is_empty() => {
                f.write_str("not connected yet")
            }
            BusState::Disconnected { reason } => write!(f, "not connected: {reason}"),
            BusState::Connected { nodes } if nodes.is_empty() => f.write_str("connected"),
            BusState::Connected { nodes } => write!(f, "connected to {}", nodes.join(" and ")),
            BusState::CatchingUp => f.write_str("connected, reads the replies that arrived before"),
            BusState::QueuesUnusable { reason, .. } => write!(f, "connected, but {reason}"),
            BusState::Unresponsive { elapsed } => write!(
                f,
                "connected, but the broker has confirmed nothing for {elapsed:?} although messages \
                 wait for that: has the network stopped, or the broker?"
            ),
            BusState::Blocked { reason } => write!(f, "publishing blocked by the broker: {reason}"),
        }
    }
}

/// An event that a bus reports to its actor.
#[derive(Debug)]
pub enum BusEvent {
    /// A message arrived on the reply queue.
    Reply(Delivery),
    /// A call arrived: a message on a workflow's queue, which asks for a job.
    Call {
        /// The workflow's queue.
        queue: Arc<str>,
        /// The message.
        delivery: Delivery,
    },
    /// The broker has confirmed a publication.
    Confirmed(ConfirmToken),
    /// A worker has leased a message, or the end of its lease differs from the last report.
    Leased {
        /// A clone of the message's confirm token.
        confirm_token: ConfirmToken,
        /// The lease, counted from now.
        lease: RemainingLease,
    },
    /// A message was handed over without a lease: to a worker or a workflow of this process, or to
    /// a web service, whose call may be repeated. This does not confirm it.
    HandedOver(ConfirmToken),
    /// The queue that a caller named does not exist: nobody will ever read the message.
    Unroutable(ConfirmToken),
    /// A message could not be read, and was removed from its queue.
    Unreadable {
        /// The queue on which it arrived.
        queue: Arc<str>,
        /// What is wrong with it.
        reason: String,
        /// Its property `correlation_id`, if that can be read.
        correlation_id: Option<String>,
        /// The size of its body, in bytes.
        bytes: usize,
        /// Whether it was quarantined; otherwise it was dropped.
        is_quarantined: bool,
    },
    /// The state changed.
    State(BusState),
    /// A queue does not exist, so its messages are lost. The receiver journals all running steps of
    /// the queue as unconfirmed and answers `journaled`. The bus declares the queue once that is
    /// answered or dropped (docs/reference/worker-protocol.md).
    QueueMissing {
        /// The queue.
        queue: Arc<str>,
        /// Answered after the commit of the journal.
        journaled: oneshot::Sender<()>,
    },
    /// All messages before this offset of a partition are processed, if the bus reads the topic, or
    /// were written by the bus. The offset is journaled, because the broker does not store it.
    OffsetReached(TopicOffset),
    /// The bus cannot work for this reason, and retries do not help. For example, another process
    /// consumes the reply queue, or the bus panicked. The daemon stops.
    Fatal(String),
    /// A call of a web service has ended.
    EndpointCalled {
        /// The queue of the endpoint.
        queue: Arc<str>,
        /// The outcome of the call.
        outcome: CallOutcome,
        /// How long the call took.
        duration: Duration,
    },
    /// An event of a single message that is only counted.
    Notice(BusNotice),
}

/// How far a bus has read or written a partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicOffset {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offset after the last message that was processed or written.
    pub offset: i64,
}

/// The outcome of a call of a web service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The service returned a result.
    Result,
    /// The attempt failed.
    Error,
    /// The service accepted the message and replies later.
    Deferred,
    /// The service did not receive the message, or rejected it for now.
    NotDelivered,
}

impl CallOutcome {
    /// Returns the label of the outcome in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            CallOutcome::Result => "result",
            CallOutcome::Error => "error",
            CallOutcome::Deferred => "taken_over",
            CallOutcome::NotDelivered => "not_delivered",
        }
    }
}

/// An event of a single message that is only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BusNotice {
    /// The broker returned a message as unroutable; it is sent again.
    Returned,
    /// The broker refused a publication (negative acknowledgement); it is sent again.
    Nacked,
    /// A publication was sent again after a connection was lost.
    Resent,
    /// A call of a web service did not deliver its message, which waits for the next call.
    NotDelivered,
    /// A call of a web service was aborted because its attempt has ended.
    CallAborted,
}

/// Receives the events of a bus. It may be called from any thread and never blocks.
pub type EventSink = Arc<dyn Fn(BusEvent) + Send + Sync>;

/// Runs a task of a bus. If the task panics, reports [`BusEvent::Fatal`]: otherwise the bus would
/// seem to work, because its other tasks continue.
pub async fn run_reporting_panic(sink: EventSink, task: impl Future<Output = ()>) {
    let _reporter = PanicReporter(sink);
    task.await;
}

/// Reports [`BusEvent::Fatal`] if it is dropped while its thread panics.
struct PanicReporter(EventSink);

impl Drop for PanicReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)(BusEvent::Fatal("the bus panicked; the log has the panic".to_owned()));
        }
    }
}
