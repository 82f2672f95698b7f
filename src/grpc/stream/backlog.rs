//! The backlog of a stream: the messages that wait to be sent to its worker.

use crate::outbound::OutboundPermit;
use crate::wire::to_worker::Say as ToWorkerMessage;
use std::collections::VecDeque;
use std::sync::Arc;

/// The length of the queue at which no further message is leased, so that a lease begins only
/// shortly before its message is sent.
const LEASED_AHEAD_MAX: usize = 4;

/// The total size of the queued bodies, in bytes, at which no further message is leased.
const LEASED_AHEAD_BYTES_MAX: usize = 64 * 1024;

/// The messages that wait to be sent to the worker, in order.
#[derive(Default)]
pub(super) struct OutboundQueue {
    items: VecDeque<Outbound>,
    /// The total size of the queued bodies of step messages.
    bytes: usize,
}

/// A message that waits to be sent.
pub(super) struct Outbound {
    pub(super) message: ToWorkerMessage,
    /// What is known of a step message; `None`: it is another message.
    pub(super) leased: Option<LeasedAhead>,
}

/// A leased step message that waits to be sent.
pub(super) struct LeasedAhead {
    pub(super) id: Arc<str>,
    /// The size of its body, in bytes.
    pub(super) bytes: usize,
    /// The permit for the memory of the message; `None`: it needs none.
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
