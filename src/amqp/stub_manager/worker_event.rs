//! The events of a worker that is tested.

use bytes::Bytes;

/// A reply that was received.
#[derive(Clone, Debug)]
pub struct ReceivedReply {
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

/// What a worker did, with the correlation id of the message.
#[derive(Clone, Debug)]
pub enum WorkerEvent {
    /// It consumes from the queue.
    Consuming,
    /// The message was delivered to it.
    Delivered(String),
    /// It published a reply.
    Published(String),
    /// The broker confirmed the reply to it.
    Confirmed(String),
    /// The stub manager received the reply.
    ReplyReceived(String, ReceivedReply),
    /// It acknowledged the message.
    Acked(String),
    /// It consumes with automatic acknowledgement.
    AutoAcked(String),
    /// It rejected the message.
    Nacked {
        /// The correlation id of the message.
        correlation_id: String,
        /// Whether the message goes back to its queue.
        requeue: bool,
    },
    /// The connection was cut.
    ConnectionCut(String),
    /// It did what no worker should do.
    Violation(String),
}
