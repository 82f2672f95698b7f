//! One job: its steps, what it waits for, and the two functions that everything hangs on, `take` and `evolve`.

use super::definition::{Definition, Dependency, Graph, Step};
use super::entry::{ChildOutcome, Context, Decision, Effect, Entry, Failure, Input, JobState, Origin, Rejected, Reply, Timestamp};
use super::fanout::{FanOut, List};
use super::id::{JobId, StepIndex};
use super::json::Message;
use super::step::{StepRun, StepState, parse_reply};
use crate::faults;
use std::collections::VecDeque;
use std::sync::Arc;

/// A job or child job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    origin: Origin,
    message: Message,
    state: JobState,
    ended: Option<Timestamp>,
    reason: Option<Arc<str>>,
    steps: Vec<StepRun>,
    /// Steps whose dependencies are done and that have not started, in the order in which they became ready.
    ready: VecDeque<StepIndex>,
    /// Fan-out steps that run.
    fanning_out: Vec<StepIndex>,
    /// Plain steps that run: replies may still come.
    plain_running: u32,
    /// Steps that are not completed.
    steps_left: u32,
}

impl Job {
    /// A new job, and what follows at once: its first dispatches.
    pub fn create(origin: Origin, message: Message, ctx: &Context<'_>) -> (Job, Decision) {
        let kept = origin.parent.is_none().then(|| message.clone());
        let mut job = Job::before(origin, message);
        let mut decision = Decision::default();
        job.record(Entry::JobCreated { message: kept }, &mut decision);
        job.advance(ctx, &mut decision);
        let decision = decision.settled(&job, JobState::Running);
        (job, decision)
    }

    /// A job rebuilt from its entries; `message` is a child job's, derived from its parent.
    pub fn recover(origin: Origin, message: Option<Message>, entries: impl IntoIterator<Item = Entry>) -> Job {
        let mut job = Job::before(origin, message.unwrap_or_default());
        for entry in entries {
            job.evolve(&entry);
        }
        job
    }

    /// Decides what follows from `input` and applies it. The effects may leave only after the entries are committed.
    pub fn take(&mut self, input: Input, ctx: &Context<'_>) -> Result<Decision, Rejected> {
        let before = self.state;
        let mut decision = Decision::default();
        let (entries, effects) = self.decide(input, ctx)?;
        for entry in entries {
            self.record(entry, &mut decision);
        }
        decision.effects.extend(effects);
        self.advance(ctx, &mut decision);
        Ok(decision.settled(self, before))
    }

    /// The effects that a stop of the process may have lost, of a recovered job: dispatches that were not confirmed,
    /// child jobs under way (which whoever recovers compares with those it has found), the word to the parent.
    pub fn open_effects(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.state == JobState::Running {
            for step in self.graph().indices() {
                let run = &self.steps[step.at()];
                let is_open = !run.confirmed && !faults::planted("unconfirmed steps not dispatched after a restart");
                if run.state == StepState::Running && run.fan_out.is_none() && is_open {
                    effects.push(Effect::Dispatch { step, attempt: run.attempt, input: self.input_of(step) });
                }
            }
        }
        if !faults::planted("children not started after a restart") {
            effects.extend(self.open_children().map(|(step, index)| self.start_child(step, index)));
        }
        if let (Some(parent), Some(outcome)) = (self.origin.parent, self.outcome()) {
            effects.push(Effect::TellParent(parent, outcome));
        }
        effects
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

    /// The job's result (SPEC §3.6): of a job that is not completed, the merge of what there is.
    pub fn result(&self) -> Message {
        Message::merge(self.graph().last_steps().iter().filter_map(|step| self.steps[step.at()].output.as_ref()))
    }

    /// Whether it takes no more input: it has ended, and no reply that it would keep can come.
    pub fn is_closed(&self) -> bool {
        match self.state {
            JobState::Running => false,
            JobState::Failed => self.plain_running == 0,
            JobState::Completed | JobState::Cancelled => true,
        }
    }

    /// The items whose child jobs are under way.
    pub fn open_children(&self) -> impl Iterator<Item = (StepIndex, u32)> + '_ {
        let running = self.state == JobState::Running;
        self.fanning_out
            .iter()
            .filter(move |_| running)
            .flat_map(|step| self.steps[step.at()].fan_out.iter().flat_map(|fan_out| fan_out.under_way().map(|index| (*step, index))))
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

    /// The input of a step: the merge of its dependencies' outputs in the order of the array (SPEC §3.1).
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

    /// States the invariants; called after every `evolve` in debug builds, after recovery and in simulation always.
    pub fn check(&self) {
        let count = |state: StepState| self.steps.iter().filter(|run| run.state == state).count();
        let open = self.steps.len() - count(StepState::Completed);
        assert_eq!(open, self.steps_left as usize, "steps left");
        let plain = self.steps.iter().filter(|run| run.state == StepState::Running && run.fan_out.is_none()).count();
        assert_eq!(plain, self.plain_running as usize, "plain steps running");
        for step in self.graph().indices() {
            let run = &self.steps[step.at()];
            let waits = self.graph().step(step).depended_on().iter().filter(|on| self.steps[on.at()].state != StepState::Completed).count();
            assert_eq!(waits, usize::from(run.waits_for), "dependencies of {}", self.graph().step(step).name);
            assert_eq!(run.output.is_some(), run.state == StepState::Completed, "an output belongs to a completed step");
            assert_eq!(run.failure.is_some(), run.state == StepState::Failed, "a failure belongs to a failed step");
            assert!(run.state == StepState::Waiting || run.state == StepState::Failed || waits == 0, "a step runs after its dependencies");
        }
        if self.state == JobState::Completed {
            assert_eq!(open, 0, "a completed job has no open step");
        }
        assert_eq!(self.ended.is_some(), self.state != JobState::Running, "an ended job has its time");
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
            steps,
            ready,
            fanning_out: Vec::new(),
            plain_running: 0,
            steps_left,
        }
    }

    fn record(&mut self, entry: Entry, decision: &mut Decision) {
        self.evolve(&entry);
        decision.entries.push(entry);
    }

    // ---- decide: looks, changes nothing

    fn decide(&self, input: Input, ctx: &Context<'_>) -> Result<(Vec<Entry>, Vec<Effect>), Rejected> {
        match input {
            Input::Reply { step, reply } => self.decide_reply(&step, reply, ctx),
            Input::Confirmed { step, attempt } => self.decide_confirmed(step, attempt),
            Input::QueueMissing(queue) => self.decide_queue_missing(&queue),
            Input::ChildEnded { step, index, outcome } => self.decide_child_ended(step, index, outcome, ctx),
            Input::Halt(reason) | Input::Abandon(reason) if self.state == JobState::Running => Ok(self.fail(reason, ctx)),
            Input::Cancel { reason, tell_parent } if self.state == JobState::Running => Ok(self.cancel(reason, tell_parent, ctx)),
            Input::Halt(_) | Input::Abandon(_) | Input::Cancel { .. } => Err(Rejected::Ended),
        }
    }

    fn decide_reply(&self, name: &str, reply: Reply, ctx: &Context<'_>) -> Result<(Vec<Entry>, Vec<Effect>), Rejected> {
        let step = self.graph().index_of(name).ok_or(Rejected::UnknownStep)?;
        match self.state {
            JobState::Running | JobState::Failed => {}
            JobState::Completed | JobState::Cancelled => return Err(Rejected::Ended),
        }
        let run = &self.steps[step.at()];
        match run.state {
            StepState::Running if run.fan_out.is_none() => {}
            StepState::Running | StepState::Waiting => return Err(Rejected::NotRunning),
            StepState::Completed if faults::planted("second reply settles again") => {}
            StepState::Completed | StepState::Failed => return Err(Rejected::Duplicate),
        }
        Ok(match parse_reply(reply, ctx) {
            Ok(output) => (vec![Entry::StepCompleted { step, at: ctx.now, output }], Vec::new()),
            Err(failure) => self.fail_step(step, failure, ctx),
        })
    }

    fn decide_confirmed(&self, step: StepIndex, attempt: u32) -> Result<(Vec<Entry>, Vec<Effect>), Rejected> {
        let run = self.steps.get(step.at()).ok_or(Rejected::UnknownStep)?;
        if faults::planted("confirms forgotten") {
            return Err(Rejected::Void);
        }
        if run.state == StepState::Running && run.attempt == attempt && !run.confirmed {
            Ok((vec![Entry::StepConfirmed { step }], Vec::new()))
        } else {
            Err(Rejected::Void)
        }
    }

    fn decide_queue_missing(&self, queue: &str) -> Result<(Vec<Entry>, Vec<Effect>), Rejected> {
        let lost = |step: &StepIndex| {
            let run = &self.steps[step.at()];
            // Those not confirmed are still in the hands of the bus, which sends them by itself.
            run.state == StepState::Running && run.fan_out.is_none() && run.confirmed && *self.graph().step(*step).queue == *queue
        };
        let lost: Vec<StepIndex> = self.graph().indices().filter(lost).collect();
        if lost.is_empty() || self.state != JobState::Running || faults::planted("missing queues ignored") {
            return Err(Rejected::Void);
        }
        let entries = lost.iter().map(|step| Entry::StepUnconfirmed { step: *step }).collect();
        let dispatch = |step: &StepIndex| Effect::Dispatch { step: *step, attempt: self.steps[step.at()].attempt, input: self.input_of(*step) };
        Ok((entries, lost.iter().map(dispatch).collect()))
    }

    fn decide_child_ended(
        &self,
        step: StepIndex,
        index: u32,
        outcome: ChildOutcome,
        ctx: &Context<'_>,
    ) -> Result<(Vec<Entry>, Vec<Effect>), Rejected> {
        if matches!(self.state, JobState::Completed | JobState::Cancelled) {
            return Err(Rejected::Ended);
        }
        let run = self.steps.get(step.at()).ok_or(Rejected::UnknownStep)?;
        let fan_out = run.fan_out.as_ref().ok_or(Rejected::NotRunning)?;
        if !fan_out.is_under_way(index) {
            return Err(Rejected::Duplicate);
        }
        match outcome {
            ChildOutcome::Completed(result) => Ok((vec![fan_out.gather(step, index, &result)], Vec::new())),
            ChildOutcome::Failed(reason) => {
                let mut entries = vec![Entry::ChildFailed { step, index }];
                let mut effects = Vec::new();
                if run.state == StepState::Running {
                    let child = fan_out.child_id(self.origin.id, &self.graph().step(step).name, index);
                    let failure = Failure { reason: format!("child job {child} (item {index}) failed: {reason}").into(), raw: None };
                    let (more, halts) = self.fail_step(step, failure, ctx);
                    entries.extend(more);
                    effects.extend(halts.into_iter().filter(|effect| !matches!(effect, Effect::HaltChild(id, _) if *id == child)));
                }
                Ok((entries, effects))
            }
        }
    }

    fn fail_step(&self, step: StepIndex, failure: Failure, ctx: &Context<'_>) -> (Vec<Entry>, Vec<Effect>) {
        let reason: Arc<str> = format!("step \"{}\": {}", self.graph().step(step).name, failure.reason).into();
        let mut entries = vec![Entry::StepFailed { step, at: ctx.now, failure }];
        let mut effects = Vec::new();
        if self.state == JobState::Running {
            let (more, halts) = self.fail(reason, ctx);
            entries.extend(more);
            effects = halts;
        }
        (entries, effects)
    }

    /// The job fails: its children are halted, its parent is told (SPEC §6).
    fn fail(&self, reason: Arc<str>, ctx: &Context<'_>) -> (Vec<Entry>, Vec<Effect>) {
        let mut effects: Vec<Effect> = self.open_child_ids().map(|id| Effect::HaltChild(id, "the job it belongs to failed".into())).collect();
        effects.extend(self.origin.parent.map(|parent| Effect::TellParent(parent, ChildOutcome::Failed(reason.clone()))));
        (vec![Entry::JobFailed { at: ctx.now, reason }], effects)
    }

    fn cancel(&self, reason: Arc<str>, tell_parent: bool, ctx: &Context<'_>) -> (Vec<Entry>, Vec<Effect>) {
        let mut effects: Vec<Effect> =
            self.open_child_ids().map(|id| Effect::CancelChild(id, "the job it belongs to was cancelled".into())).collect();
        if let Some(parent) = self.origin.parent
            && tell_parent
        {
            effects.push(Effect::TellParent(parent, ChildOutcome::Failed(format!("cancelled: {reason}").into())));
        }
        (vec![Entry::JobCancelled { at: ctx.now, reason }], effects)
    }

    fn open_child_ids(&self) -> impl Iterator<Item = JobId> + '_ {
        self.open_children().filter_map(|(step, index)| self.child_id(step, index))
    }

    // ---- advance: what follows from the state alone, entry by entry

    fn advance(&mut self, ctx: &Context<'_>, decision: &mut Decision) {
        while let Some((entries, effects)) = self.next_consequence(ctx) {
            for entry in entries {
                self.record(entry, decision);
            }
            // A child's effect needs the state after its entry, so the started children are looked up here.
            if let Some(Entry::ChildrenStarted { step, from, count, .. }) = decision.entries.last() {
                let (step, range) = (*step, *from..*from + *count);
                decision.effects.extend(range.map(|index| self.start_child(step, index)));
            }
            decision.effects.extend(effects);
        }
    }

    fn next_consequence(&self, ctx: &Context<'_>) -> Option<(Vec<Entry>, Vec<Effect>)> {
        if self.state != JobState::Running {
            return None;
        }
        if let Some(step) = self.ready.front() {
            return Some(self.start_step(*step, ctx));
        }
        for step in &self.fanning_out {
            let fan_out = self.steps[step.at()].fan_out.as_ref()?;
            if fan_out.all_ended() {
                return Some((vec![Entry::FanOutCompleted { step: *step, at: ctx.now }], Vec::new()));
            }
            if let Some(entry) = fan_out.start_next(self.origin.id, *step, &self.graph().step(*step).name, ctx) {
                return Some((vec![entry], Vec::new()));
            }
        }
        if self.steps_left > 0 {
            return None;
        }
        let tell = self.origin.parent.map(|parent| Effect::TellParent(parent, ChildOutcome::Completed(self.result())));
        Some((vec![Entry::JobCompleted { at: ctx.now }], tell.into_iter().collect()))
    }

    fn start_step(&self, step: StepIndex, ctx: &Context<'_>) -> (Vec<Entry>, Vec<Effect>) {
        let definition = self.graph().step(step);
        let input = self.input_of(step);
        if definition.task.is_some() {
            return self.start_fan_out(step, &input, ctx);
        }
        let (size, limit) = (input.encoded_len(), ctx.limits.step_message_bytes_max);
        if size > limit {
            let reason = format!(
                "its step message would have {size} bytes, the limit is {limit} (setting limits.step_message_bytes_max): pass large data by reference"
            );
            return self.fail_step(step, Failure { reason: reason.into(), raw: None }, ctx);
        }
        let attempt = self.steps[step.at()].attempt + 1;
        (vec![Entry::StepStarted { step, attempt, at: ctx.now }], vec![Effect::Dispatch { step, attempt, input }])
    }

    fn start_fan_out(&self, step: StepIndex, input: &Message, ctx: &Context<'_>) -> (Vec<Entry>, Vec<Effect>) {
        let Some(keys) = self.task_keys(step) else { return (Vec::new(), Vec::new()) };
        let key = &keys.list_key;
        let (items, warning) = match List::in_input(input, keys) {
            List::Items(elements) => (elements.len(), None),
            List::Missing => (0, Some(format!("the input has no list under \"{key}\": taken as empty"))),
            List::Wrong(kind) => {
                let reason = format!("the input has {kind} under \"{key}\", expected a list");
                return self.fail_step(step, Failure { reason: reason.into(), raw: None }, ctx);
            }
        };
        if items > 0 && self.origin.depth >= ctx.limits.depth_max {
            let reason =
                format!("child jobs would nest deeper than {} levels (setting limits.depth_max): does the recursion end?", ctx.limits.depth_max);
            return self.fail_step(step, Failure { reason: reason.into(), raw: None }, ctx);
        }
        (vec![Entry::FanOutStarted { step, at: ctx.now, items, warning: warning.map(Into::into) }], Vec::new())
    }

    fn start_child(&self, step: StepIndex, index: u32) -> Effect {
        let id = self.child_id(step, index).unwrap_or_else(|| self.origin.id.derived(&self.graph().step(step).name, index, 0));
        let origin = Origin {
            id,
            definition: self.origin.definition.clone(),
            graph: self.graph().step(step).task.unwrap_or_default(),
            parent: Some(super::entry::Parent { job: self.origin.id, step, index }),
            root: self.origin.root,
            depth: self.origin.depth.saturating_add(1),
            created: Timestamp::default(),
        };
        Effect::StartChild { origin: Box::new(origin), message: self.child_message(step, index).unwrap_or_default() }
    }

    fn task_keys(&self, step: StepIndex) -> Option<&super::definition::FanOutKeys> {
        let task = self.graph().step(step).task?;
        self.origin.definition.graphs[usize::from(task)].fan_out.as_ref()
    }

    fn outcome(&self) -> Option<ChildOutcome> {
        let reason = || self.reason.clone().unwrap_or_else(|| "no reason".into());
        match self.state {
            JobState::Running => None,
            JobState::Completed => Some(ChildOutcome::Completed(self.result())),
            JobState::Failed => Some(ChildOutcome::Failed(reason())),
            JobState::Cancelled => Some(ChildOutcome::Failed(format!("cancelled: {}", reason()).into())),
        }
    }

    // ---- evolve: the only place that changes a job

    /// Applies one entry.
    pub fn evolve(&mut self, entry: &Entry) {
        match entry {
            Entry::JobCreated { message } => {
                if let Some(message) = message {
                    self.message = message.clone();
                }
            }
            Entry::StepStarted { step, attempt, at } => {
                self.leave_ready(*step);
                let run = &mut self.steps[step.at()];
                run.state = StepState::Running;
                run.attempt = *attempt;
                run.confirmed = false;
                run.started.get_or_insert(*at);
                self.plain_running += 1;
            }
            Entry::StepConfirmed { step } => self.steps[step.at()].confirmed = true,
            Entry::StepUnconfirmed { step } => self.steps[step.at()].confirmed = false,
            Entry::StepCompleted { step, at, output } => {
                self.plain_running -= 1;
                self.complete_step(*step, *at, output.clone());
            }
            Entry::StepFailed { step, at, failure } => self.settle_failed(*step, *at, failure),
            Entry::FanOutStarted { step, at, warning, .. } => {
                self.leave_ready(*step);
                let fan_out = self.task_keys(*step).cloned().map(|keys| Box::new(FanOut::new(keys, self.input_of(*step))));
                let run = &mut self.steps[step.at()];
                run.state = StepState::Running;
                run.attempt = 1;
                run.started = Some(*at);
                run.warning = warning.clone();
                run.fan_out = fan_out;
                self.fanning_out.push(*step);
            }
            Entry::ChildrenStarted { step, from, count, own_ids } => {
                if let Some(fan_out) = &mut self.steps[step.at()].fan_out {
                    fan_out.on_started(*from, *count, own_ids);
                }
            }
            Entry::ChildCompleted { step, index, item, others } => {
                if let Some(fan_out) = &mut self.steps[step.at()].fan_out {
                    fan_out.on_completed(*index, item.as_ref(), others);
                }
            }
            Entry::ChildFailed { step, index } => {
                if let Some(fan_out) = &mut self.steps[step.at()].fan_out {
                    fan_out.on_failed(*index);
                }
            }
            Entry::FanOutCompleted { step, at } => {
                self.fanning_out.retain(|other| other != step);
                let output = self.steps[step.at()].fan_out.as_mut().map(|fan_out| {
                    let output = fan_out.output();
                    fan_out.release();
                    output
                });
                self.complete_step(*step, *at, output.unwrap_or_default());
            }
            Entry::JobCompleted { at } => self.end(JobState::Completed, *at, None),
            Entry::JobFailed { at, reason } => self.end(JobState::Failed, *at, Some(reason.clone())),
            Entry::JobCancelled { at, reason } => self.end(JobState::Cancelled, *at, Some(reason.clone())),
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    fn leave_ready(&mut self, step: StepIndex) {
        if let Some(at) = self.ready.iter().position(|ready| *ready == step) {
            self.ready.remove(at);
        }
    }

    fn complete_step(&mut self, step: StepIndex, at: Timestamp, output: Message) {
        let run = &mut self.steps[step.at()];
        run.state = StepState::Completed;
        run.ended = Some(at);
        run.output = Some(output);
        self.steps_left -= 1;
        let graph = self.origin.definition.graphs[usize::from(self.origin.graph)].dependents(step);
        for dependent in graph {
            let run = &mut self.steps[dependent.at()];
            run.waits_for -= 1;
            if run.waits_for == 0 {
                self.ready.push_back(*dependent);
            }
        }
    }

    fn settle_failed(&mut self, step: StepIndex, at: Timestamp, failure: &Failure) {
        self.leave_ready(step);
        self.fanning_out.retain(|other| *other != step);
        let run = &mut self.steps[step.at()];
        if run.state == StepState::Running && run.fan_out.is_none() {
            self.plain_running -= 1;
        }
        run.state = StepState::Failed;
        run.ended = Some(at);
        run.started.get_or_insert(at);
        run.failure = Some(failure.clone());
    }

    fn end(&mut self, state: JobState, at: Timestamp, reason: Option<Arc<str>>) {
        self.state = state;
        self.ended = Some(at);
        self.reason = reason;
    }
}

impl Decision {
    fn settled(mut self, job: &Job, before: JobState) -> Decision {
        self.state = (job.state != before).then_some(job.state);
        self.closed = job.is_closed();
        self
    }
}
