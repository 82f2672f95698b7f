//! What follows from an input, and from the state alone: [`super::Job`] looks, and changes nothing.

use super::cause::Cause;
use super::conditions::Conditions;
use super::definition::{Millis, OnFailure};
use super::entry::{Effect, Entry, Failure, JobState, Parent, Timestamp};
use super::fanout::List;
use super::id::StepIndex;
use super::input::{ChildEnd, ChildOutcome, Context, Input, Instruction, Order, Rejected, Reply};
use super::job::Job;
use super::json::Message;
use super::step::{Failed, StepState, parse_progress, parse_reply};
use crate::faults;
use std::sync::Arc;

/// What is to be recorded, and what is to be done after it.
#[derive(Default)]
pub(super) struct Consequence {
    pub(super) entries: Vec<Entry>,
    pub(super) effects: Vec<Effect>,
}

impl Consequence {
    pub(super) fn of(entry: Entry) -> Consequence {
        Consequence { entries: vec![entry], effects: Vec::new() }
    }

    pub(super) fn and(mut self, more: Consequence) -> Consequence {
        self.entries.extend(more.entries);
        self.effects.extend(more.effects);
        self
    }
}

/// Something whose time has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// The job's deadline has passed.
    Deadline,
    /// There was no reply in time.
    Timeout(StepIndex),
    /// The pause before the next attempt is over.
    Attempt(StepIndex),
}

/// Why a step cannot go on, for a reason that another attempt would meet again.
fn final_failure(reason: String) -> Failure {
    Failure { reason: reason.into(), raw: None, cause: None }
}

impl Job {
    pub(super) fn decide(&self, input: Input, ctx: &Context<'_>) -> Result<Consequence, Rejected> {
        match input {
            Input::Reply { step, attempt, reply } => self.decide_reply(&step, attempt, &reply, ctx),
            Input::Confirmed { step, attempt } => self.decide_confirmed(step, attempt),
            Input::QueueMissing(queue) => self.decide_queue_missing(&queue, ctx),
            Input::ChildEnded { step, index, ended } => {
                self.decide_child_ended(step, index, ended, ctx)
            }
            // `take` goes through all that is due.
            Input::Timer { .. } => Err(Rejected::Void),
            Input::ChildMissing { step, index } => self.decide_child_missing(step, index),
            Input::Order(order) => self.decide_order(order, ctx),
            Input::Operate(operation) => self.decide_operation(operation, ctx),
            Input::Called(caller) => self.decide_called(caller),
            Input::Answered { caller, end } => self.decide_answered(caller, end),
            Input::Abandon(reason) if !self.state.is_ended() => Ok(self.fail(reason, None, ctx)),
            Input::Abandon(_) => Err(Rejected::Ended),
        }
    }

    // ---- replies

    fn decide_reply(
        &self,
        name: &str,
        attempt: Option<u32>,
        reply: &Reply,
        ctx: &Context<'_>,
    ) -> Result<Consequence, Rejected> {
        let step = self.graph().index_of(name).ok_or(Rejected::UnknownStep)?;
        if !self.takes_replies() {
            return Err(Rejected::Ended);
        }
        if !self.graph().step(step).has_queue() {
            return Err(Rejected::NotRunning);
        }
        self.decide_answer(step, attempt, reply, ctx)
    }

    /// What an answer to a step makes of it, be it a worker's or a user's.
    pub(super) fn decide_answer(
        &self,
        step: StepIndex,
        attempt: Option<u32>,
        reply: &Reply,
        ctx: &Context<'_>,
    ) -> Result<Consequence, Rejected> {
        let run = &self.steps[step.at()];
        match run.state {
            StepState::Running => {}
            StepState::Waiting => return Err(Rejected::NotRunning),
            StepState::Completed if faults::planted("second reply settles again") => {}
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
            return Ok(Consequence::of(Entry::StepProgressed {
                step,
                at: ctx.now,
                progress,
                deadline: ctx.after(definition.timeout),
            }));
        }
        if attempt.is_some_and(|attempt| attempt <= run.attempts_undone) {
            return Err(Rejected::Late);
        }
        match parse_reply(definition, reply, ctx.limits) {
            Ok(output) => Ok(Consequence::of(Entry::StepCompleted { step, at: ctx.now, output })),
            // The first result wins, whatever attempt it is of since the last rerun; a failure
            // settles its own attempt alone (SPEC §4).
            Err(_) if is_late && !faults::planted("late failures count") => Err(Rejected::Late),
            Err(failed) => Ok(self.fail_attempt(step, failed, ctx)),
        }
    }

    fn decide_confirmed(&self, step: StepIndex, attempt: u32) -> Result<Consequence, Rejected> {
        let run = self.steps.get(step.at()).ok_or(Rejected::UnknownStep)?;
        if faults::planted("confirms forgotten") {
            return Err(Rejected::Void);
        }
        if self.is_awaited(step) && run.attempt == attempt && !run.confirmed {
            Ok(Consequence::of(Entry::StepConfirmed { step }))
        } else {
            Err(Rejected::Void)
        }
    }

    fn decide_queue_missing(
        &self,
        queue: &str,
        ctx: &Context<'_>,
    ) -> Result<Consequence, Rejected> {
        // Those not confirmed are still in the hands of the bus, which sends them by itself.
        let lost: Vec<StepIndex> = self
            .waiting_for_replies()
            .filter(|step| *self.graph().step(*step).queue == *queue)
            .collect();
        if lost.is_empty() || faults::planted("missing queues ignored") {
            return Err(Rejected::Void);
        }
        let again = lost.into_iter().map(|step| self.redispatch(step, ctx));
        Ok(again.fold(Consequence::default(), Consequence::and))
    }

    /// The confirmed message of a step goes out once more; until it is confirmed anew it does so
    /// after a crash, too.
    pub(super) fn redispatch(&self, step: StepIndex, ctx: &Context<'_>) -> Consequence {
        let unconfirmed = Entry::StepUnconfirmed { step, at: Some(ctx.now) };
        let entries =
            if faults::planted("redispatch not recorded") { Vec::new() } else { vec![unconfirmed] };
        Consequence { entries, effects: vec![self.dispatch_again(step)] }
    }

    /// The message of the attempt that runs, once more.
    pub(super) fn dispatch_again(&self, step: StepIndex) -> Effect {
        Effect::Dispatch {
            step,
            attempt: self.steps[step.at()].attempt,
            input: self.input_of(step),
        }
    }

    // ---- child jobs

    fn decide_child_ended(
        &self,
        step: StepIndex,
        index: u32,
        ended: ChildEnd,
        ctx: &Context<'_>,
    ) -> Result<Consequence, Rejected> {
        if !self.takes_replies() {
            return Err(Rejected::Ended);
        }
        let run = self.steps.get(step.at()).ok_or(Rejected::UnknownStep)?;
        let fan_out = run.fan_out.as_ref().ok_or(Rejected::NotRunning)?;
        if !fan_out.is_under_way(index) || self.child_id(step, index) != Some(ended.child) {
            return Err(Rejected::Duplicate);
        }
        let cause = match ended.outcome {
            ChildOutcome::Completed(result) => {
                return Ok(Consequence::of(fan_out.gather(step, index, &result)));
            }
            ChildOutcome::Failed(_) if ended.round < fan_out.round(index) => {
                return Err(Rejected::Late);
            }
            ChildOutcome::Failed(cause) => cause,
        };
        let recorded = Consequence::of(Entry::ChildFailed { step, index });
        // In a failed job they were halted: that is no failure of the step, which goes on when the
        // job is retried.
        if self.state.is_ended() || !run.is_under_way() || !fan_out.exceeds(fan_out.failed() + 1) {
            return Ok(recorded);
        }
        let child = ended.child;
        let cause = cause.in_child(child, &self.graph().step(step).name, index);
        let failure =
            Failure { cause: Some(Box::new(cause.clone())), ..final_failure(cause.to_string()) };
        let mut failed = self.fail_attempt(step, Failed { failure, retryable: true }, ctx);
        failed.effects.retain(
            |effect| !matches!(effect, Effect::TellChild { child: other, .. } if *other == child),
        );
        Ok(recorded.and(failed))
    }

    fn decide_order(&self, order: Order, ctx: &Context<'_>) -> Result<Consequence, Rejected> {
        let is_ended = self.state.is_ended();
        let Order { round, what } = order;
        if round < self.round {
            return Err(Rejected::Late);
        }
        match what {
            Instruction::Halt(reason) if !is_ended => Ok(self.fail(reason, None, ctx)),
            Instruction::Cancel(reason) if !is_ended => Ok(self.cancel(reason, false, ctx)),
            Instruction::Expire(reason) if !is_ended => Ok(self.expire(reason, ctx)),
            Instruction::Pause if self.state == JobState::Running => Ok(self.pause(ctx)),
            Instruction::Resume if self.state == JobState::Paused => Ok(self.resume(ctx)),
            Instruction::Retry if round > self.round && self.state != JobState::Completed => {
                Ok(self.retry(round, ctx))
            }
            // It was done before its parent failed, and the parent did not hear of it.
            Instruction::Retry if self.state == JobState::Completed => Ok(Consequence {
                entries: Vec::new(),
                effects: self.word_to_parent().into_iter().collect(),
            }),
            Instruction::Halt(_) | Instruction::Cancel(_) | Instruction::Expire(_) => {
                Err(Rejected::Ended)
            }
            Instruction::Pause | Instruction::Resume | Instruction::Retry => Err(Rejected::Void),
        }
    }

    /// What all child jobs that have not told their end are told.
    fn tell_children(&self, what: &Instruction) -> Vec<Effect> {
        self.fanning_out.iter().flat_map(|step| self.tell_children_of(*step, what)).collect()
    }

    pub(super) fn tell_children_of(&self, step: StepIndex, what: &Instruction) -> Vec<Effect> {
        self.children_under_way(step)
            .filter_map(|index| self.tell_child(step, index, what.clone()))
            .collect()
    }

    pub(super) fn tell_child(
        &self,
        step: StepIndex,
        index: u32,
        what: Instruction,
    ) -> Option<Effect> {
        let round = self.steps[step.at()].fan_out.as_ref()?.round(index);
        let place = Parent { job: self.origin.id, step, index };
        Some(Effect::TellChild {
            child: self.child_id(step, index)?,
            place,
            order: Order { round, what },
        })
    }

    /// A child job that is to be retried was never created: its start was lost, or panicked.
    fn decide_child_missing(&self, step: StepIndex, index: u32) -> Result<Consequence, Rejected> {
        let run = self.steps.get(step.at()).ok_or(Rejected::UnknownStep)?;
        let is_wanted = !self.state.is_ended()
            && run.is_under_way()
            && run.fan_out.as_ref().is_some_and(|fan_out| fan_out.is_under_way(index));
        if is_wanted {
            Ok(Consequence { entries: Vec::new(), effects: self.start_child_again(step, index) })
        } else {
            Err(Rejected::Void)
        }
    }

    // ---- failures and ends

    /// An attempt failed: there is another one after a pause, or the step fails.
    pub(super) fn fail_attempt(
        &self,
        step: StepIndex,
        failed: Failed,
        ctx: &Context<'_>,
    ) -> Consequence {
        let Failed { failure, retryable } = failed;
        let run = &self.steps[step.at()];
        // Of a job that has failed the next attempt waits for its retry.
        let Some(retry_at) = run
            .next_attempt(self.origin.id, self.graph().step(step), ctx.now)
            .filter(|_| retryable)
        else {
            return self.fail_step(step, failure, ctx);
        };
        let effects = self.tell_children_of(
            step,
            &Instruction::Halt("its step begins again after a pause".into()),
        );
        Consequence {
            entries: vec![Entry::AttemptFailed {
                step,
                attempt: run.attempt,
                at: ctx.now,
                failure,
                retry_at,
            }],
            effects,
        }
    }

    /// The step's attempts are spent.
    fn fail_step(&self, step: StepIndex, failure: Failure, ctx: &Context<'_>) -> Consequence {
        let definition = self.graph().step(step);
        // What went wrong in child jobs says by itself where it did.
        let reason: Arc<str> = match &failure.cause {
            Some(_) => failure.reason.clone(),
            None => format!("step \"{}\": {}", definition.name, failure.reason).into(),
        };
        let cause = self.cause_of(step, &failure);
        let failed = Consequence::of(Entry::StepFailed { step, at: ctx.now, failure });
        match definition.on_failure {
            _ if self.state.is_ended() => failed,
            OnFailure::Fail => failed.and(self.fail(reason, Some((step, cause)), ctx)),
            OnFailure::Continue => {
                let effects =
                    self.tell_children_of(step, &Instruction::Halt("its step failed".into()));
                failed.and(Consequence { entries: Vec::new(), effects })
            }
        }
    }

    /// The job fails, by a step's failure or as a whole: its children are halted, its parent is
    /// told (SPEC §6).
    pub(super) fn fail(
        &self,
        reason: Arc<str>,
        failed: Option<(StepIndex, Cause)>,
        ctx: &Context<'_>,
    ) -> Consequence {
        let (step, cause) = failed
            .map_or_else(|| (None, Cause::of_job(&reason)), |(step, cause)| (Some(step), cause));
        let mut effects =
            self.tell_children(&Instruction::Halt("the job it belongs to failed".into()));
        effects.extend(self.tell_parent(ChildOutcome::Failed(cause)));
        Consequence {
            entries: vec![Entry::JobFailed { at: ctx.now, reason, expired: false, step }],
            effects,
        }
    }

    /// The deadline has passed: the job fails for good, and so do its child jobs. The parent has
    /// heard of it already.
    fn expire(&self, reason: Arc<str>, ctx: &Context<'_>) -> Consequence {
        let effects = self.tell_children(&Instruction::Expire(reason.clone()));
        Consequence {
            entries: vec![Entry::JobFailed { at: ctx.now, reason, expired: true, step: None }],
            effects,
        }
    }

    pub(super) fn cancel(
        &self,
        reason: Arc<str>,
        tell_parent: bool,
        ctx: &Context<'_>,
    ) -> Consequence {
        let mut effects =
            self.tell_children(&Instruction::Cancel("the job it belongs to was cancelled".into()));
        if tell_parent {
            effects.extend(
                self.tell_parent(ChildOutcome::Failed(Cause::of_job(&format!(
                    "cancelled: {reason}"
                )))),
            );
        }
        Consequence { entries: vec![Entry::JobCancelled { at: ctx.now, reason }], effects }
    }

    fn tell_parent(&self, outcome: ChildOutcome) -> Option<Effect> {
        Some(Effect::TellParent(self.origin.parent?, self.child_end(outcome)))
    }

    pub(super) fn pause(&self, ctx: &Context<'_>) -> Consequence {
        Consequence {
            entries: vec![Entry::JobPaused { at: ctx.now }],
            effects: self.tell_children(&Instruction::Pause),
        }
    }

    pub(super) fn resume(&self, ctx: &Context<'_>) -> Consequence {
        Consequence {
            entries: vec![Entry::JobResumed { at: ctx.now }],
            effects: self.tell_children(&Instruction::Resume),
        }
    }

    pub(super) fn retry(&self, round: u32, ctx: &Context<'_>) -> Consequence {
        Consequence::of(Entry::JobRetried { at: ctx.now, round, deadline: self.new_deadline(ctx) })
    }

    // ---- time

    /// What the time `due` brings; of attempts that began before `deaf_to` nothing.
    pub(super) fn due(&self, due: Timestamp, deaf_to: Option<Timestamp>) -> Vec<Due> {
        let is_due = |at: Option<Timestamp>| at.is_some_and(|at| at <= due);
        if is_due(self.deadline()) {
            return vec![Due::Deadline];
        }
        let of_step = |step: StepIndex| {
            let run = &self.steps[step.at()];
            if is_due(run.retry_at) && self.state == JobState::Running {
                Some(Due::Attempt(step))
            } else if run.is_under_way()
                && is_due(run.deadline)
                && self.takes_replies()
                && !self.is_deaf_to(step, deaf_to)
            {
                Some(Due::Timeout(step))
            } else {
                None
            }
        };
        self.graph().indices().filter_map(of_step).collect()
    }

    /// Whether the worker's last word may not have been heard. Child jobs and people are heard in
    /// any case.
    fn is_deaf_to(&self, step: StepIndex, deaf_to: Option<Timestamp>) -> bool {
        let (definition, run) = (self.graph().step(step), &self.steps[step.at()]);
        let span = definition.timeout.unwrap_or(Millis(0));
        definition.has_queue()
            && deaf_to
                .zip(run.deadline)
                .is_some_and(|(deaf_to, deadline)| deadline.before(span) < deaf_to)
    }

    /// What follows from it, if what came before has left it.
    pub(super) fn decide_due(&self, due: Due, ctx: &Context<'_>) -> Option<Consequence> {
        match due {
            Due::Deadline => {
                let span = self
                    .origin
                    .definition
                    .deadline
                    .map_or_else(String::new, |span| format!(" of {span}"));
                Some(self.expire(format!("it was not done within its deadline{span}").into(), ctx))
            }
            Due::Timeout(step) if self.takes_replies() && self.steps[step.at()].is_under_way() => {
                Some(self.fail_attempt(
                    step,
                    Failed { failure: self.timed_out(step), retryable: true },
                    ctx,
                ))
            }
            Due::Attempt(step)
                if self.state == JobState::Running && self.steps[step.at()].retry_at.is_some() =>
            {
                Some(self.begin(step, ctx))
            }
            Due::Timeout(_) | Due::Attempt(_) => None,
        }
    }

    fn timed_out(&self, step: StepIndex) -> Failure {
        let definition = self.graph().step(step);
        let span = definition.timeout.map_or_else(String::new, |span| span.to_string());
        final_failure(match (definition.task, definition.external) {
            (Some(_), _) => format!("its child jobs were not done within its timeout of {span}"),
            (None, true) => format!("nobody completed it within its timeout of {span}"),
            (None, false) => format!("no reply within its timeout of {span}"),
        })
    }

    // ---- what follows from the state alone

    pub(super) fn next_consequence(
        &self,
        conditions: &mut Conditions,
        ctx: &Context<'_>,
    ) -> Option<Consequence> {
        if self.state != JobState::Running {
            return None;
        }
        if let Some(step) = self.ready.front() {
            return Some(self.start_step(*step, conditions, ctx));
        }
        for step in self.fanning_out.iter().filter(|step| self.steps[step.at()].is_under_way()) {
            let fan_out = self.steps[step.at()].fan_out.as_ref()?;
            if fan_out.all_ended() {
                return Some(Consequence::of(Entry::FanOutCompleted { step: *step, at: ctx.now }));
            }
            if let Some(entry) =
                fan_out.start_next(self.origin.id, *step, &self.graph().step(*step).name, ctx)
            {
                return Some(Consequence::of(entry));
            }
        }
        if self.steps_left > 0 {
            return None;
        }
        let effects =
            self.tell_parent(ChildOutcome::Completed(self.result())).into_iter().collect();
        Some(Consequence { entries: vec![Entry::JobCompleted { at: ctx.now }], effects })
    }

    /// A step whose dependencies are done starts, unless its condition says otherwise.
    fn start_step(
        &self,
        step: StepIndex,
        conditions: &mut Conditions,
        ctx: &Context<'_>,
    ) -> Consequence {
        match self.may_start(step, conditions) {
            None | Some(Ok(true)) => self.begin(step, ctx),
            Some(Ok(false)) => Consequence::of(Entry::StepSkipped { step, at: ctx.now }),
            Some(Err(reason)) => self.fail_step(step, final_failure(reason), ctx),
        }
    }

    /// An attempt begins, the first or another one.
    fn begin(&self, step: StepIndex, ctx: &Context<'_>) -> Consequence {
        let definition = self.graph().step(step);
        let attempt = self.steps[step.at()].attempt + 1;
        let deadline = ctx.after(definition.timeout);
        if self.steps[step.at()].fan_out.is_some() {
            return Consequence::of(Entry::FanOutRestarted {
                step,
                attempt,
                at: ctx.now,
                deadline,
            });
        }
        let input = self.input_of(step);
        if definition.task.is_some() {
            return self.start_fan_out(step, &input, deadline, ctx);
        }
        let started = Consequence::of(Entry::StepStarted { step, attempt, at: ctx.now, deadline });
        if definition.external {
            return started;
        }
        let (size, limit) = (input.encoded_len(), ctx.limits.step_message_bytes_max);
        if size > limit {
            let reason = format!(
                "its step message would have {size} bytes, the limit is {limit} (setting limits.step_message_bytes_max): pass large data by reference"
            );
            return self.fail_step(step, final_failure(reason), ctx);
        }
        started.and(Consequence {
            entries: Vec::new(),
            effects: vec![Effect::Dispatch { step, attempt, input }],
        })
    }

    fn start_fan_out(
        &self,
        step: StepIndex,
        input: &Message,
        deadline: Option<Timestamp>,
        ctx: &Context<'_>,
    ) -> Consequence {
        let Some(keys) = self.task_keys(step) else { return Consequence::default() };
        let key = &keys.list_key;
        let (items, warning) = match List::in_input(input, keys) {
            List::Items(elements) => (elements.len(), None),
            List::Missing => {
                (0, Some(format!("the input has no list under \"{key}\": taken as empty")))
            }
            List::Wrong(kind) => {
                return self.fail_step(
                    step,
                    final_failure(format!("the input has {kind} under \"{key}\", expected a list")),
                    ctx,
                );
            }
        };
        if items > 0 && self.origin.depth >= ctx.limits.depth_max {
            let reason = format!(
                "child jobs would nest deeper than {} levels (setting limits.depth_max): does the recursion end?",
                ctx.limits.depth_max
            );
            return self.fail_step(step, final_failure(reason), ctx);
        }
        Consequence::of(Entry::FanOutStarted {
            step,
            at: ctx.now,
            items,
            warning: warning.map(Into::into),
            deadline,
        })
    }
}
