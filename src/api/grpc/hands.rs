//! What a worker on a stream has in hand. When the stream ends, all of it goes back to its queues
//! at once.

use crate::bus::desk::Desk;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The messages that a worker has, by their ids.
#[derive(Default)]
pub(super) struct Hands {
    held: HashMap<Arc<str>, Held>,
    /// The worker has ended the stream itself.
    pub(super) is_farewell: bool,
}

/// A message that a worker has.
pub(super) struct Held {
    pub(super) delivery: u32,
    pub(super) desk: Arc<Desk>,
    /// By which the worker knows it.
    pub(super) receipt: String,
    /// It has left for the worker.
    pub(super) is_sent: bool,
}

impl Hands {
    /// The worker has a message.
    pub(super) fn take(&mut self, id: Arc<str>, held: Held) {
        self.held.insert(id, held);
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
            held.is_sent = true;
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

impl Drop for Hands {
    /// A stream that is broken off may mean that a message has killed its worker: what was sent
    /// counts as delivered, as it does when a lease ends. A worker that says farewell has not died
    /// of anything.
    fn drop(&mut self) {
        for (id, Held { delivery, desk, is_sent, .. }) in self.held.drain() {
            // Errors mean that its lease has ended, or its attempt: then it is settled.
            let _ = match is_sent && !self.is_farewell {
                true => desk.give_back(&id, delivery, Duration::ZERO),
                false => desk.take_back(&id, delivery),
            };
        }
    }
}
