//! What goes into a decision: what happened to a job, and what the decision may read besides the
//! job.

use super::caller::Caller;
use super::cause::Cause;
use super::entry::Lease;
use super::id::{JobId, StepIndex};
use super::json::Message;
use super::time::{Millis, Timestamp};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The limits for decisions (settings, sections `limits` and `fanout`).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest step message, in bytes.
    pub step_message_bytes_max: usize,
    /// The largest reply, in bytes.
    pub reply_bytes_max: usize,
    /// The most levels of child jobs below a job.
    pub depth_max: u16,
    /// The most child jobs of one step under way at once, unless its task sets another number.
    pub window: u32,
    /// The largest total size of the messages of a step's child jobs under way, in bytes; one child
    /// job is always started.
    pub window_bytes: u64,
}

/// What a decision may read besides the job: time and chance are arguments.
pub struct Context<'a> {
    /// The time of the decision.
    pub now: Timestamp,
    /// The limits in force.
    pub limits: &'a Limits,
}

impl Context<'_> {
    /// Returns the time after a span from now.
    pub(super) fn after(&self, span: Option<Millis>) -> Option<Timestamp> {
        self.now.after(span)
    }
}

/// For each of these steps a time: a reply to an attempt that began before it may lie unread in the
/// reply queue.
pub type UnreadReplies = BTreeMap<StepIndex, Timestamp>;

/// What happens to a job.
#[derive(Clone, Debug)]
pub enum Input {
    /// A worker replied, or the broker dead-lettered the step message.
    Reply {
        /// The step's name, from the correlation id.
        step: String,
        /// The attempt that it answers, if the header `attempt` is there.
        attempt: Option<u32>,
        /// The reply itself.
        reply: Reply,
        /// The sender of the reply.
        from: Sender,
    },
    /// The broker took responsibility for a step message.
    Confirmed {
        /// The step.
        step: StepIndex,
        /// The attempt that was dispatched.
        attempt: u32,
        /// The number of the entry that dispatched it. An attempt that was dispatched again has
        /// another number: the confirm of an earlier copy does not count for the later one. `None`:
        /// that of the last dispatch.
        dispatch: Option<u64>,
    },
    /// A bus without confirms and leases has handed a step message over.
    Begun {
        /// The step.
        step: StepIndex,
        /// The attempt that was dispatched.
        attempt: u32,
    },
    /// The bus has leased a step message to a worker.
    Leased {
        /// The step.
        step: StepIndex,
        /// The attempt that was dispatched.
        attempt: u32,
        /// How long the worker has the message.
        lease: Lease,
    },
    /// The queue of these steps was found missing: its messages are lost.
    QueueMissing(Vec<StepIndex>),
    /// A child job ended.
    ChildEnded {
        /// The fan-out step.
        step: StepIndex,
        /// The item's index.
        index: u32,
        /// Which child job it is, and how it ended.
        ended: ChildEnd,
    },
    /// A child job that was to be retried was never created.
    ChildMissing {
        /// The fan-out step.
        step: StepIndex,
        /// The item's index.
        index: u32,
    },
    /// A child job cannot start under the id that was tried, because a job that has not ended has
    /// it.
    IdConflict {
        /// The fan-out step.
        step: StepIndex,
        /// The item's index.
        index: u32,
        /// The id.
        id: JobId,
    },
    /// The time that [`super::Job::next_timer`] returned has come, by a monotonic clock.
    Timer {
        /// The time that has come.
        due: Timestamp,
        /// Attempts of these steps that began before these times must not time out now: their
        /// replies may not have been read yet. All others may.
        unread: UnreadReplies,
    },
    /// The parent gives an order to its child job.
    Order(Order),
    /// A client asks for an operation.
    Operate(OperationRequest),
    /// A call on the workflow's queue asks for this very job, and its sender waits for the answer.
    CallerJoined(Caller),
    /// The broker took the answer to a caller.
    CallerAnswered {
        /// The number of the caller.
        caller: u32,
        /// The number of the end.
        end: u32,
    },
    /// The job cannot go on: its actor has panicked too often.
    Abandon(Arc<str>),
}

impl Input {
    /// Returns the input for an operation.
    pub fn from_request(request: impl Into<OperationRequest>) -> Input {
        Input::Operate(request.into())
    }
}

/// Why an operation is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationError {
    /// The job has no step of that name.
    UnknownStep(String),
    /// The operation is not possible in the current state.
    Conflict(String),
    /// The reply given by hand is one that no worker could give. The client can correct it.
    Invalid(String),
}

impl OperationError {
    /// Returns the reason, in a sentence.
    pub fn message(&self) -> &str {
        match self {
            OperationError::UnknownStep(text)
            | OperationError::Conflict(text)
            | OperationError::Invalid(text) => text,
        }
    }
}

/// An order from a parent to a child job. An order that arrives late, in a later round, is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// How often the parent had retried the child job when it gave the order.
    pub round: u32,
    /// What the child job has to do.
    pub instruction: Instruction,
}

/// What a child job has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Dispatch nothing new, because the parent's step failed (docs/http-api.md).
    Halt(Arc<str>),
    /// End, because the parent or its step was cancelled.
    Cancel(Arc<str>),
    /// End, because the deadline of the whole job has passed.
    Expire(Arc<str>),
    /// Dispatch nothing new until a resume.
    Pause,
    /// Go on after a pause.
    Resume,
    /// Go on from what failed; the order's round is the new one.
    Retry,
}

/// The reasons in orders to child jobs: the same while the manager runs and after a restart.
pub(super) mod reasons {
    pub(crate) const JOB_FAILED: &str = "the job it belongs to failed";
    pub(crate) const JOB_CANCELLED: &str = "the job it belongs to was cancelled";
    pub(crate) const STEP_FAILED: &str = "its step failed";
    pub(crate) const STEP_CANCELLED: &str = "its step was cancelled";
    pub(crate) const STEP_PAUSES: &str = "its step begins again after a pause";
}

/// An operation that is asked for, by which principal, and why.
#[derive(Clone, Debug)]
pub struct OperationRequest {
    /// The operation.
    pub operation: Operation,
    /// The reason, in the words of the client, for the record.
    pub reason: Option<Arc<str>>,
    /// The principal: the name of a token.
    pub principal: Option<Arc<str>>,
}

impl From<Operation> for OperationRequest {
    fn from(operation: Operation) -> OperationRequest {
        OperationRequest { operation, reason: None, principal: None }
    }
}

/// An operation of a client on a job (docs/http-api.md).
#[derive(Clone, Debug)]
pub enum Operation {
    /// Ends the job; later replies are ignored.
    Cancel {
        /// The reason, for the record.
        reason: Arc<str>,
    },
    /// Dispatches nothing new; replies are taken.
    Pause,
    /// Goes on after a pause.
    Resume,
    /// Goes on from the failed steps; what is complete is kept.
    Retry,
    /// Starts a step again, and all that depends on it.
    Rerun {
        /// The step's name.
        step: String,
    },
    /// Sends the message of a running step once more, as the same attempt.
    Redispatch {
        /// The step's name.
        step: String,
    },
    /// Settles a running step in place of its worker.
    Reply {
        /// The step's name.
        step: String,
        /// The reply.
        reply: Reply,
    },
}

impl Operation {
    /// Returns the step that it concerns, if it concerns only one.
    pub fn step(&self) -> Option<&str> {
        match self {
            Operation::Cancel { .. }
            | Operation::Pause
            | Operation::Resume
            | Operation::Retry
            | Operation::Rerun { .. } => None,
            Operation::Redispatch { step } | Operation::Reply { step, .. } => Some(step),
        }
    }

    /// Returns its name, for users.
    pub fn as_str(&self) -> &'static str {
        match self {
            Operation::Cancel { .. } => "cancel",
            Operation::Pause => "pause",
            Operation::Resume => "resume",
            Operation::Retry => "retry",
            Operation::Rerun { .. } => "rerun",
            Operation::Redispatch { .. } => "redispatch",
            Operation::Reply { .. } => "reply",
        }
    }
}

/// The reply of a worker, or of the broker in its place, to an attempt.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A result: the body, not yet parsed.
    Result(Bytes),
    /// `type: progress`: the step goes on; the body, not yet parsed.
    Progress(Bytes),
    /// `type: error`: the attempt failed; the body, not yet parsed.
    Error(Bytes),
    /// The broker dead-lettered the step message.
    DeadLettered {
        /// The queue it was in.
        queue: String,
        /// The broker's reason: `rejected`, `expired`, …
        reason: String,
    },
}

/// The sender of a reply, as far as its bus can verify it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sender {
    /// The bus does not know the sender.
    #[default]
    Unknown,
    /// The user of the broker, or the token, of this name.
    User(Arc<str>),
    /// The manager itself: the reply is the answer to a call that it made or the dead letter of a
    /// message that it sent, or comes from a worker or a job in this process.
    Manager,
}

/// The end of a child job, as reported to its parent.
#[derive(Clone, Debug)]
pub struct ChildEnd {
    /// The child job.
    pub child: JobId,
    /// How often it had been retried.
    pub round: u32,
    /// How it ended.
    pub outcome: ChildOutcome,
}

/// How a child job ended.
#[derive(Clone, Debug)]
pub enum ChildOutcome {
    /// It completed with this result.
    Completed(Message),
    /// It failed or was cancelled, for this reason.
    Failed(Cause),
}

/// Why an input changes nothing: it is counted and acknowledged, and does no harm
/// (docs/worker-protocol.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejected {
    /// The graph has no step of that name.
    UnknownStep,
    /// The step waits, or is a fan-out: it has sent no message.
    NotRunning,
    /// The step, or child job, is settled already.
    Duplicate,
    /// A failure, or the progress, of an attempt that is over.
    Late,
    /// The step takes only replies of certain users, and this reply is not known to be from one.
    ForeignUser,
    /// A progress message that is not a JSON object, or that has wrong values. The text names the
    /// fault.
    BadProgress(&'static str),
    /// The job has ended.
    Ended,
    /// There is nothing to change, as for a confirm of an attempt that is over.
    Void,
}

impl Rejected {
    /// Returns whether the attempt goes on after a worker's message about it was rejected: then the
    /// worker still has its message.
    pub fn keeps_attempt(self) -> bool {
        matches!(self, Rejected::ForeignUser | Rejected::BadProgress(_))
    }

    /// Returns the reason as a metric label.
    pub fn label(self) -> &'static str {
        match self {
            Rejected::UnknownStep => "unknown_step",
            Rejected::NotRunning => "not_running",
            Rejected::Duplicate => "duplicate",
            Rejected::Late => "late",
            Rejected::ForeignUser => "foreign_user",
            Rejected::BadProgress(_) => "bad_progress",
            Rejected::Ended => "ended",
            Rejected::Void => "void",
        }
    }

    /// Returns what is wrong with the message itself, if that is the reason.
    pub fn fault(self) -> Option<&'static str> {
        match self {
            Rejected::BadProgress(fault) => Some(fault),
            Rejected::UnknownStep
            | Rejected::NotRunning
            | Rejected::Duplicate
            | Rejected::Late
            | Rejected::ForeignUser
            | Rejected::Ended
            | Rejected::Void => None,
        }
    }
}
