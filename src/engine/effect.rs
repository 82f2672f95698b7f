//! The effects of a job's entries outside the job.

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
        /// The step and item of this job for which it was started. They detect that another job has
        /// the id by now.
        parent_item: ParentItem,
        /// The order.
        order: Order,
    },
    /// Report the end of this job to its parent.
    NotifyParent(ParentItem, ChildEnd),
    /// Report the end of this job to a caller.
    AnswerCaller {
        /// The index of the caller, in the order in which they joined.
        caller: u32,
        /// How many ends of the job came before this one.
        end: u32,
    },
}
