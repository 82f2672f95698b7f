//! Bounds the bytes of unreadable messages that wait for quarantine.

use base::budget::{Permit, ResourceBudget};
use bus::Acknowledger;
use std::cell::RefCell;

/// The budget of the messages that wait for quarantine. It is separate from the budget of replies,
/// so that unreadable messages cannot block replies.
pub(super) struct QuarantineBudget {
    budget: ResourceBudget,
    /// Messages that did not fit into the budget. Their bodies are dropped, and they are requeued
    /// once there is capacity.
    deferred: RefCell<Vec<Acknowledger>>,
}

impl QuarantineBudget {
    /// Creates a budget of `bytes`.
    pub(super) fn new(bytes: usize) -> QuarantineBudget {
        QuarantineBudget { budget: ResourceBudget::for_bytes(bytes), deferred: RefCell::default() }
    }

    /// Acquires a permit for a body of `bytes`; `None` if the budget is exhausted.
    pub(super) fn try_acquire(&self, bytes: usize) -> Option<Permit> {
        self.budget.try_acquire(bytes)
    }

    /// Defers a message that does not fit into the budget.
    pub(super) fn defer(&self, acknowledger: Acknowledger) {
        let mut deferred = self.deferred.borrow_mut();
        // Before the list grows, the messages of lost channels are removed. The broker has requeued
        // them.
        if deferred.len() == deferred.capacity() {
            deferred.retain(|acknowledger| !acknowledger.is_stale());
        }
        deferred.push(acknowledger);
    }

    /// Requeues the deferred messages. Dropping an [`Acknowledger`] requeues its message.
    pub(super) fn requeue_deferred(&self) {
        drop(self.deferred.take());
    }
}
