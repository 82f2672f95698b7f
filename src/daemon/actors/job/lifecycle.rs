//! The states of a job actor, and their transitions.

use super::spawn::JobStart;
use crate::actors::inputs::JobInput;
use engine::Job;

/// The state of a job actor.
pub(super) enum Lifecycle {
    /// The actor has not started.
    Starting(JobStart),
    /// The job runs.
    Running(Job),
    /// The job panicked, and is being rebuilt from the journal. Meanwhile inputs are stashed.
    Broken { stash: Vec<JobInput> },
    /// Nothing is left to do. The actor asked to be stopped when it had handled `inputs_at_request`
    /// inputs. An input that arrives before it is stopped can resume the job.
    Stopping { job: Job, inputs_at_request: u64 },
    /// There is no job: its creation panicked, or the actor was stopped.
    Stopped,
}

impl Lifecycle {
    /// Returns the job; `None`: there is none in this state.
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

    /// Returns whether the actor must ask to be stopped: nothing is left to do, and it has not
    /// asked since the last input.
    pub(super) fn must_request_stop(&self, inputs_handled: u64) -> bool {
        match self {
            Lifecycle::Running(job) => job.is_closed(),
            Lifecycle::Stopping { job, inputs_at_request } => {
                job.is_closed() && *inputs_at_request != inputs_handled
            }
            Lifecycle::Starting(_) | Lifecycle::Broken { .. } | Lifecycle::Stopped => false,
        }
    }

    /// Changes to `Stopping` if there is a job. Returns whether there is one.
    pub(super) fn begin_stop(&mut self, inputs_handled: u64) -> bool {
        match std::mem::replace(self, Lifecycle::Stopped) {
            Lifecycle::Running(job) | Lifecycle::Stopping { job, .. } => {
                *self = Lifecycle::Stopping { job, inputs_at_request: inputs_handled };
                true
            }
            state @ (Lifecycle::Starting(_) | Lifecycle::Broken { .. } | Lifecycle::Stopped) => {
                *self = state;
                false
            }
        }
    }

    /// Changes from `Stopping` back to `Running` if the job has something left to do.
    pub(super) fn resume(&mut self) {
        *self = match std::mem::replace(self, Lifecycle::Stopped) {
            Lifecycle::Stopping { job, .. } if !job.is_closed() => Lifecycle::Running(job),
            state @ (Lifecycle::Starting(_)
            | Lifecycle::Running(_)
            | Lifecycle::Broken { .. }
            | Lifecycle::Stopping { .. }
            | Lifecycle::Stopped) => state,
        };
    }
}
