//! The outlet for events: a topic that strangers listen to. Best effort, and apart from everything
//! else: whatever happens to it, jobs go on.

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;

/// An event on its way to a topic.
#[derive(Clone, Debug)]
pub struct Announcement {
    /// The routing key, at most 255 bytes.
    pub key: String,
    /// The event's id.
    pub id: String,
    /// The event's type.
    pub kind: String,
    /// The content type of the body.
    pub content_type: &'static str,
    /// When it happened, in seconds since 1970.
    pub timestamp_s: u64,
    /// The event.
    pub body: Bytes,
}

/// What became of announcements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicEvent {
    /// The broker has confirmed one.
    Published,
    /// This many were lost.
    Dropped(u64),
}

/// Where a [`Topic`] reports.
pub type TopicSink = Box<dyn Fn(TopicEvent)>;

/// A topic that events are published on.
pub trait Topic {
    /// Takes an event, unless too many wait; tells whether it did. Never blocks.
    fn publish(&self, announcement: Announcement) -> bool;

    /// Publishes what waits, if the broker is connected, and ends.
    fn close(self: Box<Self>) -> LocalBoxFuture<'static, ()>;
}

/// Makes a topic, on the thread that it will run on.
pub type TopicMaker = Box<dyn FnOnce(TopicSink) -> Box<dyn Topic> + Send>;
