//! What a job's entries cause outside the job.

use super::id::{JobId, StepIndex};
use super::input::{ChildEnd, Order};
use super::json::Message;
use super::origin::{Origin, ParentItem};

/// What to do outside the job once the entries are committed.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Sends a step message.
    Dispatch {
        /// The step.
        step: StepIndex,
        /// The attempt.
        attempt: u32,
        /// The step's input.
        input: Message,
    },
    /// Starts a child job.
    StartChild {
        /// The origin of the child job.
        origin: Box<Origin>,
        /// Its message.
        message: Message,
    },
    /// Gives an order to a child job.
    OrderChild {
        /// The child job.
        child: JobId,
        /// The step and item of this job that it was started for: another job may have its id by
        /// now.
        parent_item: ParentItem,
        /// The order.
        order: Order,
    },
    /// Reports the end of this job to its parent.
    NotifyParent(ParentItem, ChildEnd),
    /// Reports the end of this job to a caller.
    AnswerCaller {
        /// The number of the caller, by the order in which they came.
        caller: u32,
        /// The number of the end: how many ends of the job came before it.
        end: u32,
    },
}
