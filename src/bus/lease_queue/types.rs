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

/// The longest lease.
pub const LEASE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// How messages are leased.
#[derive(Clone, Copy, Debug)]
pub struct LeasePolicy {
    /// The length of a lease, unless the worker asks for another one.
    pub lease: Duration,
    /// How often a message is delivered at most. After that its attempt fails, for the message may
    /// be what kills its workers.
    pub deliveries_max: u32,
    /// Whether leases are reported, so that they outlive the process.
    pub reports_leases: bool,
}

/// A lease, as shown to clients.
#[derive(Clone, Debug)]
pub struct LeaseStatus {
    /// The id of the message.
    pub id: Arc<str>,
    /// The worker that holds the lease, by the name that it gave itself.
    pub worker: Option<Arc<str>>,
    /// The number of the delivery, from 1.
    pub delivery: u32,
    /// When the lease ends.
    pub until: Instant,
}

/// What a worker asks for when it receives a message.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions {
    /// The length of the lease; `None`: as the [`LeasePolicy`] sets it.
    pub lease: Option<Duration>,
    /// The name that the worker gives itself.
    pub worker: Option<Arc<str>>,
    /// Notified when a lease is revoked; only of a worker with a session.
    pub revocations: Option<RevocationSender>,
    /// The budget for messages on their way; `None`: the worker bounds them itself.
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
    /// When the lease ends. No other worker gets the message before that.
    pub until: Instant,
    /// How long the message waited in its queue.
    pub waited: Duration,
    /// The permit for its bytes on their way.
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
    /// The attempt.
    pub attempt: Option<u32>,
    /// `error` or `progress`; `None`: a result.
    pub kind: Option<&'static str>,
    /// The sender.
    pub sender: Sender,
    /// The body.
    pub body: Bytes,
    /// Notified when the lease is revoked; only of a worker with a session. Progress from another
    /// session than before transfers the lease to this one.
    pub revocations: Option<RevocationSender>,
}

/// Why a worker does not have the message.
#[derive(Debug, PartialEq, Eq)]
pub enum NotLeased {
    /// Another delivery of it is leased.
    ToAnother,
    /// It is not in flight: it is settled, or its lease has ended.
    NotFound,
}

/// The reply was not committed, and may be sent again.
#[derive(Debug, PartialEq, Eq)]
pub struct NotCommitted;

/// What became of a reply or a refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyOutcome {
    /// Why it changed nothing, if it did not.
    pub rejection: Option<Rejection>,
    /// Why the attempt failed, if a result was none that its step can have.
    pub failed: Option<Arc<str>>,
    /// When the lease of the message ends now, if progress has lengthened it.
    pub until: Option<Instant>,
}

/// Returns where the reply to a delivery goes, below the address of the API; `query` says which
/// lease queue it is, as a key and its value.
pub fn reply_path(queue: &str, id: &str, delivery: u32, query: Option<(&str, &str)>) -> String {
    let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
    let query = match query {
        None => String::new(),
        Some((key, value)) => format!("?{key}={}", encoded(value)),
    };
    format!("/api/queue/{}/message/{}/{delivery}/reply{query}", encoded(queue), encoded(id))
}

/// Notifies a session of revoked leases. It holds at most one [`LeaseRevocation`] for each message
/// leased to the session.
pub type RevocationSender = UnboundedSender<LeaseRevocation>;

/// A lease that ended although the worker has not settled it.
#[derive(Debug)]
pub struct LeaseRevocation {
    /// The id of the message.
    pub id: Arc<str>,
    /// The number of the delivery.
    pub delivery: u32,
    /// Why it ended.
    pub reason: RevokeReason,
}

/// Why a lease was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeReason {
    /// The time of the lease is over.
    LeaseEnded,
    /// The attempt has ended.
    AttemptEnded(AttemptEnd),
}

/// Counts one worker until it is dropped.
pub struct WorkerCountGuard(Arc<AtomicUsize>);

impl WorkerCountGuard {
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

/// The result of one try to lease a message.
pub(super) enum LeaseResult {
    Leased(LeasedMessage),
    /// A message of this many bytes waits, for which this budget has no room now. It is not leased.
    OverBudget(ResourceBudget, usize),
    Empty,
}

/// The order in a queue: the highest priority first, then the first to arrive.
pub(super) type QueuePosition = (Reverse<u8>, u64);
