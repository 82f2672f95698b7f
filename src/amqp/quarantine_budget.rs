//! The budget of unreadable messages, until they are quarantined.

use base::budget::{Permit, ResourceBudget};
use bus::Acknowledger;
use std::cell::RefCell;

/// The budget of the messages that wait for quarantine. It is separate from the budget of replies,
/// which continue whatever happens to unreadable messages.
pub(super) struct QuarantineBudget {
    budget: ResourceBudget,
    /// Messages for which there was no room. Their bodies are dropped, and they are requeued when
    /// there is room.
    deferred: RefCell<Vec<Acknowledger>>,
}

impl QuarantineBudget {
    /// Creates a budget of `bytes`.
    pub(super) fn new(bytes: usize) -> QuarantineBudget {
        QuarantineBudget { budget: ResourceBudget::for_bytes(bytes), deferred: RefCell::default() }
    }

    /// Acquires a permit for a body, if there is room.
    pub(super) fn try_acquire(&self, bytes: usize) -> Option<Permit> {
        self.budget.try_acquire(bytes)
    }

    /// Keeps the right to settle a message for which there is no room.
    pub(super) fn defer(&self, message: Acknowledger) {
        let mut deferred = self.deferred.borrow_mut();
        if deferred.len() == deferred.capacity() {
            deferred.retain(|message| !message.is_stale());
        }
        deferred.push(message);
    }

    /// Requeues the deferred messages, now that there is room.
    pub(super) fn requeue_deferred(&self) {
        drop(self.deferred.take());
    }
}
