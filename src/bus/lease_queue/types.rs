//! The types of a lease queue's interface.

use crate::body::Body;
use crate::publication::Header;
use crate::rejection::Rejection;
use crate::transport::AttemptEnd;
use base::budget::{MessageBudget, Permit, ResourceBudget};
use bytes::Bytes;
use engine::Sender;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

/// The longest lease that a worker in another program can have.
pub const LEASE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// How messages are leased.
#[derive(Clone, Copy, Debug)]
pub struct LeasePolicy {
    /// The length of a lease, unless the worker asks for another one.
    pub lease: Duration,
    /// The most deliveries of a message. After that its attempt fails, because the message itself
    /// may crash its workers.
    pub deliveries_max: u32,
    /// Whether leases are reported and journaled, so that they survive a restart of the process.
    pub reports_leases: bool,
}

/// A lease, as shown to clients.
#[derive(Clone, Debug)]
pub struct LeaseStatus {
    /// The id of the message.
    pub id: Arc<str>,
    /// The name that the worker with the lease gave itself; `None` if it gave none.
    pub worker: Option<Arc<str>>,
    /// The number of the delivery, from 1.
    pub delivery: u32,
    /// When the lease ends.
    pub until: Instant,
}

/// The options with which a worker receives a message.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions {
    /// The length of the lease; `None`: as the [`LeasePolicy`] sets it.
    pub lease: Option<Duration>,
    /// The name that the worker gives itself; `None` if it gives none.
    pub worker: Option<Arc<str>>,
    /// Notified when a lease is revoked; `None` for a worker without a session.
    pub revocations: Option<RevocationSender>,
    /// The budget for the bytes of messages that are being sent; `None`: the caller limits them.
    pub budget: Option<MessageBudget>,
}

/// A message that is leased to a worker.
#[derive(Debug)]
pub struct LeasedMessage {
    /// The id of the message.
    pub id: Arc<str>,
    /// The correlation id that a reply must carry.
    pub correlation_id: Option<Arc<str>>,
    /// The priority, 0–9.
    pub priority: Option<u8>,
    /// When the message was created, in seconds since 1970.
    pub timestamp_s: u64,
    /// The headers.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Body,
    /// The number of the delivery, from 1.
    pub delivery: u32,
    /// When the lease ends. No other worker gets the message before that, unless it is requeued.
    pub until: Instant,
    /// How long the message waited in its queue.
    pub waited: Duration,
    /// The permit for its bytes while it is being sent; `None` if it was received without a budget.
    pub permit: Option<Permit>,
}

/// A worker's reply to a message.
#[derive(Debug)]
pub struct WorkerReply {
    /// The queue of the message.
    pub queue: Arc<str>,
    /// The id of the message.
    pub id: String,
    /// The number of the delivery that the worker has, or had.
    pub delivery: u32,
    /// The correlation id of the message that this replies to.
    pub correlation_id: Option<String>,
    /// The number of the attempt; `None` if the worker did not return it.
    pub attempt: Option<u32>,
    /// `error` or `progress`; `None`: a result.
    pub kind: Option<&'static str>,
    /// The sender.
    pub sender: Sender,
    /// The body.
    pub body: Bytes,
    /// Notified when the lease is revoked; `None` for a worker without a session. Progress of a
    /// session transfers the lease to it.
    pub revocations: Option<RevocationSender>,
}

/// Why a worker does not have the lease of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum NotLeased {
    /// Another delivery of the message is leased, or another session has leased this one.
    ToAnother,
    /// The message is not in flight: it is settled, or its lease has ended.
    NotFound,
}

/// The error of a reply that was not committed, and may be sent again.
#[derive(Debug, PartialEq, Eq)]
pub struct NotCommitted;

/// The outcome of a worker's reply or rejection that was committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyOutcome {
    /// Why it changed nothing; `None` if it changed something.
    pub rejection: Option<Rejection>,
    /// Why the attempt failed, if the reply is a result that its step cannot have.
    pub failure: Option<Arc<str>>,
    /// When the lease ends, if the reply is progress and has extended it.
    pub until: Option<Instant>,
}

/// Returns the path of the API to which the reply to a delivery is posted. `query` is the key and
/// value of a parameter that selects the bus.
pub fn reply_path(queue: &str, id: &str, delivery: u32, query: Option<(&str, &str)>) -> String {
    let percent_encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
    let query = match query {
        None => String::new(),
        Some((key, value)) => format!("?{key}={}", percent_encode(value)),
    };
    format!(
        "/api/queue/{}/message/{}/{delivery}/reply{query}",
        percent_encode(queue),
        percent_encode(id)
    )
}

/// Notifies a session of revoked leases. The channel needs no bound: it gets at most one
/// [`LeaseRevocation`] for each lease of the session.
pub type RevocationSender = UnboundedSender<LeaseRevocation>;

/// A notification that a lease has ended although the worker has not settled the message.
#[derive(Debug)]
pub struct LeaseRevocation {
    /// The id of the message.
    pub id: Arc<str>,
    /// The number of the delivery.
    pub delivery: u32,
    /// Why the lease has ended.
    pub reason: RevokeReason,
}

/// Why a lease was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeReason {
    /// The lease has expired, or the message was leased to another worker.
    LeaseEnded,
    /// The attempt has ended.
    AttemptEnded(AttemptEnd),
}

/// A guard that counts one worker until it is dropped.
pub struct WorkerCountGuard(Arc<AtomicUsize>);

impl WorkerCountGuard {
    /// Increments the count, which the guard decrements when it is dropped.
    pub(super) fn new(count: &Arc<AtomicUsize>) -> WorkerCountGuard {
        count.fetch_add(1, Ordering::Relaxed);
        WorkerCountGuard(count.clone())
    }
}

impl Drop for WorkerCountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The result of one attempt to lease a message.
pub(super) enum LeaseResult {
    Leased(LeasedMessage),
    /// A message waits, but this budget has no permit of this size in bytes for it now.
    OverBudget(ResourceBudget, usize),
    /// No message waits.
    Empty,
}

/// The order in a queue: the highest priority first, then the first to arrive.
pub(super) type QueuePosition = (Reverse<u8>, u64);
