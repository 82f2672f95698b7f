//! Places of limits that the gate has handed out in advance, so that a step for which there is room
//! begins with the decision that claims its place, and not with one more.

use std::sync::atomic::{AtomicU32, Ordering};

/// The spare places of a limit: places that are free, and that whoever decides may take. The gate
/// counts them as taken, so nobody else is admitted to them.
///
/// Each change is atomic: what the gate takes back, no decision takes.
#[derive(Debug, Default)]
pub struct SparePlaces(AtomicU32);

impl SparePlaces {
    /// Takes a place. Returns false if there is none.
    pub fn take(&self) -> bool {
        let one_less = |count: u32| count.checked_sub(1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
    }

    /// Returns how many there are.
    pub(super) fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Hands out more places.
    pub(super) fn add(&self, count: u32) {
        self.0.fetch_add(count, Ordering::AcqRel);
    }

    /// Takes all places back, and returns how many there were.
    pub(super) fn take_back(&self) -> u32 {
        self.0.swap(0, Ordering::AcqRel)
    }
}

/// From where a decision takes spare places. Whoever offers them keeps count of what was taken:
/// together with the demands of the decision, or if nothing follows from it, the gate is told so
/// ([`Gate::settle`](super::Gate::settle)).
pub trait SpareSource {
    /// Takes a place of a limit, given by its full name. Returns false if there is none to spare.
    fn take(&self, limit: &str) -> bool;
}
