//! The attempts of messages: their ids, and whether they have ended.

use super::active_jobs;
use super::problem::Problem;
use super::reads;
use crate::api::state::ApiState;
use actix_web::ResponseError;
use actix_web::http::StatusCode;
use engine::text::quote;
use engine::{CorrelationId, Job, JobId, JobState, StepState};
use std::sync::Arc;

/// What is known of an attempt. A message is removed, and a lease is ended, only if the attempt is
/// known to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptStatus {
    /// The attempt has not ended.
    Active,
    /// The attempt has ended, and its end is committed.
    Ended(AttemptEndReason),
    /// Whether the attempt has ended cannot be determined now.
    Unknown,
}

/// Why an attempt has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEndReason {
    /// The job or the step was cancelled, or the job was reopened.
    Cancelled,
    /// The step has ended in another way.
    Settled,
    /// Another attempt has taken its place, or will.
    TimedOut,
    /// The job has no such step.
    UnknownStep,
}

impl AttemptEndReason {
    /// Returns the reason as a constant that programs can compare.
    pub fn as_str(self) -> &'static str {
        match self {
            AttemptEndReason::Cancelled => "cancelled",
            AttemptEndReason::Settled => "settled",
            AttemptEndReason::TimedOut => "timed out",
            AttemptEndReason::UnknownStep => "unknown step",
        }
    }
}

/// Finds out whether the attempt of a message has ended. The status is unknown if the message id is
/// malformed.
pub async fn find_attempt_status(api: &Arc<ApiState>, message_id: &str) -> AttemptStatus {
    let Ok(MessageId { correlation_id, attempt }) = MessageId::parse(message_id) else {
        return AttemptStatus::Unknown;
    };
    let CorrelationId { job, step } = correlation_id;
    active_jobs::activate_job(api, job).await;
    let step_name = step.clone();
    let inspection = active_jobs::inspect_uncommitted(api, job, move |job| {
        find_attempt_end_in(job, &step_name, attempt)
    });
    if let Some((end, commit)) = inspection.await {
        // Decisions run ahead of the journal, so the journal does not have an end either.
        let Some(reason) = end else { return AttemptStatus::Active };
        // An end counts once it is committed.
        if active_jobs::wait_for_commit(commit).await {
            return AttemptStatus::Ended(reason);
        }
    }
    read_attempt_status(api, job, step, attempt).await
}

/// Reads from the journal whether an attempt has ended, for a job that is not active or whose
/// inspection timed out.
async fn read_attempt_status(
    api: &Arc<ApiState>,
    job: JobId,
    step: String,
    attempt: u32,
) -> AttemptStatus {
    let read = reads::with_job(api, job, move |stored, _| {
        Ok(find_attempt_end_in(&stored.job, &step, attempt))
    });
    match read.await {
        Ok((None, _)) => AttemptStatus::Active,
        Ok((Some(reason), _)) => AttemptStatus::Ended(reason),
        // An erased job had ended before.
        Err(problem) if problem.status_code() == StatusCode::NOT_FOUND => {
            AttemptStatus::Ended(AttemptEndReason::Settled)
        }
        Err(_) => AttemptStatus::Unknown,
    }
}

/// Returns the reason why an attempt of a job has ended. Returns `None` if it has not.
fn find_attempt_end_in(job: &Job, step: &str, attempt: u32) -> Option<AttemptEndReason> {
    let Some(index) = job.graph().find_index(step) else {
        return Some(AttemptEndReason::UnknownStep);
    };
    let run = job.step(index);
    match (job.state(), job.step_state(index)) {
        (JobState::Cancelled, _) | (_, StepState::Cancelled) => Some(AttemptEndReason::Cancelled),
        (_, StepState::Completed | StepState::Failed | StepState::Skipped) => {
            Some(AttemptEndReason::Settled)
        }
        // The job was reopened, and the step has not started again.
        (_, StepState::Waiting) => Some(AttemptEndReason::Cancelled),
        (_, StepState::Running) if run.attempt != attempt || !run.has_active_attempt() => {
            Some(AttemptEndReason::TimedOut)
        }
        (_, StepState::Running) => None,
    }
}

/// A parsed message id, which identifies an attempt.
#[derive(Clone, Debug)]
pub(super) struct MessageId {
    pub(super) correlation_id: CorrelationId,
    pub(super) attempt: u32,
}

impl MessageId {
    /// Parses `<job UUID>:<step name>:<attempt>`.
    pub(super) fn parse(text: &str) -> Result<MessageId, Problem> {
        let invalid_id = || {
            Problem::malformed(format!(
                "the message's id is {}, expected <job UUID>:<step name>:<attempt>: pass on the \
                 Reply-To of the message",
                quote(text)
            ))
        };
        let (correlation_id, attempt) = text.rsplit_once(':').ok_or_else(invalid_id)?;
        Ok(MessageId {
            correlation_id: correlation_id.parse().map_err(|_| invalid_id())?,
            attempt: attempt.parse().map_err(|_| invalid_id())?,
        })
    }
}
