//! What waits to be sent on a stream.

use crate::api::grpc::sending::Departure;
use crate::api::grpc::wire::to_worker::Say as Tell;
use std::collections::VecDeque;
use std::sync::Arc;

/// How much may wait to be sent, in messages and in bytes of bodies, before another message is
/// leased. So a lease begins when its message can be sent soon.
const LENT_AHEAD: usize = 4;
const LENT_AHEAD_BYTES: usize = 64 * 1024;

/// What waits to be sent to the worker, in order.
#[derive(Default)]
pub(super) struct Backlog {
    waiting: VecDeque<ToSend>,
    /// The bytes of the bodies in the queue.
    bytes: usize,
}

/// A message that waits to be sent.
pub(super) struct ToSend {
    pub(super) tell: Tell,
    /// Set for a step message that is leased.
    pub(super) lent: Option<LentAhead>,
}

/// A leased step message that waits to be sent.
pub(super) struct LentAhead {
    pub(super) id: Arc<str>,
    /// The bytes of its body.
    pub(super) bytes: usize,
    pub(super) departure: Option<Departure>,
}

impl Backlog {
    pub(super) fn push(&mut self, to_send: ToSend) {
        self.bytes += to_send.lent.as_ref().map_or(0, |lent| lent.bytes);
        self.waiting.push_back(to_send);
    }

    /// Removes and returns the next message.
    pub(super) fn pop(&mut self) -> Option<ToSend> {
        let to_send = self.waiting.pop_front()?;
        self.bytes -= to_send.lent.as_ref().map_or(0, |lent| lent.bytes);
        Some(to_send)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether another message may be leased.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < LENT_AHEAD && self.bytes < LENT_AHEAD_BYTES
    }
}
