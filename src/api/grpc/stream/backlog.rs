//! What is to be sent on a stream, until it is handed over.

use crate::api::grpc::sending::Departure;
use crate::api::grpc::wire::to_worker::Say as Tell;
use std::collections::VecDeque;
use std::sync::Arc;

/// How much waits to be sent at most, in messages and in bytes of their bodies, before another
/// message is lent: its lease begins when it can leave soon.
const LENT_AHEAD: usize = 4;
const LENT_AHEAD_BYTES: usize = 64 * 1024;

/// What is to be sent to the worker, in order.
#[derive(Default)]
pub(super) struct Backlog {
    waiting: VecDeque<ToSend>,
    /// The bytes of bodies among it.
    bytes: usize,
}

/// One thing that is to be sent.
pub(super) struct ToSend {
    pub(super) tell: Tell,
    /// Of a message that is lent.
    pub(super) lent: Option<LentAhead>,
}

/// What is noted of a message that is lent, until it is sent.
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

    /// Takes out what is sent next.
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

    /// Whether another message may be lent.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < LENT_AHEAD && self.bytes < LENT_AHEAD_BYTES
    }
}
