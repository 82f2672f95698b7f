//! What is heard of a worker.

use bytes::Bytes;

/// A reply that has come.
#[derive(Clone, Debug)]
pub struct TrialReply {
    /// The property `type`.
    pub kind: Option<String>,
    /// The body.
    pub body: Bytes,
    /// The header `attempt`.
    pub attempt: Option<u32>,
    /// Whether `delivery_mode` is 2.
    pub is_persistent: bool,
    /// The property `content_type`.
    pub content_type: Option<String>,
}

/// What a worker did; each with the correlation id of the message.
#[derive(Clone, Debug)]
pub enum Heard {
    /// It consumes from the queue.
    Came,
    /// The message was given to it.
    Given(String),
    /// It sent a reply towards the broker.
    Published(String),
    /// The broker told it that it has the reply.
    Confirmed(String),
    /// The reply has come.
    Replied(String, TrialReply),
    /// It acknowledged the message.
    Acked(String),
    /// It consumes with automatic acknowledgement.
    AckedUnseen(String),
    /// It refused the message.
    Nacked {
        /// Which.
        of: String,
        /// Whether it goes back to its queue.
        requeue: bool,
    },
    /// The connection was cut.
    Cut(String),
    /// What no worker should do.
    Strange(String),
}
