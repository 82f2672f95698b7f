//! What waits to be sent on a stream.

use crate::api::grpc::outbound::OutboundPermit;
use crate::api::grpc::wire::to_worker::Say as Tell;
use std::collections::VecDeque;
use std::sync::Arc;

/// How much may wait to be sent, in messages and in bytes of bodies, before another message is
/// leased. So a lease begins when its message can be sent soon.
const LEASED_AHEAD_MAX: usize = 4;
const LEASED_AHEAD_BYTES_MAX: usize = 64 * 1024;

/// What waits to be sent to the worker, in order.
#[derive(Default)]
pub(super) struct OutboundQueue {
    items: VecDeque<Outbound>,
    /// The bytes of the bodies in the queue.
    bytes: usize,
}

/// A message that waits to be sent.
pub(super) struct Outbound {
    pub(super) say: Tell,
    /// Set for a step message that is leased.
    pub(super) leased: Option<LeasedAhead>,
}

/// A leased step message that waits to be sent.
pub(super) struct LeasedAhead {
    pub(super) id: Arc<str>,
    /// The bytes of its body.
    pub(super) bytes: usize,
    pub(super) permit: Option<OutboundPermit>,
}

impl OutboundQueue {
    pub(super) fn push(&mut self, to_send: Outbound) {
        self.bytes += to_send.leased.as_ref().map_or(0, |lent| lent.bytes);
        self.items.push_back(to_send);
    }

    /// Removes and returns the next message.
    pub(super) fn pop(&mut self) -> Option<Outbound> {
        let to_send = self.items.pop_front()?;
        self.bytes -= to_send.leased.as_ref().map_or(0, |lent| lent.bytes);
        Some(to_send)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether another message may be leased.
    pub(super) fn has_capacity(&self) -> bool {
        self.items.len() < LEASED_AHEAD_MAX && self.bytes < LEASED_AHEAD_BYTES_MAX
    }
}
