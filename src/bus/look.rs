//! What a bus tells of its queues.

use crate::engine::Timestamp;

/// What is known of a queue at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueLook {
    /// It is there.
    There {
        /// Messages that wait in it; those that a worker has are not counted.
        messages: u32,
        /// Messages that workers had and had not acknowledged some seconds ago; none: unknown.
        unacknowledged: Option<u64>,
        /// Workers that consume from it.
        consumers: u32,
        /// The broker has refused the last message to it: it is full.
        is_full: bool,
    },
    /// It stands for a web service that is called.
    Service {
        /// Messages that wait.
        waiting: usize,
        /// Calls under way.
        calls: usize,
        /// What is wrong with it, if anything is.
        trouble: Option<Trouble>,
    },
    /// It is not there.
    Missing,
    /// Unknown, for this reason.
    Unknown(String),
}

/// Why nothing is delivered to a web service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// In one line.
    pub why: String,
    /// When it is called again; none: not before the settings are others.
    pub next: Option<Timestamp>,
}

/// How much a queue holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// The queue.
    pub queue: String,
    /// Messages that waited or that a worker had some seconds ago; none: unknown.
    pub messages: Option<u64>,
}
