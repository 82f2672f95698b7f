//! The log of what a worker did, and of what was done to it. The stub manager adds events, and the
//! harness waits for them.

use super::super::text::Text;
use base::clock;
use bytes::Bytes;
use engine::text::truncate;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The maximum number of logged events. Later ones are dropped, so that a worker in an endless loop
/// cannot exhaust the memory.
const EVENTS_MAX: usize = 200_000;

/// The maximum total size of the bodies of all logged replies, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// The maximum length of a printed body, in bytes.
const PRINTED_BYTES_MAX: usize = 240;

/// The interval at which a probe is repeated even without an event, since it may also check whether
/// the process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The type of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    Result,
    Error,
    Progress,
}

impl ReplyKind {
    /// Returns the kind of this name. An unknown name counts as a result.
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

/// A reply of the worker.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) kind: ReplyKind,
    pub(super) body: Bytes,
    /// The properties over AMQP. Over HTTP they are the default.
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
    /// The value of the header `attempt`. `None` if it is missing or no number.
    pub(super) attempt: Option<i64>,
    pub(super) is_persistent: bool,
    pub(super) content_type: Option<Text>,
}

/// Renders a body for people, truncated to `PRINTED_BYTES_MAX`.
pub(super) fn render_body(body: &[u8]) -> Text {
    if body.is_empty() {
        return Text::new("(empty)");
    }
    Text::new(&truncate(&String::from_utf8_lossy(body), PRINTED_BYTES_MAX))
}

/// An event: what the worker did, or what was done to it.
#[derive(Clone, Debug)]
pub(super) enum ObservedEvent {
    /// The message was delivered.
    Delivered,
    /// The worker published a reply. Over AMQP only.
    Published,
    /// The broker confirmed the reply. Over AMQP only.
    Confirmed,
    /// The reply arrived.
    Replied(Reply),
    /// The message was acknowledged.
    Acked,
    /// The message was acknowledged by its delivery (auto-ack).
    AutoAcked,
    /// The worker rejected the message.
    Nacked { requeue: bool },
    /// The worker asked to extend its lease. The stub manager may have refused that.
    LeaseExtended,
    /// The lease of the worker expired. Over HTTP only.
    LeaseExpired,
    /// The connection was cut at this message.
    ConnectionCut,
    /// A reply or call that belongs to no message, with a description.
    Unexpected(Text),
    /// The worker polled the queue, or began to consume from it.
    Connected,
}

/// An event with its time, and the message that it is about.
#[derive(Clone, Debug)]
pub(super) struct LoggedEvent {
    pub(super) time: Instant,
    /// The number of the message, if the event is about one.
    pub(super) message_number: Option<usize>,
    pub(super) event: ObservedEvent,
}

/// The events of a worker, in order. Clones share one log.
#[derive(Clone, Default)]
pub(super) struct EventLog(Rc<SharedLog>);

/// The state that the clones of a log share.
#[derive(Default)]
struct SharedLog {
    events: RefCell<Vec<LoggedEvent>>,
    /// The total size of the bodies of all logged replies, in bytes.
    body_bytes: Cell<usize>,
    /// Notified after each event.
    changed: Notify,
}

impl EventLog {
    /// Logs an event. Once the logged replies are too large, a placeholder replaces the body of a
    /// reply.
    pub(super) fn add(&self, message_number: Option<usize>, mut event: ObservedEvent) {
        if let ObservedEvent::Replied(reply) = &mut event {
            let bytes = self.0.body_bytes.get().saturating_add(reply.body.len());
            if bytes > REPLY_BYTES_MAX {
                reply.body = Bytes::from_static(b"(not kept: the replies are too large)");
            } else {
                self.0.body_bytes.set(bytes);
            }
        }
        let mut events = self.0.events.borrow_mut();
        if events.len() < EVENTS_MAX {
            events.push(LoggedEvent { time: clock::timer_now(), message_number, event });
        }
        drop(events);
        self.0.changed.notify_waiters();
    }

    /// Calls `inspect` with all events.
    pub(super) fn with_events<T>(&self, inspect: impl FnOnce(&[LoggedEvent]) -> T) -> T {
        inspect(&self.0.events.borrow())
    }

    /// Returns the events of one message.
    pub(super) fn events_of(&self, number: usize) -> Vec<LoggedEvent> {
        self.with_events(|events| {
            events.iter().filter(|event| event.message_number == Some(number)).cloned().collect()
        })
    }

    /// Waits until `probe` returns a value. Returns `None` after the timeout. The probe runs after
    /// each event, and at least every `POLL_INTERVAL`.
    pub(super) async fn wait_until<T>(
        &self,
        timeout: Duration,
        mut probe: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let deadline = clock::timer_now() + timeout;
        loop {
            let changed = self.0.changed.notified();
            if let Some(value) = probe() {
                return Some(value);
            }
            let now = clock::timer_now();
            if now >= deadline {
                return None;
            }
            // After an event and after the interval alike, the loop probes again.
            let _ = tokio::time::timeout_at(deadline.min(now + POLL_INTERVAL), changed).await;
        }
    }

    /// Waits until `probe` returns a value for the events of one message. Returns `None` after the
    /// timeout.
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
pub(super) fn find_reply(events: &[LoggedEvent]) -> Option<&Reply> {
    settling_replies(events).next()
}

/// Returns the replies that settle a message: all but progress.
pub(super) fn settling_replies(events: &[LoggedEvent]) -> impl Iterator<Item = &Reply> {
    events
        .iter()
        .filter_map(|logged| {
            if let ObservedEvent::Replied(reply) = &logged.event { Some(reply) } else { None }
        })
        .filter(|reply| reply.kind != ReplyKind::Progress)
}

/// Returns the first reply or call that belongs to no message.
pub(super) fn find_unexpected(events: &[LoggedEvent]) -> Option<&Text> {
    events.iter().find_map(|logged| {
        if let ObservedEvent::Unexpected(description) = &logged.event {
            Some(description)
        } else {
            None
        }
    })
}
