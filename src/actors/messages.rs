//! What leaves a job for a bus: step messages, and answers to its callers.

use crate::bus::{Body, CallerAnswer, Receipt, StepMessage};
use crate::engine::id::span_id;
use crate::engine::{Definition, Job, JobState, Message, StepIndex, Timestamp};
use crate::times;

/// The message of an attempt.
pub(super) fn step_message(
    job: &Job,
    definition: &Definition,
    step: StepIndex,
    attempt: u32,
    input: Message,
    now: Timestamp,
) -> StepMessage {
    let run = job.graph().step(step);
    StepMessage {
        job: job.id(),
        root: job.origin().root,
        workflow: definition.full_name().into(),
        step,
        step_name: run.name.clone(),
        attempt,
        queue: run.queue.clone(),
        priority: run.priority,
        traceparent: traceparent(job, step, attempt),
        timestamp_s: times::seconds(now),
        depth: run.queue.starts_with(Definition::CALL_QUEUE_PREFIX).then_some(job.origin().depth),
        body: input.into(),
    }
}

/// How the job ended, for its caller.
pub(super) fn caller_answer(
    job: &Job,
    caller: u32,
    end: u32,
    bytes_max: usize,
    now: Timestamp,
) -> Option<CallerAnswer> {
    let result = match job.state() {
        JobState::Running | JobState::Paused => return None,
        JobState::Completed => Ok(Body::from(job.result())),
        // Whoever asked may have it tried again, as a job of its own.
        JobState::Failed => Err(CallerAnswer::error(&job.reason_text(), true)),
        JobState::Cancelled => {
            Err(CallerAnswer::error(&format!("cancelled: {}", job.reason_text()), false))
        }
    };
    let result = result.and_then(|result| {
        let bytes = result.len();
        let too_large = || format!("the result has {bytes} bytes, the limit is {bytes_max} (setting limits.step_message_bytes_max)");
        if bytes > bytes_max { Err(CallerAnswer::error(&too_large(), false)) } else { Ok(result) }
    });
    Some(CallerAnswer {
        caller: job.caller(caller)?.clone(),
        workflow: job.definition().full_name().into(),
        job: job.id(),
        is_error: result.is_err(),
        timestamp_s: times::seconds(now),
        body: result.unwrap_or_else(|error| error),
        receipt: Receipt::Job { caller, end },
    })
}

/// One trace per top-level job; the span is that of the dispatch. Both follow from ids, so that a
/// message sent again carries the same.
fn traceparent(job: &Job, step: StepIndex, attempt: u32) -> String {
    let span = span_id(job.id(), &job.graph().step(step).name, attempt);
    format!("00-{}-{span:016x}-01", job.origin().root.0.simple())
}
