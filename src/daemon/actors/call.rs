//! Calls: messages on the workflows' queues, each of which asks for a job
//! (docs/reference/worker-protocol.md).
//!
//! A call is acknowledged after the commit of its job and its caller. A refused call is
//! acknowledged once the broker has confirmed the refusal. While the manager accepts no jobs, calls
//! wait in the router, unacknowledged. The prefetch bounds their number, and further calls wait in
//! the broker.

use bus::Acknowledger;
use engine::{Caller, CorrelationId, Definition, Job, JobId, Message, TraceContext};
use std::sync::Arc;

/// A message that asks for a job.
pub struct Call {
    pub(super) definition: Arc<Definition>,
    /// The id of the job that the call asks for.
    pub(super) id: JobId,
    pub(super) message: Message,
    /// The caller that gets the job's end as a message; `None`: the call has no `reply_to`.
    pub(super) caller: Option<Caller>,
    /// How many levels of calls and child jobs are above the job of the call.
    pub(super) depth: u16,
    /// The trace context of the message, if it has one.
    pub(super) trace: Option<Arc<TraceContext>>,
    pub(super) source: CallSource,
    pub(super) ack: Acknowledger,
}

/// The sender of a call.
pub(super) enum CallSource {
    /// The sender is not a step.
    External,
    /// The message claims to be sent by a step: the correlation id of the step, and the number of
    /// the attempt. The step's job has not checked the claim yet.
    Unverified(CorrelationId, u32),
    /// The sender is a step of a job, which waits for the result. Such a call must not wait until
    /// other jobs end, because they may in turn wait for its result: a deadlock.
    Step,
}

impl Call {
    /// Returns the call with its source verified by the job of the step. A false claim makes the
    /// call external.
    pub(super) fn verified_by(self, job: &Job) -> Call {
        let source = match &self.source {
            CallSource::Unverified(sender, attempt)
                if job.is_awaiting_reply(
                    &sender.step,
                    *attempt,
                    &Definition::workflow_queue(&self.definition.name),
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

    /// Returns the size of the message, which estimates the memory that its job will take.
    pub(super) fn message_bytes(&self) -> usize {
        self.message.encoded_len()
    }

    pub(super) fn is_from_step(&self) -> bool {
        matches!(self.source, CallSource::Step)
    }
}
