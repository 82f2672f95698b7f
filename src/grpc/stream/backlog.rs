//! What waits to be sent on a stream.

use crate::outbound::OutboundPermit;
use crate::wire::to_worker::Say as ToWorkerMessage;
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
    pub(super) message: ToWorkerMessage,
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
    pub(super) fn push(&mut self, outbound: Outbound) {
        self.bytes += outbound.leased.as_ref().map_or(0, |leased| leased.bytes);
        self.items.push_back(outbound);
    }

    /// Removes and returns the next message.
    pub(super) fn pop(&mut self) -> Option<Outbound> {
        let outbound = self.items.pop_front()?;
        self.bytes -= outbound.leased.as_ref().map_or(0, |leased| leased.bytes);
        Some(outbound)
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
