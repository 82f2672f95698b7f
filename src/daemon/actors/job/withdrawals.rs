//! Withdraws the messages of attempts that are over, on buses that can do so.

use super::JobActor;
use crate::actors::inputs::Outgoing;
use crate::actors::messages::message_id;
use bus::AttemptEnd;
use bus::Withdrawal;
use engine::{Entry, Job, JobEntry, Recorded, StepEntry, StepIndex, StepState};

impl JobActor {
    /// Returns withdrawals of the messages that an applied decision makes useless.
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
                // Steps of a failed job go on, unless the job ended by its deadline.
                Entry::Job(JobEntry::Cancelled { .. } | JobEntry::Failed { .. }) => {
                    let is_cut_off = |step: &StepIndex| {
                        job.step(*step).has_active_attempt()
                            && job.step_state(*step) == StepState::Cancelled
                    };
                    let running = job.graph().indices().filter(is_cut_off);
                    let attempt = |step: StepIndex| job.step(step).attempt;
                    ended.extend(running.map(|step| (step, attempt(step), AttemptEnd::Cancelled)));
                }
                // Steps of a failed job that were under way start anew.
                Entry::Job(JobEntry::Rerun { .. }) => {
                    let undone = |step: StepIndex| (step, job.step(step).attempts_undone());
                    let undone = job.graph().indices().map(undone).filter(|(_, last)| *last > 0);
                    ended.extend(undone.map(|(step, last)| (step, last, AttemptEnd::Cancelled)));
                }
                Entry::Step(..) | Entry::Job(_) | Entry::FanOut(..) | Entry::Caller(_) => {}
            }
        }
        let is_manual = recorded
            .entries
            .iter()
            .any(|entry| matches!(entry, Entry::Job(JobEntry::Asked { .. })));
        let withdrawal = |over| self.withdrawal(job, over, is_manual);
        ended.into_iter().filter_map(withdrawal).collect()
    }

    fn withdrawal(
        &self,
        job: &Job,
        (step, attempt, over): (StepIndex, u32, AttemptEnd),
        is_manual: bool,
    ) -> Option<Outgoing> {
        let sends = job.graph().step(step);
        let address = sends.has_queue().then(|| self.env.buses.address(job.definition(), sends))?;
        let kind = self.env.buses.kind(&address.bus)?;
        let must_withdraw = match kind.capabilities().withdrawal {
            Withdrawal::Unsent => is_unsent(job, step, attempt, over, is_manual),
            Withdrawal::Abandoned => over != AttemptEnd::Answered,
            Withdrawal::All => true,
        };
        must_withdraw.then(|| Outgoing::Withdraw(address, message_id(job, step, attempt), over))
    }
}

/// Returns whether the message of an attempt may not have been sent, as far as the job knows.
/// `is_by_hand`: an operation has ended the attempt.
fn is_unsent(job: &Job, step: StepIndex, attempt: u32, over: AttemptEnd, is_manual: bool) -> bool {
    let run = job.step(step);
    // The reply to a first attempt comes from the worker that has its message, unless a person gave
    // it.
    let is_reply = over == AttemptEnd::Answered && attempt == 1 && !is_manual;
    !is_reply && (run.attempt != attempt || !run.confirmed)
}
