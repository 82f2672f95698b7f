//! Budgets: bounds on what clients make the process hold. They count bytes of bodies, of answers,
//! of messages to workers and of unreadable messages; and concurrent reads of the journal.

pub mod memory;

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bodies up to this size, in bytes, have a budget of their own, which large bodies cannot use up.
pub const SMALL_BODY_BYTES_MAX: usize = 64 * 1024;

/// The unit in which bytes are counted.
const UNIT_BYTES: usize = 1024;

/// A part of a budget that was acquired. Dropping it releases that part.
pub type Permit = OwnedSemaphorePermit;

/// A bounded amount of bytes or of places. Clones share it.
#[derive(Clone, Debug)]
pub struct ResourceBudget {
    semaphore: Arc<Semaphore>,
    capacity: u32,
    unit: usize,
}

impl ResourceBudget {
    /// Creates a budget of `bytes`.
    pub fn for_bytes(bytes: usize) -> ResourceBudget {
        ResourceBudget::new(bytes, UNIT_BYTES)
    }

    /// Creates a budget of so many places.
    pub fn for_count(places: usize) -> ResourceBudget {
        ResourceBudget::new(places, 1)
    }

    fn new(amount: usize, unit: usize) -> ResourceBudget {
        let capacity = u32::try_from(amount / unit).unwrap_or(u32::MAX).max(1);
        ResourceBudget {
            semaphore: Arc::new(Semaphore::new(
                usize::try_from(capacity).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS),
            )),
            capacity,
            unit,
        }
    }

    /// Converts an amount to units. A larger amount than the capacity counts as all of it: whoever
    /// needs that much uses the budget alone.
    fn units(&self, amount: usize) -> u32 {
        u32::try_from(amount.div_ceil(self.unit)).unwrap_or(u32::MAX).min(self.capacity)
    }

    /// Acquires this amount if it is free now.
    pub fn try_acquire(&self, amount: usize) -> Option<Permit> {
        self.semaphore.clone().try_acquire_many_owned(self.units(amount)).ok()
    }

    /// Waits until this amount is free, first come, first served, and acquires it.
    pub async fn acquire(&self, amount: usize) -> Option<Permit> {
        // The semaphore is never closed.
        self.semaphore.clone().acquire_many_owned(self.units(amount)).await.ok()
    }

    /// Grows a permit to this total amount, and returns whether that was free.
    pub fn try_grow(&self, permit: &mut Permit, amount: usize) -> bool {
        let missing = usize::try_from(self.units(amount))
            .unwrap_or(usize::MAX)
            .saturating_sub(permit.num_permits());
        let more = u32::try_from(missing)
            .ok()
            .and_then(|missing| self.semaphore.clone().try_acquire_many_owned(missing).ok());
        more.map(|more| permit.merge(more)).is_some()
    }

    /// Returns the amount in use.
    pub fn used(&self) -> usize {
        let capacity = usize::try_from(self.capacity).unwrap_or(usize::MAX);
        capacity.saturating_sub(self.semaphore.available_permits()) * self.unit
    }

    /// Shrinks a permit to this amount, and releases the rest.
    pub fn shrink(&self, permit: &mut Permit, amount: usize) {
        let remaining = usize::try_from(self.units(amount)).unwrap_or(usize::MAX);
        drop(permit.split(permit.num_permits().saturating_sub(remaining)));
    }
}

/// The budget for messages on their way to workers. A quarter of it is only for bodies of up to
/// [`SMALL_BODY_BYTES_MAX`] bytes, so that they need not wait for large ones.
#[derive(Clone, Debug)]
pub struct MessageBudget {
    small: ResourceBudget,
    large: ResourceBudget,
}

impl MessageBudget {
    /// Creates a budget of `bytes`.
    pub fn new(bytes: usize) -> MessageBudget {
        let small = bytes / 4;
        MessageBudget {
            small: ResourceBudget::for_bytes(small),
            large: ResourceBudget::for_bytes(bytes - small),
        }
    }

    /// Returns the budget for a message with a body of `bytes`.
    pub fn for_size(&self, bytes: usize) -> &ResourceBudget {
        if bytes <= SMALL_BODY_BYTES_MAX { &self.small } else { &self.large }
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> usize {
        self.small.used() + self.large.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_acquired_grown_shrunk_and_released() {
        let budget = ResourceBudget::for_bytes(10 * UNIT_BYTES);
        let mut first = budget.try_acquire(4 * UNIT_BYTES).expect("free");
        assert!(budget.try_acquire(7 * UNIT_BYTES).is_none());
        assert!(budget.try_grow(&mut first, 8 * UNIT_BYTES - 1) && first.num_permits() == 8);
        assert!(
            budget.try_grow(&mut first, UNIT_BYTES) && first.num_permits() == 8,
            "it has that already"
        );
        let second = budget.try_acquire(2 * UNIT_BYTES).expect("free");
        assert!(!budget.try_grow(&mut first, 9 * UNIT_BYTES) && first.num_permits() == 8);
        budget.shrink(&mut first, UNIT_BYTES + 1);
        assert_eq!((first.num_permits(), budget.semaphore.available_permits()), (2, 6));
        drop((first, second));
        let all = budget.try_acquire(1 << 40).expect("alone");
        assert_eq!((all.num_permits(), budget.semaphore.available_permits()), (10, 0));
    }
}
