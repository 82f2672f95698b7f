//! The messages that a job sends, to workers and to its callers, and what their confirm tokens
//! hold.

use base::clock;
use base::times;
use bus::{
    Acknowledger, Address, Addressee, Body, BusKey, ConfirmPayload, ConfirmToken, ERROR_KIND,
    Header, Lifetime, Publication, RemainingLease,
};
use engine::{Caller, Definition, Job, JobId, JobState, Lease, Message, StepIndex, Timestamp};
use std::time::Duration;

/// What the confirm token of a message holds: who is notified that the broker has the message.
#[derive(Debug)]
pub enum ConfirmTarget {
    /// The message of a step.
    Step {
        /// The job or child job.
        job: JobId,
        /// When it was created: another job may get its id once it has ended.
        created: Timestamp,
        /// The step.
        step: StepIndex,
        /// The attempt.
        attempt: u32,
        /// The number of the entry that dispatched it.
        dispatch: u64,
    },
    /// The end of a job, for a caller.
    JobEnd {
        /// The job.
        job: JobId,
        /// When it was created.
        created: Timestamp,
        /// The caller's number in the job.
        caller: u32,
        /// Which end of the job it is.
        end: u32,
    },
    /// A refusal. Once the broker has it, the refused message is acknowledged.
    Refusal {
        /// The id of the job that was not created.
        job: JobId,
        /// Settles the refused message.
        ack: Acknowledger,
    },
}

impl ConfirmPayload for ConfirmTarget {
    fn try_clone(&self) -> Option<ConfirmToken> {
        match *self {
            ConfirmTarget::Step { job, created, step, attempt, dispatch } => {
                Some(ConfirmToken::new(ConfirmTarget::Step {
                    job,
                    created,
                    step,
                    attempt,
                    dispatch,
                }))
            }
            ConfirmTarget::JobEnd { .. } | ConfirmTarget::Refusal { .. } => None,
        }
    }
}

/// Returns the correlation id of the reply to a step.
fn correlation_id(job: &Job, step: StepIndex) -> String {
    format!("{}:{}", job.id(), job.graph().step(step).name)
}

/// Returns the id of the message of an attempt.
pub(super) fn message_id(job: &Job, step: StepIndex, attempt: u32) -> String {
    format!("{}:{attempt}", correlation_id(job, step))
}

/// Returns the message of an attempt; `share` of the traces are sent.
pub(super) fn step_message(
    job: &Job,
    bus: BusKey,
    step: StepIndex,
    attempt: u32,
    input: Message,
    (now, share): (Timestamp, Option<f64>),
) -> Publication {
    let (id, run) = (job.id(), job.graph().step(step));
    let (created, dispatch) = (job.origin().created, job.step(step).dispatch);
    let correlation_id = correlation_id(job, step);
    let trace = job.origin().trace_parent(&run.name, attempt, share);
    let mut headers = vec![
        Header::from_text("workflow", job.definition().full_name()),
        Header::from_text("job", job.origin().root.to_string()),
        Header::from_number("attempt", attempt),
        Header::from_text("traceparent", trace.to_string()),
    ];
    let state = job.origin().trace.as_ref().and_then(|request_trace| request_trace.state.as_ref());
    headers.extend(state.map(|state| Header::from_text("tracestate", state.as_ref())));
    if Definition::is_call_queue(&run.queue) {
        // How many levels of calls and child jobs are above the job that calls.
        headers.push(Header::from_number("depth", job.origin().depth));
    }
    Publication {
        address: Address { bus, queue: run.queue.clone() },
        addressee: Addressee::Worker,
        id: message_id(job, step, attempt),
        correlation_id: Some(correlation_id.into()),
        kind: None,
        priority: run.priority,
        timestamp_s: times::unix_seconds(now),
        headers,
        body: input.into(),
        lease: job.step(step).lease.as_ref().map(|lease| lease_left(**lease, now)),
        sets_user_id: !run.reply_users.is_empty(),
        lifetime: lifetime(job, step, now),
        confirm_token: ConfirmToken::new(ConfirmTarget::Step {
            job: id,
            created,
            step,
            attempt,
            dispatch,
        }),
    }
}

/// Returns how long the message of an attempt is of use: as long as the attempt may take. Without a
/// timeout the message never expires, because nobody would notice that it is gone.
fn lifetime(job: &Job, step: StepIndex, now: Timestamp) -> Lifetime {
    let run = job.step(step);
    let Some(timeout) = job.graph().step(step).timeout else { return Lifetime::default() };
    let span = match run.deadline() {
        Some(deadline) => now.duration_until(deadline),
        None => Duration::from_millis(timeout.0),
    };
    let until = run.start_by().map(|by| clock::timer_now() + now.duration_until(by));
    Lifetime { ttl: Some(span), take_by: until }
}

/// Returns what is left of a lease.
fn lease_left(lease: Lease, now: Timestamp) -> RemainingLease {
    RemainingLease { delivery: lease.delivery, remaining: now.duration_until(lease.until) }
}

/// A message to a caller: the result, or the error.
pub(super) struct CallerReply {
    pub(super) workflow: String,
    /// The job; of a refusal, the one that was not created.
    pub(super) job: JobId,
    pub(super) result: Result<Body, Body>,
    pub(super) confirm_target: ConfirmTarget,
}

/// Returns the message for a caller.
pub(super) fn caller_reply(
    content: CallerReply,
    caller: &Caller,
    bus: BusKey,
    now: Timestamp,
) -> Publication {
    let CallerReply { workflow, job, result, confirm_target } = content;
    let mut headers =
        vec![Header::from_text("workflow", workflow), Header::from_text("job", job.to_string())];
    headers.extend(caller.attempt.map(|attempt| Header::from_number("attempt", attempt)));
    let id = match &confirm_target {
        ConfirmTarget::JobEnd { caller, end, .. } => format!("{job}:__end__:{end}:{caller}"),
        ConfirmTarget::Refusal { .. } | ConfirmTarget::Step { .. } => format!("{job}:__end__"),
    };
    Publication {
        address: Address { bus, queue: caller.reply_to.clone() },
        addressee: Addressee::Caller,
        id,
        correlation_id: caller.correlation_id.clone(),
        kind: result.is_err().then_some(ERROR_KIND),
        priority: None,
        timestamp_s: times::unix_seconds(now),
        headers,
        body: result.unwrap_or_else(|error| error),
        lease: None,
        sets_user_id: false,
        lifetime: Lifetime::default(),
        confirm_token: ConfirmToken::new(confirm_target),
    }
}

/// Returns the message that reports the end of the job to its caller.
pub(super) fn job_end_message(
    job: &Job,
    bus: BusKey,
    caller: u32,
    end: u32,
    bytes_max: usize,
    now: Timestamp,
) -> Option<Publication> {
    let result = match job.state() {
        JobState::Running | JobState::Paused => return None,
        JobState::Completed => Ok(Body::from(job.result())),
        // The caller may try again, as another job.
        JobState::Failed => Err(Body::from_error(&job.reason_text(), true)),
        JobState::Cancelled => {
            Err(Body::from_error(&format!("cancelled: {}", job.reason_text()), false))
        }
    };
    let result = result.and_then(|result| {
        let bytes = result.len();
        let too_large = || {
            format!(
                "the result has {bytes} bytes, the limit is {bytes_max} (setting \
                 limits.step_message_bytes_max)"
            )
        };
        if bytes > bytes_max { Err(Body::from_error(&too_large(), false)) } else { Ok(result) }
    });
    let content = CallerReply {
        workflow: job.definition().full_name(),
        job: job.id(),
        result,
        confirm_target: ConfirmTarget::JobEnd {
            job: job.id(),
            created: job.origin().created,
            caller,
            end,
        },
    };
    Some(caller_reply(content, job.caller(caller)?, bus, now))
}
