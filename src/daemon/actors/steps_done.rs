//! Counts how many steps of a job are done: for lists, which ask no actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The value before the first commit.
const UNKNOWN: usize = usize::MAX;

/// How many steps of a job are done, as far as it is committed. The job sets it, others read it.
#[derive(Clone)]
pub struct StepsDone(Arc<AtomicUsize>);

impl Default for StepsDone {
    fn default() -> StepsDone {
        StepsDone(Arc::new(AtomicUsize::new(UNKNOWN)))
    }
}

impl StepsDone {
    /// Sets how many steps are done.
    pub fn set(&self, steps: usize) {
        self.0.store(steps, Ordering::Relaxed);
    }

    /// Returns how many steps are done; `None` while the first commit is under way.
    pub fn get(&self) -> Option<usize> {
        Some(self.0.load(Ordering::Relaxed)).filter(|steps| *steps != UNKNOWN)
    }
}
