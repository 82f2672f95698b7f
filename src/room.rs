//! Budgets: bounds on what clients make the process hold. They count bytes of bodies, of answers,
//! of messages to workers and of unreadable messages; and concurrent reads of the journal.

pub mod memory;

use crate::settings::{EmbeddedSettings, HttpSettings};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bodies up to this size, in bytes, have a budget of their own, which large bodies cannot use up.
pub const SMALL_BODY_BYTES_MAX: usize = 64 * 1024;

/// The unit in which bytes are counted.
const UNIT_BYTES: usize = 1024;

/// A part of a budget that was acquired. Dropping it releases that part.
pub type Taken = OwnedSemaphorePermit;

/// A bounded amount of bytes or of places. Clones share it.
#[derive(Clone, Debug)]
pub struct Room {
    free: Arc<Semaphore>,
    whole: u32,
    unit: usize,
}

impl Room {
    /// Creates a budget of `bytes`.
    pub fn of_bytes(bytes: usize) -> Room {
        Room::of(bytes, UNIT_BYTES)
    }

    /// Creates a budget of so many places.
    pub fn of_places(places: usize) -> Room {
        Room::of(places, 1)
    }

    fn of(amount: usize, unit: usize) -> Room {
        let whole = u32::try_from(amount / unit).unwrap_or(u32::MAX).max(1);
        Room {
            free: Arc::new(Semaphore::new(
                usize::try_from(whole).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS),
            )),
            whole,
            unit,
        }
    }

    /// Converts an amount to units. A larger amount than the capacity counts as all of it: whoever
    /// needs that much uses the budget alone.
    fn units(&self, amount: usize) -> u32 {
        u32::try_from(amount.div_ceil(self.unit)).unwrap_or(u32::MAX).min(self.whole)
    }

    /// Acquires this amount if it is free now.
    pub fn take(&self, amount: usize) -> Option<Taken> {
        self.free.clone().try_acquire_many_owned(self.units(amount)).ok()
    }

    /// Waits until this amount is free, first come, first served, and acquires it.
    pub async fn wait(&self, amount: usize) -> Option<Taken> {
        // The semaphore is never closed.
        self.free.clone().acquire_many_owned(self.units(amount)).await.ok()
    }

    /// Grows a permit to this total amount, and returns whether that was free.
    pub fn grow(&self, taken: &mut Taken, amount: usize) -> bool {
        let missing = usize::try_from(self.units(amount))
            .unwrap_or(usize::MAX)
            .saturating_sub(taken.num_permits());
        let more = u32::try_from(missing)
            .ok()
            .and_then(|missing| self.free.clone().try_acquire_many_owned(missing).ok());
        more.map(|more| taken.merge(more)).is_some()
    }

    /// Returns the amount in use.
    pub fn taken(&self) -> usize {
        let whole = usize::try_from(self.whole).unwrap_or(usize::MAX);
        whole.saturating_sub(self.free.available_permits()) * self.unit
    }

    /// Shrinks a permit to this amount, and releases the rest.
    pub fn shrink(&self, taken: &mut Taken, amount: usize) {
        let kept = usize::try_from(self.units(amount)).unwrap_or(usize::MAX);
        drop(taken.split(taken.num_permits().saturating_sub(kept)));
    }
}

/// The budget for messages on their way to workers. A quarter of it is only for bodies of up to
/// [`SMALL_BODY_BYTES_MAX`] bytes, so that they need not wait for large ones.
#[derive(Clone, Debug)]
pub struct MessageRoom {
    small: Room,
    large: Room,
}

impl MessageRoom {
    /// Creates a budget of `bytes`.
    pub fn new(bytes: usize) -> MessageRoom {
        let small = bytes / 4;
        MessageRoom { small: Room::of_bytes(small), large: Room::of_bytes(bytes - small) }
    }

    /// Returns the budget for a message with a body of `bytes`.
    pub fn of(&self, bytes: usize) -> &Room {
        if bytes <= SMALL_BODY_BYTES_MAX { &self.small } else { &self.large }
    }

    /// Returns the bytes in use.
    pub fn taken(&self) -> usize {
        self.small.taken() + self.large.taken()
    }
}

/// All budgets of a process.
pub struct Rooms {
    /// Bytes of bodies up to [`SMALL_BODY_BYTES_MAX`]: a quarter of the budget for bodies.
    pub small_bodies: Room,
    /// Bytes of larger bodies and of what is parsed from them: the other three quarters.
    pub large_bodies: Room,
    /// Bytes of large reads, and of large answers that are being sent.
    pub answers: Room,
    /// Concurrent reads of the journal.
    pub reads: Room,
    /// Workers that wait for a message.
    pub waiters: Room,
    /// Bytes of step messages on their way to workers.
    pub messages: MessageRoom,
}

impl Rooms {
    /// Creates the budgets from the settings.
    pub fn new(http: &HttpSettings, embedded: &EmbeddedSettings) -> Rooms {
        let large = http.large_bodies_bytes_max();
        Rooms {
            small_bodies: Room::of_bytes(http.bodies_bytes_max - large),
            large_bodies: Room::of_bytes(large),
            answers: Room::of_bytes(http.reads_bytes_max),
            reads: Room::of_places(http.reads_max),
            waiters: Room::of_places(http.waiters_max),
            messages: MessageRoom::new(embedded.sending_bytes_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_grown_shrunk_and_given_back() {
        let room = Room::of_bytes(10 * UNIT_BYTES);
        let mut first = room.take(4 * UNIT_BYTES).expect("free");
        assert!(room.take(7 * UNIT_BYTES).is_none());
        assert!(room.grow(&mut first, 8 * UNIT_BYTES - 1) && first.num_permits() == 8);
        assert!(
            room.grow(&mut first, UNIT_BYTES) && first.num_permits() == 8,
            "it has that already"
        );
        let second = room.take(2 * UNIT_BYTES).expect("free");
        assert!(!room.grow(&mut first, 9 * UNIT_BYTES) && first.num_permits() == 8);
        room.shrink(&mut first, UNIT_BYTES + 1);
        assert_eq!((first.num_permits(), room.free.available_permits()), (2, 6));
        drop((first, second));
        let all = room.take(1 << 40).expect("alone");
        assert_eq!((all.num_permits(), room.free.available_permits()), (10, 0));
    }
}
