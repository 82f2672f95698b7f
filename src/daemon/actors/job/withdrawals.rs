//! Withdraws the messages of attempts that have ended, on buses that support it.

use super::JobActor;
use crate::actors::inputs::Outgoing;
use crate::actors::messages::message_id;
use bus::AttemptEnd;
use bus::Withdrawal;
use engine::{Entry, Job, JobEntry, Recorded, StepEntry, StepIndex, StepState};

impl JobActor {
    /// Returns the withdrawals of the messages whose attempts have ended by a decision.
    pub(super) fn withdrawals(&self, recorded: &Recorded) -> Vec<Outgoing> {
        let Some(job) = self.job() else { return Vec::new() };
        let mut ended: Vec<(StepIndex, u32, AttemptEnd)> = Vec::new();
        for entry in &recorded.entries {
            match entry {
                Entry::Step(step, StepEntry::AttemptFailed { attempt, .. }) => {
                    ended.push((*step, *attempt, AttemptEnd::Failed));
                }
                Entry::Step(step, StepEntry::Failed(_)) => {
                    ended.push((*step, job.step(*step).attempt, AttemptEnd::Failed));
                }
                Entry::Step(step, StepEntry::Cancelled) => {
                    ended.push((*step, job.step(*step).attempt, AttemptEnd::Cancelled));
                }
                Entry::Step(step, StepEntry::Completed(_)) => {
                    ended.push((*step, job.step(*step).attempt, AttemptEnd::Answered));
                }
                // The attempts of a failed job continue, unless its deadline has cancelled the
                // steps.
                Entry::Job(JobEntry::Cancelled { .. } | JobEntry::Failed { .. }) => {
                    let is_cancelled = |step: &StepIndex| {
                        job.step(*step).has_active_attempt()
                            && job.step_state(*step) == StepState::Cancelled
                    };
                    let cancelled = job.graph().indices().filter(is_cancelled);
                    let attempt = |step: StepIndex| job.step(step).attempt;
                    ended
                        .extend(cancelled.map(|step| (step, attempt(step), AttemptEnd::Cancelled)));
                }
                // A rerun starts the active steps of a failed job again, with new attempts.
                Entry::Job(JobEntry::Rerun { .. }) => {
                    let undone = |step: StepIndex| (step, job.step(step).attempts_undone());
                    let undone =
                        job.graph().indices().map(undone).filter(|(_, attempt)| *attempt > 0);
                    ended.extend(
                        undone.map(|(step, attempt)| (step, attempt, AttemptEnd::Cancelled)),
                    );
                }
                Entry::Step(..) | Entry::Job(_) | Entry::FanOut(..) | Entry::Caller(_) => {}
            }
        }
        let is_by_operation = recorded
            .entries
            .iter()
            .any(|entry| matches!(entry, Entry::Job(JobEntry::Asked { .. })));
        ended
            .into_iter()
            .filter_map(|(step, attempt, end)| {
                self.withdrawal(job, (step, attempt, end), is_by_operation)
            })
            .collect()
    }

    /// Returns the withdrawal of the message of an attempt, if its bus supports that.
    fn withdrawal(
        &self,
        job: &Job,
        (index, attempt, end): (StepIndex, u32, AttemptEnd),
        is_by_operation: bool,
    ) -> Option<Outgoing> {
        let step = job.graph().step(index);
        let address = step.has_queue().then(|| self.env.buses.address(job.definition(), step))?;
        let kind = self.env.buses.kind(&address.bus)?;
        let must_withdraw = match kind.capabilities().withdrawal {
            Withdrawal::Unsent => can_be_unsent(job, index, attempt, end, is_by_operation),
            Withdrawal::Abandoned => end != AttemptEnd::Answered,
            Withdrawal::All => true,
        };
        must_withdraw.then(|| Outgoing::Withdraw(address, message_id(job, index, attempt), end))
    }
}

/// Returns whether the message of an attempt can be unsent, as far as the job knows.
/// `is_by_operation`: an operation has ended the attempt.
fn can_be_unsent(
    job: &Job,
    step: StepIndex,
    attempt: u32,
    end: AttemptEnd,
    is_by_operation: bool,
) -> bool {
    let run = job.step(step);
    // The reply to a first attempt shows that its message was sent, unless an operator gave the
    // reply.
    let has_reply = end == AttemptEnd::Answered && attempt == 1 && !is_by_operation;
    !has_reply && (run.attempt != attempt || !run.confirmed)
}
