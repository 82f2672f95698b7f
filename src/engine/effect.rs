//! The effects of a job's entries outside the job. Other parts carry them out after the commit.

use super::id::{JobId, StepIndex};
use super::input::{ChildEnd, Order};
use super::json::Message;
use super::origin::{Origin, ParentItem};

/// An action outside the job, to carry out once the job's entries are committed.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send a step message.
    Dispatch {
        /// The step.
        step: StepIndex,
        /// The number of the attempt.
        attempt: u32,
        /// The step's input.
        input: Message,
    },
    /// Start a child job.
    StartChild {
        /// The origin of the child job.
        origin: Box<Origin>,
        /// The message of the child job.
        message: Message,
    },
    /// Give an order to a child job.
    OrderChild {
        /// The child job.
        child: JobId,
        /// The step and item of this job for which it was started. They are compared with those of
        /// the job that has the id now, which may be another job.
        parent_item: ParentItem,
        /// The order.
        order: Order,
    },
    /// Report the end of this job to its parent.
    NotifyParent(ParentItem, ChildEnd),
    /// Report the end of this job to a caller.
    AnswerCaller {
        /// The index of the caller, in the order in which callers joined.
        caller: u32,
        /// The number of the answered end: how often the job had ended before.
        end: u32,
    },
}
