//! The room of messages that cannot be read, until they are put aside.

use crate::bus::Acknowledge;
use std::cell::RefCell;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The room of the messages that wait to be put aside. It is not that of the replies, which go on
/// whatever becomes of these.
pub(super) struct AsideRoom {
    free: Arc<Semaphore>,
    whole: u32,
    /// Messages for which there was no room. Their bodies are dropped; they go back to their queues
    /// when there is room.
    turned_away: RefCell<Vec<Acknowledge>>,
}

impl AsideRoom {
    /// A room of so many bytes.
    pub(super) fn new(bytes: usize) -> AsideRoom {
        let whole = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        AsideRoom {
            free: Arc::new(Semaphore::new(whole as usize)),
            whole,
            turned_away: RefCell::default(),
        }
    }

    /// Takes room for a body; it is given back when that is dropped. A larger body than the room
    /// gets the room for itself.
    pub(super) fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.whole);
        self.free.clone().try_acquire_many_owned(bytes).ok()
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
