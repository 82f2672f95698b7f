//! The types of a desk: what is lent, who has it, and what becomes of it.

use super::lines::Line;
use crate::bus::{Body, Header};
use crate::engine::Sender;
use crate::room::{MessageRoom, Taken};
use bytes::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The longest lease.
pub const LEASE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// How messages are lent.
#[derive(Clone, Copy, Debug)]
pub struct Lending {
    /// How long, unless the worker asks for another time.
    pub lease: Duration,
    /// How often a message is lent at most. Then its attempt fails: it may be what kills its
    /// workers.
    pub deliveries_max: u32,
    /// Whether leases are reported, so that they can outlive the process.
    pub reports: bool,
}

/// A lease, for who looks.
#[derive(Clone, Debug)]
pub struct LeaseLook {
    /// The id of the message.
    pub id: Arc<str>,
    /// Who has it, by the name that it gave itself.
    pub worker: Option<Arc<str>>,
    /// Which delivery it is, from 1.
    pub delivery: u32,
    /// When the lease ends.
    pub until: Instant,
}

/// Who asks for a message, and for how long.
#[derive(Clone, Debug, Default)]
pub struct Borrower {
    /// How long; none: as the desk lends.
    pub lease: Option<Duration>,
    /// The name that it gives itself.
    pub worker: Option<Arc<str>>,
    /// Where it hears that it no longer has a message; only for a worker that stays.
    pub line: Option<Line>,
    /// Where its messages take room on their way; none: it bounds them itself.
    pub room: Option<MessageRoom>,
}

/// A message that is lent to a worker.
#[derive(Debug)]
pub struct Loan {
    /// The id of the message.
    pub id: Arc<str>,
    /// What a reply to it is recognised by.
    pub correlation_id: Option<Arc<str>>,
    /// The priority, 0–9.
    pub priority: Option<u8>,
    /// When it was sent off, in seconds since 1970.
    pub timestamp_s: u64,
    /// The headers.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Body,
    /// Which delivery it is, from 1.
    pub delivery: u32,
    /// When the lease ends: not before this does anybody else get the message.
    pub until: Instant,
    /// How long the message has waited.
    pub waited: Duration,
    /// Its room on its way.
    pub room: Option<Taken>,
}

/// What a worker says of a message.
#[derive(Debug)]
pub struct Said {
    /// The queue of the message.
    pub queue: Arc<str>,
    /// The id of the message.
    pub id: String,
    /// Which delivery of the message the worker has, or had.
    pub delivery: u32,
    /// What it is a reply to.
    pub correlation_id: String,
    /// The attempt.
    pub attempt: Option<u32>,
    /// `error`, `progress`, or nothing: a result.
    pub kind: Option<&'static str>,
    /// Who says it.
    pub from: Sender,
    /// The body.
    pub body: Bytes,
    /// Where it hears that it no longer has the message; only of a worker that stays. Progress over
    /// another line than before makes the message this worker's.
    pub line: Option<Line>,
}

/// Why a worker does not have the message.
#[derive(Debug, PartialEq, Eq)]
pub enum NotLent {
    /// Another delivery of it is lent.
    ToAnother,
    /// It is not lent: it is settled, or its lease has ended.
    NotThere,
}

/// The reply was not committed; it may be sent again.
#[derive(Debug, PartialEq, Eq)]
pub struct NotCommitted;

/// What became of a reply or a refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Why it changed nothing, if it did not.
    pub unused: Option<&'static str>,
    /// Why the attempt failed, if a result was none that its step can have.
    pub failed: Option<Arc<str>>,
    /// When the lease of the message ends now, if progress has lengthened it.
    pub until: Option<Instant>,
}

/// Where the reply to a delivery goes, below the address of the API; `query`: which desk it is, as
/// a key and its value.
pub fn reply_path(queue: &str, id: &str, delivery: u32, query: Option<(&str, &str)>) -> String {
    let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
    let query = match query {
        None => String::new(),
        Some((key, value)) => format!("?{key}={}", encoded(value)),
    };
    format!("/api/queue/{}/message/{}/{delivery}/reply{query}", encoded(queue), encoded(id))
}
