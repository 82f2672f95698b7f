//! The inputs of decisions: what happens to a job, and the context in which the job decides.

use super::caller::Caller;
use super::cause::Cause;
use super::control::Pauses;
use super::entry::Lease;
use super::id::{JobId, StepIndex};
use super::json::Message;
use super::limit::RateMark;
use super::spare::SpareSource;
use super::time::{Millis, Timestamp};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The limits for decisions, from the sections `limits` and `fanout` of the settings.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum size of a step message, in bytes.
    pub step_message_bytes_max: usize,
    /// The maximum size of a reply, in bytes.
    pub reply_bytes_max: usize,
    /// The maximum depth of a job (see [`Origin::depth`](super::Origin::depth)).
    pub depth_max: u16,
    /// The maximum number of active child jobs of one step, unless its task sets another number.
    pub window: u32,
    /// The maximum total size of the messages of a step's active child jobs, in bytes. One child
    /// job may always be active.
    pub window_bytes: u64,
}

/// What a decision may read besides the job and its input. Nothing else influences it, so decisions
/// are deterministic.
pub struct Context<'a> {
    /// The time of the decision.
    pub now: Timestamp,
    /// The limits in force.
    pub limits: &'a Limits,
    /// The queues and workflows that are paused; `None`: none are.
    pub pauses: Option<&'a Pauses>,
    /// From where spare places of limits are taken; `None`: from nowhere.
    pub spare: Option<&'a dyn SpareSource>,
}

impl Context<'_> {
    /// Returns the time `duration` from now; `None` without a duration.
    pub(super) fn after(&self, duration: Option<Millis>) -> Option<Timestamp> {
        self.now.after(duration)
    }
}

/// Steps whose replies may lie unread in a reply queue. The time of a step means: if its attempt
/// started before that time, the reply to it may be unread.
pub type UnreadReplies = BTreeMap<StepIndex, Timestamp>;

/// An event that a job must react to.
#[derive(Clone, Debug)]
pub enum Input {
    /// A worker replied, or the broker dead-lettered the step message.
    Reply {
        /// The step's name, from the correlation id.
        step: String,
        /// The attempt that it is for, from the header `attempt`; `None`: there is no such header.
        attempt: Option<u32>,
        /// The content of the reply.
        reply: Reply,
        /// The sender of the reply.
        from: Sender,
    },
    /// The broker confirmed a step message.
    Confirmed {
        /// The step.
        step: StepIndex,
        /// The number of the attempt.
        attempt: u32,
        /// The number of the entry that dispatched the message. It differs each time the same
        /// attempt is dispatched, so that the confirm of an earlier copy does not count for a later
        /// one. `None`: the latest dispatch.
        dispatch: Option<u64>,
    },
    /// A bus without confirms and leases has delivered a step message.
    Begun {
        /// The step.
        step: StepIndex,
        /// The number of the attempt.
        attempt: u32,
    },
    /// The bus has leased a step message to a worker.
    Leased {
        /// The step.
        step: StepIndex,
        /// The number of the attempt.
        attempt: u32,
        /// The lease.
        lease: Lease,
    },
    /// The queue of these steps no longer exists, and its messages are lost.
    QueueMissing(Vec<StepIndex>),
    /// A child job ended.
    ChildEnded {
        /// The fan-out step.
        step: StepIndex,
        /// The item's index.
        index: u32,
        /// The child job, and how it ended.
        ended: ChildEnd,
    },
    /// A child job that was to be retried does not exist.
    ChildMissing {
        /// The fan-out step.
        step: StepIndex,
        /// The item's index.
        index: u32,
    },
    /// A child job cannot start under its id, because another job that has not ended has the same
    /// one.
    IdConflict {
        /// The fan-out step.
        step: StepIndex,
        /// The item's index.
        index: u32,
        /// The conflicting id.
        id: JobId,
    },
    /// The time that [`Job::next_timer`](super::Job::next_timer) returned has been reached. It is
    /// measured with a monotonic clock.
    Timer {
        /// The time that has been reached.
        due: Timestamp,
        /// Replies that may lie unread. An attempt whose reply may be among them does not time out.
        unread: UnreadReplies,
    },
    /// The gate has admitted what a step claimed.
    Admitted {
        /// The step.
        step: StepIndex,
        /// The [ticket](super::StepClaim::ticket) of the claim.
        ticket: u64,
        /// How far the rates are used up with this message. The journal commits them with the
        /// entries of the decision.
        marks: Vec<RateMark>,
    },
    /// The parent gives an order to this job, its child job.
    Order(Order),
    /// A client requests an operation.
    Operate(OperationRequest),
    /// A call on the workflow's queue requests this job, and its sender waits for the answer.
    CallerJoined(Caller),
    /// The broker confirmed the answer to a caller.
    CallerAnswered {
        /// The index of the caller, in the order in which callers joined.
        caller: u32,
        /// The number of the answered end: how often the job had ended before.
        end: u32,
    },
    /// The manager gives the job up for this reason, because its actor has panicked too often.
    Abandon(Arc<str>),
}

impl Input {
    /// Returns the input for a request for an operation.
    pub fn from_request(request: impl Into<OperationRequest>) -> Input {
        Input::Operate(request.into())
    }
}

/// Why an operation is refused. Each variant contains the reason, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationError {
    /// The job has no step of that name.
    UnknownStep(String),
    /// The operation is not possible in the current state.
    Conflict(String),
    /// The manual reply is not valid. The client can correct it.
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

/// An order from a parent to a child job. It is ignored if it arrives late: after the child job has
/// reached a later round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// How often the parent had retried the child job when it gave the order.
    pub round: u32,
    /// What the child job must do.
    pub instruction: Instruction,
}

/// What a parent orders its child job to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Fail, because the parent or its step failed or waits for a retry
    /// (docs/reference/http-api-operations.md).
    Halt(Arc<str>),
    /// Cancel, because the parent or its step was cancelled.
    Cancel(Arc<str>),
    /// Fail, because the deadline of the job tree has passed.
    Expire(Arc<str>),
    /// Pause: dispatch nothing new until a resume.
    Pause,
    /// Resume after a pause.
    Resume,
    /// Retry the failed steps. The order's round is the new one.
    Retry,
}

/// The reasons in orders to child jobs. An order that is given again after a restart has the same
/// reason.
pub(super) mod reasons {
    pub(crate) const JOB_FAILED: &str = "the job it belongs to failed";
    pub(crate) const JOB_CANCELLED: &str = "the job it belongs to was cancelled";
    pub(crate) const STEP_FAILED: &str = "its step failed";
    pub(crate) const STEP_CANCELLED: &str = "its step was cancelled";
    pub(crate) const STEP_RERUN: &str = "its step was rerun";
    pub(crate) const STEP_PAUSES: &str = "its step begins again after a pause";
}

/// Returns whether a child job failed for this reason because its parent halted it: nothing went
/// wrong in it.
pub fn is_halt_reason(reason: &str) -> bool {
    use reasons::{JOB_FAILED, STEP_FAILED, STEP_PAUSES, STEP_RERUN};
    [JOB_FAILED, STEP_FAILED, STEP_PAUSES, STEP_RERUN].contains(&reason)
}

/// A request for an operation, with its principal and its reason.
#[derive(Clone, Debug)]
pub struct OperationRequest {
    /// The operation.
    pub operation: Operation,
    /// The client's reason, for the record.
    pub reason: Option<Arc<str>>,
    /// The principal: the name of the client's token; `None`: no token was required.
    pub principal: Option<Arc<str>>,
}

impl From<Operation> for OperationRequest {
    fn from(operation: Operation) -> OperationRequest {
        OperationRequest { operation, reason: None, principal: None }
    }
}

/// An operation of a client on a job (docs/reference/http-api-operations.md).
#[derive(Clone, Debug)]
pub enum Operation {
    /// Cancels the job. Later replies are ignored.
    Cancel {
        /// The reason, for the record.
        reason: Arc<str>,
    },
    /// Pauses the job: nothing new is dispatched, but replies are accepted.
    Pause,
    /// Resumes the job after a pause.
    Resume,
    /// Retries the failed steps. Completed steps keep their outputs.
    Retry,
    /// Starts a step again, and all steps that depend on it.
    Rerun {
        /// The step's name.
        step: String,
        /// Whether the step keeps the results of its child jobs, and runs only its items without
        /// one again.
        only_failed_items: bool,
    },
    /// Sends the message of a running step again, as the same attempt.
    Redispatch {
        /// The step's name.
        step: String,
    },
    /// Replies to a running step in place of its worker.
    Reply {
        /// The step's name.
        step: String,
        /// The reply.
        reply: Reply,
    },
}

impl Operation {
    /// Returns the name of the only step that it concerns; `None`: it concerns several steps.
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

    /// Returns the operation's name, for users.
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

/// A reply to an attempt, from a worker or from the broker in its place. Bodies are not parsed yet.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The result of the step.
    Result(Bytes),
    /// `type: progress`: the progress of the attempt, which continues.
    Progress(Bytes),
    /// `type: error`: the attempt failed.
    Error(Bytes),
    /// The broker dead-lettered the step message.
    DeadLettered {
        /// The queue in which the message was.
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
    /// The manager itself. The reply is the response to a request that it made, or the dead letter
    /// of a message that it sent, or it comes from a worker or a job in this process.
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
    /// The child job completed with this result.
    Completed(Message),
    /// The child job failed or was cancelled, for this reason.
    Failed(Cause),
}

/// Why an input is rejected and changes nothing. A rejected reply is acknowledged and counted
/// (docs/reference/worker-protocol.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejected {
    /// The graph has no step of that name.
    UnknownStep,
    /// The input does not fit the job: the step has not started, sends no messages to a queue or
    /// has no child jobs, or the job cannot have callers because it is a child job.
    NotRunning,
    /// The step or child job has ended already, another child job replaces it, or the caller waits
    /// already.
    Duplicate,
    /// The reply is to an attempt that is over, or the input is about an earlier round or id of a
    /// child job.
    Late,
    /// The step accepts only replies of certain users, and the sender is not known to be one of
    /// them.
    ForeignUser,
    /// The progress message is too large, is not a JSON object, or has invalid values. The text
    /// says what is wrong.
    BadProgress(&'static str),
    /// The job has ended.
    Ended,
    /// There is nothing to change. For example, a confirm is about an earlier dispatch, or an
    /// operation is refused.
    Void,
}

impl Rejected {
    /// Returns whether the attempt continues although a worker's message about it was rejected for
    /// this reason. If so, the worker keeps the step message.
    pub fn keeps_attempt(self) -> bool {
        matches!(self, Rejected::ForeignUser | Rejected::BadProgress(_))
    }

    /// Returns the reason as the value of a metric's label.
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

    /// Returns what is wrong with the content of the message; `None`: the reason is another one.
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
