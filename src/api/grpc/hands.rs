//! What a worker on a stream has in hand. When the stream ends, all of it goes back to its queues
//! at once.

use crate::bus::desk::{Desk, Line};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The messages that a worker has, by their ids.
#[derive(Default)]
pub(super) struct Hands {
    held: HashMap<Arc<str>, Held>,
}

/// A message that a worker has. Dropped, it goes back to its queue at once, unless it was taken up
/// on another stream.
pub(super) struct Held {
    id: Arc<str>,
    delivery: u32,
    desk: Arc<Desk>,
    /// The line of the stream.
    line: Line,
    /// By which the worker knows it.
    receipt: String,
    if_dropped: IfDropped,
}

/// What becomes of a message when its worker goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfDropped {
    /// It has not left for the worker, or the worker has said farewell: it waits as if it had not
    /// been lent.
    NotDelivered,
    /// It may be what its worker died of: it counts as delivered, as when a lease ends.
    Delivered,
    /// Nothing: it is settled, or the desk has it back already.
    Over,
}

impl Held {
    /// A message that is to be sent to a worker.
    pub(super) fn new(
        (id, delivery): (Arc<str>, u32),
        (desk, line): (Arc<Desk>, Line),
        receipt: String,
    ) -> Held {
        Held { id, delivery, desk, line, receipt, if_dropped: IfDropped::NotDelivered }
    }

    /// The same, of one that has left for its worker.
    pub(super) fn delivered(mut self) -> Held {
        self.if_dropped = IfDropped::Delivered;
        self
    }

    /// The message is settled, or the desk has it back: its receipt.
    pub(super) fn let_go(mut self) -> String {
        self.if_dropped = IfDropped::Over;
        std::mem::take(&mut self.receipt)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Held { id, delivery, desk, line, if_dropped, .. } = self;
        let line = Some(&*line);
        // Errors mean that its lease has ended, or its attempt: then it is settled; or that the
        // worker has it on another stream.
        let _ = match if_dropped {
            IfDropped::NotDelivered => desk.take_back(id, *delivery, line),
            IfDropped::Delivered => desk.give_back(id, *delivery, Duration::ZERO, line),
            IfDropped::Over => Ok(()),
        };
    }
}

impl Hands {
    /// The worker has a message.
    pub(super) fn take(&mut self, held: Held) {
        self.held.insert(held.id.clone(), held);
    }

    /// The worker has a message still, of which it has said something that does not count.
    pub(super) fn keep(&mut self, held: Held) {
        if self.held.contains_key(&held.id) {
            // It was taken up meanwhile.
            held.let_go();
        } else {
            self.take(held);
        }
    }

    /// The worker no longer has a delivery of a message: what it was, if it had it.
    pub(super) fn put_down(&mut self, id: &str, delivery: u32) -> Option<Held> {
        self.has(id, delivery).then(|| self.held.remove(id))?
    }

    pub(super) fn has(&self, id: &str, delivery: u32) -> bool {
        self.held.get(id).is_some_and(|held| held.delivery == delivery)
    }

    /// Notes that a message has left for the worker.
    pub(super) fn sent(&mut self, id: &str) {
        if let Some(held) = self.held.get_mut(id) {
            held.if_dropped = IfDropped::Delivered;
        }
    }

    /// The worker has ended the stream itself: it has not died of anything.
    pub(super) fn farewell(&mut self) {
        for held in self.held.values_mut() {
            held.if_dropped = IfDropped::NotDelivered;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The receipts of all that it has.
    pub(super) fn receipts(&self) -> Vec<String> {
        self.held.values().map(|held| held.receipt.clone()).collect()
    }
}
