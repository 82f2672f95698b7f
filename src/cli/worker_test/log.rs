//! The log of what a worker did, in order.

use crate::clock;
use crate::engine::words::cut;
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::text::Text;

/// The maximum number of logged events, for a worker that never stops.
const SEEN_MAX: usize = 200_000;

/// The maximum size of all logged replies, in bytes.
const BODIES_BYTES_MAX: usize = 64 << 20;

/// How much of a reply is printed, in bytes.
const SHOWN_BYTES_MAX: usize = 240;

/// The pause between two probes without an event: a process may have ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The type of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Result,
    Error,
    Progress,
}

impl Kind {
    /// Returns the kind of this name. Any unknown name counts as a result.
    pub(super) fn of(name: &str) -> Kind {
        match name {
            "error" => Kind::Error,
            "progress" => Kind::Progress,
            _ => Kind::Result,
        }
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Kind::Result => "result",
            Kind::Error => "error",
            Kind::Progress => "progress",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) kind: Kind,
    pub(super) body: Bytes,
    /// The properties that only AMQP has.
    pub(super) properties: Properties,
}

impl Reply {
    /// Renders the reply for people.
    pub(super) fn shown(&self) -> String {
        format!("{} {}", self.kind.word(), shown(&self.body))
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
pub(super) fn shown(body: &[u8]) -> Text {
    if body.is_empty() {
        return Text::new("(empty)");
    }
    Text::new(&cut(&String::from_utf8_lossy(body), SHOWN_BYTES_MAX))
}

/// What a worker did, or what was done to it.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// The message was delivered to it.
    Given,
    /// It published a reply; over AMQP only.
    Published,
    /// The broker confirmed the reply.
    Confirmed,
    /// The reply arrived.
    Said(Reply),
    Acked,
    /// It consumes with automatic acknowledgement.
    AckedUnseen,
    Nacked {
        requeue: bool,
    },
    /// It extended its lease.
    Extended,
    /// Its lease expired.
    Expired,
    /// The connection was cut at this message.
    Cut,
    /// A reply or call that belongs to no message.
    Stray(Text),
    /// It asked for a message, or connected.
    Came,
}

/// An event with its time, and the message that it is about.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) at: Instant,
    /// The number of the message, if the event is about one.
    pub(super) of: Option<usize>,
    pub(super) what: What,
}

/// The events of a worker, in order. Clones share one log.
#[derive(Clone, Default)]
pub(super) struct Log(Rc<Inner>);

#[derive(Default)]
struct Inner {
    seen: RefCell<Vec<Seen>>,
    bodies: Cell<usize>,
    changed: Notify,
}

impl Log {
    pub(super) fn add(&self, of: Option<usize>, mut what: What) {
        if let What::Said(reply) = &mut what {
            let bytes = self.0.bodies.get().saturating_add(reply.body.len());
            if bytes > BODIES_BYTES_MAX {
                reply.body = Bytes::from_static(b"(not kept: the replies are too large)");
            } else {
                self.0.bodies.set(bytes);
            }
        }
        let mut seen = self.0.seen.borrow_mut();
        if seen.len() < SEEN_MAX {
            seen.push(Seen { at: clock::ticks(), of, what });
        }
        drop(seen);
        self.0.changed.notify_waiters();
    }

    /// Calls `look` with all events.
    pub(super) fn look<T>(&self, look: impl FnOnce(&[Seen]) -> T) -> T {
        look(&self.0.seen.borrow())
    }

    /// Returns the events of one message.
    pub(super) fn of(&self, number: usize) -> Vec<Seen> {
        self.look(|seen| seen.iter().filter(|seen| seen.of == Some(number)).cloned().collect())
    }

    /// Waits until `probe` finds something. Returns `None` if it does not within this time.
    pub(super) async fn until<T>(
        &self,
        within: Duration,
        mut probe: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let end = clock::ticks() + within;
        loop {
            let changed = self.0.changed.notified();
            if let Some(found) = probe() {
                return Some(found);
            }
            let now = clock::ticks();
            if now >= end {
                return None;
            }
            // A timeout is no error: the loop probes again.
            let _ = tokio::time::timeout_at(end.min(now + LOOK_EVERY), changed).await;
        }
    }

    /// Waits until `probe` finds something in the events of one message.
    pub(super) async fn until_of<T>(
        &self,
        number: usize,
        within: Duration,
        mut probe: impl FnMut(&[Seen]) -> Option<T>,
    ) -> Option<T> {
        self.until(within, || probe(&self.of(number))).await
    }
}

/// Returns the first reply that settles a message.
pub(super) fn reply_in(seen: &[Seen]) -> Option<&Reply> {
    replies_in(seen).next()
}

/// Returns all replies that settle a message, which excludes progress.
pub(super) fn replies_in(seen: &[Seen]) -> impl Iterator<Item = &Reply> {
    seen.iter()
        .filter_map(|seen| if let What::Said(reply) = &seen.what { Some(reply) } else { None })
        .filter(|reply| reply.kind != Kind::Progress)
}

/// Returns the first reply or call that belongs to no message.
pub(super) fn stray_in(seen: &[Seen]) -> Option<&Text> {
    seen.iter().find_map(|seen| if let What::Stray(what) = &seen.what { Some(what) } else { None })
}
