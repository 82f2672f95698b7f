//! The status of queues, as a bus reports it.

use engine::Timestamp;

/// What a bus knows of a queue at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueStatus {
    /// The queue exists.
    Exists {
        /// Messages that wait in it, without those in flight.
        messages: u32,
        /// Messages in flight some seconds ago; `None`: unknown.
        unacknowledged: Option<u64>,
        /// Workers that consume from it.
        consumers: u32,
        /// Whether the broker refused the last message because the queue is full.
        is_full: bool,
    },
    /// The queue stands for a web service that is called.
    Endpoint {
        /// Messages that wait.
        waiting: usize,
        /// Calls under way.
        calls: usize,
        /// Why nothing is delivered to it, if that is so.
        failure: Option<EndpointFailure>,
    },
    /// The queue does not exist.
    Missing,
    /// The status is unknown, for this reason.
    Unknown(String),
}

/// Why nothing is delivered to a web service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointFailure {
    /// The reason in one line.
    pub reason: String,
    /// When it is called again; `None`: not until the settings change.
    pub retry_at: Option<Timestamp>,
}

/// How many messages a queue holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// The queue.
    pub queue: String,
    /// Messages that waited or were in flight some seconds ago; `None`: unknown.
    pub messages: Option<u64>,
}
