//! What lists show of an active job that the journal's tables do not have. They read it without a
//! message to the actor.

use engine::{Job, StepIndex, StepState, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// The number of steps before the first commit.
const UNKNOWN: usize = usize::MAX;

/// A time that there is not: when a job begins that has begun, and since when a job asks that does
/// not.
const NO_TIME: i64 = i64::MIN;

/// What lists show of an active job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedState {
    /// How many of its steps are done, whatever their outcome.
    pub steps_done: usize,
    /// When it begins; `None`: it has begun.
    pub begins_at: Option<Timestamp>,
    /// Since when the first of its external steps waits that run now; `None`: none runs.
    pub asked_since: Option<Timestamp>,
    /// How many of its external steps run.
    pub asked_steps: usize,
}

impl ListedState {
    /// Returns what lists show of this job.
    pub fn from_job(job: &Job) -> ListedState {
        let is_done = |state| !matches!(state, StepState::Waiting | StepState::Running);
        let steps_done = job.steps().filter(|(_, run)| is_done(run.state)).count();
        let asked: Vec<Timestamp> = asked_steps(job).map(|(_, since)| since).collect();
        ListedState {
            steps_done,
            begins_at: job.begins_at(),
            asked_since: asked.iter().min().copied(),
            asked_steps: asked.len(),
        }
    }
}

/// Returns the external steps of a job that run, each with the time since when it waits for people:
/// the start of its attempt. A step that waits for its next attempt asks nobody.
pub fn asked_steps(job: &Job) -> impl Iterator<Item = (StepIndex, Timestamp)> {
    let is_asked = |step: &StepIndex| {
        job.graph().step(*step).external
            && !job.state().is_ended()
            && job.step_state(*step) == StepState::Running
            && job.step(*step).retry_at().is_none()
    };
    job.graph().indices().filter(is_asked).map(|step| {
        let run = job.step(step);
        (step, run.attempt_started.or(run.started).unwrap_or(job.origin().created))
    })
}

/// What lists show of a job, as of its last commit. Clones share it: the outbox sets it after each
/// commit, and others read it.
#[derive(Clone)]
pub struct SharedListedState(Arc<Values>);

struct Values {
    steps_done: AtomicUsize,
    begins_at: AtomicI64,
    asked_since: AtomicI64,
    asked_steps: AtomicUsize,
}

impl Default for SharedListedState {
    fn default() -> SharedListedState {
        SharedListedState(Arc::new(Values {
            steps_done: AtomicUsize::new(UNKNOWN),
            begins_at: AtomicI64::new(NO_TIME),
            asked_since: AtomicI64::new(NO_TIME),
            asked_steps: AtomicUsize::new(0),
        }))
    }
}

impl SharedListedState {
    /// Sets the state of the last commit.
    pub fn set(&self, state: ListedState) {
        let ListedState { steps_done, begins_at, asked_since, asked_steps } = state;
        let to_number = |time: Option<Timestamp>| time.map_or(NO_TIME, |time| time.0);
        self.0.begins_at.store(to_number(begins_at), Ordering::Relaxed);
        self.0.asked_since.store(to_number(asked_since), Ordering::Relaxed);
        self.0.asked_steps.store(asked_steps, Ordering::Relaxed);
        self.0.steps_done.store(steps_done, Ordering::Relaxed);
    }

    /// Returns the state of the last commit; `None` before the job's first one.
    pub fn get(&self) -> Option<ListedState> {
        let steps_done = self.0.steps_done.load(Ordering::Relaxed);
        let to_time = |number: &AtomicI64| {
            let number = number.load(Ordering::Relaxed);
            (number != NO_TIME).then_some(Timestamp(number))
        };
        let state = || ListedState {
            steps_done,
            begins_at: to_time(&self.0.begins_at),
            asked_since: to_time(&self.0.asked_since),
            asked_steps: self.0.asked_steps.load(Ordering::Relaxed),
        };
        (steps_done != UNKNOWN).then(state)
    }
}
