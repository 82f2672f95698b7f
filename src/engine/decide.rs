//! What follows from an input. Nothing is changed here, neither the job nor anything else.

use super::cause::Cause;
use super::entry::{Entry, Failure, FanOutEntry, JobEntry, Lease, StepEntry};
use super::failure::{job_expired, job_failed};
use super::id::{JobId, StepIndex};
use super::input::{
    ChildEnd, ChildOutcome, Context, Input, Instruction, Order, Rejected, Reply, Sender,
};
use super::job::Job;
use super::reply::{AttemptFailure, Author, is_from_allowed_user, parse_progress, parse_reply};
use super::state::{JobState, StepState};

impl Job {
    /// Returns the entries that follow directly from `input`. What follows from those entries is
    /// decided once they are applied.
    pub(super) fn decide(&self, input: Input, ctx: &Context<'_>) -> Result<Vec<Entry>, Rejected> {
        match input {
            Input::Reply { step, attempt, reply, from } => {
                self.decide_reply(&step, attempt, &reply, &from, ctx)
            }
            Input::Confirmed { step, attempt, dispatch } => {
                self.decide_confirmed(step, attempt, dispatch)
            }
            Input::Begun { step, attempt } => self.decide_begun(step, attempt),
            Input::Leased { step, attempt, lease } => self.decide_leased(step, attempt, lease),
            Input::QueueMissing(steps) => self.decide_queue_missing(&steps),
            Input::ChildEnded { step, index, ended } => {
                self.decide_child_ended(step, index, ended, ctx)
            }
            // `handle_input` handles everything that is due.
            Input::Timer { .. } => Err(Rejected::Void),
            Input::ChildMissing { step, index } => self.decide_child_missing(step, index),
            Input::IdConflict { step, index, id } => self.decide_id_conflict(step, index, id, ctx),
            Input::Order(order) => self.decide_order(order, ctx),
            Input::Operate(request) => self.decide_request(request, ctx),
            Input::CallerJoined(caller) => self.decide_called(caller),
            Input::CallerAnswered { caller, end } => self.decide_answered(caller, end),
            Input::Abandon(reason) if !self.state.is_ended() => Ok(vec![job_failed(reason, None)]),
            Input::Abandon(_) => Err(Rejected::Ended),
        }
    }

    // ---- replies

    fn decide_reply(
        &self,
        name: &str,
        attempt: Option<u32>,
        reply: &Reply,
        from: &Sender,
        ctx: &Context<'_>,
    ) -> Result<Vec<Entry>, Rejected> {
        let step = self.graph().find_index(name).ok_or(Rejected::UnknownStep)?;
        if !self.accepts_replies() {
            return Err(Rejected::Ended);
        }
        if !self.graph().step(step).has_queue() {
            return Err(Rejected::NotRunning);
        }
        if !is_from_allowed_user(self.graph().step(step), from) {
            return Err(Rejected::ForeignUser);
        }
        self.decide_answer((step, attempt), reply, Author::Worker, ctx)
    }

    /// Decides what an answer does to its step, whether it comes from a worker or from a user.
    pub(super) fn decide_answer(
        &self,
        (step, attempt): (StepIndex, Option<u32>),
        reply: &Reply,
        author: Author<'_>,
        ctx: &Context<'_>,
    ) -> Result<Vec<Entry>, Rejected> {
        let run = self.step(step);
        match run.state {
            StepState::Running => {}
            StepState::Waiting => return Err(Rejected::NotRunning),
            StepState::Completed
            | StepState::Failed
            | StepState::Skipped
            | StepState::Cancelled => return Err(Rejected::Duplicate),
        }
        let definition = self.graph().step(step);
        let is_late = !run.is_under_way() || attempt.is_some_and(|attempt| attempt < run.attempt);
        if let Reply::Progress(body) = reply {
            if is_late {
                return Err(Rejected::Late);
            }
            let progress = parse_progress(definition, body, ctx.limits)?;
            let deadline = ctx.after(definition.timeout);
            return Ok(vec![Entry::Step(step, StepEntry::Progressed { progress, deadline })]);
        }
        if attempt.is_some_and(|attempt| attempt <= run.attempts_undone) {
            return Err(Rejected::Late);
        }
        match parse_reply(definition, reply, author, ctx.limits) {
            Ok(output) => Ok(vec![Entry::Step(step, StepEntry::Completed(output))]),
            // The first result since the last rerun wins, whichever attempt it answers. A failure
            // settles only its own attempt (docs/worker-protocol.md).
            Err(_) if is_late => Err(Rejected::Late),
            Err(failed) => Ok(self.fail_attempt(step, failed, ctx)),
        }
    }

    fn decide_confirmed(
        &self,
        step: StepIndex,
        attempt: u32,
        dispatch: Option<u64>,
    ) -> Result<Vec<Entry>, Rejected> {
        let run = self.steps.get(step.as_usize()).ok_or(Rejected::UnknownStep)?;
        let is_last = run.attempt == attempt && dispatch.is_none_or(|of| of == run.dispatch);
        if self.is_awaited(step) && is_last && !run.confirmed {
            Ok(vec![Entry::Step(step, StepEntry::Confirmed)])
        } else {
            Err(Rejected::Void)
        }
    }

    fn decide_begun(&self, step: StepIndex, attempt: u32) -> Result<Vec<Entry>, Rejected> {
        let run = self.steps.get(step.as_usize()).ok_or(Rejected::UnknownStep)?;
        if self.is_awaited(step) && run.attempt == attempt && run.is_waiting_for_start() {
            Ok(vec![Entry::Step(step, StepEntry::Begun)])
        } else {
            Err(Rejected::Void)
        }
    }

    fn decide_leased(
        &self,
        step: StepIndex,
        attempt: u32,
        lease: Lease,
    ) -> Result<Vec<Entry>, Rejected> {
        let run = self.steps.get(step.as_usize()).ok_or(Rejected::UnknownStep)?;
        if self.is_awaited(step) && run.attempt == attempt && run.lease.as_deref() != Some(&lease) {
            Ok(vec![Entry::Step(step, StepEntry::Leased(lease))])
        } else {
            Err(Rejected::Void)
        }
    }

    /// Decides that the confirmed messages of a lost queue are sent again. Until they are confirmed
    /// anew, a restart sends them again as well.
    fn decide_queue_missing(&self, steps: &[StepIndex]) -> Result<Vec<Entry>, Rejected> {
        // The bus still has the unconfirmed ones, and sends them by itself.
        let lost = self
            .confirmed_steps()
            .filter(|step| steps.contains(step))
            .map(|step| Entry::Step(step, StepEntry::Unconfirmed));
        let entries: Vec<Entry> = lost.collect();
        if entries.is_empty() {
            return Err(Rejected::Void);
        }
        Ok(entries)
    }

    // ---- child jobs

    fn decide_child_ended(
        &self,
        step: StepIndex,
        index: u32,
        ended: ChildEnd,
        ctx: &Context<'_>,
    ) -> Result<Vec<Entry>, Rejected> {
        if !self.accepts_replies() {
            return Err(Rejected::Ended);
        }
        let run = self.steps.get(step.as_usize()).ok_or(Rejected::UnknownStep)?;
        let fan_out = run.fan_out.as_ref().ok_or(Rejected::NotRunning)?;
        if !fan_out.is_under_way(index) || self.child_id(step, index) != Some(ended.child) {
            return Err(Rejected::Duplicate);
        }
        let cause = match ended.outcome {
            ChildOutcome::Completed(result) => {
                return Ok(vec![Entry::FanOut(step, fan_out.decide_completed(index, &result))]);
            }
            ChildOutcome::Failed(_) if ended.round < fan_out.round(index) => {
                return Err(Rejected::Late);
            }
            ChildOutcome::Failed(cause) => cause,
        };
        let mut entries = vec![Entry::FanOut(step, FanOutEntry::ChildFailed { index })];
        // The child jobs of a failed job were halted. That is no failure of the step: it goes on
        // when the job is retried.
        let is_of_step = !self.state.is_ended() && run.is_under_way();
        if is_of_step && fan_out.exceeds_tolerance(fan_out.failed() + 1) {
            let cause = cause.in_child(ended.child, &self.graph().step(step).name, index);
            let reason = cause.to_string();
            let failure = Failure { cause: Some(Box::new(cause)), ..Failure::new(reason) };
            entries.extend(self.fail_attempt(
                step,
                AttemptFailure { failure, retryable: true },
                ctx,
            ));
        }
        Ok(entries)
    }

    /// Decides what happens if a child job that is to be retried was never created: its start was
    /// lost, or it panicked.
    fn decide_child_missing(&self, step: StepIndex, index: u32) -> Result<Vec<Entry>, Rejected> {
        let run = self.steps.get(step.as_usize()).ok_or(Rejected::UnknownStep)?;
        let is_wanted = !self.state.is_ended()
            && run.is_under_way()
            && run.fan_out.as_ref().is_some_and(|fan_out| fan_out.is_under_way(index));
        let id = self.child_id(step, index).filter(|_| is_wanted).ok_or(Rejected::Void)?;
        Ok(vec![Entry::FanOut(step, FanOutEntry::ChildStarted { index, id })])
    }

    /// Decides that the child job is started again, under another id.
    fn decide_id_conflict(
        &self,
        step: StepIndex,
        index: u32,
        id: JobId,
        ctx: &Context<'_>,
    ) -> Result<Vec<Entry>, Rejected> {
        self.decide_child_missing(step, index)?;
        if self.child_id(step, index) != Some(id) {
            return Err(Rejected::Late);
        }
        let name = &self.graph().step(step).name;
        let fan_out = self.step(step).fan_out.as_ref().ok_or(Rejected::NotRunning)?;
        match fan_out.next_id(self.origin.id, name, index) {
            Some(id) => Ok(vec![Entry::FanOut(step, FanOutEntry::ChildStarted { index, id })]),
            None => {
                let outcome = ChildOutcome::Failed(Cause::from_job("other jobs have all its ids"));
                let ended = ChildEnd { child: id, round: u32::MAX, outcome };
                self.decide_child_ended(step, index, ended, ctx)
            }
        }
    }

    fn decide_order(&self, order: Order, ctx: &Context<'_>) -> Result<Vec<Entry>, Rejected> {
        let is_ended = self.state.is_ended();
        let Order { round, instruction } = order;
        if round < self.round {
            return Err(Rejected::Late);
        }
        let entry = match instruction {
            Instruction::Halt(reason) if !is_ended => job_failed(reason, None),
            Instruction::Cancel(reason) if !is_ended => {
                Entry::Job(JobEntry::Cancelled { reason, by_parent: true })
            }
            Instruction::Expire(reason) if !is_ended => job_expired(reason),
            Instruction::Pause if self.state == JobState::Running => Entry::Job(JobEntry::Paused),
            Instruction::Resume if self.state == JobState::Paused => Entry::Job(JobEntry::Resumed),
            Instruction::Retry if round > self.round && self.state != JobState::Completed => {
                Entry::Job(JobEntry::Retried { round, deadline: self.new_deadline(ctx) })
            }
            // The child job was done before its parent failed, but the parent was never notified.
            Instruction::Retry if self.state == JobState::Completed => {
                Entry::Job(JobEntry::ToldAgain)
            }
            Instruction::Halt(_) | Instruction::Cancel(_) | Instruction::Expire(_) => {
                return Err(Rejected::Ended);
            }
            Instruction::Pause | Instruction::Resume | Instruction::Retry => {
                return Err(Rejected::Void);
            }
        };
        Ok(vec![entry])
    }
}
