//! The durable record: what was decided, in the past tense. A job is the fold of its entries.
//! [`Entry`] nests by subject, so that all entries of a step name the step in one place. An entry
//! records an outcome, so a replay decides nothing. A row of the journal holds its JSON:
//! `{"step":[0,"confirmed"]}`.

use super::caller::Caller;
use super::cause::Cause;
use super::id::{JobId, StepIndex};
use super::json::{Json, Message};
use super::state::JobState;
use super::time::Timestamp;
use super::trace::{TraceParent, TraceState};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A decision as the journal keeps it: one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// The number of the job's entries before it.
    pub first: u64,
    /// When it was decided.
    pub at: Timestamp,
    /// What was decided, in order.
    pub entries: Vec<Entry>,
}

/// One thing that was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// About the whole job.
    Job(JobEntry),
    /// About a step; for a step with child jobs, what every step has.
    Step(StepIndex, StepEntry),
    /// About the child jobs of a step.
    FanOut(StepIndex, FanOutEntry),
    /// About the callers that wait for the end of the job.
    Caller(CallerEntry),
}

/// What happened to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobEntry {
    /// The job was created. A child job's message is not stored: it follows from its parent's input
    /// and its index.
    Created {
        /// The message of a root job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Message>,
        /// The time at which it fails, unless it is done.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
        /// The trace context of the request for the root job, if it had one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace: Option<TraceParent>,
        /// The `tracestate` that is passed on with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace_state: Option<TraceState>,
    },
    /// Every step is done. The result follows from the outputs.
    Completed,
    /// The job failed.
    Failed {
        /// The reason.
        reason: Arc<str>,
        /// Whether its deadline has passed, so that it takes no more replies.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        expired: bool,
        /// The step whose failure failed the job; `None` if it failed as a whole.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<StepIndex>,
    },
    /// The job is paused: nothing new is dispatched.
    Paused,
    /// The job goes on after a pause.
    Resumed,
    /// The job failed and goes on from its failed steps.
    Retried {
        /// How often it has been retried, this time included.
        round: u32,
        /// When it fails now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// A step, and all that depends on it, begins once more.
    Rerun {
        /// The step.
        step: StepIndex,
        /// When the job fails now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// The job was cancelled.
    Cancelled {
        /// The reason.
        reason: Arc<str>,
        /// Whether its parent ordered it, and so needs no report.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_parent: bool,
    },
    /// The end is reported to the parent once more: the parent did not get the first report.
    ToldAgain,
    /// A client requested the operation from which the next entries follow.
    Asked {
        /// The operation.
        operation: Arc<str>,
        /// The step that it concerns, if it concerns only one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<StepIndex>,
        /// The reason, if one was given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
        /// The principal: the name of the token, where calls need one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Arc<str>>,
    },
}

/// What happened to a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepEntry {
    /// A plain step's message is to be sent, and is not confirmed yet. An external step sends none.
    Started {
        /// The number of the attempt, from 1.
        attempt: u32,
        /// When the attempt of an external step fails without a reply. The time of a step with a
        /// message begins later (see [`StepRun`](super::StepRun)); version 0.1.0 recorded its end
        /// here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// The broker confirmed the message of the attempt: its time begins, unless it has.
    Confirmed,
    /// A worker has leased the message of the attempt, or the lease has changed. With the first
    /// lease the time of the attempt begins.
    Leased(Lease),
    /// A bus without confirms and leases has handed the message over, to a worker in this process
    /// or in a first call of a web service: the time of the attempt begins.
    Begun,
    /// The confirmed message is to be sent again, as the same attempt: it was lost with its queue,
    /// or a client asked for it. The time of the attempt begins anew when the message is there
    /// again.
    Unconfirmed,
    /// The reply came: the step's output.
    Completed(Message),
    /// The worker reported progress.
    Progressed {
        /// What it reported.
        progress: Progress,
        /// When the attempt fails now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// An attempt failed; the next one follows after a pause.
    AttemptFailed {
        /// The attempt.
        attempt: u32,
        /// The reason.
        failure: Failure,
        /// When the next one is due.
        retry_at: Timestamp,
    },
    /// The condition `when` was false.
    Skipped,
    /// The condition `cancelWhen` was true, or the job was cancelled.
    Cancelled,
    /// All attempts are used up.
    Failed(Failure),
}

/// What happened to the child jobs of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FanOutEntry {
    /// The step begins; its items follow from its input.
    Started {
        /// The number of items.
        items: u32,
        /// A warning for the reader: the list was missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<Arc<str>>,
        /// When the step fails, if it is not done by then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// The step goes on after a failure: the child jobs that were started and have no result are
    /// retried.
    Restarted {
        /// The number of the attempt, from 2.
        attempt: u32,
        /// When the step fails, if it is not done by then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// Child jobs `from..from + count` are to be started.
    ChildrenStarted {
        /// The first item's index.
        from: u32,
        /// The number of child jobs.
        count: u32,
        /// The ids that differ from the derived ones.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        own_ids: Vec<(u32, JobId)>,
    },
    /// A child job is to be started again: it was never created, or another job had its id.
    ChildStarted {
        /// The item's index.
        index: u32,
        /// The child job's id from now on.
        id: JobId,
    },
    /// A child job ended with a result.
    ChildCompleted {
        /// The item's index.
        index: u32,
        /// The value under the singular key, and its position among the child's keys.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        item: Option<(u16, Json)>,
        /// The other keys whose values this child decides so far, with their positions.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        others: Vec<(u16, Arc<str>, Json)>,
    },
    /// A child job failed.
    ChildFailed {
        /// The item's index.
        index: u32,
    },
    /// All child jobs have ended. The output is gathered from their results.
    Completed,
}

/// What happened to those who wait for the end of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallerEntry {
    /// A message on the workflow's queue asked for the job, and its sender waits for the end.
    Joined(Caller),
    /// The broker has taken the answer to the caller of this number, by the order in which they
    /// came.
    Answered(u32),
}

/// The progress that a worker reports of a running step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The step's status from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Arc<str>>,
    /// How much of the work is done: a number from 0 to 1, as it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Json>,
    /// A sentence for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Arc<str>>,
}

impl Progress {
    /// Applies a later report: its values replace the earlier ones; values that it does not have
    /// stay.
    pub fn merge(&mut self, later: &Progress) {
        for (known, later) in
            [(&mut self.status, &later.status), (&mut self.message, &later.message)]
        {
            if later.is_some() {
                known.clone_from(later);
            }
        }
        if later.share.is_some() {
            self.share.clone_from(&later.share);
        }
    }
}

/// The lease of an attempt's message: how long a worker has it. A bus without a broker leases its
/// messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Which delivery of the message the worker has, from 1. 0: the first delivery was withdrawn
    /// before a worker had it.
    pub delivery: u32,
    /// When the lease ends: then the message is leased again.
    pub until: Timestamp,
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The reason, in one sentence.
    pub reason: Arc<str>,
    /// The beginning of the reply that was no JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Arc<str>>,
    /// For a step with child jobs: what went wrong in them, for the jobs above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Box<Cause>>,
}

impl Failure {
    /// Creates a failure of which only the reason is known.
    pub(super) fn new(reason: impl Into<Arc<str>>) -> Failure {
        Failure { reason: reason.into(), raw: None, cause: None }
    }
}

/// The steps whose states, statuses or outputs an entry may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AffectedSteps {
    Nothing,
    Step(StepIndex),
    Every,
}

impl Entry {
    /// Returns the state that it gives the job.
    pub fn job_state(&self) -> Option<JobState> {
        match self {
            Entry::Job(entry) => entry.state(),
            Entry::Step(..) | Entry::FanOut(..) | Entry::Caller(_) => None,
        }
    }

    /// Returns why it ended the job, if it did.
    pub fn into_reason(self) -> Option<Arc<str>> {
        match self {
            Entry::Job(JobEntry::Failed { reason, .. } | JobEntry::Cancelled { reason, .. }) => {
                Some(reason)
            }
            Entry::Job(_) | Entry::Step(..) | Entry::FanOut(..) | Entry::Caller(_) => None,
        }
    }

    /// Returns whether it makes a step, and everything that depends on it, begin once more. What
    /// these steps had is forgotten.
    pub fn is_rerun(&self) -> bool {
        matches!(self, Entry::Job(JobEntry::Rerun { .. }))
    }

    /// Returns which steps' states, statuses or outputs it may change.
    pub(super) fn affected_steps(&self) -> AffectedSteps {
        match self {
            Entry::Job(entry) if entry.affects_steps() => AffectedSteps::Every,
            Entry::Step(step, entry) if entry.is_visible() => AffectedSteps::Step(*step),
            Entry::FanOut(step, entry) if entry.is_visible() => AffectedSteps::Step(*step),
            Entry::Job(_) | Entry::Step(..) | Entry::FanOut(..) | Entry::Caller(_) => {
                AffectedSteps::Nothing
            }
        }
    }

    /// Returns whether it changed a status or the job's state. Creating the job is no change.
    pub fn is_change(&self) -> bool {
        match self {
            Entry::Job(JobEntry::Created { .. }) => false,
            Entry::Job(entry) => entry.state().is_some(),
            Entry::Step(_, entry) => entry.is_visible(),
            Entry::FanOut(_, entry) => entry.is_visible(),
            Entry::Caller(_) => false,
        }
    }
}

impl JobEntry {
    fn state(&self) -> Option<JobState> {
        match self {
            JobEntry::Created { .. }
            | JobEntry::Resumed
            | JobEntry::Retried { .. }
            | JobEntry::Rerun { .. } => Some(JobState::Running),
            JobEntry::Paused => Some(JobState::Paused),
            JobEntry::Completed => Some(JobState::Completed),
            JobEntry::Failed { .. } => Some(JobState::Failed),
            JobEntry::Cancelled { .. } => Some(JobState::Cancelled),
            JobEntry::ToldAgain | JobEntry::Asked { .. } => None,
        }
    }

    /// Returns whether the steps' statuses follow from it too.
    fn affects_steps(&self) -> bool {
        match self {
            JobEntry::Created { .. }
            | JobEntry::Failed { .. }
            | JobEntry::Resumed
            | JobEntry::Retried { .. }
            | JobEntry::Rerun { .. }
            | JobEntry::Cancelled { .. } => true,
            JobEntry::Completed
            | JobEntry::Paused
            | JobEntry::ToldAgain
            | JobEntry::Asked { .. } => false,
        }
    }
}

impl StepEntry {
    /// Why an attempt failed, if one did.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            StepEntry::AttemptFailed { failure, .. } | StepEntry::Failed(failure) => Some(failure),
            StepEntry::Started { .. }
            | StepEntry::Confirmed
            | StepEntry::Leased(_)
            | StepEntry::Begun
            | StepEntry::Unconfirmed
            | StepEntry::Completed(_)
            | StepEntry::Progressed { .. }
            | StepEntry::Skipped
            | StepEntry::Cancelled => None,
        }
    }

    /// Whether it changes what is seen of the step: its state, its status or its output.
    fn is_visible(&self) -> bool {
        match self {
            StepEntry::Started { .. }
            | StepEntry::Completed(_)
            | StepEntry::Progressed { .. }
            | StepEntry::Skipped
            | StepEntry::Cancelled
            | StepEntry::Failed(_) => true,
            StepEntry::Confirmed
            | StepEntry::Leased(_)
            | StepEntry::Begun
            | StepEntry::Unconfirmed
            | StepEntry::AttemptFailed { .. } => false,
        }
    }
}

impl FanOutEntry {
    fn is_visible(&self) -> bool {
        match self {
            FanOutEntry::Started { .. }
            | FanOutEntry::Restarted { .. }
            | FanOutEntry::Completed => true,
            FanOutEntry::ChildrenStarted { .. }
            | FanOutEntry::ChildStarted { .. }
            | FanOutEntry::ChildCompleted { .. }
            | FanOutEntry::ChildFailed { .. } => false,
        }
    }
}
