//! One job: its steps, what it waits for, and the two functions that everything hangs on,
//! [`Job::take`] and [`Job::evolve`]. `decide` holds what follows from an input, `evolve` what an
//! entry does.

use super::call::{Caller, Callers};
use super::cause::Cause;
use super::conditions::Conditions;
use super::decide::Consequence;
use super::definition::{Definition, Dependency, Graph, OnFailure, Step};
use super::entry::{Decision, Effect, Entry, Failure, JobState, Origin, Timestamp};
use super::id::{JobId, StepIndex};
use super::input::{ChildEnd, ChildOutcome, Context, Input, Instruction, Order, Rejected};
use super::json::Message;
use super::step::{StepRun, StepState};
use crate::faults;
use std::collections::VecDeque;
use std::sync::Arc;

/// A job or child job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub(super) origin: Origin,
    pub(super) message: Message,
    pub(super) state: JobState,
    pub(super) ended: Option<Timestamp>,
    pub(super) reason: Option<Arc<str>>,
    /// When it fails, if it is not done by then.
    pub(super) deadline: Option<Timestamp>,
    /// It has failed and takes no more replies: its deadline has passed.
    pub(super) expired: bool,
    /// The step whose failure it failed by, if it was one's.
    pub(super) failed_by: Option<StepIndex>,
    /// How often it was retried.
    pub(super) round: u32,
    /// How many entries it has come from.
    pub(super) length: u64,
    /// Which of them, counted from 1, gave it its state.
    pub(super) turned: u64,
    pub(super) steps: Vec<StepRun>,
    /// Steps whose dependencies are done and that have not started, in the order in which they
    /// became ready.
    pub(super) ready: VecDeque<StepIndex>,
    /// Fan-out steps that run.
    pub(super) fanning_out: Vec<StepIndex>,
    /// Steps whose message is with a worker: replies may still come.
    pub(super) awaited: u32,
    /// Steps that are not done.
    pub(super) steps_left: u32,
    /// Who asked for it by a message on its workflow's queue.
    pub(super) callers: Callers,
    /// How often it went on after an end.
    pub(super) ends: u32,
}

impl Job {
    /// A new job, and what follows at once: its first dispatches.
    pub fn create(origin: Origin, message: Message, ctx: &Context<'_>) -> (Job, Decision) {
        Job::create_for(origin, message, None, ctx)
    }

    /// As [`Job::create`], for a caller that is to be told its end.
    pub fn create_for(
        origin: Origin,
        message: Message,
        caller: Option<Caller>,
        ctx: &Context<'_>,
    ) -> (Job, Decision) {
        let kept = origin.parent.is_none().then(|| message.clone());
        let mut job = Job::before(origin, message);
        let mut decision = Decision::default();
        let deadline = job.new_deadline(ctx);
        job.record(Entry::JobCreated { message: kept, deadline }, &mut decision);
        if let Some(caller) = caller {
            job.record(Entry::CallerJoined { caller }, &mut decision);
        }
        job.advance(ctx, &mut decision);
        let decision = decision.settled(&job, JobState::Running);
        (job, decision)
    }

    /// A job rebuilt from its entries; `message` is a child job's, derived from its parent.
    pub fn recover(
        origin: Origin,
        message: Option<Message>,
        entries: impl IntoIterator<Item = Entry>,
    ) -> Job {
        let mut job = Job::before(origin, message.unwrap_or_default());
        for entry in entries {
            job.evolve(&entry);
        }
        job
    }

    /// Decides what follows from `input` and applies it. The effects may leave only after the
    /// entries are committed.
    pub fn take(&mut self, input: Input, ctx: &Context<'_>) -> Result<Decision, Rejected> {
        let before = self.state;
        let mut decision = Decision::default();
        if let Input::Timer { due, deaf_to } = input {
            // Once for each step: the clock may have been set back, and what begins now would be
            // due already by that time.
            for what in self.due(due, deaf_to) {
                if let Some(consequence) = self.decide_due(what, ctx) {
                    self.apply(consequence, &mut decision);
                }
            }
            if decision.entries.is_empty() {
                return Err(Rejected::Void);
            }
        } else {
            let consequence = self.decide(input, ctx)?;
            self.apply(consequence, &mut decision);
        }
        self.advance(ctx, &mut decision);
        Ok(decision.settled(self, before))
    }

    /// The effects that a stop of the process may have lost, of a recovered job: dispatches that
    /// were not confirmed, child jobs under way (which whoever recovers compares with those it has
    /// found), the word to the parent, the answers to callers.
    pub fn open_effects(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        // Of a failed job too: its retry counts on the replies.
        if self.takes_replies() {
            for step in self.graph().indices() {
                let is_open = !self.steps[step.at()].confirmed
                    && !faults::planted("unconfirmed steps not dispatched after a restart");
                if is_open && self.is_awaited(step) {
                    effects.push(self.dispatch_again(step));
                }
            }
        }
        if !faults::planted("children not started after a restart") {
            effects.extend(
                self.open_children().flat_map(|(step, index)| self.start_child_again(step, index)),
            );
        }
        effects.extend(self.word_to_parent());
        effects.extend(self.open_answers());
        effects
    }

    /// What a child job, found beside this one after a restart, may not have heard.
    pub fn words_to(&self, child: &Job) -> Vec<Order> {
        let Some((run, place)) =
            child.origin.parent.and_then(|place| Some((self.steps.get(place.step.at())?, place)))
        else {
            return Vec::new();
        };
        let round = run.fan_out.as_ref().map_or(0, |fan_out| fan_out.round(place.index));
        // A step that was begun anew does not know the rounds of its earlier child jobs.
        let last_word = |what| {
            if child.state.is_ended() {
                Vec::new()
            } else {
                vec![Order { round: round.max(child.round), what }]
            }
        };
        if self.child_id(place.step, place.index) != Some(child.id()) {
            return last_word(Instruction::Halt("its step was begun anew".into()));
        }
        match (self.state, run.state) {
            (JobState::Cancelled, _) => last_word(Instruction::Cancel(self.reason_text())),
            (JobState::Failed, _) if self.expired => {
                last_word(Instruction::Expire(self.reason_text()))
            }
            (JobState::Completed | JobState::Failed, _) => {
                last_word(Instruction::Halt(self.reason_text()))
            }
            (JobState::Running | JobState::Paused, StepState::Cancelled) => {
                last_word(Instruction::Cancel("its step was cancelled".into()))
            }
            (JobState::Running | JobState::Paused, _) if !run.is_under_way() => {
                last_word(Instruction::Halt("its step failed".into()))
            }
            (JobState::Running | JobState::Paused, _)
                if faults::planted("orders to child jobs lost at a restart") =>
            {
                Vec::new()
            }
            (JobState::Running | JobState::Paused, _) => {
                self.words_to_child_under_way(child, round)
            }
        }
    }

    fn words_to_child_under_way(&self, child: &Job, round: u32) -> Vec<Order> {
        let is_retried = child.round < round && child.state != JobState::Completed;
        let retry = is_retried.then_some(Instruction::Retry);
        let is_running = is_retried || child.state == JobState::Running;
        let pace = match self.state {
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
        retry.into_iter().chain(pace).map(|what| Order { round, what }).collect()
    }

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.origin.id
    }

    /// Where it comes from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The message it was created with.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Its state.
    pub fn state(&self) -> JobState {
        self.state
    }

    /// When it ended.
    pub fn ended(&self) -> Option<Timestamp> {
        self.ended
    }

    /// Why it failed or was cancelled.
    pub fn reason(&self) -> Option<&Arc<str>> {
        self.reason.as_ref()
    }

    /// The same for those who are told in any case.
    pub fn reason_text(&self) -> Arc<str> {
        self.reason.clone().unwrap_or_else(|| "no reason".into())
    }

    /// The definition it started with.
    pub fn definition(&self) -> &Arc<Definition> {
        &self.origin.definition
    }

    /// The graph it runs.
    pub fn graph(&self) -> &Graph {
        &self.origin.definition.graphs[usize::from(self.origin.graph)]
    }

    /// Its steps with their definitions, in the order of declaration.
    pub fn steps(&self) -> impl Iterator<Item = (&Step, &StepRun)> {
        self.graph().steps.iter().zip(&self.steps)
    }

    /// The step at `index`.
    pub fn step(&self, index: StepIndex) -> &StepRun {
        &self.steps[index.at()]
    }

    /// The state of a step for users: what ran when its job was ended for good is cancelled.
    pub fn step_state(&self, step: StepIndex) -> StepState {
        let state = self.steps[step.at()].state;
        let is_cut_off = self.state == JobState::Cancelled || self.expired;
        if is_cut_off && state == StepState::Running { StepState::Cancelled } else { state }
    }

    /// The status of a step (SPEC §7).
    pub fn status(&self, step: StepIndex) -> &str {
        let (words, run) = (&self.graph().step(step).status, &self.steps[step.at()]);
        match self.step_state(step) {
            StepState::Waiting => "",
            StepState::Running => run.status.as_deref().unwrap_or_else(|| words.running()),
            StepState::Completed => run.status.as_deref().unwrap_or("COMPLETED"),
            StepState::Failed => "FAILED",
            StepState::Skipped => words.skipped(),
            StepState::Cancelled => words.cancelled(),
        }
    }

    /// When it fails, if it is not done by then.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadline.filter(|_| !self.state.is_ended())
    }

    /// How often it was retried.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// The earliest time at which something follows by itself: [`Input::Timer`] is due then.
    pub fn next_timer(&self) -> Option<Timestamp> {
        let takes_replies = self.takes_replies();
        let timeouts = self
            .steps
            .iter()
            .filter(|run| takes_replies && run.is_under_way())
            .filter_map(|run| run.deadline);
        timeouts.chain(self.next_timer_but_timeouts()).min()
    }

    /// The same, of what does not hang on replies.
    pub fn next_timer_but_timeouts(&self) -> Option<Timestamp> {
        let retries_run = self.state == JobState::Running;
        let retries = self
            .steps
            .iter()
            .filter(|run| retries_run && run.state == StepState::Running)
            .filter_map(|run| run.retry_at);
        retries.chain(self.deadline()).min()
    }

    /// How many entries it has come from: the number of its last one, the same after any restart.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The number of the entry that gave it its state.
    pub fn turned(&self) -> u64 {
        self.turned
    }

    /// The job's result (SPEC §3.6): of a job that is not completed, the merge of what there is.
    pub fn result(&self) -> Message {
        Message::merge(
            self.graph()
                .last_steps()
                .iter()
                .filter_map(|step| self.steps[step.at()].output.as_ref()),
        )
    }

    /// Whether it takes no more input: it has ended, no reply that it would keep can come, and its
    /// callers are answered.
    pub fn is_closed(&self) -> bool {
        if self.owes_an_answer() {
            return false;
        }
        match self.state {
            JobState::Running | JobState::Paused => false,
            JobState::Failed => self.expired || self.awaited == 0,
            JobState::Completed | JobState::Cancelled => true,
        }
    }

    /// Whether a reply may change it.
    pub(super) fn takes_replies(&self) -> bool {
        match self.state {
            JobState::Running | JobState::Paused => true,
            JobState::Failed => !self.expired,
            JobState::Completed | JobState::Cancelled => false,
        }
    }

    /// Whether the step counts as done for those that depend on it.
    pub(super) fn is_done(&self, step: StepIndex) -> bool {
        match self.steps[step.at()].state {
            StepState::Completed | StepState::Skipped | StepState::Cancelled => true,
            StepState::Failed => self.graph().step(step).on_failure == OnFailure::Continue,
            StepState::Waiting | StepState::Running => false,
        }
    }

    /// Whether somebody outside may still answer the step: a worker that has its message, or a
    /// person.
    pub fn is_awaited_by_others(&self, step: StepIndex) -> bool {
        self.takes_replies()
            && self.graph().step(step).task.is_none()
            && self.steps[step.at()].is_under_way()
    }

    /// Whether the step's message is with a worker, or on its way.
    pub(super) fn is_awaited(&self, step: StepIndex) -> bool {
        self.graph().step(step).has_queue() && self.steps[step.at()].is_under_way()
    }

    /// The steps whose message the broker has, or had, and whose reply would still be taken.
    pub fn waiting_for_replies(&self) -> impl Iterator<Item = StepIndex> + '_ {
        let waits = self.awaited > 0 && self.takes_replies();
        let steps = self.graph().indices().take_while(move |_| waits);
        steps.filter(|step| self.is_awaited(*step) && self.steps[step.at()].confirmed)
    }

    /// The items whose child jobs are to be under way.
    pub fn open_children(&self) -> impl Iterator<Item = (StepIndex, u32)> + '_ {
        let goes_on = !self.state.is_ended();
        self.fanning_out
            .iter()
            .filter(move |step| goes_on && self.steps[step.at()].is_under_way())
            .flat_map(|step| self.children_under_way(*step).map(|index| (*step, index)))
    }

    /// The items of `step` whose child jobs have not told their end.
    pub(super) fn children_under_way(&self, step: StepIndex) -> impl Iterator<Item = u32> + '_ {
        self.steps[step.at()].fan_out.iter().flat_map(|fan_out| fan_out.under_way())
    }

    /// The id of the child job of `step` at `index`, as recorded when it was started.
    pub fn child_id(&self, step: StepIndex, index: u32) -> Option<JobId> {
        let fan_out = self.steps[step.at()].fan_out.as_ref()?;
        Some(fan_out.child_id(self.origin.id, &self.graph().step(step).name, index))
    }

    /// The message of the child job of `step` at `index`.
    pub fn child_message(&self, step: StepIndex, index: u32) -> Option<Message> {
        self.steps.get(step.at())?.fan_out.as_ref().map(|fan_out| fan_out.child_message(index))
    }

    /// The input of a step: the merge of its dependencies' outputs in the order of the array (SPEC
    /// §3.1).
    pub fn input_of(&self, step: StepIndex) -> Message {
        let depends = &self.graph().step(step).depends;
        if depends.is_empty() {
            return self.message.clone();
        }
        let parts = depends.iter().filter_map(|dependency| match dependency {
            Dependency::Start => Some(&self.message),
            Dependency::Step(on) => self.steps[on.at()].output.as_ref(),
        });
        if faults::planted("later dependency wins the merge") {
            return Message::merge(parts.rev());
        }
        Message::merge(parts)
    }

    /// States the invariants; called after every `evolve` in debug builds, after recovery and in
    /// simulation always.
    pub fn check(&self) {
        let left = self.graph().indices().filter(|step| !self.is_done(*step)).count();
        assert_eq!(left, self.steps_left as usize, "steps left");
        let awaited = self.graph().indices().filter(|step| self.is_awaited(*step)).count();
        assert_eq!(awaited, self.awaited as usize, "steps whose reply is awaited");
        for step in self.graph().indices() {
            let run = &self.steps[step.at()];
            let name = &self.graph().step(step).name;
            let waits = self
                .graph()
                .step(step)
                .depended_on()
                .iter()
                .filter(|on| !self.is_done(**on))
                .count();
            assert_eq!(waits, usize::from(run.waits_for), "dependencies of {name}");
            assert_eq!(
                run.output.is_some(),
                run.state == StepState::Completed,
                "an output belongs to a completed step"
            );
            assert!(
                run.failure.is_some() || run.state != StepState::Failed,
                "a failed step has its failure"
            );
            assert!(
                run.retry_at.is_none() || run.state == StepState::Running,
                "a step that waits for its next attempt runs"
            );
            let runs =
                matches!(run.state, StepState::Running | StepState::Completed | StepState::Skipped);
            assert!(!runs || waits == 0, "{name} runs after its dependencies");
            let is_ready = self.ready.contains(&step);
            assert_eq!(is_ready, waits == 0 && run.state == StepState::Waiting, "{name} is ready");
        }
        if self.state == JobState::Completed {
            assert_eq!(left, 0, "a completed job has no open step");
        }
        assert_eq!(self.ended.is_some(), self.state.is_ended(), "an ended job has its time");
        assert!(
            !self.callers.are_told() || self.state.is_ended(),
            "callers are answered after the end"
        );
    }

    fn before(origin: Origin, message: Message) -> Job {
        let graph = &origin.definition.graphs[usize::from(origin.graph)];
        let steps: Vec<StepRun> = graph.steps.iter().map(StepRun::waiting).collect();
        let ready = graph.indices().filter(|step| steps[step.at()].waits_for == 0).collect();
        let steps_left = u32::try_from(steps.len()).unwrap_or(u32::MAX);
        Job {
            origin,
            message,
            state: JobState::Running,
            ended: None,
            reason: None,
            deadline: None,
            expired: false,
            failed_by: None,
            round: 0,
            length: 0,
            turned: 0,
            steps,
            ready,
            fanning_out: Vec::new(),
            awaited: 0,
            steps_left,
            callers: Callers::default(),
            ends: 0,
        }
    }

    /// When a job that begins, or goes on after its end, must be done. Child jobs end with their
    /// top-level job.
    pub(super) fn new_deadline(&self, ctx: &Context<'_>) -> Option<Timestamp> {
        if self.origin.parent.is_some() { None } else { ctx.after(self.origin.definition.deadline) }
    }

    fn apply(&mut self, consequence: Consequence, decision: &mut Decision) {
        for entry in consequence.entries {
            self.record(entry, decision);
        }
        decision.effects.extend(consequence.effects);
    }

    fn record(&mut self, entry: Entry, decision: &mut Decision) {
        self.evolve(&entry);
        // What a fan-out's child jobs are told needs the state after its entry.
        if let Entry::ChildrenStarted { step, from, count, .. } = &entry {
            decision
                .effects
                .extend((*from..*from + *count).map(|index| self.start_child(*step, index)));
        }
        if let Entry::FanOutRestarted { step, .. } = &entry {
            decision.effects.extend(self.retry_children(*step));
        }
        if let Entry::JobCompleted { .. } | Entry::JobFailed { .. } | Entry::JobCancelled { .. } =
            &entry
        {
            decision.effects.extend(self.answers());
        }
        if let Entry::CallerJoined { caller } = &entry {
            decision.effects.extend(self.answer_to(caller));
        }
        decision.entries.push(entry);
    }

    fn retry_children(&self, step: StepIndex) -> Vec<Effect> {
        if faults::planted("child jobs not retried") {
            Vec::new()
        } else {
            self.tell_children_of(step, &Instruction::Retry)
        }
    }

    /// What follows from the state alone, entry by entry.
    fn advance(&mut self, ctx: &Context<'_>, decision: &mut Decision) {
        let (mut conditions, mut seen) = (Conditions::default(), 0);
        loop {
            self.note_changes(&decision.entries[seen..], &mut conditions);
            seen = decision.entries.len();
            let cancelled = self.next_cancelled(&mut conditions, ctx);
            let Some(consequence) =
                cancelled.or_else(|| self.next_consequence(&mut conditions, ctx))
            else {
                return;
            };
            self.apply(consequence, decision);
        }
    }

    pub(super) fn start_child(&self, step: StepIndex, index: u32) -> Effect {
        let id = self
            .child_id(step, index)
            .unwrap_or_else(|| self.origin.id.derived(&self.graph().step(step).name, index, 0));
        let origin = Origin {
            id,
            definition: self.origin.definition.clone(),
            graph: self.graph().step(step).task.unwrap_or_default(),
            parent: Some(super::entry::Parent { job: self.origin.id, step, index }),
            root: self.origin.root,
            depth: self.origin.depth.saturating_add(1),
            created: Timestamp::default(),
        };
        Effect::StartChild {
            origin: Box::new(origin),
            message: self.child_message(step, index).unwrap_or_default(),
        }
    }

    /// The same once more, with what it has been told since.
    pub(super) fn start_child_again(&self, step: StepIndex, index: u32) -> Vec<Effect> {
        let is_retried =
            self.steps[step.at()].fan_out.as_ref().is_some_and(|fan_out| fan_out.round(index) > 0);
        let retry = is_retried.then_some(Instruction::Retry);
        let pause = (self.state == JobState::Paused).then_some(Instruction::Pause);
        let orders =
            retry.into_iter().chain(pause).filter_map(|what| self.tell_child(step, index, what));
        std::iter::once(self.start_child(step, index)).chain(orders).collect()
    }

    pub(super) fn task_keys(&self, step: StepIndex) -> Option<&super::definition::FanOutKeys> {
        let task = self.graph().step(step).task?;
        self.origin.definition.graphs[usize::from(task)].fan_out.as_ref()
    }

    /// What an ended child job tells its parent.
    pub(super) fn word_to_parent(&self) -> Option<Effect> {
        let parent = self.origin.parent?;
        let outcome = match self.state {
            JobState::Running | JobState::Paused => return None,
            JobState::Completed => ChildOutcome::Completed(self.result()),
            JobState::Failed => ChildOutcome::Failed(self.cause()),
            JobState::Cancelled => {
                ChildOutcome::Failed(Cause::of_job(&format!("cancelled: {}", self.reason_text())))
            }
        };
        Some(Effect::TellParent(parent, self.child_end(outcome)))
    }

    /// Why it failed, as its parent is told.
    fn cause(&self) -> Cause {
        let failed = self
            .failed_by
            .and_then(|step| Some((step, self.steps.get(step.at())?.failure.as_ref()?)));
        failed.map_or_else(
            || Cause::of_job(&self.reason_text()),
            |(step, failure)| self.cause_of(step, failure),
        )
    }

    /// Why it fails with the failure of `step`.
    pub(super) fn cause_of(&self, step: StepIndex, failure: &Failure) -> Cause {
        match &failure.cause {
            Some(cause) => (**cause).clone(),
            None => Cause::of_step(&self.graph().step(step).name, &failure.reason),
        }
    }

    pub(super) fn child_end(&self, outcome: ChildOutcome) -> ChildEnd {
        ChildEnd { child: self.origin.id, round: self.round, outcome }
    }
}

impl Decision {
    fn settled(mut self, job: &Job, before: JobState) -> Decision {
        self.state = (job.state != before).then_some(job.state);
        self.closed = job.is_closed();
        if job.origin.parent.is_none() {
            let mut touched: Vec<StepIndex> = Vec::new();
            for entry in &self.entries {
                match entry.touched() {
                    Touched::Nothing => {}
                    Touched::Step(step) if touched.contains(&step) => {}
                    Touched::Step(step) => touched.push(step),
                    Touched::Every => touched = job.graph().indices().collect(),
                }
            }
            self.statuses =
                touched.into_iter().map(|step| (step, job.status(step).into())).collect();
        }
        self
    }
}

/// Which steps' statuses an entry may change.
pub(super) enum Touched {
    Nothing,
    Step(StepIndex),
    Every,
}
