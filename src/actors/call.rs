//! Calls: messages on the workflows' queues, each of which asks for a job (SPEC §4).
//!
//! A call is acknowledged when its job, with its caller, is committed; one that is refused, when
//! the broker has the refusal. While the manager takes no jobs a call waits in the router, unacknowledged:
//! the prefetch bounds how many, the rest wait in the broker.

use crate::bus::Acknowledge;
use crate::engine::{Caller, CorrelationId, Definition, Job, JobId, Message};
use std::sync::Arc;

/// A message that asks for a job.
pub struct Call {
    pub(super) definition: Arc<Definition>,
    pub(super) id: JobId,
    pub(super) message: Message,
    /// Who is to be told its end; none: nobody waits for it.
    pub(super) caller: Option<Caller>,
    /// How many levels of calls and child jobs are above its job.
    pub(super) depth: u16,
    pub(super) asker: Asker,
    pub(super) ack: Acknowledge,
}

/// Who sends a call, as far as is known.
pub(super) enum Asker {
    /// Anybody.
    Stranger,
    /// By what the message says, this attempt of a step; its job has not been asked.
    Claimed(CorrelationId, u32),
    /// A step of a job, which waits for the answer. It does not wait for others to end: its own job
    /// may be what they wait for.
    Step,
}

impl Call {
    /// Asks the job of the step that says it has sent it.
    pub(super) fn vouched_by(self, job: &Job) -> Call {
        let asker = match &self.asker {
            Asker::Claimed(place, attempt)
                if job.awaits(
                    &place.step,
                    *attempt,
                    &Definition::call_queue(&self.definition.name),
                ) =>
            {
                Asker::Step
            }
            Asker::Claimed(..) | Asker::Stranger | Asker::Step => Asker::Stranger,
        };
        Call { asker, ..self }
    }

    pub(super) fn is_of_step(&self) -> bool {
        matches!(self.asker, Asker::Step)
    }
}
