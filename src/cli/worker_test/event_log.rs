//! The log of what a worker did, in order.

use base::clock;
use bytes::Bytes;
use engine::text::truncate;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::text::Text;

/// The maximum number of logged events, for a worker that never stops.
const EVENTS_MAX: usize = 200_000;

/// The maximum size of all logged replies, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// How much of a reply is printed, in bytes.
const PRINTED_BYTES_MAX: usize = 240;

/// The pause between two probes without an event: a process may have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The type of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    Result,
    Error,
    Progress,
}

impl ReplyKind {
    /// Returns the kind of this name. Any unknown name counts as a result.
    pub(super) fn from_name(name: &str) -> ReplyKind {
        match name {
            "error" => ReplyKind::Error,
            "progress" => ReplyKind::Progress,
            _ => ReplyKind::Result,
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            ReplyKind::Result => "result",
            ReplyKind::Error => "error",
            ReplyKind::Progress => "progress",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) kind: ReplyKind,
    pub(super) body: Bytes,
    /// The properties that only AMQP has.
    pub(super) properties: Properties,
}

impl Reply {
    /// Renders the reply for people.
    pub(super) fn render(&self) -> String {
        format!("{} {}", self.kind.as_str(), render_body(&self.body))
    }
}

/// The properties of a reply over AMQP.
#[derive(Clone, Debug, Default)]
pub(super) struct Properties {
    /// The value of the header `attempt`.
    pub(super) attempt: Option<i64>,
    pub(super) is_persistent: bool,
    pub(super) content_type: Option<Text>,
}

/// Renders a body for people, shortened.
pub(super) fn render_body(body: &[u8]) -> Text {
    if body.is_empty() {
        return Text::new("(empty)");
    }
    Text::new(&truncate(&String::from_utf8_lossy(body), PRINTED_BYTES_MAX))
}

/// What a worker did, or what was done to it.
#[derive(Clone, Debug)]
pub(super) enum ObservedEvent {
    /// The message was delivered to it.
    Delivered,
    /// It published a reply; over AMQP only.
    Published,
    /// The broker confirmed the reply.
    Confirmed,
    /// The reply arrived.
    Replied(Reply),
    Acked,
    /// It consumes with automatic acknowledgement.
    AutoAcked,
    Nacked {
        requeue: bool,
    },
    /// It extended its lease.
    LeaseExtended,
    /// Its lease expired.
    LeaseExpired,
    /// The connection was cut at this message.
    ConnectionCut,
    /// A reply or call that belongs to no message.
    Unexpected(Text),
    /// It asked for a message, or connected.
    Connected,
}

/// An event with its time, and the message that it is about.
#[derive(Clone, Debug)]
pub(super) struct LoggedEvent {
    pub(super) at: Instant,
    /// The number of the message, if the event is about one.
    pub(super) message_number: Option<usize>,
    pub(super) event: ObservedEvent,
}

/// The events of a worker, in order. Clones share one log.
#[derive(Clone, Default)]
pub(super) struct EventLog(Rc<Inner>);

#[derive(Default)]
struct Inner {
    events: RefCell<Vec<LoggedEvent>>,
    body_bytes: Cell<usize>,
    changed: Notify,
}

impl EventLog {
    pub(super) fn add(&self, message_number: Option<usize>, mut event: ObservedEvent) {
        if let ObservedEvent::Replied(reply) = &mut event {
            let bytes = self.0.body_bytes.get().saturating_add(reply.body.len());
            if bytes > REPLY_BYTES_MAX {
                reply.body = Bytes::from_static(b"(not kept: the replies are too large)");
            } else {
                self.0.body_bytes.set(bytes);
            }
        }
        let mut seen = self.0.events.borrow_mut();
        if seen.len() < EVENTS_MAX {
            seen.push(LoggedEvent { at: clock::timer_now(), message_number, event });
        }
        drop(seen);
        self.0.changed.notify_waiters();
    }

    /// Calls `look` with all events.
    pub(super) fn with_events<T>(&self, inspect: impl FnOnce(&[LoggedEvent]) -> T) -> T {
        inspect(&self.0.events.borrow())
    }

    /// Returns the events of one message.
    pub(super) fn events_of(&self, number: usize) -> Vec<LoggedEvent> {
        self.with_events(|seen| {
            seen.iter().filter(|seen| seen.message_number == Some(number)).cloned().collect()
        })
    }

    /// Waits until `probe` finds something. Returns `None` if it does not within this time.
    pub(super) async fn wait_until<T>(
        &self,
        timeout: Duration,
        mut probe: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let end = clock::timer_now() + timeout;
        loop {
            let changed = self.0.changed.notified();
            if let Some(found) = probe() {
                return Some(found);
            }
            let now = clock::timer_now();
            if now >= end {
                return None;
            }
            // A timeout is no error: the loop probes again.
            let _ = tokio::time::timeout_at(end.min(now + POLL_INTERVAL), changed).await;
        }
    }

    /// Waits until `probe` finds something in the events of one message.
    pub(super) async fn wait_until_message<T>(
        &self,
        number: usize,
        timeout: Duration,
        mut probe: impl FnMut(&[LoggedEvent]) -> Option<T>,
    ) -> Option<T> {
        self.wait_until(timeout, || probe(&self.events_of(number))).await
    }
}

/// Returns the first reply that settles a message.
pub(super) fn find_reply(seen: &[LoggedEvent]) -> Option<&Reply> {
    settling_replies(seen).next()
}

/// Returns all replies that settle a message, which excludes progress.
pub(super) fn settling_replies(seen: &[LoggedEvent]) -> impl Iterator<Item = &Reply> {
    seen.iter()
        .filter_map(|seen| {
            if let ObservedEvent::Replied(reply) = &seen.event { Some(reply) } else { None }
        })
        .filter(|reply| reply.kind != ReplyKind::Progress)
}

/// Returns the first reply or call that belongs to no message.
pub(super) fn find_unexpected(seen: &[LoggedEvent]) -> Option<&Text> {
    seen.iter().find_map(|seen| {
        if let ObservedEvent::Unexpected(what) = &seen.event { Some(what) } else { None }
    })
}
