//! The messages of a session. When its stream ends, all of them are requeued at once.

use crate::bus::desk::{Desk, Line};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The messages that a session has, by id.
#[derive(Default)]
pub(super) struct Hands {
    held: HashMap<Arc<str>, Held>,
}

/// A message that a session has. Dropped, it is requeued at once, unless another session has
/// adopted it.
pub(super) struct Held {
    id: Arc<str>,
    delivery: u32,
    desk: Arc<Desk>,
    /// Identifies the session at the lease queue.
    line: Line,
    /// The receipt by which the worker knows it.
    receipt: String,
    if_dropped: IfDropped,
}

/// What happens to a message when its session ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfDropped {
    /// It was not sent to the worker, or the worker ended the session in order: it waits again, and
    /// the delivery is not counted.
    NotDelivered,
    /// It may be what the worker died of: it counts as delivered, as when a lease ends.
    Delivered,
    /// It is settled, or the lease queue has it back already.
    Over,
}

impl Held {
    /// Creates a message that is to be sent to a worker.
    pub(super) fn new(
        (id, delivery): (Arc<str>, u32),
        (desk, line): (Arc<Desk>, Line),
        receipt: String,
    ) -> Held {
        Held { id, delivery, desk, line, receipt, if_dropped: IfDropped::NotDelivered }
    }

    /// Marks the message as sent to its worker.
    pub(super) fn delivered(mut self) -> Held {
        self.if_dropped = IfDropped::Delivered;
        self
    }

    /// Gives up a message that is settled, or back in the lease queue, and returns its receipt.
    pub(super) fn let_go(mut self) -> String {
        self.if_dropped = IfDropped::Over;
        std::mem::take(&mut self.receipt)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Held { id, delivery, desk, line, if_dropped, .. } = self;
        let line = Some(&*line);
        // Errors mean that its lease or its attempt has ended, or that the worker has it in another
        // session.
        let _ = match if_dropped {
            IfDropped::NotDelivered => desk.take_back(id, *delivery, line),
            IfDropped::Delivered => desk.give_back(id, *delivery, Duration::ZERO, line),
            IfDropped::Over => Ok(()),
        };
    }
}

impl Hands {
    /// Adds a message.
    pub(super) fn take(&mut self, held: Held) {
        self.held.insert(held.id.clone(), held);
    }

    /// Puts a message back after the worker's request about it was rejected.
    pub(super) fn keep(&mut self, held: Held) {
        if self.held.contains_key(&held.id) {
            // The message was adopted meanwhile.
            held.let_go();
        } else {
            self.take(held);
        }
    }

    /// Removes a delivery of a message, if the session has it.
    pub(super) fn put_down(&mut self, id: &str, delivery: u32) -> Option<Held> {
        self.has(id, delivery).then(|| self.held.remove(id))?
    }

    pub(super) fn has(&self, id: &str, delivery: u32) -> bool {
        self.held.get(id).is_some_and(|held| held.delivery == delivery)
    }

    /// Records that a message was sent to the worker.
    pub(super) fn sent(&mut self, id: &str) {
        if let Some(held) = self.held.get_mut(id) {
            held.if_dropped = IfDropped::Delivered;
        }
    }

    /// Records that the worker ended the session in order: it has not died of any message.
    pub(super) fn farewell(&mut self) {
        for held in self.held.values_mut() {
            held.if_dropped = IfDropped::NotDelivered;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the receipts of all messages.
    pub(super) fn receipts(&self) -> Vec<String> {
        self.held.values().map(|held| held.receipt.clone()).collect()
    }
}
