//! Failures: of an attempt, of a step whose attempts are used up, of a job.

use super::definition::OnFailure;
use super::entry::{Entry, Failure, JobEntry, StepEntry};
use super::id::StepIndex;
use super::input::Context;
use super::job::Job;
use super::reply::AttemptFailure;
use std::sync::Arc;

impl Job {
    /// Decides what follows from a failed attempt: another follows after a pause, or the step
    /// fails.
    pub(super) fn fail_attempt(
        &self,
        step: StepIndex,
        failed: AttemptFailure,
        ctx: &Context<'_>,
    ) -> Vec<Entry> {
        let AttemptFailure { failure, retryable } = failed;
        let run = self.step(step);
        // In a failed job the next attempt waits until the job is retried.
        let next = run.next_attempt_at(self.origin.id, self.graph().step(step), ctx.now);
        let Some(retry_at) = next.filter(|_| retryable) else {
            return self.fail_step(step, failure);
        };
        let entry = StepEntry::AttemptFailed { attempt: run.attempt, failure, retry_at };
        vec![Entry::Step(step, entry)]
    }

    /// Decides that the step fails, because its attempts are used up. The job fails too, unless it
    /// can go on without the step.
    pub(super) fn fail_step(&self, step: StepIndex, failure: Failure) -> Vec<Entry> {
        let definition = self.graph().step(step);
        let is_fatal = definition.on_failure == OnFailure::Fail && !self.state.is_ended();
        // The reason of a failure in child jobs already names the step where it happened.
        let reason: Arc<str> = match &failure.cause {
            Some(_) => failure.reason.clone(),
            None => format!("step \"{}\": {}", definition.name, failure.reason).into(),
        };
        let mut entries = vec![Entry::Step(step, StepEntry::Failed(failure))];
        entries.extend(is_fatal.then(|| job_failed(reason, Some(step))));
        entries
    }
}

/// Returns the entry of a job that fails, because of a step or as a whole (docs/http-api.md).
pub(super) fn job_failed(reason: Arc<str>, step: Option<StepIndex>) -> Entry {
    Entry::Job(JobEntry::Failed { reason, expired: false, step })
}

/// Returns the entry of a job that fails for good, because its deadline has passed.
pub(super) fn job_expired(reason: Arc<str>) -> Entry {
    Entry::Job(JobEntry::Failed { reason, expired: true, step: None })
}
