//! Publications: messages to be sent to a queue.

use crate::body::Body;
use crate::confirm_token::ConfirmToken;
use crate::key::Address;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The property `type` of a message that reports a failure (docs/reference/worker-protocol.md).
pub const ERROR_KIND: &str = "error";

/// Who reads a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// A worker, whose reply is awaited. Its queue is declared if it is missing.
    Worker,
    /// The caller of a job. The queue belongs to the caller: if it does not exist, the message is
    /// unroutable.
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
    /// A string.
    Text(Arc<str>),
    /// An integer.
    Number(i64),
}

impl Header {
    /// Creates a header with a string.
    pub fn from_text(name: &'static str, text: impl Into<Arc<str>>) -> Header {
        Header { name, value: HeaderValue::Text(text.into()) }
    }

    /// Creates a header with a number.
    pub fn from_number(name: &'static str, number: impl Into<i64>) -> Header {
        Header { name, value: HeaderValue::Number(number.into()) }
    }

    /// Returns the value of the named header, if it is a string.
    pub fn find_text<'h>(headers: &'h [Header], name: &str) -> Option<&'h Arc<str>> {
        match Header::find(headers, name)? {
            HeaderValue::Text(text) => Some(text),
            HeaderValue::Number(_) => None,
        }
    }

    /// Returns the value of the named header, if it is a number that fits `N`.
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

/// A message to be sent to a queue (docs/reference/worker-protocol.md).
#[derive(Debug)]
pub struct Publication {
    /// The destination.
    pub address: Address,
    /// Who reads it there.
    pub addressee: Addressee,
    /// The message id. It stays the same when the message is sent again.
    pub id: String,
    /// The correlation id: that of the attempt, which a worker's reply returns, or the one that a
    /// caller has asked for.
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
    /// The remaining lease, if a worker leased the message before the job was rebuilt from the
    /// journal (at startup, or after a panic).
    pub lease: Option<RemainingLease>,
    /// Whether the broker must verify the sender (property `user-id`). This distinguishes a dead
    /// letter of the message from a forged one.
    pub sets_user_id: bool,
    /// When the message expires.
    pub lifetime: Lifetime,
    /// Returned to the sender of the message once the message is confirmed.
    pub confirm_token: ConfirmToken,
}

/// When a message expires. A broker that does not report which worker has a message may drop it
/// then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// The time to live, counted from when the broker receives the message; `None`: no limit.
    pub ttl: Option<Duration>,
    /// The time by which a worker must have received the message; `None`: no limit.
    pub take_by: Option<Instant>,
}

impl Lifetime {
    /// Returns the time to live for a broker that receives the message now; `None`: it does not
    /// expire.
    pub fn remaining(self, now: Instant) -> Option<Duration> {
        let time_to_take = self.take_by.map(|take_by| take_by.saturating_duration_since(now));
        self.ttl.into_iter().chain(time_to_take).min()
    }
}

/// A lease that a worker already has when the message is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemainingLease {
    /// The number of the delivery that the worker has, from 1.
    pub delivery: u32,
    /// The time until the lease ends.
    pub remaining: Duration,
}

impl Publication {
    /// Returns the value of a number header; see [`Header::find_number`].
    pub fn number_header<N: TryFrom<i64>>(&self, name: &str) -> Option<N> {
        Header::find_number(&self.headers, name)
    }
}
