//! What a job's entries cause outside the job.

use super::id::{JobId, StepIndex};
use super::input::{ChildEnd, Order};
use super::json::Message;
use super::origin::{Origin, Parent};

/// What to do outside the job once the entries are committed.
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
        /// Which end of the job: how many ends came before it.
        end: u32,
    },
}
