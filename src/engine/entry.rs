//! What goes into a decision and what comes out: inputs, entries, effects.

use super::definition::{Definition, GraphIndex};
use super::id::{JobId, StepIndex};
use super::json::{Json, Message};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How much of a reply that is no JSON object is kept for the reader, in bytes (SPEC §3.2).
pub const REPLY_KEPT_BYTES_MAX: usize = 4096;

/// Nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

/// Where a job comes from: all that never changes about it, but its message.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// The job's id.
    pub id: JobId,
    /// The definition it started with.
    pub definition: Arc<Definition>,
    /// The graph it runs: 0, or a task's.
    pub graph: GraphIndex,
    /// For a child job: which step of which job it belongs to.
    pub parent: Option<Parent>,
    /// The top-level job; its own id unless it is a child.
    pub root: JobId,
    /// 0 for a top-level job, one more for each level of children.
    pub depth: u16,
    /// When it was created.
    pub created: Timestamp,
}

/// A child job's place in its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The parent.
    pub job: JobId,
    /// The parent's fan-out step.
    pub step: StepIndex,
    /// The item's index in the list.
    pub index: u32,
}

/// The limits that decisions look at (settings, section `limits` and `fanout`).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest step message, in bytes.
    pub step_message_bytes_max: usize,
    /// The largest reply, in bytes.
    pub reply_bytes_max: usize,
    /// Levels of child jobs below a job.
    pub depth_max: u16,
    /// Child jobs of one step under way at once, where its task says nothing.
    pub window: u32,
}

/// Reserves ids of jobs that have not ended, over all jobs of the process.
pub trait Claims {
    /// Reserves `id`; false if a job that has not ended has it.
    fn claim(&self, id: JobId) -> bool;
}

/// A rule in place of a table.
impl<F: Fn(JobId) -> bool> Claims for F {
    fn claim(&self, id: JobId) -> bool {
        self(id)
    }
}

/// What a decision may look at beside the job: time and chance are arguments.
pub struct Context<'a> {
    /// The time of the decision.
    pub now: Timestamp,
    /// The limits in force.
    pub limits: &'a Limits,
    /// Who has which id.
    pub claims: &'a dyn Claims,
}

/// What happens to a job.
#[derive(Clone, Debug)]
pub enum Input {
    /// A worker answered, or the broker gave its message up.
    Reply {
        /// The step's name, from the correlation id.
        step: String,
        /// What came.
        reply: Reply,
    },
    /// The broker took responsibility for a step message.
    Confirmed {
        /// The step.
        step: StepIndex,
        /// The attempt that was dispatched.
        attempt: u32,
    },
    /// A queue was found missing: what was in it is lost.
    QueueMissing(Arc<str>),
    /// A child job ended.
    ChildEnded {
        /// The fan-out step.
        step: StepIndex,
        /// The item's index.
        index: u32,
        /// How it ended.
        outcome: ChildOutcome,
    },
    /// The job's parent failed: nothing new is dispatched (SPEC §6).
    Halt(Arc<str>),
    /// A user, or the parent, cancels the job.
    Cancel {
        /// Why, for the reader.
        reason: Arc<str>,
        /// Whether the parent is to be told (not when the parent itself is cancelled).
        tell_parent: bool,
    },
    /// The job cannot go on: its actor panicked once too often.
    Abandon(Arc<str>),
}

/// What a worker, or the broker in its place, said of an attempt.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A result: the body, not yet parsed.
    Result(Bytes),
    /// `type: error`: the attempt failed; the body, not yet parsed.
    Error(Bytes),
    /// The broker dead-lettered the step message.
    DeadLettered {
        /// The queue it was in.
        queue: String,
        /// The broker's word: `rejected`, `expired`, …
        reason: String,
    },
}

/// How a child job ended, as its parent sees it.
#[derive(Clone, Debug)]
pub enum ChildOutcome {
    /// With this result.
    Completed(Message),
    /// Failed or cancelled, for this reason.
    Failed(Arc<str>),
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// In one sentence.
    pub reason: Arc<str>,
    /// The beginning of the reply that was no JSON object, up to [`REPLY_KEPT_BYTES_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Arc<str>>,
}

/// What was decided, in the past tense: the durable record. A job is the fold of its entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// The job exists. The message of a child job is not repeated: it follows from its parent's input and its index.
    JobCreated {
        /// A top-level job's message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Message>,
    },
    /// A plain step's message is to go out, unconfirmed.
    StepStarted {
        /// The step.
        step: StepIndex,
        /// Which dispatch, from 1.
        attempt: u32,
        /// When.
        at: Timestamp,
    },
    /// The broker confirmed the message of the attempt.
    StepConfirmed {
        /// The step.
        step: StepIndex,
    },
    /// The confirmed message was lost with its queue; it is to go out again.
    StepUnconfirmed {
        /// The step.
        step: StepIndex,
    },
    /// The reply came.
    StepCompleted {
        /// The step.
        step: StepIndex,
        /// When.
        at: Timestamp,
        /// The reply, the step's output.
        output: Message,
    },
    /// The step's attempts are spent.
    StepFailed {
        /// The step.
        step: StepIndex,
        /// When.
        at: Timestamp,
        /// Why.
        failure: Failure,
    },
    /// A fan-out step begins; its items follow from its input.
    FanOutStarted {
        /// The step.
        step: StepIndex,
        /// When.
        at: Timestamp,
        /// The number of items.
        items: u32,
        /// What the reader should know: the list was missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<Arc<str>>,
    },
    /// Child jobs `from..from + count` are to be started.
    ChildrenStarted {
        /// The fan-out step.
        step: StepIndex,
        /// The first item's index.
        from: u32,
        /// How many.
        count: u32,
        /// The ids that are not the derived ones with salt 0.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        own_ids: Vec<(u32, JobId)>,
    },
    /// A child job ended with a result.
    ChildCompleted {
        /// The fan-out step.
        step: StepIndex,
        /// The item's index.
        index: u32,
        /// The value under the singular key and its place among the child's keys.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        item: Option<(u16, Json)>,
        /// The other keys that this child decides so far, with their places.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        others: Vec<(u16, Arc<str>, Json)>,
    },
    /// A child job failed.
    ChildFailed {
        /// The fan-out step.
        step: StepIndex,
        /// The item's index.
        index: u32,
    },
    /// All child jobs ended; the gathered output follows from what they left.
    FanOutCompleted {
        /// The step.
        step: StepIndex,
        /// When.
        at: Timestamp,
    },
    /// Every step is done; the result follows from the outputs.
    JobCompleted {
        /// When.
        at: Timestamp,
    },
    /// The job failed.
    JobFailed {
        /// When.
        at: Timestamp,
        /// Why.
        reason: Arc<str>,
    },
    /// The job was cancelled.
    JobCancelled {
        /// When.
        at: Timestamp,
        /// Why.
        reason: Arc<str>,
    },
}

/// What is to be done outside once the entries are committed.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send a step message.
    Dispatch {
        /// The step.
        step: StepIndex,
        /// The attempt.
        attempt: u32,
        /// The step's input.
        input: Message,
    },
    /// Start a child job.
    StartChild {
        /// Where it comes from.
        origin: Box<Origin>,
        /// Its message.
        message: Message,
    },
    /// Tell a child job that its parent failed.
    HaltChild(JobId, Arc<str>),
    /// Tell a child job that its parent was cancelled.
    CancelChild(JobId, Arc<str>),
    /// Tell the parent how this job ended.
    TellParent(Parent, ChildOutcome),
}

/// The states of a job (SPEC §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Steps are waiting or running.
    Running,
    /// Every step is done.
    Completed,
    /// A step's attempts are spent.
    Failed,
    /// A user, or the parent, ended it.
    Cancelled,
}

impl JobState {
    /// The word for users.
    pub fn word(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Completed => "completed",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }

    /// The state that users call `word`.
    pub fn of_word(word: &str) -> Option<JobState> {
        [JobState::Running, JobState::Completed, JobState::Failed, JobState::Cancelled].into_iter().find(|state| state.word() == word)
    }
}

/// What followed from an input.
#[derive(Debug, Default)]
pub struct Decision {
    /// To be committed together, in order.
    pub entries: Vec<Entry>,
    /// To be done after the commit, in order.
    pub effects: Vec<Effect>,
    /// The job's new state, if the entries changed it.
    pub state: Option<JobState>,
    /// Whether the job takes no more input from now on.
    pub closed: bool,
}

/// An input that changes nothing: counted, acknowledged, harmless (SPEC §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejected {
    /// The graph has no step of that name.
    UnknownStep,
    /// The step waits, or is a fan-out: it has sent no message.
    NotRunning,
    /// The step, or child job, is settled already.
    Duplicate,
    /// The job has ended.
    Ended,
    /// Nothing to change: a confirm of an attempt that is over.
    Void,
}

impl Rejected {
    /// The reason as a metric label.
    pub fn label(self) -> &'static str {
        match self {
            Rejected::UnknownStep => "unknown_step",
            Rejected::NotRunning => "not_running",
            Rejected::Duplicate => "duplicate",
            Rejected::Ended => "ended",
            Rejected::Void => "void",
        }
    }
}
