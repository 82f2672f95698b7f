//! Entries: the durable events of a job, in the past tense.
//!
//! A job is the fold of its entries (event sourcing). An entry records the outcome of a decision,
//! so a replay decides nothing again. [`Entry`] is nested by subject. A row of the journal holds
//! entries as JSON, such as `{"step":[0,"confirmed"]}`.

use super::caller::Caller;
use super::cause::Cause;
use super::id::{JobId, StepIndex};
use super::json::{Json, Message};
use super::limit::ClaimedPlace;
use super::schedule::ScheduledSlot;
use super::state::JobState;
use super::time::Timestamp;
use super::trace::{TraceParent, TraceState};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The entries of one decision: a row of the journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// The number of the job's entries before this row.
    pub first: u64,
    /// The time of the decision.
    pub at: Timestamp,
    /// The entries, in order.
    pub entries: Vec<Entry>,
}

/// One fact about a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// About the whole job.
    Job(JobEntry),
    /// About a step of any kind.
    Step(StepIndex, StepEntry),
    /// About the child jobs of a fan-out step.
    FanOut(StepIndex, FanOutEntry),
    /// About the callers of the job.
    Caller(CallerEntry),
}

/// What happened to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobEntry {
    /// The job was created. The message of a child job is not stored: it is derived from its
    /// parent's input and its index.
    Created {
        /// The message of a root job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Message>,
        /// The time at which the job fails, unless it is done; `None`: no deadline.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
        /// The trace context of the request for the root job, if it had one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace: Option<TraceParent>,
        /// The `tracestate` that is propagated with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace_state: Option<TraceState>,
        /// When the job begins; `None`: at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        starts_at: Option<Timestamp>,
        /// The schedule and the slot for which it was started; `None`: no schedule started it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slot: Option<Arc<ScheduledSlot>>,
    },
    /// The time has come at which the job was to begin.
    Begun,
    /// The job waits for a place of the limit of its workflow. It begins once it is admitted.
    Claimed {
        /// The place.
        place: ClaimedPlace,
    },
    /// The job was admitted to its place, and begins.
    Admitted,
    /// Every step is done. The result is derived from the outputs.
    Completed,
    /// The job failed.
    Failed {
        /// The reason.
        reason: Arc<str>,
        /// Whether the deadline has passed, so that the job accepts no more replies.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        expired: bool,
        /// The step whose failure failed the job; `None`: there was another reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<StepIndex>,
    },
    /// The job is paused: nothing new is dispatched.
    Paused,
    /// The job was resumed after a pause.
    Resumed,
    /// The failed job was retried: it continues from its failed steps.
    Retried {
        /// How often it has been retried, this time included.
        round: u32,
        /// The new deadline; `None`: no deadline.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// A step, and all steps that depend on it, start again.
    Rerun {
        /// The step.
        step: StepIndex,
        /// The new deadline; `None`: no deadline.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
        /// Whether the step keeps the results of its child jobs, and runs only its items without
        /// one again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        only_failed_items: bool,
    },
    /// The job was cancelled.
    Cancelled {
        /// The reason.
        reason: Arc<str>,
        /// Whether its parent ordered it, and needs no report of the end.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_parent: bool,
    },
    /// The end is reported to the parent again, which did not receive the first report.
    ToldAgain,
    /// A client requested an operation. The following entries of the row are its outcome.
    Asked {
        /// The name of the operation.
        operation: Arc<str>,
        /// The step that it concerns, if it concerns only one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<StepIndex>,
        /// The reason, if the client gave one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
        /// The principal: the name of the client's token; `None`: no token was required.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Arc<str>>,
    },
}

/// What happened to a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepEntry {
    /// The next attempt waits for places of limits. Its message is sent once it is admitted.
    Claimed {
        /// The places.
        places: Arc<[ClaimedPlace]>,
    },
    /// The message of the attempt is to be sent once more, as soon as its limits allow.
    ResendClaimed,
    /// An attempt of a step without child jobs started: its message is to be sent. An external step
    /// has no message.
    Started {
        /// The number of the attempt, from 1.
        attempt: u32,
        /// When the attempt of an external step times out; `None`: never. The timeout of a step
        /// with a message starts later (see [`StepRun`](super::StepRun)), but version 0.1.0
        /// recorded it here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// The broker confirmed the message of the attempt, whose timeout starts if it has not yet.
    Confirmed,
    /// A worker has leased the message of the attempt, or the lease has changed. The first lease
    /// starts the timeout of the attempt.
    Leased(Lease),
    /// A bus without confirms and leases has delivered the message, to a worker in this process or
    /// to a web service: the timeout of the attempt starts.
    Begun,
    /// The confirmed message is to be sent again, as the same attempt: it was lost with its queue,
    /// or a client requested it. The timeout of the attempt starts again when workers can receive
    /// the message.
    Unconfirmed,
    /// The step completed with this output.
    Completed(Message),
    /// The worker reported progress.
    Progressed {
        /// The reported progress.
        progress: Progress,
        /// When the attempt times out from now on; `None`: never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// An attempt failed, and the next one follows after the backoff.
    AttemptFailed {
        /// The number of the attempt.
        attempt: u32,
        /// Why it failed.
        failure: Failure,
        /// When the next attempt is due.
        retry_at: Timestamp,
    },
    /// The step was skipped: its condition `when` was false.
    Skipped,
    /// The step was cancelled: its condition `cancelWhen` was true.
    Cancelled,
    /// The step failed: no attempt is left.
    Failed(Failure),
}

/// What happened to the child jobs of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FanOutEntry {
    /// The step started. Its items are derived from its input.
    Started {
        /// The number of items.
        items: u32,
        /// A warning for users: the list is missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<Arc<str>>,
        /// When the attempt times out; `None`: never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// The step continues after a failure: the child jobs that have started and have no result are
    /// retried.
    Restarted {
        /// The number of the attempt, from 2.
        attempt: u32,
        /// When the attempt times out; `None`: never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// The child jobs for the items `from..from + count` are to be started.
    ChildrenStarted {
        /// The first item's index.
        from: u32,
        /// The number of child jobs.
        count: u32,
        /// The ids that differ from the derived ones, with their items' indices.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        own_ids: Vec<(u32, JobId)>,
    },
    /// A child job is to be started again: it does not exist, or another job has its id.
    ChildStarted {
        /// The item's index.
        index: u32,
        /// The child job's id from now on.
        id: JobId,
    },
    /// A child job completed.
    ChildCompleted {
        /// The item's index.
        index: u32,
        /// The value under the item key of the result, with its position among the keys; `None`:
        /// the result has no item key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        item: Option<(u16, Json)>,
        /// The other keys of the result that no earlier item's child job has returned so far, with
        /// their positions and values.
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

/// What happened to the callers of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallerEntry {
    /// A message on the workflow's queue requested the job, and its sender waits for the end.
    Joined(Caller),
    /// The broker has confirmed the answer to the caller at this index, in the order in which they
    /// joined.
    Answered(u32),
}

/// The progress that a worker reports of a running step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The step's status from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Arc<str>>,
    /// The fraction of the work that is done: a number from 0 to 1, in the text that was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Json>,
    /// A message for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Arc<str>>,
}

impl Progress {
    /// Merges a later report. Its values replace the earlier ones, and values that it lacks are
    /// kept.
    pub fn merge(&mut self, later: &Progress) {
        if later.status.is_some() {
            self.status.clone_from(&later.status);
        }
        if later.share.is_some() {
            self.share.clone_from(&later.share);
        }
        if later.message.is_some() {
            self.message.clone_from(&later.message);
        }
    }
}

/// The lease of an attempt's message to a worker, on a bus that leases its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The number of the delivery, from 1; 0: the first delivery was withdrawn before a worker
    /// received it.
    pub delivery: u32,
    /// When the lease expires. The message can then be leased again.
    pub until: Timestamp,
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The reason, in one sentence.
    pub reason: Arc<str>,
    /// The beginning of the reply, if its content is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Arc<str>>,
    /// For a fan-out step: what went wrong in its child jobs, for the ancestors of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Box<Cause>>,
}

impl Failure {
    /// Creates a failure with a reason and nothing else.
    pub(super) fn new(reason: impl Into<Arc<str>>) -> Failure {
        Failure { reason: reason.into(), raw: None, cause: None }
    }
}

/// The steps whose states, statuses or outputs an entry may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AffectedSteps {
    None,
    One(StepIndex),
    All,
}

impl Entry {
    /// Returns the job state that it sets; `None`: it does not change the state.
    pub fn job_state(&self) -> Option<JobState> {
        match self {
            Entry::Job(entry) => entry.state(),
            Entry::Step(..) | Entry::FanOut(..) | Entry::Caller(_) => None,
        }
    }

    /// Returns the reason for which it ended the job; `None`: it did not, or the job completed.
    pub fn reason(&self) -> Option<&Arc<str>> {
        match self {
            Entry::Job(JobEntry::Failed { reason, .. } | JobEntry::Cancelled { reason, .. }) => {
                Some(reason)
            }
            Entry::Job(_) | Entry::Step(..) | Entry::FanOut(..) | Entry::Caller(_) => None,
        }
    }

    /// Returns whether it is a rerun: a step and all steps that depend on it start again, and their
    /// outputs are discarded, but for the results of child jobs that the step may keep.
    pub fn is_rerun(&self) -> bool {
        matches!(self, Entry::Job(JobEntry::Rerun { .. }))
    }

    /// Returns whether an ended job goes on by it.
    pub fn is_reopening(&self) -> bool {
        matches!(self, Entry::Job(JobEntry::Retried { .. } | JobEntry::Rerun { .. }))
    }

    /// Returns the steps whose states, statuses or outputs it may change.
    pub(super) fn affected_steps(&self) -> AffectedSteps {
        match self {
            Entry::Job(entry) if entry.affects_steps() => AffectedSteps::All,
            Entry::Step(step, entry) if entry.is_visible() => AffectedSteps::One(*step),
            Entry::FanOut(step, entry) if entry.is_visible() => AffectedSteps::One(*step),
            Entry::Job(_) | Entry::Step(..) | Entry::FanOut(..) | Entry::Caller(_) => {
                AffectedSteps::None
            }
        }
    }

    /// Returns whether it changes the job's state, or may change the state, status or output of a
    /// step. The creation of the job does not count.
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
    /// Returns the job state that it sets; `None`: it does not change the state.
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
            JobEntry::Begun
            | JobEntry::Claimed { .. }
            | JobEntry::Admitted
            | JobEntry::ToldAgain
            | JobEntry::Asked { .. } => None,
        }
    }

    /// Returns whether it may change the states or statuses of all steps. A resume counts, although
    /// it changes none: conditions are not evaluated while a job is paused, so each of them must be
    /// evaluated when it resumes.
    fn affects_steps(&self) -> bool {
        match self {
            JobEntry::Created { .. }
            | JobEntry::Begun
            | JobEntry::Admitted
            | JobEntry::Failed { .. }
            | JobEntry::Resumed
            | JobEntry::Retried { .. }
            | JobEntry::Rerun { .. }
            | JobEntry::Cancelled { .. } => true,
            JobEntry::Completed
            | JobEntry::Claimed { .. }
            | JobEntry::Paused
            | JobEntry::ToldAgain
            | JobEntry::Asked { .. } => false,
        }
    }
}

impl StepEntry {
    /// Returns why an attempt failed; `None`: it records no failure.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            StepEntry::AttemptFailed { failure, .. } | StepEntry::Failed(failure) => Some(failure),
            StepEntry::Started { .. }
            | StepEntry::Confirmed
            | StepEntry::Leased(_)
            | StepEntry::Begun
            | StepEntry::Unconfirmed
            | StepEntry::Claimed { .. }
            | StepEntry::ResendClaimed
            | StepEntry::Completed(_)
            | StepEntry::Progressed { .. }
            | StepEntry::Skipped
            | StepEntry::Cancelled => None,
        }
    }

    /// Returns whether it may change the state, the status or the output of the step.
    fn is_visible(&self) -> bool {
        match self {
            StepEntry::Claimed { .. }
            | StepEntry::Started { .. }
            | StepEntry::Completed(_)
            | StepEntry::Progressed { .. }
            | StepEntry::Skipped
            | StepEntry::Cancelled
            | StepEntry::Failed(_) => true,
            StepEntry::Confirmed
            | StepEntry::Leased(_)
            | StepEntry::Begun
            | StepEntry::Unconfirmed
            | StepEntry::ResendClaimed
            | StepEntry::AttemptFailed { .. } => false,
        }
    }
}

impl FanOutEntry {
    /// Returns whether it may change the state, the status or the output of the step.
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
