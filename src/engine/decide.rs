//! Decides the entries that follow directly from an input. All functions are pure: they change
//! nothing.

use super::cause::Cause;
use super::entry::{Entry, Failure, FanOutEntry, JobEntry, Lease, StepEntry};
use super::failure::{expire_job, fail_job};
use super::id::{JobId, StepIndex};
use super::input::{
    ChildEnd, ChildOutcome, Context, Input, Instruction, Order, Rejected, Reply, Sender,
};
use super::job::Job;
use super::reply::{AttemptFailure, Author, is_from_allowed_user, parse_progress, parse_reply};
use super::state::{JobState, StepState};

impl Job {
    /// Returns the entries that follow directly from `input`. What follows from those entries is
    /// decided after they have been applied (see [`Job::decide_next`]).
    ///
    /// # Errors
    ///
    /// Returns an error if the input changes nothing.
    pub(super) fn decide(&self, input: Input, ctx: &Context<'_>) -> Result<Vec<Entry>, Rejected> {
        match input {
            Input::Reply { step, attempt, reply, from: sender } => {
                self.decide_reply(&step, attempt, &reply, &sender, ctx)
            }
            Input::Confirmed { step, attempt, dispatch } => {
                self.decide_confirmed(step, attempt, dispatch)
            }
            Input::Begun { step, attempt } => self.decide_begun(step, attempt),
            Input::Leased { step, attempt, lease } => self.decide_leased(step, attempt, lease),
            Input::QueueMissing(steps) => self.decide_queue_missing(&steps),
            Input::ChildEnded { step, index, ended: child_end } => {
                self.decide_child_ended(step, index, child_end, ctx)
            }
            // Unreachable: `handle_input` decides what follows from timers.
            Input::Timer { .. } => Err(Rejected::Void),
            Input::ChildMissing { step, index } => self.decide_child_missing(step, index),
            Input::IdConflict { step, index, id } => self.decide_id_conflict(step, index, id, ctx),
            Input::Admitted { step, ticket, marks: _ } => self.decide_admitted(step, ticket, ctx),
            Input::Order(order) => self.decide_order(order, ctx),
            Input::Operate(request) => self.decide_request(request, ctx),
            Input::CallerJoined(caller) => self.decide_caller_joined(caller),
            Input::CallerAnswered { caller, end } => self.decide_caller_answered(caller, end),
            Input::Abandon(reason) if !self.state.is_ended() => Ok(vec![fail_job(reason, None)]),
            Input::Abandon(_) => Err(Rejected::Ended),
        }
    }

    // ---- replies

    /// Decides what the reply of a worker to the step called `name` causes.
    fn decide_reply(
        &self,
        name: &str,
        attempt: Option<u32>,
        reply: &Reply,
        sender: &Sender,
        ctx: &Context<'_>,
    ) -> Result<Vec<Entry>, Rejected> {
        let step = self.graph().find_index(name).ok_or(Rejected::UnknownStep)?;
        if !self.accepts_replies() {
            return Err(Rejected::Ended);
        }
        if !self.graph().step(step).has_queue() {
            return Err(Rejected::NotRunning);
        }
        if !is_from_allowed_user(self.graph().step(step), sender) {
            return Err(Rejected::ForeignUser);
        }
        self.decide_attempt_reply(step, attempt, reply, Author::Worker, ctx)
    }

    /// Decides what a reply of a worker or an operator causes. `attempt`: the number of the attempt
    /// that it is for; `None`: the latest one.
    pub(super) fn decide_attempt_reply(
        &self,
        step: StepIndex,
        attempt: Option<u32>,
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
        let is_late =
            !run.has_active_attempt() || attempt.is_some_and(|attempt| attempt < run.attempt);
        if let Reply::Progress(body) = reply {
            if is_late {
                return Err(Rejected::Late);
            }
            let progress = parse_progress(definition, body, ctx.limits)?;
            let deadline = ctx.after(definition.timeout);
            return Ok(vec![Entry::Step(step, StepEntry::Progressed { progress, deadline })]);
        }
        if attempt.is_some_and(|attempt| attempt <= run.last_undone_attempt) {
            return Err(Rejected::Late);
        }
        match parse_reply(definition, reply, author, ctx.limits) {
            Ok(output) => Ok(vec![Entry::Step(step, StepEntry::Completed(output))]),
            // The first result since the last rerun counts, whichever attempt it is for. A failure
            // counts only for the running attempt (docs/reference/worker-protocol.md).
            Err(_) if is_late => Err(Rejected::Late),
            Err(failure) => Ok(self.fail_attempt(step, failure, ctx)),
        }
    }

    /// Decides what the broker's confirm of a step message causes. `dispatch`: see
    /// [`Input::Confirmed`].
    fn decide_confirmed(
        &self,
        step: StepIndex,
        attempt: u32,
        dispatch: Option<u64>,
    ) -> Result<Vec<Entry>, Rejected> {
        let run = self.steps.get(step.as_usize()).ok_or(Rejected::UnknownStep)?;
        let is_latest =
            run.attempt == attempt && dispatch.is_none_or(|dispatch| dispatch == run.dispatch);
        if self.is_awaited(step) && is_latest && !run.confirmed {
            Ok(vec![Entry::Step(step, StepEntry::Confirmed)])
        } else {
            Err(Rejected::Void)
        }
    }

    /// Decides whether the delivery of a step message starts the timeout of its attempt.
    fn decide_begun(&self, step: StepIndex, attempt: u32) -> Result<Vec<Entry>, Rejected> {
        let run = self.steps.get(step.as_usize()).ok_or(Rejected::UnknownStep)?;
        if self.is_awaited(step) && run.attempt == attempt && run.is_timeout_pending() {
            Ok(vec![Entry::Step(step, StepEntry::Begun)])
        } else {
            Err(Rejected::Void)
        }
    }

    /// Decides what a new or changed lease of a step message causes.
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

    /// Decides that the confirmed messages of a missing queue, which are lost, are sent again. They
    /// count as unconfirmed until the broker confirms them, so a restart sends them too.
    fn decide_queue_missing(&self, steps: &[StepIndex]) -> Result<Vec<Entry>, Rejected> {
        // The bus still holds the unconfirmed messages, and retries them on its own.
        let lost_messages = self
            .confirmed_steps()
            .filter(|step| steps.contains(step))
            .map(|step| Entry::Step(step, self.resend_entry(step)));
        let entries: Vec<Entry> = lost_messages.collect();
        if entries.is_empty() {
            return Err(Rejected::Void);
        }
        Ok(entries)
    }

    // ---- child jobs

    /// Decides what the end of a child job causes: its result is gathered, or its failure may fail
    /// the step.
    fn decide_child_ended(
        &self,
        step: StepIndex,
        index: u32,
        child_end: ChildEnd,
        ctx: &Context<'_>,
    ) -> Result<Vec<Entry>, Rejected> {
        if !self.accepts_replies() {
            return Err(Rejected::Ended);
        }
        let run = self.steps.get(step.as_usize()).ok_or(Rejected::UnknownStep)?;
        let fan_out = run.fan_out.as_ref().ok_or(Rejected::NotRunning)?;
        if !fan_out.is_child_active(index) || self.child_id(step, index) != Some(child_end.child) {
            return Err(Rejected::Duplicate);
        }
        let cause = match child_end.outcome {
            ChildOutcome::Completed(result) => {
                return Ok(vec![Entry::FanOut(step, fan_out.decide_completed(index, &result))]);
            }
            ChildOutcome::Failed(_) if child_end.round < fan_out.round(index) => {
                return Err(Rejected::Late);
            }
            ChildOutcome::Failed(cause) => cause,
        };
        let mut entries = vec![Entry::FanOut(step, FanOutEntry::ChildFailed { index })];
        // A failed job halts its child jobs. Their end is no failure of the step, which continues
        // when the job is retried. The same holds for a step without an active attempt.
        let can_fail_step = !self.state.is_ended() && run.has_active_attempt();
        if can_fail_step && fan_out.exceeds_tolerance(fan_out.failed() + 1) {
            let cause = cause.in_child(child_end.child, &self.graph().step(step).name, index);
            let reason = cause.to_string();
            let failure = Failure { cause: Some(Box::new(cause)), ..Failure::new(reason) };
            entries.extend(self.fail_attempt(
                step,
                AttemptFailure { failure, is_retryable: true },
                ctx,
            ));
        }
        Ok(entries)
    }

    /// Decides to start a child job again that should be active but does not exist: its start was
    /// lost, or its actor panicked.
    fn decide_child_missing(&self, step: StepIndex, index: u32) -> Result<Vec<Entry>, Rejected> {
        let run = self.steps.get(step.as_usize()).ok_or(Rejected::UnknownStep)?;
        let is_needed = !self.state.is_ended()
            && run.has_active_attempt()
            && run.fan_out.as_ref().is_some_and(|fan_out| fan_out.is_child_active(index));
        let id = self.child_id(step, index).filter(|_| is_needed).ok_or(Rejected::Void)?;
        Ok(vec![Entry::FanOut(step, FanOutEntry::ChildStarted { index, id })])
    }

    /// Decides to start a child job again under another id, because another job has `id`. The child
    /// job fails if all ids that may be tried are taken.
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
            Some(next_id) => {
                let entry = FanOutEntry::ChildStarted { index, id: next_id };
                Ok(vec![Entry::FanOut(step, entry)])
            }
            None => {
                let outcome = ChildOutcome::Failed(Cause::from_job("other jobs have all its ids"));
                // The highest round: this end is never late.
                let child_end = ChildEnd { child: id, round: u32::MAX, outcome };
                self.decide_child_ended(step, index, child_end, ctx)
            }
        }
    }

    /// Decides how a child job follows an order of its parent.
    fn decide_order(&self, order: Order, ctx: &Context<'_>) -> Result<Vec<Entry>, Rejected> {
        let is_ended = self.state.is_ended();
        let Order { round, instruction } = order;
        if round < self.round {
            return Err(Rejected::Late);
        }
        let entry = match instruction {
            Instruction::Halt(reason) if !is_ended => fail_job(reason, None),
            Instruction::Cancel(reason) if !is_ended => {
                Entry::Job(JobEntry::Cancelled { reason, by_parent: true })
            }
            Instruction::Expire(reason) if !is_ended => expire_job(reason),
            Instruction::Pause if self.state == JobState::Running => Entry::Job(JobEntry::Paused),
            Instruction::Resume if self.state == JobState::Paused => Entry::Job(JobEntry::Resumed),
            Instruction::Retry if round > self.round && self.state != JobState::Completed => {
                Entry::Job(JobEntry::Retried { round, deadline: self.new_deadline(ctx) })
            }
            // The child job completed before its parent failed, but the parent was not notified.
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
