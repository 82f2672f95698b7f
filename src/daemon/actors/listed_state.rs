//! What lists show of an active job that the journal's tables do not have. They read it without a
//! message to the actor.

use engine::{Job, StepState, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// The number of steps before the first commit.
const UNKNOWN: usize = usize::MAX;

/// The time of a job that has begun.
const HAS_BEGUN: i64 = i64::MIN;

/// What lists show of an active job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedState {
    /// How many of its steps are done, whatever their outcome.
    pub steps_done: usize,
    /// When it begins; `None`: it has begun.
    pub begins_at: Option<Timestamp>,
}

impl ListedState {
    /// Returns what lists show of this job.
    pub fn from_job(job: &Job) -> ListedState {
        let is_done = |state| !matches!(state, StepState::Waiting | StepState::Running);
        let steps_done = job.steps().filter(|(_, run)| is_done(run.state)).count();
        ListedState { steps_done, begins_at: job.begins_at() }
    }
}

/// What lists show of a job, as of its last commit. Clones share it: the outbox sets it after each
/// commit, and others read it.
#[derive(Clone)]
pub struct SharedListedState(Arc<Values>);

struct Values {
    steps_done: AtomicUsize,
    begins_at: AtomicI64,
}

impl Default for SharedListedState {
    fn default() -> SharedListedState {
        SharedListedState(Arc::new(Values {
            steps_done: AtomicUsize::new(UNKNOWN),
            begins_at: AtomicI64::new(HAS_BEGUN),
        }))
    }
}

impl SharedListedState {
    /// Sets the state of the last commit.
    pub fn set(&self, state: ListedState) {
        let begins_at = state.begins_at.map_or(HAS_BEGUN, |time| time.0);
        self.0.begins_at.store(begins_at, Ordering::Relaxed);
        self.0.steps_done.store(state.steps_done, Ordering::Relaxed);
    }

    /// Returns the state of the last commit; `None` before the job's first one.
    pub fn get(&self) -> Option<ListedState> {
        let steps_done = self.0.steps_done.load(Ordering::Relaxed);
        let begins_at = Some(self.0.begins_at.load(Ordering::Relaxed))
            .filter(|time| *time != HAS_BEGUN)
            .map(Timestamp);
        (steps_done != UNKNOWN).then_some(ListedState { steps_done, begins_at })
    }
}
