//! The queue of messages that wait to be sent on a stream.

use crate::outbound::OutboundPermit;
use crate::wire::to_worker::Say as ToWorkerMessage;
use std::collections::VecDeque;
use std::sync::Arc;

/// The queue length at which no further message is leased, so that a lease begins shortly before
/// its message is sent.
const LEASED_AHEAD_MAX: usize = 4;

/// The same limit in bytes of bodies.
const LEASED_AHEAD_BYTES_MAX: usize = 64 * 1024;

/// The messages that wait to be sent to the worker, in order.
#[derive(Default)]
pub(super) struct OutboundQueue {
    items: VecDeque<Outbound>,
    /// The total size of the queued bodies.
    bytes: usize,
}

/// A message that waits to be sent.
pub(super) struct Outbound {
    pub(super) message: ToWorkerMessage,
    /// `None` if it is no step message.
    pub(super) leased: Option<LeasedAhead>,
}

/// A leased step message that waits to be sent.
pub(super) struct LeasedAhead {
    pub(super) id: Arc<str>,
    /// The size of its body.
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
