//! The budget of child jobs: all fan-outs of the process share `fanout.children_max` of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Each fan-out step may always have this many child jobs under way, so that none stops when others
/// have used up the budget.
const CHILDREN_MIN: u32 = 16;

/// How many child jobs of all fan-outs may be under way, and how many are.
pub struct ChildBudget {
    max: u32,
    used: AtomicU32,
}

/// The child jobs of one job that count against the budget, until this is dropped.
pub struct ChildPermits {
    budget: Arc<ChildBudget>,
    count: u32,
}

impl ChildBudget {
    /// Creates a budget of so many child jobs.
    pub fn new(max: u32) -> ChildBudget {
        ChildBudget { max, used: AtomicU32::new(0) }
    }

    /// Returns how many child jobs are under way.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the permits of a job without child jobs.
    pub fn no_permits(self: &Arc<Self>) -> ChildPermits {
        ChildPermits { budget: self.clone(), count: 0 }
    }
}

impl ChildPermits {
    /// Returns how many child jobs the job may have under way.
    pub fn max(&self) -> u32 {
        let left = self.budget.max.saturating_sub(self.budget.used());
        self.count.saturating_add(left).max(CHILDREN_MIN)
    }

    /// Takes or releases permits, so that there is one for each child job under way.
    pub fn set_count(&mut self, count: u32) {
        if count != self.count {
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
