//! The interface of a topic on which events are published for subscribers. Publishing is best
//! effort: problems with the topic never delay jobs.

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;

/// An event to be published on a topic.
#[derive(Clone, Debug)]
pub struct EventMessage {
    /// The routing key, at most 255 bytes.
    pub key: String,
    /// The event's id.
    pub id: String,
    /// The event's type.
    pub kind: String,
    /// The content type of the body.
    pub content_type: &'static str,
    /// When the event happened, in seconds since 1970.
    pub timestamp_s: u64,
    /// The encoded event.
    pub body: Bytes,
}

/// An outcome of publishing events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The broker has confirmed one event.
    Published,
    /// The given number of events was lost.
    Dropped(u64),
}

/// Receives the outcomes from an [`EventTopic`].
pub type PublishOutcomeSink = Box<dyn Fn(PublishOutcome)>;

/// A topic that events are published on.
pub trait EventTopic {
    /// Queues an event and returns true, or returns false if too many events are queued. Never
    /// blocks.
    fn publish(&self, message: EventMessage) -> bool;

    /// Publishes the queued events, if the broker is connected, and stops.
    fn close(self: Box<Self>) -> LocalBoxFuture<'static, ()>;
}

/// Creates a topic, on the thread that it will run on.
pub type EventTopicFactory = Box<dyn FnOnce(PublishOutcomeSink) -> Box<dyn EventTopic> + Send>;
