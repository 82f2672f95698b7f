//! The states of a job actor, and how it passes from one to the next.

use super::spawn::JobStart;
use crate::actors::inputs::JobInput;
use engine::Job;

/// The state of a job actor.
pub(super) enum Lifecycle {
    /// The actor has not started.
    Starting(JobStart),
    /// The job goes on.
    Running(Job),
    /// The job panicked and is being rebuilt from the journal. Inputs are stashed meanwhile.
    Broken { stash: Vec<JobInput> },
    /// Nothing is left to do. The actor asked to stop when it had handled `asked_at` inputs. An
    /// input that comes before it is stopped may make it go on.
    Stopping { job: Job, requested_at: u64 },
    /// There is no job: its creation panicked, or it was stopped.
    Stopped,
}

impl Lifecycle {
    pub(super) fn job(&self) -> Option<&Job> {
        match self {
            Lifecycle::Running(job) | Lifecycle::Stopping { job, .. } => Some(job),
            Lifecycle::Starting(_) | Lifecycle::Broken { .. } | Lifecycle::Stopped => None,
        }
    }

    pub(super) fn job_mut(&mut self) -> Option<&mut Job> {
        match self {
            Lifecycle::Running(job) | Lifecycle::Stopping { job, .. } => Some(job),
            Lifecycle::Starting(_) | Lifecycle::Broken { .. } | Lifecycle::Stopped => None,
        }
    }

    /// Returns whether the actor must ask to stop: nothing is left to do, and it has not asked
    /// since it has handled `inputs_handled` inputs.
    pub(super) fn must_request_stop(&self, inputs_handled: u64) -> bool {
        match self {
            Lifecycle::Running(job) => job.is_closed(),
            Lifecycle::Stopping { job, requested_at: at } => {
                job.is_closed() && *at != inputs_handled
            }
            Lifecycle::Starting(_) | Lifecycle::Broken { .. } | Lifecycle::Stopped => false,
        }
    }

    /// Begins to stop, if there is a job. Returns whether it did.
    pub(super) fn begin_stop(&mut self, inputs_handled: u64) -> bool {
        match std::mem::replace(self, Lifecycle::Stopped) {
            Lifecycle::Running(job) | Lifecycle::Stopping { job, .. } => {
                *self = Lifecycle::Stopping { job, requested_at: inputs_handled };
                true
            }
            state @ (Lifecycle::Starting(_) | Lifecycle::Broken { .. } | Lifecycle::Stopped) => {
                *self = state;
                false
            }
        }
    }

    /// Goes on, if it was stopping and there is something left to do.
    pub(super) fn resume(&mut self) {
        *self = match std::mem::replace(self, Lifecycle::Stopped) {
            Lifecycle::Stopping { job, .. } if !job.is_closed() => Lifecycle::Running(job),
            life @ (Lifecycle::Starting(_)
            | Lifecycle::Running(_)
            | Lifecycle::Broken { .. }
            | Lifecycle::Stopping { .. }
            | Lifecycle::Stopped) => life,
        };
    }
}
