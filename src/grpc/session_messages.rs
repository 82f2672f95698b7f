//! The messages that are leased to a session. When its stream ends, all of them return to their
//! queues at once.

use bus::lease_queue::{LeaseQueue, RevocationSender};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    sent: SentMark,
}

/// Whether a message was given to HTTP/2. The stream sets it when it takes the message from the
/// channel to its worker.
#[derive(Clone, Default)]
pub(super) struct SentMark(Arc<AtomicBool>);

impl SentMark {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What dropping a message does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DropAction {
    /// Returns the message to its queue without counting the delivery, because the worker closed
    /// the stream cleanly.
    Release,
    /// Returns the message to its queue. If it was sent to the worker, the delivery counts, as when
    /// a lease expires, because the message may have made the worker crash.
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
            on_drop: DropAction::Requeue,
            sent: SentMark::default(),
        }
    }

    /// Returns the mark of a message that is sent to its worker.
    pub(super) fn sent_mark(&self) -> SentMark {
        self.sent.clone()
    }

    /// Makes dropping the message do nothing; see [`DropAction::Nothing`]. Returns its receipt.
    pub(super) fn disarm(mut self) -> String {
        self.on_drop = DropAction::Nothing;
        std::mem::take(&mut self.receipt)
    }
}

impl Drop for SessionMessage {
    fn drop(&mut self) {
        let SessionMessage { id, delivery, lease_queue, revocations, on_drop, sent, .. } = self;
        let session = Some(&*revocations);
        // An error means that the lease or the attempt has ended, or another session has adopted
        // the message.
        let _ = match on_drop {
            DropAction::Release => lease_queue.release(id, *delivery, session),
            DropAction::Requeue if !sent.is_set() => lease_queue.release(id, *delivery, session),
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

    /// Returns the mark of a message that is sent to the worker; `None`: it has ended meanwhile.
    pub(super) fn sent_mark(&self, id: &str) -> Option<SentMark> {
        self.messages.get(id).map(SessionMessage::sent_mark)
    }

    /// Makes dropping any message release it, because the worker closed the stream cleanly.
    pub(super) fn release_on_drop(&mut self) {
        for message in self.messages.values_mut() {
            message.on_drop = DropAction::Release;
        }
    }

    /// Returns how many messages the session has.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the receipts of all messages.
    pub(super) fn receipts(&self) -> Vec<String> {
        self.messages.values().map(|message| message.receipt.clone()).collect()
    }
}
