//! Bounds the bytes of unsettled calls in memory, for each workflow's queue.
//!
//! The broker bounds only their number, and calls may wait long: for other jobs to end, or for
//! memory. So the prefetch follows their size. A queue whose calls are too large together is
//! consumed anew with a smaller prefetch, and the other calls wait in the broker. Once no call is
//! unsettled, the queue is consumed with the whole prefetch again.

use crate::room::{Room, Taken};

/// The budget of one workflow queue's calls.
pub(super) struct CallRoom {
    room: Room,
    bytes_max: usize,
    prefetch_max: u16,
    prefetch: u16,
    largest: usize,
}

/// Whether a delivered call is admitted.
#[derive(Debug)]
pub(super) enum Place {
    /// There is room for it, or it is the only one.
    Taken(Option<Taken>),
    /// It is requeued with the others, for the prefetch is too large for them.
    TooMany,
}

impl CallRoom {
    pub(super) fn new(bytes_max: usize, prefetch_max: u16) -> CallRoom {
        let prefetch_max = prefetch_max.max(1);
        CallRoom {
            room: Room::of_bytes(bytes_max),
            bytes_max,
            prefetch_max,
            prefetch: prefetch_max,
            largest: 1,
        }
    }

    /// Returns the prefetch to consume the queue with.
    pub(super) fn prefetch(&self) -> u16 {
        self.prefetch
    }

    /// Returns whether the prefetch is reduced.
    pub(super) fn is_narrow(&self) -> bool {
        self.prefetch < self.prefetch_max
    }

    /// Restores the whole prefetch. Call it when no call is unsettled.
    pub(super) fn widen(&mut self) {
        self.prefetch = self.prefetch_max;
        self.largest = 1;
    }

    /// Admits a call that was delivered. With `is_alone`, no other call is unsettled.
    pub(super) fn place(&mut self, bytes: usize, is_alone: bool) -> Place {
        self.largest = self.largest.max(bytes);
        match self.room.take(bytes) {
            None if !is_alone => {
                let that_fit = self.bytes_max / self.largest;
                let fitting = u16::try_from(that_fit).unwrap_or(u16::MAX);
                // The prefetch at least halves each time, for earlier calls may still use the
                // budget.
                self.prefetch = fitting.min(self.prefetch / 2).max(1);
                Place::TooMany
            }
            taken => Place::Taken(taken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_are_too_large_together_lower_the_prefetch_to_what_fits() {
        let mut calls = CallRoom::new(100 << 10, 2_000);
        let first = calls.place(40 << 10, true);
        let second = calls.place(40 << 10, false);
        assert!(matches!((&first, &second), (Place::Taken(Some(_)), Place::Taken(Some(_)))));
        assert!(matches!(calls.place(40 << 10, false), Place::TooMany));
        assert!(calls.is_narrow());
        assert_eq!(calls.prefetch(), 2);
        drop((first, second));
        let alone = calls.place(200 << 10, true);
        assert!(matches!(alone, Place::Taken(Some(_))), "alone");
        assert!(matches!(calls.place(200 << 10, false), Place::TooMany));
        assert_eq!(calls.prefetch(), 1);
        drop(alone);
        let held = calls.place(100 << 10, true);
        assert!(matches!(calls.place(1, true), Place::Taken(None)), "alone, whoever has the room");
        drop(held);
        calls.widen();
        assert_eq!((calls.prefetch(), calls.is_narrow()), (2_000, false));
    }
}
