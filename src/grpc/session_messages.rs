//! The messages that are leased to a session. When its stream ends, all of them return to their
//! queues at once.

use bus::lease_queue::{LeaseQueue, RevocationSender};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The messages that are leased to a session, by id.
#[derive(Default)]
pub(super) struct SessionMessages {
    messages: HashMap<Arc<str>, SessionMessage>,
}

/// A message that is leased to a session. Dropping it returns it to its queue at once, unless it is
/// settled, its lease has ended, or another session has adopted it.
pub(super) struct SessionMessage {
    id: Arc<str>,
    /// The number of the delivery, which distinguishes the leases of one message.
    delivery: u32,
    lease_queue: Arc<LeaseQueue>,
    /// Identifies the session to the lease queue.
    revocations: RevocationSender,
    /// The receipt that was sent to the worker.
    receipt: String,
    on_drop: DropAction,
}

/// What dropping a message does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DropAction {
    /// Returns the message to its queue without counting the delivery, because the message was not
    /// sent to the worker, or the worker closed the stream cleanly.
    Release,
    /// Returns the message to its queue and counts the delivery, as when a lease expires, because
    /// the message may have made the worker crash.
    Requeue,
    /// Does nothing, because the message is settled, its lease has ended, or the session has
    /// adopted another copy of it.
    Nothing,
}

impl SessionMessage {
    /// Creates a message that was not sent to the worker yet.
    pub(super) fn new(
        id: Arc<str>,
        delivery: u32,
        lease_queue: Arc<LeaseQueue>,
        revocations: RevocationSender,
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

    /// Records that the message was sent to its worker.
    pub(super) fn mark_sent(&mut self) {
        self.on_drop = DropAction::Requeue;
    }

    /// Makes dropping the message do nothing; see [`DropAction::Nothing`]. Returns its receipt.
    pub(super) fn disarm(mut self) -> String {
        self.on_drop = DropAction::Nothing;
        std::mem::take(&mut self.receipt)
    }
}

impl Drop for SessionMessage {
    fn drop(&mut self) {
        let SessionMessage { id, delivery, lease_queue, revocations, on_drop, .. } = self;
        let session = Some(&*revocations);
        // An error means that the lease or the attempt has ended, or another session has adopted
        // the message.
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
    /// Inserts a message, in place of an older delivery of the same message.
    pub(super) fn insert(&mut self, message: SessionMessage) {
        self.messages.insert(message.id.clone(), message);
    }

    /// Restores a message after the worker's request to settle it was rejected.
    pub(super) fn restore(&mut self, message: SessionMessage) {
        if self.messages.contains_key(&message.id) {
            // The session has adopted the message meanwhile.
            message.disarm();
        } else {
            self.insert(message);
        }
    }

    /// Removes a delivery of a message, if the session has it.
    pub(super) fn remove(&mut self, id: &str, delivery: u32) -> Option<SessionMessage> {
        self.has(id, delivery).then(|| self.messages.remove(id))?
    }

    /// Returns whether the session has this delivery of a message.
    pub(super) fn has(&self, id: &str, delivery: u32) -> bool {
        self.messages.get(id).is_some_and(|message| message.delivery == delivery)
    }

    /// Records that a message was sent to the worker.
    pub(super) fn mark_sent(&mut self, id: &str) {
        if let Some(message) = self.messages.get_mut(id) {
            message.mark_sent();
        }
    }

    /// Makes dropping any message release it, because the worker closed the stream cleanly.
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
