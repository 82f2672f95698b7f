//! The number of a job's steps that are done. Job lists read it without a message to the actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The value before the first commit.
const UNKNOWN: usize = usize::MAX;

/// How many steps of a job are done, as of its last commit. Clones share the number: the outbox
/// sets it after each commit, and others read it.
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

    /// Returns how many steps are done; `None` before the job's first commit.
    pub fn get(&self) -> Option<usize> {
        Some(self.0.load(Ordering::Relaxed)).filter(|steps| *steps != UNKNOWN)
    }
}
