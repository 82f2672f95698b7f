//! The states of jobs and steps.

use serde::{Deserialize, Serialize};

/// The states of a job (docs/reference/http-api-jobs.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Steps are waiting or running.
    Running,
    /// Running steps may finish; nothing new is dispatched.
    Paused,
    /// Every step is done.
    Completed,
    /// A step has failed, the deadline has passed, or the manager gave the job up.
    Failed,
    /// A user or the parent job cancelled it.
    Cancelled,
}

impl JobState {
    /// All states of a job.
    pub const ALL: [JobState; 5] = [
        JobState::Running,
        JobState::Paused,
        JobState::Completed,
        JobState::Failed,
        JobState::Cancelled,
    ];

    /// Returns whether the job has ended. It may still be reopened by a retry or rerun.
    pub fn is_ended(self) -> bool {
        match self {
            JobState::Running | JobState::Paused => false,
            JobState::Completed | JobState::Failed | JobState::Cancelled => true,
        }
    }

    /// Returns the name of the state, for users.
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Paused => "paused",
            JobState::Completed => "completed",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }

    /// Returns the state with this name, if there is one.
    pub fn from_name(name: &str) -> Option<JobState> {
        JobState::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// The states of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepState {
    /// It has not started, usually because a step that it depends on is not done.
    #[default]
    Waiting,
    /// An attempt is active: its message is sent, its child jobs run, or it waits for a call of the
    /// API. Or the step waits for its next attempt.
    Running,
    /// Its reply has arrived, or its child jobs have ended.
    Completed,
    /// It could not start, or an attempt failed that was the last.
    Failed,
    /// Its condition `when` was false.
    Skipped,
    /// Its condition `cancelWhen` was true, or its job was cancelled or expired while it ran.
    Cancelled,
}

impl StepState {
    /// All states of a step.
    pub const ALL: [StepState; 6] = [
        StepState::Waiting,
        StepState::Running,
        StepState::Completed,
        StepState::Failed,
        StepState::Skipped,
        StepState::Cancelled,
    ];

    /// Returns the name of the state, for users.
    pub fn as_str(self) -> &'static str {
        match self {
            StepState::Waiting => "waiting",
            StepState::Running => "running",
            StepState::Completed => "completed",
            StepState::Failed => "failed",
            StepState::Skipped => "skipped",
            StepState::Cancelled => "cancelled",
        }
    }
}
