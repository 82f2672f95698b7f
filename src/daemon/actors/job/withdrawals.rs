//! Withdraws the messages of attempts that have ended, on buses that support it.

use super::JobActor;
use crate::actors::inputs::Outgoing;
use crate::actors::messages::message_id;
use bus::AttemptEnd;
use bus::Withdrawal;
use engine::{Entry, Job, JobEntry, Recorded, StepEntry, StepIndex, StepState};

/// An attempt that a decision has ended.
struct EndedAttempt {
    step: StepIndex,
    /// The number of the attempt.
    attempt: u32,
    end: AttemptEnd,
}

impl JobActor {
    /// Returns the withdrawals of the messages whose attempts a decision has ended.
    pub(super) fn withdrawals(&self, recorded: &Recorded) -> Vec<Outgoing> {
        let Some(job) = self.job() else { return Vec::new() };
        let current_attempt =
            |step: StepIndex, end| EndedAttempt { step, attempt: job.step(step).attempt, end };
        let mut ended_attempts: Vec<EndedAttempt> = Vec::new();
        for entry in &recorded.entries {
            match entry {
                Entry::Step(step, StepEntry::AttemptFailed { attempt, .. }) => {
                    ended_attempts.push(EndedAttempt {
                        step: *step,
                        attempt: *attempt,
                        end: AttemptEnd::Failed,
                    });
                }
                Entry::Step(step, StepEntry::Failed(_)) => {
                    ended_attempts.push(current_attempt(*step, AttemptEnd::Failed));
                }
                Entry::Step(step, StepEntry::Cancelled) => {
                    ended_attempts.push(current_attempt(*step, AttemptEnd::Cancelled));
                }
                Entry::Step(step, StepEntry::Completed(_)) => {
                    ended_attempts.push(current_attempt(*step, AttemptEnd::Answered));
                }
                // The active attempts of a failed job continue, except those that its deadline has
                // cancelled.
                Entry::Job(JobEntry::Cancelled { .. } | JobEntry::Failed { .. }) => {
                    let is_cancelled = |step: &StepIndex| {
                        job.step(*step).has_active_attempt()
                            && job.step_state(*step) == StepState::Cancelled
                    };
                    let cancelled_steps = job.graph().indices().filter(is_cancelled);
                    ended_attempts.extend(
                        cancelled_steps.map(|step| current_attempt(step, AttemptEnd::Cancelled)),
                    );
                }
                // A rerun starts the active steps of a failed job again, with new attempts.
                Entry::Job(JobEntry::Rerun { .. }) => {
                    let last_undone = |step: StepIndex| EndedAttempt {
                        step,
                        attempt: job.step(step).last_undone_attempt(),
                        end: AttemptEnd::Cancelled,
                    };
                    let undone_attempts = job.graph().indices().map(last_undone);
                    ended_attempts.extend(undone_attempts.filter(|undone| undone.attempt > 0));
                }
                Entry::Step(..) | Entry::Job(_) | Entry::FanOut(..) | Entry::Caller(_) => {}
            }
        }
        let is_by_operation = recorded
            .entries
            .iter()
            .any(|entry| matches!(entry, Entry::Job(JobEntry::Asked { .. })));
        ended_attempts
            .iter()
            .filter_map(|ended| self.withdrawal(job, ended, is_by_operation))
            .collect()
    }

    /// Returns the withdrawal of the message of an attempt; `None`: the message needs none, or its
    /// bus does not support it. `is_by_operation`: an operation has ended the attempt.
    fn withdrawal(
        &self,
        job: &Job,
        ended: &EndedAttempt,
        is_by_operation: bool,
    ) -> Option<Outgoing> {
        let EndedAttempt { step: index, attempt, end } = *ended;
        let step = job.graph().step(index);
        let address = step.has_queue().then(|| self.env.buses.address(job.definition(), step))?;
        let kind = self.env.buses.kind(&address.bus)?;
        let must_withdraw = match kind.capabilities().withdrawal {
            Withdrawal::Unsent => can_be_unsent(job, ended, is_by_operation),
            Withdrawal::Abandoned => end != AttemptEnd::Answered,
            Withdrawal::All => true,
        };
        must_withdraw.then(|| Outgoing::Withdraw(address, message_id(job, index, attempt), end))
    }
}

/// Returns whether the message of an attempt may be unsent, as far as the job knows.
/// `is_by_operation`: an operation has ended the attempt.
fn can_be_unsent(job: &Job, ended: &EndedAttempt, is_by_operation: bool) -> bool {
    let run = job.step(ended.step);
    // The reply to a first attempt shows that its message was sent, unless an operator gave the
    // reply.
    let has_reply = ended.end == AttemptEnd::Answered && ended.attempt == 1 && !is_by_operation;
    !has_reply && (run.attempt != ended.attempt || !run.confirmed)
}
