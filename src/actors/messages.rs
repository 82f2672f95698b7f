//! The messages that a job sends, to workers and to its callers, and what their confirm tokens
//! hold.

use crate::bus::{
    Acknowledge, Address, Addressee, Body, BodyText, BusKey, ERROR, Header, Issued, LeaseLeft,
    Lifetime, Publication, Receipt,
};
use crate::clock;
use crate::engine::{
    Caller, Definition, Job, JobId, JobState, Lease, Message, StepIndex, Timestamp,
};
use crate::times;
use bytes::Bytes;
use std::time::Duration;

/// What the confirm token of a message holds: who is notified that the broker has the message.
#[derive(Debug)]
pub enum Sent {
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
    Answer {
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
        ack: Acknowledge,
    },
}

impl Issued for Sent {
    fn again(&self) -> Option<Receipt> {
        match *self {
            Sent::Step { job, created, step, attempt, dispatch } => {
                Some(Receipt::new(Sent::Step { job, created, step, attempt, dispatch }))
            }
            Sent::Answer { .. } | Sent::Refusal { .. } => None,
        }
    }
}

impl BodyText for Message {
    fn to_bytes(&self) -> Bytes {
        self.to_text().into()
    }

    fn len(&self) -> usize {
        self.encoded_len()
    }
}

impl From<Message> for Body {
    fn from(message: Message) -> Body {
        Body::built(message)
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
        Header::text("workflow", job.definition().full_name()),
        Header::text("job", job.origin().root.to_string()),
        Header::number("attempt", attempt),
        Header::text("traceparent", trace.to_string()),
    ];
    let state = job.origin().trace.as_ref().and_then(|asked| asked.state.as_ref());
    headers.extend(state.map(|state| Header::text("tracestate", state.as_ref())));
    if run.queue.starts_with(Definition::CALL_QUEUE_PREFIX) {
        // How many levels of calls and child jobs are above the job that calls.
        headers.push(Header::number("depth", job.origin().depth));
    }
    Publication {
        to: Address { bus, queue: run.queue.clone() },
        addressee: Addressee::Worker,
        id: message_id(job, step, attempt),
        correlation_id: Some(correlation_id.into()),
        kind: None,
        priority: run.priority,
        timestamp_s: times::seconds(now),
        headers,
        body: input.into(),
        lease: job.step(step).lease.as_ref().map(|lease| left_of(**lease, now)),
        names_sender: !run.reply_users.is_empty(),
        lifetime: lifetime(job, step, now),
        receipt: Receipt::new(Sent::Step { job: id, created, step, attempt, dispatch }),
    }
}

/// Returns how long the message of an attempt is of use: as long as the attempt may take. Without a
/// timeout the message never expires, because nobody would notice that it is gone.
fn lifetime(job: &Job, step: StepIndex, now: Timestamp) -> Lifetime {
    let run = job.step(step);
    let Some(timeout) = job.graph().step(step).timeout else { return Lifetime::default() };
    let span = match run.deadline() {
        Some(deadline) => left(deadline, now),
        None => Duration::from_millis(timeout.0),
    };
    let until = run.start_by().map(|by| clock::ticks() + left(by, now));
    Lifetime { span: Some(span), until }
}

/// Returns how long it is until `then`.
fn left(then: Timestamp, now: Timestamp) -> Duration {
    Duration::from_nanos(u64::try_from(then.0.saturating_sub(now.0)).unwrap_or_default())
}

/// Returns what is left of a lease.
fn left_of(lease: Lease, now: Timestamp) -> LeaseLeft {
    LeaseLeft { delivery: lease.delivery, left: left(lease.until, now) }
}

/// A message to a caller: the result, or the error.
pub(super) struct CallerAnswer {
    pub(super) workflow: String,
    /// The job; of a refusal, the one that was not created.
    pub(super) job: JobId,
    pub(super) result: Result<Body, Body>,
    pub(super) sent: Sent,
}

/// Returns the message for a caller.
pub(super) fn answer(
    content: CallerAnswer,
    caller: &Caller,
    bus: BusKey,
    now: Timestamp,
) -> Publication {
    let CallerAnswer { workflow, job, result, sent } = content;
    let mut headers =
        vec![Header::text("workflow", workflow), Header::text("job", job.to_string())];
    headers.extend(caller.attempt.map(|attempt| Header::number("attempt", attempt)));
    let id = match &sent {
        Sent::Answer { caller, end, .. } => format!("{job}:__end__:{end}:{caller}"),
        Sent::Refusal { .. } | Sent::Step { .. } => format!("{job}:__end__"),
    };
    Publication {
        to: Address { bus, queue: caller.reply_to.clone() },
        addressee: Addressee::Caller,
        id,
        correlation_id: caller.correlation_id.clone(),
        kind: result.is_err().then_some(ERROR),
        priority: None,
        timestamp_s: times::seconds(now),
        headers,
        body: result.unwrap_or_else(|error| error),
        lease: None,
        names_sender: false,
        lifetime: Lifetime::default(),
        receipt: Receipt::new(sent),
    }
}

/// Returns the message that reports the end of the job to its caller.
pub(super) fn caller_answer(
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
        JobState::Failed => Err(Body::error(&job.reason_text(), true)),
        JobState::Cancelled => {
            Err(Body::error(&format!("cancelled: {}", job.reason_text()), false))
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
        if bytes > bytes_max { Err(Body::error(&too_large(), false)) } else { Ok(result) }
    });
    let content = CallerAnswer {
        workflow: job.definition().full_name(),
        job: job.id(),
        result,
        sent: Sent::Answer { job: job.id(), created: job.origin().created, caller, end },
    };
    Some(answer(content, job.caller(caller)?, bus, now))
}
