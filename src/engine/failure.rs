//! Decides what follows from the failure of an attempt, of a step, and of a job.

use super::definition::OnFailure;
use super::entry::{Entry, Failure, JobEntry, StepEntry};
use super::id::StepIndex;
use super::input::Context;
use super::job::Job;
use super::reply::AttemptFailure;
use std::sync::Arc;

impl Job {
    /// Decides what follows from a failed attempt: a retry after the backoff, or the step fails.
    pub(super) fn fail_attempt(
        &self,
        step: StepIndex,
        attempt_failure: AttemptFailure,
        ctx: &Context<'_>,
    ) -> Vec<Entry> {
        let AttemptFailure { failure, is_retryable } = attempt_failure;
        let run = self.step(step);
        // In a failed job the next attempt does not start until the job is retried.
        let next_attempt_at = run.next_attempt_at(self.origin.id, self.graph().step(step), ctx.now);
        let Some(retry_at) = next_attempt_at.filter(|_| is_retryable) else {
            return self.fail_step(step, failure);
        };
        let entry = StepEntry::AttemptFailed { attempt: run.attempt, failure, retry_at };
        vec![Entry::Step(step, entry)]
    }

    /// Decides that the step fails, because no attempt is left or it cannot start. The job fails
    /// too, unless it has ended or can continue without the step.
    pub(super) fn fail_step(&self, step: StepIndex, failure: Failure) -> Vec<Entry> {
        let definition = self.graph().step(step);
        let is_fatal = definition.on_failure == OnFailure::Fail && !self.state.is_ended();
        // The reason of a failure in a child job already names the step that failed.
        let reason: Arc<str> = match &failure.cause {
            Some(_) => failure.reason.clone(),
            None => format!("step \"{}\": {}", definition.name, failure.reason).into(),
        };
        let mut entries = vec![Entry::Step(step, StepEntry::Failed(failure))];
        entries.extend(is_fatal.then(|| fail_job(reason, Some(step))));
        entries
    }
}

/// Returns the entry of a job that fails and still accepts replies
/// (docs/reference/http-api-operations.md). `step`: the step whose failure is the reason; `None`:
/// the reason is another one.
pub(super) fn fail_job(reason: Arc<str>, step: Option<StepIndex>) -> Entry {
    Entry::Job(JobEntry::Failed { reason, expired: false, step })
}

/// Returns the entry of a job that fails because its deadline has passed. It accepts no more
/// replies.
pub(super) fn expire_job(reason: Arc<str>) -> Entry {
    Entry::Job(JobEntry::Failed { reason, expired: true, step: None })
}
