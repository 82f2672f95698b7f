//! The budget of child jobs: all fan-outs of the process share `fanout.children_max` permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Each fan-out may always have this many active child jobs, so that it makes progress when other
/// fan-outs have used up the budget.
const CHILDREN_MIN: u32 = 16;

/// The permits for the active child jobs of all fan-outs.
pub struct ChildBudget {
    max: u32,
    /// How many child jobs are active, which can be more than `max`.
    used: AtomicU32,
}

/// The permits of one job's child jobs. They are released when this is dropped.
pub struct ChildPermits {
    budget: Arc<ChildBudget>,
    count: u32,
}

impl ChildBudget {
    /// Creates a budget of `max` child jobs.
    pub fn new(max: u32) -> ChildBudget {
        ChildBudget { max, used: AtomicU32::new(0) }
    }

    /// Returns how many child jobs are active.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the permits of a job without child jobs.
    pub fn no_permits(self: &Arc<Self>) -> ChildPermits {
        ChildPermits { budget: self.clone(), count: 0 }
    }
}

impl ChildPermits {
    /// Returns how many active child jobs each fan-out of the job may have now.
    pub fn max(&self) -> u32 {
        let available = self.budget.max.saturating_sub(self.budget.used());
        self.count.saturating_add(available).max(CHILDREN_MIN)
    }

    /// Acquires or releases permits, so that the job has `count`: one for each active child job.
    pub fn set_count(&mut self, count: u32) {
        if count != self.count {
            // Atomic addition wraps, so this also subtracts.
            self.budget.used.fetch_add(count.wrapping_sub(self.count), Ordering::Relaxed);
            self.count = count;
        }
    }
}

impl Drop for ChildPermits {
    fn drop(&mut self) {
        self.set_count(0);
    }
}
