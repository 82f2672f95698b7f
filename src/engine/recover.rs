//! Recovers a job after a restart: rebuilds it from its rows in the journal, and determines the
//! orders that its child jobs may have missed.

use super::definition::OnFailure;
use super::entry::Recorded;
use super::input::{Instruction, Order, reasons};
use super::job::Job;
use super::json::Message;
use super::origin::Origin;
use super::state::{JobState, StepState};

impl Job {
    /// Rebuilds a job from its rows. `message`: the message of a child job, which is derived from
    /// its parent; `None` for a root job, whose first row contains it.
    pub fn recover(
        origin: Origin,
        message: Option<Message>,
        rows: impl IntoIterator<Item = Recorded>,
    ) -> Job {
        let mut job = Job::before_first_entry(origin, message);
        rows.into_iter().for_each(|row| job.apply(&row));
        job
    }

    /// Returns the orders of this job that its child job may have missed before a restart, in the
    /// order in which to give them. It is empty if `child` is not a child job.
    pub fn missed_orders(&self, child: &Job) -> Vec<Order> {
        let Some(item) = child.origin.parent else { return Vec::new() };
        let Some(run) = self.steps.get(item.step.as_usize()) else { return Vec::new() };
        let round = run.fan_out.as_ref().map_or(0, |fan_out| fan_out.round(item.index));
        let order_unless_ended = |instruction| {
            if child.state.is_ended() {
                Vec::new()
            } else {
                // A rerun forgets the rounds of the step's earlier child jobs: the order would be
                // late.
                vec![Order { round: round.max(child.round), instruction }]
            }
        };
        if self.child_id(item.step, item.index) != Some(child.id()) {
            return order_unless_ended(Instruction::Halt(reasons::STEP_RERUN.into()));
        }
        let tolerates_failure = self.graph().step(item.step).on_failure == OnFailure::Continue;
        match (self.state, run.state) {
            (_, StepState::Cancelled) => {
                order_unless_ended(Instruction::Cancel(reasons::STEP_CANCELLED.into()))
            }
            (_, StepState::Failed) if tolerates_failure => {
                order_unless_ended(Instruction::Halt(reasons::STEP_FAILED.into()))
            }
            (JobState::Cancelled, _) => {
                order_unless_ended(Instruction::Cancel(reasons::JOB_CANCELLED.into()))
            }
            (JobState::Failed, _) if self.is_expired => {
                order_unless_ended(Instruction::Expire(self.reason_text()))
            }
            (JobState::Failed, _) => {
                order_unless_ended(Instruction::Halt(reasons::JOB_FAILED.into()))
            }
            (JobState::Completed, _) => {
                order_unless_ended(Instruction::Halt(reasons::STEP_FAILED.into()))
            }
            (JobState::Running | JobState::Paused, StepState::Running)
                if !run.has_active_attempt() =>
            {
                order_unless_ended(Instruction::Halt(reasons::STEP_PAUSES.into()))
            }
            (JobState::Running | JobState::Paused, _) if !run.has_active_attempt() => {
                order_unless_ended(Instruction::Halt(reasons::STEP_FAILED.into()))
            }
            (JobState::Running | JobState::Paused, _) => self.missed_orders_of_active(child, round),
        }
    }

    /// Returns the missed orders to a child job that should be active: a retry, then a pause or
    /// resume. `round`: how often this job has retried it.
    fn missed_orders_of_active(&self, child: &Job, round: u32) -> Vec<Order> {
        let must_retry = child.round < round && child.state != JobState::Completed;
        let retry = must_retry.then_some(Instruction::Retry);
        let will_run = must_retry || child.state == JobState::Running;
        let pause_or_resume = match self.state {
            JobState::Paused if will_run => Some(Instruction::Pause),
            JobState::Running if child.state == JobState::Paused && !must_retry => {
                Some(Instruction::Resume)
            }
            JobState::Running
            | JobState::Paused
            | JobState::Completed
            | JobState::Failed
            | JobState::Cancelled => None,
        };
        retry
            .into_iter()
            .chain(pause_or_resume)
            .map(|instruction| Order { round, instruction })
            .collect()
    }
}
