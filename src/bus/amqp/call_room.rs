//! How many bytes of calls without a verdict are in memory, for each workflow's queue. The broker
//! bounds only their number, and calls may wait long: for other jobs to end, or for memory. So the
//! number follows their size. A queue whose calls are too large together is consumed anew, with a
//! prefetch that fits: what waits then lies in the broker. Once nothing waits, it is consumed with
//! the whole prefetch again.

use crate::room::{Room, Taken};

/// The calls of one workflow's queue.
pub(super) struct CallRoom {
    room: Room,
    bytes_max: usize,
    prefetch_max: u16,
    prefetch: u16,
    largest: usize,
}

/// What becomes of a call that is delivered.
#[derive(Debug)]
pub(super) enum Place {
    /// It has room, or is alone.
    Taken(Option<Taken>),
    /// It goes back to its queue, with the others: the prefetch is too large for them.
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

    /// With which prefetch the queue is to be consumed now.
    pub(super) fn prefetch(&self) -> u16 {
        self.prefetch
    }

    /// Whether it may be consumed with more.
    pub(super) fn is_narrow(&self) -> bool {
        self.prefetch < self.prefetch_max
    }

    /// Nothing waits: it may be consumed with the whole prefetch.
    pub(super) fn widen(&mut self) {
        self.prefetch = self.prefetch_max;
        self.largest = 1;
    }

    /// A call has come; `is_alone`: no other one is without a verdict.
    pub(super) fn place(&mut self, bytes: usize, is_alone: bool) -> Place {
        self.largest = self.largest.max(bytes);
        match self.room.take(bytes) {
            None if !is_alone => {
                let that_fit = self.bytes_max / self.largest;
                let fitting = u16::try_from(that_fit).unwrap_or(u16::MAX);
                // Each time fewer: those of before may still take room.
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
