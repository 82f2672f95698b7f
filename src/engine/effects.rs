//! Maps entries to their effects outside the job.
//!
//! The same mapping serves new decisions and, after a restart, the open entries. Only orders to
//! child jobs are recovered differently: whether a child job has missed an order depends on the
//! state of the child job too ([`Job::missed_orders`]).

use super::caller::Caller;
use super::cause::Cause;
use super::definition::OnFailure;
use super::effect::Effect;
use super::entry::{CallerEntry, Entry, FanOutEntry, JobEntry, StepEntry};
use super::id::StepIndex;
use super::input::{ChildEnd, ChildOutcome, Instruction, Order, reasons};
use super::job::Job;
use super::origin::{Origin, ParentItem};
use super::state::JobState;
use super::time::Timestamp;

impl Job {
    /// Returns the effects of an entry that has just been applied to the job.
    pub fn effects(&self, entry: &Entry) -> Vec<Effect> {
        match entry {
            Entry::Job(entry) => self.effects_of_job(entry),
            Entry::Step(step, entry) => self.effects_of_step(*step, entry),
            Entry::FanOut(step, entry) => self.effects_of_fan_out(*step, entry),
            Entry::Caller(CallerEntry::Joined(caller)) => {
                self.answer_to_joined(caller).into_iter().collect()
            }
            Entry::Caller(CallerEntry::Answered(_)) => Vec::new(),
        }
    }

    /// Returns the entries whose effects may be lost if the process stops: unconfirmed messages,
    /// active child jobs, the report to the parent, the answers to callers.
    pub fn open_entries(&self) -> Vec<Entry> {
        let mut open_entries = Vec::new();
        // This includes a failed job: its retry relies on the replies.
        if self.accepts_replies() {
            let unconfirmed = self
                .graph()
                .indices()
                .filter(|step| self.is_awaited(*step) && !self.step(*step).confirmed);
            open_entries.extend(unconfirmed.map(|step| Entry::Step(step, StepEntry::Unconfirmed)));
        }
        open_entries.extend(self.open_children().filter_map(|(step, index)| {
            let id = self.child_id(step, index)?;
            Some(Entry::FanOut(step, FanOutEntry::ChildStarted { index, id }))
        }));
        if self.state.is_ended() {
            open_entries.extend(self.origin.parent.map(|_| Entry::Job(JobEntry::ToldAgain)));
            let callers = self.callers.waiting().filter_map(|index| self.callers.get(index));
            open_entries
                .extend(callers.map(|caller| Entry::Caller(CallerEntry::Joined(caller.clone()))));
        }
        open_entries
    }

    /// Returns the effects of the [open entries](Job::open_entries).
    pub fn open_effects(&self) -> Vec<Effect> {
        self.open_entries().iter().flat_map(|entry| self.effects(entry)).collect()
    }

    fn effects_of_job(&self, entry: &JobEntry) -> Vec<Effect> {
        match entry {
            JobEntry::Failed { expired: true, reason, .. } => {
                // The parent needs no report: the deadline is that of the whole job tree, so the
                // parent has expired too.
                let orders = self.order_children(None, &Instruction::Expire(reason.clone()));
                orders.into_iter().chain(self.caller_answers()).collect()
            }
            JobEntry::Failed { expired: false, step, .. } => {
                let halt = Instruction::Halt(reasons::JOB_FAILED.into());
                let orders = self.order_children(*step, &halt).into_iter();
                orders.chain(self.parent_report()).chain(self.caller_answers()).collect()
            }
            JobEntry::Cancelled { by_parent, .. } => {
                let cancel = Instruction::Cancel(reasons::JOB_CANCELLED.into());
                let orders = self.order_children(None, &cancel).into_iter();
                let parent = self.parent_report().filter(|_| !by_parent);
                orders.chain(parent).chain(self.caller_answers()).collect()
            }
            JobEntry::Completed => {
                self.parent_report().into_iter().chain(self.caller_answers()).collect()
            }
            JobEntry::Paused => self.order_children(None, &Instruction::Pause),
            JobEntry::Resumed => self.order_children(None, &Instruction::Resume),
            JobEntry::ToldAgain => self.parent_report().into_iter().collect(),
            // Steps and child jobs that start again have entries, and effects, of their own.
            JobEntry::Created { .. }
            | JobEntry::Begun
            | JobEntry::Claimed { .. }
            | JobEntry::Admitted
            | JobEntry::Retried { .. }
            | JobEntry::Rerun { .. }
            | JobEntry::Asked { .. } => Vec::new(),
        }
    }

    fn effects_of_step(&self, step: StepIndex, entry: &StepEntry) -> Vec<Effect> {
        let order = |instruction: Instruction| self.order_children_of_step(step, &instruction);
        match entry {
            StepEntry::Started { .. } | StepEntry::Unconfirmed => {
                self.dispatch(step).into_iter().collect()
            }
            StepEntry::AttemptFailed { .. } => {
                order(Instruction::Halt(reasons::STEP_PAUSES.into()))
            }
            StepEntry::Cancelled => order(Instruction::Cancel(reasons::STEP_CANCELLED.into())),
            // If the step's failure fails the job, the job's entry causes the orders.
            StepEntry::Failed(_)
                if self.graph().step(step).on_failure == OnFailure::Continue
                    && !self.state.is_ended() =>
            {
                order(Instruction::Halt(reasons::STEP_FAILED.into()))
            }
            StepEntry::Failed(_)
            | StepEntry::Confirmed
            | StepEntry::Leased(_)
            | StepEntry::Begun
            | StepEntry::Completed(_)
            | StepEntry::Progressed { .. }
            // What a step wants of the gate is determined after the whole decision.
            | StepEntry::Claimed { .. }
            | StepEntry::ResendClaimed
            | StepEntry::Skipped => Vec::new(),
        }
    }

    fn effects_of_fan_out(&self, step: StepIndex, entry: &FanOutEntry) -> Vec<Effect> {
        match entry {
            FanOutEntry::ChildrenStarted { from, count, .. } => {
                (*from..*from + *count).map(|index| self.start_child(step, index)).collect()
            }
            FanOutEntry::ChildStarted { index, .. } => self.start_child_again(step, *index),
            FanOutEntry::Restarted { .. } => self.order_children_of_step(step, &Instruction::Retry),
            FanOutEntry::Started { .. }
            | FanOutEntry::ChildCompleted { .. }
            | FanOutEntry::ChildFailed { .. }
            | FanOutEntry::Completed => Vec::new(),
        }
    }

    // ---- step messages

    /// Returns the dispatch of the running attempt's message; `None`: the step sends no messages.
    fn dispatch(&self, step: StepIndex) -> Option<Effect> {
        self.graph().step(step).has_queue().then(|| Effect::Dispatch {
            step,
            attempt: self.step(step).attempt,
            input: self.step_input(step),
        })
    }

    // ---- child jobs

    /// Returns the start of the child job for the item at `index`.
    fn start_child(&self, step: StepIndex, index: u32) -> Effect {
        let definition = self.graph().step(step);
        let fan_out =
            self.step(step).fan_out.as_ref().expect("a step with child jobs has a fan-out");
        let graph = definition.task.expect("a step with child jobs has a task");
        let origin = Origin {
            id: fan_out.child_id(self.origin.id, &definition.name, index),
            definition: self.origin.definition.clone(),
            graph,
            parent: Some(ParentItem { job: self.origin.id, step, index }),
            root: self.origin.root,
            depth: self.origin.depth.saturating_add(1),
            // Whoever carries out the effect sets the time at which the child job starts.
            created: Timestamp::default(),
            trace: self.origin.trace.clone(),
            starts_at: None,
            slot: None,
        };
        Effect::StartChild { origin: Box::new(origin), message: fan_out.child_message(index) }
    }

    /// Returns the start of a child job that was started before, and the orders that it has
    /// received since.
    fn start_child_again(&self, step: StepIndex, index: u32) -> Vec<Effect> {
        let is_retried =
            self.step(step).fan_out.as_ref().is_some_and(|fan_out| fan_out.round(index) > 0);
        let retry = is_retried.then_some(Instruction::Retry);
        let pause = (self.state == JobState::Paused).then_some(Instruction::Pause);
        let orders = retry
            .into_iter()
            .chain(pause)
            .filter_map(|instruction| self.order_child(step, index, instruction));
        std::iter::once(self.start_child(step, index)).chain(orders).collect()
    }

    /// Returns an order to every child job that has not reported its end. `ended_step`: a step that
    /// has just ended and is no longer an active fan-out. Its child jobs may still be active.
    fn order_children(
        &self,
        ended_step: Option<StepIndex>,
        instruction: &Instruction,
    ) -> Vec<Effect> {
        let steps = self.active_fan_outs.iter().copied().chain(ended_step);
        steps.flat_map(|step| self.order_children_of_step(step, instruction)).collect()
    }

    /// Returns an order to every active child job of a step.
    fn order_children_of_step(&self, step: StepIndex, instruction: &Instruction) -> Vec<Effect> {
        self.active_children(step)
            .filter_map(|index| self.order_child(step, index, instruction.clone()))
            .collect()
    }

    /// Returns an order to one child job, with its current round; `None`: the step has no child
    /// jobs.
    fn order_child(&self, step: StepIndex, index: u32, instruction: Instruction) -> Option<Effect> {
        let round = self.step(step).fan_out.as_ref()?.round(index);
        let parent_item = ParentItem { job: self.origin.id, step, index };
        let child = self.child_id(step, index)?;
        Some(Effect::OrderChild { child, parent_item, order: Order { round, instruction } })
    }

    // ---- reports of the end

    /// Returns the report of an ended child job to its parent; `None`: the job is a root job, or
    /// has not ended.
    fn parent_report(&self) -> Option<Effect> {
        let parent = self.origin.parent?;
        let outcome = match self.state {
            JobState::Running | JobState::Paused => return None,
            JobState::Completed => ChildOutcome::Completed(self.result()),
            JobState::Failed => ChildOutcome::Failed(self.cause()),
            JobState::Cancelled => {
                ChildOutcome::Failed(Cause::from_job(&format!("cancelled: {}", self.reason_text())))
            }
        };
        let child_end = ChildEnd { child: self.origin.id, round: self.round, outcome };
        Some(Effect::NotifyParent(parent, child_end))
    }

    /// Returns why the job failed, for its parent.
    fn cause(&self) -> Cause {
        let failure = self
            .failed_step
            .and_then(|step| Some((step, self.steps.get(step.as_usize())?.failure.as_ref()?)));
        match failure {
            None => Cause::from_job(&self.reason_text()),
            Some((step, failure)) => match &failure.cause {
                Some(cause) => (**cause).clone(),
                None => Cause::from_step(&self.graph().step(step).name, &failure.reason),
            },
        }
    }

    /// Returns the answers to all callers that wait for one.
    fn caller_answers(&self) -> impl Iterator<Item = Effect> + '_ {
        self.callers.waiting().map(|index| self.caller_answer(index))
    }

    /// Returns the answer to a caller that has just joined; `None`: the job has not ended, and the
    /// caller waits.
    fn answer_to_joined(&self, caller: &Caller) -> Option<Effect> {
        self.callers
            .find_index(caller)
            .filter(|_| self.state.is_ended())
            .map(|index| self.caller_answer(index))
    }

    fn caller_answer(&self, caller_index: u32) -> Effect {
        Effect::AnswerCaller { caller: caller_index, end: self.earlier_ends }
    }
}
