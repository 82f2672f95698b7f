//! The messages of a session. When its stream ends, all of them are requeued at once.

use bus::lease_queue::{LeaseQueue, RevocationSender};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The messages that a session has, by id.
#[derive(Default)]
pub(super) struct SessionMessages {
    messages: HashMap<Arc<str>, SessionMessage>,
}

/// A message that a session has. Dropped, it is requeued at once, unless another session has
/// adopted it.
pub(super) struct SessionMessage {
    id: Arc<str>,
    delivery: u32,
    lease_queue: Arc<LeaseQueue>,
    /// Identifies the session at the lease queue.
    revocations: RevocationSender,
    /// The receipt by which the worker knows it.
    receipt: String,
    on_drop: DropAction,
}

/// What happens to a message when its session ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DropAction {
    /// It was not sent to the worker, or the worker ended the session in order: it waits again, and
    /// the delivery is not counted.
    Release,
    /// It may be what the worker died of: it counts as delivered, as when a lease ends.
    Requeue,
    /// It is settled, or the lease queue has it back already.
    Nothing,
}

impl SessionMessage {
    /// Creates a message that is to be sent to a worker.
    pub(super) fn new(
        (id, delivery): (Arc<str>, u32),
        (lease_queue, revocations): (Arc<LeaseQueue>, RevocationSender),
        receipt: String,
    ) -> SessionMessage {
        SessionMessage {
            id,
            delivery,
            lease_queue,
            revocations,
            receipt,
            on_drop: DropAction::Release,
        }
    }

    /// Marks the message as sent to its worker.
    pub(super) fn into_delivered(mut self) -> SessionMessage {
        self.on_drop = DropAction::Requeue;
        self
    }

    /// Gives up a message that is settled, or back in the lease queue, and returns its receipt.
    pub(super) fn disarm(mut self) -> String {
        self.on_drop = DropAction::Nothing;
        std::mem::take(&mut self.receipt)
    }
}

impl Drop for SessionMessage {
    fn drop(&mut self) {
        let SessionMessage { id, delivery, lease_queue, revocations, on_drop, .. } = self;
        let session = Some(&*revocations);
        // Errors mean that its lease or its attempt has ended, or that the worker has it in another
        // session.
        let _ = match on_drop {
            DropAction::Release => lease_queue.release(id, *delivery, session),
            DropAction::Requeue => {
                lease_queue.requeue_after(id, *delivery, Duration::ZERO, session)
            }
            DropAction::Nothing => Ok(()),
        };
    }
}

impl SessionMessages {
    /// Adds a message.
    pub(super) fn insert(&mut self, message: SessionMessage) {
        self.messages.insert(message.id.clone(), message);
    }

    /// Puts a message back after the worker's request about it was rejected.
    pub(super) fn restore(&mut self, message: SessionMessage) {
        if self.messages.contains_key(&message.id) {
            // The message was adopted meanwhile.
            message.disarm();
        } else {
            self.insert(message);
        }
    }

    /// Removes a delivery of a message, if the session has it.
    pub(super) fn remove(&mut self, id: &str, delivery: u32) -> Option<SessionMessage> {
        self.has(id, delivery).then(|| self.messages.remove(id))?
    }

    pub(super) fn has(&self, id: &str, delivery: u32) -> bool {
        self.messages.get(id).is_some_and(|message| message.delivery == delivery)
    }

    /// Records that a message was sent to the worker.
    pub(super) fn mark_sent(&mut self, id: &str) {
        if let Some(message) = self.messages.get_mut(id) {
            message.on_drop = DropAction::Requeue;
        }
    }

    /// Records that the worker ended the session in order: it has not died of any message.
    pub(super) fn release_on_drop(&mut self) {
        for message in self.messages.values_mut() {
            message.on_drop = DropAction::Release;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the receipts of all messages.
    pub(super) fn receipts(&self) -> Vec<String> {
        self.messages.values().map(|message| message.receipt.clone()).collect()
    }
}
