//! What a bus reports, and the state that it is in.

use super::{Delivery, LeaseLeft, Receipt};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Whether a bus can do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusState {
    /// Not yet connected, or between two connections; with the last error.
    Disconnected {
        /// Why, in one line; empty before the first try.
        reason: String,
    },
    /// It sends and receives.
    Connected,
    /// Connected, and messages are sent. But it is still reading the replies that were there when
    /// it connected.
    CatchingUp,
    /// It is connected, but some queues cannot be used as they are.
    Unfit {
        /// Which.
        queues: Vec<Arc<str>>,
        /// What is wrong with them, in one line.
        reason: String,
    },
    /// It is connected, but the broker says nothing of the messages that it was sent: the network
    /// may have stopped, or the broker.
    Silent {
        /// For how long it has said nothing, at least.
        span: Duration,
    },
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
            BusState::CatchingUp => f.write_str("connected, reads the replies that lay there"),
            BusState::Unfit { reason, .. } => write!(f, "connected, but {reason}"),
            BusState::Silent { span } => write!(
                f,
                "connected, but the broker has confirmed nothing for {span:?} although messages \
                 wait for that: has the network stopped, or the broker?"
            ),
            BusState::Blocked { reason } => write!(f, "publishing blocked by the broker: {reason}"),
        }
    }
}

/// What a bus reports.
#[derive(Debug)]
pub enum BusEvent {
    /// A message came in on the reply queue.
    Reply(Delivery),
    /// A message came in on a queue on which messages ask for jobs.
    Call {
        /// The queue.
        queue: Arc<str>,
        /// The message.
        delivery: Delivery,
    },
    /// The broker has taken responsibility for a message.
    Taken(Receipt),
    /// A worker has a message, for a time; or has it for another time than was reported before.
    Leased {
        /// The message's receipt, once more.
        receipt: Receipt,
        /// For how long, from now.
        lease: LeaseLeft,
    },
    /// A message has been handed over for good: to a worker or a workflow of this process, or in a
    /// call of a web service, which may be neither the first nor the last. It is not confirmed.
    Begun(Receipt),
    /// There is no queue of the name that a caller gave: nobody will ever read the message.
    Unroutable(Receipt),
    /// A message could not be read, whatever it was meant to be; it is off its queue.
    Unreadable {
        /// The queue it came on.
        queue: Arc<str>,
        /// What is wrong with it.
        reason: String,
        /// Its property `correlation_id`, as far as it can be read.
        correlation_id: Option<String>,
        /// The size of its body.
        bytes: usize,
        /// Whether it was put aside; otherwise it was dropped.
        is_kept: bool,
    },
    /// The state changed.
    State(BusState),
    /// A queue is not there, so what was in it is lost. Once `taken` is answered (or dropped), the
    /// bus declares the queue and goes on with it: by then all its running steps are journaled as
    /// unconfirmed (docs/worker-protocol.md).
    QueueMissing {
        /// The queue.
        queue: Arc<str>,
        /// Answered after the commit.
        taken: oneshot::Sender<()>,
    },
    /// All before this offset of a topic is done. It goes into the journal, for the broker keeps no
    /// record of it.
    Reached(Position),
    /// The bus cannot work at all, whatever is tried again: another process consumes the reply
    /// queue. The daemon ends.
    Refused(String),
    /// A call of a web service has ended.
    ServiceCalled {
        /// The queue that stands for the service.
        queue: Arc<str>,
        /// What came of it.
        came: ServiceCall,
        /// From its beginning to its end.
        took: Duration,
    },
    /// Something about a single message that is only counted: a return, a negative confirm.
    Noted(BusNotice),
}

/// How far a bus has come in a partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offset of the first message that is not done.
    pub offset: i64,
}

/// What came of the call of a web service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceCall {
    /// A result.
    Result,
    /// The attempt has failed.
    Error,
    /// It replies later.
    TakenOver,
    /// It has not got the message, or has given it back.
    NotDelivered,
}

impl ServiceCall {
    /// The word for it in metrics.
    pub const fn word(self) -> &'static str {
        match self {
            ServiceCall::Result => "result",
            ServiceCall::Error => "error",
            ServiceCall::TakenOver => "taken_over",
            ServiceCall::NotDelivered => "not_delivered",
        }
    }
}

/// What happens to single messages and is only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BusNotice {
    /// The broker returned a message as unroutable; it is sent again.
    Returned,
    /// The broker refused a message (nack of a publish); it is sent again.
    Refused,
    /// A message was sent again after a connection was lost.
    Resent,
    /// A call of a web service did not deliver its message, which waits for another one.
    NotDelivered,
    /// A call of a web service was broken off: its attempt is over.
    BrokenOff,
}

/// Where a bus reports; it may be called from any thread and never blocks.
pub type EventSink = Arc<dyn Fn(BusEvent) + Send + Sync>;

/// A loop of a bus whose panic is reported: a bus that is half dead must not look alive.
pub(super) async fn watched(sink: EventSink, run: impl Future<Output = ()>) {
    let _watch = Watch(sink);
    run.await;
}

struct Watch(EventSink);

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)(BusEvent::Refused("the bus panicked; the log has the panic".to_owned()));
        }
    }
}
