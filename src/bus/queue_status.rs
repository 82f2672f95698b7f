//! The status of queues, as a bus reports it.

use engine::Timestamp;

/// The current status of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueStatus {
    /// The queue exists.
    Exists {
        /// The number of waiting messages, without those in flight.
        messages: u32,
        /// The number of messages in flight, as of some seconds ago; `None`: unknown.
        unacknowledged: Option<u64>,
        /// The number of workers that consume from it.
        consumers: u32,
        /// Whether the broker refused the last message because the queue is full.
        is_full: bool,
    },
    /// The queue is that of an endpoint.
    Endpoint {
        /// The number of waiting messages.
        waiting: usize,
        /// The number of messages whose calls are active.
        calls: usize,
        /// Why no message can be delivered; `None`: the endpoint may be called.
        failure: Option<EndpointFailure>,
    },
    /// The queue does not exist.
    Missing,
    /// The status is unknown, for this reason.
    Unknown(String),
}

/// Why no message can be delivered to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointFailure {
    /// The reason in one line.
    pub reason: String,
    /// When the endpoint is called again; `None`: it has no settings, so it is never called.
    pub retry_at: Option<Timestamp>,
}

/// The number of messages of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// The name of the queue.
    pub queue: String,
    /// The number of messages that waited or were in flight, as of some seconds ago; `None`:
    /// unknown.
    pub messages: Option<u64>,
}
