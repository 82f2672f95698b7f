//! Builds the messages that a job sends to workers and to its callers, with the payloads of their
//! confirm tokens.

use base::clock;
use base::times;
use bus::{
    Acknowledger, Address, Addressee, Body, BusKey, ConfirmPayload, ConfirmToken, ERROR_KIND,
    Header, Lifetime, Publication, RemainingLease,
};
use engine::{Caller, Definition, Job, JobId, JobState, Lease, Message, StepIndex, Timestamp};
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

/// The payload of a message's confirm token: what is notified once the broker has the message.
#[derive(Debug)]
pub enum ConfirmTarget {
    /// The message of a step.
    Step {
        /// The id of the job or child job.
        job: JobId,
        /// When the job was created. Another job can get its id once it has ended.
        created: Timestamp,
        /// The index of the step.
        step: StepIndex,
        /// The number of the attempt.
        attempt: u32,
        /// The number of the entry that dispatched the step.
        dispatch: u64,
    },
    /// The message that reports the end of a job to a caller.
    JobEnd {
        /// The id of the job.
        job: JobId,
        /// When the job was created.
        created: Timestamp,
        /// The caller's number in the job.
        caller: u32,
        /// The number of the job's end. A job that is reopened ends more than once.
        end: u32,
    },
    /// The refusal of a call. The call is acknowledged once the broker has confirmed the refusal.
    Refusal {
        /// The id of the job that was not created.
        job: JobId,
        /// Settles the delivery of the call.
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

/// The size of most texts of a step's message, in bytes: the buffer of a longer one grows.
const TEXT_BYTES: usize = 96;

/// Appends to a text, within its capacity if there is room.
fn append(text: &mut String, more: fmt::Arguments<'_>) {
    let _ = text.write_fmt(more);
}

/// Returns the correlation id of the message of an attempt and of its reply, and the id of the
/// message, which begins with it.
fn message_ids(job: &Job, step: StepIndex, attempt: u32) -> (Arc<str>, String) {
    let name = &job.graph().step(step).name;
    let mut id = String::with_capacity(TEXT_BYTES);
    append(&mut id, format_args!("{}:{name}", job.id()));
    let correlation_id = id.as_str().into();
    append(&mut id, format_args!(":{attempt}"));
    (correlation_id, id)
}

/// Returns the id of the message of an attempt.
pub(super) fn message_id(job: &Job, step: StepIndex, attempt: u32) -> String {
    message_ids(job, step, attempt).1
}

/// Returns the message of an attempt. `sampling_ratio` is the fraction of root jobs whose traces
/// are exported; `None`: none are.
pub(super) fn step_message(
    job: &Job,
    bus: BusKey,
    step: StepIndex,
    attempt: u32,
    input: Message,
    (now, sampling_ratio): (Timestamp, Option<f64>),
) -> Publication {
    let step_definition = job.graph().step(step);
    let trace = job.origin().trace_parent(&step_definition.name, attempt, sampling_ratio);
    let (correlation_id, id) = message_ids(job, step, attempt);
    let mut buffer = String::with_capacity(TEXT_BYTES);
    let mut text_header = |name, value: fmt::Arguments<'_>| {
        buffer.clear();
        append(&mut buffer, value);
        Header::from_text(name, &*buffer)
    };
    let mut headers = vec![
        Header::from_text("workflow", job.definition().full_name()),
        text_header("job", format_args!("{}", job.origin().root)),
        Header::from_number("attempt", attempt),
        text_header("traceparent", format_args!("{trace}")),
    ];
    let trace_state = job.origin().trace.as_ref().and_then(|trace| trace.state.as_ref());
    headers.extend(trace_state.map(|state| Header::from_text("tracestate", state.as_ref())));
    if Definition::is_workflow_queue(&step_definition.queue) {
        // How many levels of calls and child jobs are above the job that calls.
        headers.push(Header::from_number("depth", job.origin().depth));
    }
    Publication {
        address: Address { bus, queue: step_definition.queue.clone() },
        addressee: Addressee::Worker,
        id,
        correlation_id: Some(correlation_id),
        kind: None,
        priority: step_definition.priority,
        timestamp_s: times::unix_seconds(now),
        headers,
        body: input.into(),
        lease: job.step(step).lease.as_ref().map(|lease| remaining_lease(**lease, now)),
        sets_user_id: !step_definition.reply_users.is_empty(),
        lifetime: lifetime(job, step, now),
        confirm_token: ConfirmToken::new(ConfirmTarget::Step {
            job: job.id(),
            created: job.origin().created,
            step,
            attempt,
            dispatch: job.step(step).dispatch,
        }),
    }
}

/// Returns the lifetime of an attempt's message. Its TTL is the time that is left for the attempt.
/// Without a timeout the message never expires, because nothing would detect its loss.
fn lifetime(job: &Job, step: StepIndex, now: Timestamp) -> Lifetime {
    let run = job.step(step);
    let Some(timeout) = job.graph().step(step).timeout else { return Lifetime::default() };
    let ttl = match run.timeout_at() {
        Some(deadline) => now.duration_until(deadline),
        None => Duration::from_millis(timeout.0),
    };
    let take_by = run.start_by().map(|start_by| clock::timer_now() + now.duration_until(start_by));
    Lifetime { ttl: Some(ttl), take_by }
}

/// Returns the remaining time of a lease.
fn remaining_lease(lease: Lease, now: Timestamp) -> RemainingLease {
    RemainingLease { delivery: lease.delivery, remaining: now.duration_until(lease.until) }
}

/// A reply to a caller.
pub(super) struct CallerReply {
    /// The workflow's full name.
    pub(super) workflow: String,
    /// The job. If the call is refused, no job with this id was created.
    pub(super) job: JobId,
    /// The body of the result, or of the error.
    pub(super) result: Result<Body, Body>,
    pub(super) confirm_target: ConfirmTarget,
}

/// Returns the publication of a reply to a caller.
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

/// Returns the message that reports the end of the job to the caller with this number in the job;
/// `None`: the job has not ended, or has no such caller.
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
        // The caller may retry, with another job.
        JobState::Failed => Err(Body::from_reason(&job.reason_text(), true)),
        JobState::Cancelled => {
            Err(Body::from_reason(&format!("cancelled: {}", job.reason_text()), false))
        }
    };
    let result = result.and_then(|result| {
        let bytes = result.len();
        if bytes <= bytes_max {
            return Ok(result);
        }
        let reason = format!(
            "the result has {bytes} bytes, the limit is {bytes_max} (setting \
             limits.step_message_bytes_max)"
        );
        Err(Body::from_reason(&reason, false))
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
