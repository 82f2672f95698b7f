//! The room of messages that cannot be read, until they are put aside.

use crate::bus::Acknowledge;
use crate::room::{Room, Taken};
use std::cell::RefCell;

/// The room of the messages that wait to be put aside. It is not that of the replies, which go on
/// whatever becomes of these.
pub(super) struct AsideRoom {
    room: Room,
    /// Messages for which there was no room. Their bodies are dropped; they go back to their queues
    /// when there is room.
    turned_away: RefCell<Vec<Acknowledge>>,
}

impl AsideRoom {
    /// A room of so many bytes.
    pub(super) fn new(bytes: usize) -> AsideRoom {
        AsideRoom { room: Room::of_bytes(bytes), turned_away: RefCell::default() }
    }

    /// Takes room for a body, if there is some.
    pub(super) fn take(&self, bytes: usize) -> Option<Taken> {
        self.room.take(bytes)
    }

    /// Keeps the right to acknowledge a message for which there is no room.
    pub(super) fn turn_away(&self, message: Acknowledge) {
        let mut turned_away = self.turned_away.borrow_mut();
        if turned_away.len() == turned_away.capacity() {
            turned_away.retain(|message| !message.is_void());
        }
        turned_away.push(message);
    }

    /// There is room again: what was turned away comes again.
    pub(super) fn give_back(&self) {
        drop(self.turned_away.take());
    }
}
