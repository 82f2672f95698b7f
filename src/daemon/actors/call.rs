//! Calls: messages on the workflows' queues, each of which asks for a job
//! (docs/worker-protocol.md). A call is acknowledged once its job and its caller are committed; a
//! refused call, once the broker has the refusal. While the manager takes no jobs, calls wait in
//! the router, unacknowledged. The prefetch bounds how many; the rest wait in the broker.

use bus::Acknowledger;
use engine::{Caller, CorrelationId, Definition, Job, JobId, Message, TraceContext};
use std::sync::Arc;

/// A message that asks for a job.
pub struct Call {
    pub(super) definition: Arc<Definition>,
    pub(super) id: JobId,
    pub(super) message: Message,
    /// The caller that waits for the job's end, if any.
    pub(super) caller: Option<Caller>,
    /// How many levels of calls and child jobs are above its job.
    pub(super) depth: u16,
    /// Its trace context, if it has one.
    pub(super) trace: Option<Arc<TraceContext>>,
    pub(super) source: CallSource,
    pub(super) ack: Acknowledger,
}

/// Who sends a call, as far as is known.
pub(super) enum CallSource {
    /// Any sender that is not a step.
    External,
    /// The message claims to be from this attempt of a step. The step's job has not checked the
    /// claim yet.
    Unverified(CorrelationId, u32),
    /// A step of a job, which waits for the result. Such a call must not wait for other jobs to
    /// end: they may wait for its own job.
    Step,
}

impl Call {
    /// Checks the claimed source with the job of the step.
    pub(super) fn verified_by(self, job: &Job) -> Call {
        let source = match &self.source {
            CallSource::Unverified(sender, attempt)
                if job.is_awaiting_reply(
                    &sender.step,
                    *attempt,
                    &Definition::call_queue(&self.definition.name),
                ) =>
            {
                CallSource::Step
            }
            CallSource::Unverified(..) | CallSource::External | CallSource::Step => {
                CallSource::External
            }
        };
        Call { source, ..self }
    }

    /// Returns the bytes of its message: about what its job will take in memory.
    pub(super) fn message_bytes(&self) -> usize {
        self.message.encoded_len()
    }

    pub(super) fn is_from_step(&self) -> bool {
        matches!(self.source, CallSource::Step)
    }
}
