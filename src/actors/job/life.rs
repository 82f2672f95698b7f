//! The states of a job actor, and how it passes from one to the next.

use super::start::Start;
use crate::actors::mail::JobInput;
use crate::engine::Job;

/// The state of a job actor.
pub(super) enum Life {
    /// The actor has not started.
    Starting(Start),
    /// The job goes on.
    Live(Job),
    /// The job panicked and is being rebuilt from the journal. Inputs are stashed meanwhile.
    Broken { set_aside: Vec<JobInput> },
    /// Nothing is left to do. The actor asked to stop when it had handled `asked_at` inputs. An
    /// input that comes before it is stopped may make it go on.
    Leaving { job: Job, asked: u64 },
    /// There is no job: its creation panicked, or it was stopped.
    Void,
}

impl Life {
    pub(super) fn job(&self) -> Option<&Job> {
        match self {
            Life::Live(job) | Life::Leaving { job, .. } => Some(job),
            Life::Starting(_) | Life::Broken { .. } | Life::Void => None,
        }
    }

    pub(super) fn job_mut(&mut self) -> Option<&mut Job> {
        match self {
            Life::Live(job) | Life::Leaving { job, .. } => Some(job),
            Life::Starting(_) | Life::Broken { .. } | Life::Void => None,
        }
    }

    /// Returns whether the actor must ask to stop: nothing is left to do, and it has not asked
    /// since it has handled `inputs_handled` inputs.
    pub(super) fn is_through(&self, heard: u64) -> bool {
        match self {
            Life::Live(job) => job.is_closed(),
            Life::Leaving { job, asked } => job.is_closed() && *asked != heard,
            Life::Starting(_) | Life::Broken { .. } | Life::Void => false,
        }
    }

    /// Begins to stop, if there is a job. Returns whether it did.
    pub(super) fn leave(&mut self, heard: u64) -> bool {
        match std::mem::replace(self, Life::Void) {
            Life::Live(job) | Life::Leaving { job, .. } => {
                *self = Life::Leaving { job, asked: heard };
                true
            }
            life @ (Life::Starting(_) | Life::Broken { .. } | Life::Void) => {
                *self = life;
                false
            }
        }
    }

    /// Goes on, if it was stopping and there is something left to do.
    pub(super) fn go_on(&mut self) {
        *self = match std::mem::replace(self, Life::Void) {
            Life::Leaving { job, .. } if !job.is_closed() => Life::Live(job),
            life @ (Life::Starting(_)
            | Life::Live(_)
            | Life::Broken { .. }
            | Life::Leaving { .. }
            | Life::Void) => life,
        };
    }
}
