//! What comes out of a decision: entries for the journal, effects for the world.

use super::call::Caller;
use super::cause::Cause;
use super::definition::{Definition, GraphIndex, Millis};
use super::id::{JobId, StepIndex};
use super::input::{ChildEnd, Order};
use super::json::{Json, Message};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How much is kept of a reply that is no JSON object, and of each text that a worker says, in
/// bytes (SPEC §3.2, §4).
pub const REPLY_KEPT_BYTES_MAX: usize = 4096;

/// How much is kept of a status that a worker reports, in bytes.
pub const STATUS_BYTES_MAX: usize = 255;

/// Nanoseconds since 1970-01-01 UTC.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The time after a span from this one.
    pub(super) fn after(self, span: Option<Millis>) -> Option<Timestamp> {
        let span_ns = i64::try_from(u128::from(span?.0) * 1_000_000).unwrap_or(i64::MAX);
        Some(Timestamp(self.0.saturating_add(span_ns)))
    }

    /// The time a span before this one.
    pub fn before(self, span: Millis) -> Timestamp {
        let span_ns = i64::try_from(u128::from(span.0) * 1_000_000).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_sub(span_ns))
    }
}

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
    /// 0 for a job that a client asked for, one more for each level of child jobs, and for each job
    /// that a step asked for.
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

/// What a worker tells of a step that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The step's status from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Arc<str>>,
    /// How much of the work is done: a number from 0 to 1, as it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Json>,
    /// A sentence for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Arc<str>>,
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// In one sentence.
    pub reason: Arc<str>,
    /// The beginning of the reply that was no JSON object, up to [`REPLY_KEPT_BYTES_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Arc<str>>,
    /// Of a step with child jobs: what went wrong in them, as the jobs above are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Box<Cause>>,
}

/// What was decided, in the past tense: the durable record. A job is the fold of its entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// The job exists. The message of a child job is not repeated: it follows from its parent's
    /// input and its index.
    JobCreated {
        /// A top-level job's message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Message>,
        /// When it fails, if it is not done by then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// A plain step's message is to go out, unconfirmed; of an external step none.
    StepStarted {
        /// The step.
        step: StepIndex,
        /// Which dispatch, from 1.
        attempt: u32,
        /// When.
        at: Timestamp,
        /// When the attempt fails, if there is no reply by then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// The broker confirmed the message of the attempt.
    StepConfirmed {
        /// The step.
        step: StepIndex,
    },
    /// The confirmed message is to go out once more, as the same attempt: it was lost with its
    /// queue, or somebody asked for it.
    StepUnconfirmed {
        /// The step.
        step: StepIndex,
        /// When; earlier versions did not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<Timestamp>,
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
    /// The worker told how it gets on.
    StepProgressed {
        /// The step.
        step: StepIndex,
        /// When.
        at: Timestamp,
        /// What it told.
        progress: Progress,
        /// When the attempt fails now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// An attempt failed; the next one follows after a pause.
    AttemptFailed {
        /// The step.
        step: StepIndex,
        /// The attempt.
        attempt: u32,
        /// When.
        at: Timestamp,
        /// Why.
        failure: Failure,
        /// When the next one is due.
        retry_at: Timestamp,
    },
    /// Its condition `when` came to false.
    StepSkipped {
        /// The step.
        step: StepIndex,
        /// When.
        at: Timestamp,
    },
    /// Its condition `cancelWhen` came to true.
    StepCancelled {
        /// The step.
        step: StepIndex,
        /// When.
        at: Timestamp,
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
        /// When it fails, if it is not done by then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// A fan-out step goes on after a failure: the child jobs that were started and have no result
    /// are retried.
    FanOutRestarted {
        /// The step.
        step: StepIndex,
        /// Which beginning, from 2.
        attempt: u32,
        /// When.
        at: Timestamp,
        /// When it fails, if it is not done by then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
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
        /// Whether it takes no more replies: its deadline has passed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        expired: bool,
        /// The step whose failure it was; none where it was no step's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<StepIndex>,
    },
    /// Nothing new is dispatched from now on.
    JobPaused {
        /// When.
        at: Timestamp,
    },
    /// It goes on after a pause.
    JobResumed {
        /// When.
        at: Timestamp,
    },
    /// A failed job goes on from its failed steps.
    JobRetried {
        /// When.
        at: Timestamp,
        /// How often it has been retried with this one.
        round: u32,
        /// When it fails now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// A step, and all that depends on it, begins once more.
    JobRerun {
        /// When.
        at: Timestamp,
        /// The step.
        step: StepIndex,
        /// When the job fails now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// The job was cancelled.
    JobCancelled {
        /// When.
        at: Timestamp,
        /// Why.
        reason: Arc<str>,
    },
    /// A message on the workflow's queue asked for the job, and somebody waits for its end.
    CallerJoined {
        /// Who.
        caller: Caller,
    },
    /// The broker has taken the answer to a caller.
    CallerAnswered {
        /// Which one, by the order in which they came.
        caller: u32,
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
    /// Tell a child job.
    TellChild {
        /// The child job.
        child: JobId,
        /// Its place in this job: another job may have its id by now.
        place: Parent,
        /// What it is told.
        order: Order,
    },
    /// Tell the parent how this job ended.
    TellParent(Parent, ChildEnd),
    /// Tell a caller how this job ended.
    AnswerCaller {
        /// Which one, by the order in which they came.
        caller: u32,
        /// Which end of the job: how often it went on after one.
        end: u32,
    },
}

/// The states of a job (SPEC §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Steps are waiting or running.
    Running,
    /// Steps that run are waited for, nothing new is dispatched.
    Paused,
    /// Every step is done.
    Completed,
    /// A step's attempts are spent.
    Failed,
    /// A user, or the parent, ended it.
    Cancelled,
}

impl JobState {
    /// All of them.
    pub const ALL: [JobState; 5] = [
        JobState::Running,
        JobState::Paused,
        JobState::Completed,
        JobState::Failed,
        JobState::Cancelled,
    ];

    /// Whether the job has come to an end, be it that it can be retried.
    pub fn is_ended(self) -> bool {
        match self {
            JobState::Running | JobState::Paused => false,
            JobState::Completed | JobState::Failed | JobState::Cancelled => true,
        }
    }

    /// The word for users.
    pub fn word(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Paused => "paused",
            JobState::Completed => "completed",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }

    /// The state that users call `word`.
    pub fn of_word(word: &str) -> Option<JobState> {
        JobState::ALL.into_iter().find(|state| state.word() == word)
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
    /// The new statuses of a top-level job's steps, if the entries changed them (SPEC §7).
    pub statuses: Vec<(StepIndex, Arc<str>)>,
    /// Whether the job takes no more input from now on.
    pub closed: bool,
}
