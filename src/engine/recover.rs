//! Recovers a job after a restart: from its rows, with the orders that its child jobs may have
//! missed.

use super::definition::OnFailure;
use super::entry::Recorded;
use super::input::{Instruction, Order, reasons};
use super::job::Job;
use super::json::Message;
use super::origin::Origin;
use super::state::{JobState, StepState};

impl Job {
    /// Rebuilds a job from its rows. `message`: the message of a child job, which is derived from
    /// its parent; `None` for a root job, whose first row has it.
    pub fn recover(
        origin: Origin,
        message: Option<Message>,
        rows: impl IntoIterator<Item = Recorded>,
    ) -> Job {
        let mut job = Job::before_first_entry(origin, message);
        rows.into_iter().for_each(|row| job.apply(&row));
        job
    }

    /// Returns the orders that a child job may have missed before a restart.
    pub fn missed_orders(&self, child: &Job) -> Vec<Order> {
        let Some((run, item)) = child
            .origin
            .parent
            .and_then(|item| Some((self.steps.get(item.step.as_usize())?, item)))
        else {
            return Vec::new();
        };
        let round = run.fan_out.as_ref().map_or(0, |fan_out| fan_out.round(item.index));
        // A step that was rerun has forgotten the rounds of its earlier child jobs.
        let order_unless_ended = |instruction| {
            if child.state.is_ended() {
                Vec::new()
            } else {
                vec![Order { round: round.max(child.round), instruction }]
            }
        };
        if self.child_id(item.step, item.index) != Some(child.id()) {
            return order_unless_ended(Instruction::Halt("its step was begun anew".into()));
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
            (JobState::Failed, _) if self.expired => {
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

    /// Returns the missed orders of a child job that should be active: a retry, and a pause or
    /// resume.
    fn missed_orders_of_active(&self, child: &Job, round: u32) -> Vec<Order> {
        let is_retried = child.round < round && child.state != JobState::Completed;
        let retry = is_retried.then_some(Instruction::Retry);
        let is_running = is_retried || child.state == JobState::Running;
        let pause_or_resume = match self.state {
            JobState::Paused if is_running => Some(Instruction::Pause),
            JobState::Running if child.state == JobState::Paused && !is_retried => {
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
