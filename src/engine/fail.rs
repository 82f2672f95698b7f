//! Failures: of an attempt, of a step whose attempts are spent, of a job.

use super::definition::OnFailure;
use super::entry::{Entry, Failure, JobEntry, StepEntry};
use super::id::StepIndex;
use super::input::Context;
use super::job::Job;
use super::reply::Failed;
use std::sync::Arc;

impl Job {
    /// An attempt failed: there is another one after a pause, or the step fails.
    pub(super) fn fail_attempt(
        &self,
        step: StepIndex,
        failed: Failed,
        ctx: &Context<'_>,
    ) -> Vec<Entry> {
        let Failed { failure, retryable } = failed;
        let run = self.step(step);
        // Of a job that has failed the next attempt waits for its retry.
        let next = run.next_attempt(self.origin.id, self.graph().step(step), ctx.now);
        let Some(retry_at) = next.filter(|_| retryable) else {
            return self.fail_step(step, failure);
        };
        let entry = StepEntry::AttemptFailed { attempt: run.attempt, failure, retry_at };
        vec![Entry::Step(step, entry)]
    }

    /// The step's attempts are spent: it fails, and with it the job, unless that goes on without it.
    pub(super) fn fail_step(&self, step: StepIndex, failure: Failure) -> Vec<Entry> {
        let definition = self.graph().step(step);
        let is_fatal = definition.on_failure == OnFailure::Fail && !self.state.is_ended();
        // What went wrong in child jobs says by itself where it did.
        let reason: Arc<str> = match &failure.cause {
            Some(_) => failure.reason.clone(),
            None => format!("step \"{}\": {}", definition.name, failure.reason).into(),
        };
        let mut entries = vec![Entry::Step(step, StepEntry::Failed(failure))];
        entries.extend(is_fatal.then(|| failed(reason, Some(step))));
        entries
    }
}

/// The job fails, by the failure of a step or as a whole (SPEC §6).
pub(super) fn failed(reason: Arc<str>, step: Option<StepIndex>) -> Entry {
    Entry::Job(JobEntry::Failed { reason, expired: false, step })
}

/// The deadline has passed: the job fails for good.
pub(super) fn expired(reason: Arc<str>) -> Entry {
    Entry::Job(JobEntry::Failed { reason, expired: true, step: None })
}
