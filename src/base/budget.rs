//! Budgets: limits on what clients can make the process keep in memory or do at the same time. They
//! limit the bytes of request bodies, of answers, of messages to workers and of unreadable
//! messages, and the number of concurrent reads of the journal.

pub mod memory;

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The largest small body, in bytes. Small bodies have a budget of their own, which large bodies
/// cannot use up.
pub const SMALL_BODY_BYTES_MAX: usize = 64 * 1024;

/// The bytes that one semaphore permit stands for in a budget of bytes.
const UNIT_BYTES: usize = 1024;

/// An acquired part of a budget. Dropping it releases that part.
pub type Permit = OwnedSemaphorePermit;

/// A bounded number of bytes or of items. Clones share it.
#[derive(Clone, Debug)]
pub struct ResourceBudget {
    /// Its permits are the free units.
    semaphore: Arc<Semaphore>,
    /// The size of the budget, in units.
    capacity: u32,
    /// The amount that one unit stands for: [`UNIT_BYTES`] bytes, or one item.
    unit: usize,
}

impl ResourceBudget {
    /// Creates a budget of `bytes`.
    pub fn for_bytes(bytes: usize) -> ResourceBudget {
        ResourceBudget::new(bytes, UNIT_BYTES)
    }

    /// Creates a budget of `count` items.
    pub fn for_count(count: usize) -> ResourceBudget {
        ResourceBudget::new(count, 1)
    }

    /// Creates a budget of `amount`, rounded down to whole units, but of at least one unit.
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

    /// Converts an amount to units, rounded up, at most to the capacity. So an amount beyond the
    /// capacity can still be acquired, while nothing else uses the budget.
    fn to_units(&self, amount: usize) -> u32 {
        u32::try_from(amount.div_ceil(self.unit)).unwrap_or(u32::MAX).min(self.capacity)
    }

    /// Acquires `amount` if it is free now; `None`: it is not.
    pub fn try_acquire(&self, amount: usize) -> Option<Permit> {
        self.semaphore.clone().try_acquire_many_owned(self.to_units(amount)).ok()
    }

    /// Waits until `amount` is free, and acquires it. Waiters are served in FIFO order. In practice
    /// never returns `None`.
    pub async fn acquire(&self, amount: usize) -> Option<Permit> {
        // An error would mean that the semaphore is closed, which never happens.
        self.semaphore.clone().acquire_many_owned(self.to_units(amount)).await.ok()
    }

    /// Grows a permit to `amount` in total if the difference is free now, and returns whether that
    /// succeeded. A permit of at least `amount` stays as it is.
    pub fn try_grow(&self, permit: &mut Permit, amount: usize) -> bool {
        let missing_units = usize::try_from(self.to_units(amount))
            .unwrap_or(usize::MAX)
            .saturating_sub(permit.num_permits());
        let additional = u32::try_from(missing_units)
            .ok()
            .and_then(|units| self.semaphore.clone().try_acquire_many_owned(units).ok());
        additional.map(|additional| permit.merge(additional)).is_some()
    }

    /// Returns the amount that a permit of this budget holds, in whole units.
    pub fn held_by(&self, permit: &Permit) -> usize {
        permit.num_permits() * self.unit
    }

    /// Returns the amount in use, rounded up to whole units.
    pub fn used(&self) -> usize {
        let capacity = usize::try_from(self.capacity).unwrap_or(usize::MAX);
        capacity.saturating_sub(self.semaphore.available_permits()) * self.unit
    }

    /// Shrinks a permit to `amount`, and releases the difference.
    pub fn shrink(&self, permit: &mut Permit, amount: usize) {
        let kept_units = usize::try_from(self.to_units(amount)).unwrap_or(usize::MAX);
        drop(permit.split(permit.num_permits().saturating_sub(kept_units)));
    }
}

/// The budget for messages that are being sent to workers. A quarter of it is reserved for bodies
/// of at most [`SMALL_BODY_BYTES_MAX`] bytes, so that they need not wait for large ones.
#[derive(Clone, Debug)]
pub struct MessageBudget {
    small: ResourceBudget,
    large: ResourceBudget,
}

impl MessageBudget {
    /// Creates a budget of `bytes`.
    pub fn new(bytes: usize) -> MessageBudget {
        let small_bytes = bytes / 4;
        MessageBudget {
            small: ResourceBudget::for_bytes(small_bytes),
            large: ResourceBudget::for_bytes(bytes - small_bytes),
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
            "the permit is large enough already"
        );
        assert_eq!(budget.held_by(&first), 8 * UNIT_BYTES);
        let second = budget.try_acquire(2 * UNIT_BYTES).expect("free");
        assert!(!budget.try_grow(&mut first, 9 * UNIT_BYTES) && first.num_permits() == 8);
        budget.shrink(&mut first, UNIT_BYTES + 1);
        assert_eq!((first.num_permits(), budget.semaphore.available_permits()), (2, 6));
        drop((first, second));
        let all = budget.try_acquire(1 << 40).expect("the whole budget is free");
        assert_eq!((all.num_permits(), budget.semaphore.available_permits()), (10, 0));
    }
}
