//! The budget of unreadable messages, until they are quarantined.

use crate::bus::Acknowledge;
use crate::room::{Room, Taken};
use std::cell::RefCell;

/// The budget of the messages that wait for quarantine. It is separate from the budget of replies,
/// which continue whatever happens to unreadable messages.
pub(super) struct AsideRoom {
    room: Room,
    /// Messages for which there was no room. Their bodies are dropped, and they are requeued when
    /// there is room.
    turned_away: RefCell<Vec<Acknowledge>>,
}

impl AsideRoom {
    /// Creates a budget of `bytes`.
    pub(super) fn new(bytes: usize) -> AsideRoom {
        AsideRoom { room: Room::of_bytes(bytes), turned_away: RefCell::default() }
    }

    /// Acquires a permit for a body, if there is room.
    pub(super) fn take(&self, bytes: usize) -> Option<Taken> {
        self.room.take(bytes)
    }

    /// Keeps the right to settle a message for which there is no room.
    pub(super) fn turn_away(&self, message: Acknowledge) {
        let mut turned_away = self.turned_away.borrow_mut();
        if turned_away.len() == turned_away.capacity() {
            turned_away.retain(|message| !message.is_void());
        }
        turned_away.push(message);
    }

    /// Requeues the deferred messages, now that there is room.
    pub(super) fn give_back(&self) {
        drop(self.turned_away.take());
    }
}
