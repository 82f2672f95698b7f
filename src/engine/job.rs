//! One job: its steps, and what it waits for. Other files contain what happens to it: `decide` what
//! follows from an input, `evolve` what an entry changes, `effects` what an entry causes outside.

use super::caller::Callers;
use super::definition::{Definition, Dependency, FanOutKeys, Graph, OnFailure, Step};
use super::fanout::ItemCounts;
use super::id::{JobId, StepIndex};
use super::input::UnreadReplies;
use super::json::Message;
use super::origin::Origin;
use super::state::{JobState, StepState};
use super::step::StepRun;
use super::time::Timestamp;
use super::value_bytes::own_bytes;
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
    /// The time at which it fails, unless it is done.
    pub(super) deadline: Option<Timestamp>,
    /// Whether it has failed because its deadline passed, and takes no more replies.
    pub(super) expired: bool,
    /// The step whose failure failed the job, if it was a step.
    pub(super) failed_step: Option<StepIndex>,
    /// How often it was retried.
    pub(super) round: u32,
    /// How many entries it was built from.
    pub(super) entry_count: u64,
    /// The number of the entry that gave it its state, from 1.
    pub(super) state_entry: u64,
    pub(super) steps: Vec<StepRun>,
    /// Steps that have not started although their dependencies are done, in the order in which they
    /// became ready.
    pub(super) ready: VecDeque<StepIndex>,
    /// The fan-out steps that run.
    pub(super) fanning_out: Vec<StepIndex>,
    /// How many steps have a message with a worker: replies may still come.
    pub(super) awaited_replies: u32,
    /// How many steps are not done.
    pub(super) steps_left: u32,
    /// The callers that asked for it by a message on its workflow's queue.
    pub(super) callers: Callers,
    /// How many times it has ended and gone on.
    pub(super) earlier_ends: u32,
    /// The bytes of the values that it holds.
    pub(super) value_bytes: usize,
}

impl Job {
    /// Returns the job's id.
    pub fn id(&self) -> JobId {
        self.origin.id
    }

    /// Returns the job's origin.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the message it was created with.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Returns the job's state.
    pub fn state(&self) -> JobState {
        self.state
    }

    /// Returns when it ended.
    pub fn ended(&self) -> Option<Timestamp> {
        self.ended
    }

    /// Returns why it failed or was cancelled.
    pub fn reason(&self) -> Option<&Arc<str>> {
        self.reason.as_ref()
    }

    /// Returns the reason as text; if there is none, the text says so.
    pub fn reason_text(&self) -> Arc<str> {
        self.reason.clone().unwrap_or_else(|| "no reason".into())
    }

    /// Returns the definition it started with.
    pub fn definition(&self) -> &Arc<Definition> {
        &self.origin.definition
    }

    /// Returns the graph it runs.
    pub fn graph(&self) -> &Graph {
        &self.origin.definition.graphs[usize::from(self.origin.graph)]
    }

    /// Returns its steps with their definitions, in the order of declaration.
    pub fn steps(&self) -> impl Iterator<Item = (&Step, &StepRun)> {
        self.graph().steps.iter().zip(&self.steps)
    }

    /// Returns the step at `index`.
    pub fn step(&self, index: StepIndex) -> &StepRun {
        &self.steps[index.as_usize()]
    }

    /// Returns the state of a step for users. A step that ran when its job was ended for good
    /// counts as cancelled.
    pub fn step_state(&self, step: StepIndex) -> StepState {
        let state = self.steps[step.as_usize()].state;
        let is_cut_off = self.state == JobState::Cancelled || self.expired;
        if is_cut_off && state == StepState::Running { StepState::Cancelled } else { state }
    }

    /// Returns how many items of a step are in which state; `None`: the step has no child jobs. No
    /// item is under way once the step or the job has ended.
    pub fn item_counts(&self, step: StepIndex) -> Option<ItemCounts> {
        let fan_out = self.steps[step.as_usize()].fan_out.as_ref()?;
        Some(fan_out.counts(self.items_end(step).is_some()))
    }

    /// Returns when the items of a step ended that were under way then: at the end of the step, or
    /// of the job.
    pub fn items_end(&self, step: StepIndex) -> Option<Timestamp> {
        let run = &self.steps[step.as_usize()];
        run.ended.or(self.ended)
    }

    /// Returns the status of a step (docs/operations.md).
    pub fn status(&self, step: StepIndex) -> &str {
        let (labels, run) = (&self.graph().step(step).status, &self.steps[step.as_usize()]);
        match self.step_state(step) {
            StepState::Waiting => "",
            StepState::Running => run.status.as_deref().unwrap_or_else(|| labels.running()),
            StepState::Completed => run.status.as_deref().unwrap_or("COMPLETED"),
            StepState::Failed => "FAILED",
            StepState::Skipped => labels.skipped(),
            StepState::Cancelled => labels.cancelled(),
        }
    }

    /// Returns when the job fails, if it is not done by then.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadline.filter(|_| !self.state.is_ended())
    }

    /// Returns how often it was retried.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Returns the earliest time at which something is due in the job: then
    /// [`Input::Timer`](super::Input::Timer) follows.
    pub fn next_timer(&self) -> Option<Timestamp> {
        self.next_timer_without(&UnreadReplies::new())
    }

    /// Returns the same, without the timeouts of steps whose replies may lie unread.
    pub fn next_timer_without(&self, unread: &UnreadReplies) -> Option<Timestamp> {
        let takes_replies = self.accepts_replies();
        let timeouts = self
            .graph()
            .indices()
            .filter(|step| !unread.contains_key(step))
            .map(|step| &self.steps[step.as_usize()])
            .filter(|run| takes_replies && run.is_under_way())
            .filter_map(|run| run.deadline().or(run.start_by()));
        let retries_run = self.state == JobState::Running;
        let retries = self
            .steps
            .iter()
            .filter(|run| retries_run && run.state == StepState::Running)
            .filter_map(StepRun::retry_at);
        timeouts.chain(retries).chain(self.deadline()).min()
    }

    /// Returns how many entries it was built from: the number of its last entry, the same after any
    /// restart.
    pub fn entry_count(&self) -> u64 {
        self.entry_count
    }

    /// Returns the number of the entry that gave it its state.
    pub fn state_entry(&self) -> u64 {
        self.state_entry
    }

    /// Returns the job's result (docs/workflow-file.md). For a job that is not completed, it merges
    /// the outputs that exist.
    pub fn result(&self) -> Message {
        Message::merge(
            self.graph()
                .last_steps()
                .iter()
                .filter_map(|step| self.steps[step.as_usize()].output.as_ref()),
        )
    }

    /// Returns whether nothing is left to do: the job has ended, waits for no reply, and its
    /// callers are answered.
    pub fn is_closed(&self) -> bool {
        if self.callers.has_waiting() {
            return false;
        }
        match self.state {
            JobState::Running | JobState::Paused => false,
            JobState::Failed => self.expired || self.awaited_replies == 0,
            JobState::Completed | JobState::Cancelled => true,
        }
    }

    /// Returns whether a reply may change the job.
    pub(super) fn accepts_replies(&self) -> bool {
        match self.state {
            JobState::Running | JobState::Paused => true,
            JobState::Failed => !self.expired,
            JobState::Completed | JobState::Cancelled => false,
        }
    }

    /// Returns whether the step counts as done for the steps that depend on it.
    pub(super) fn is_done(&self, step: StepIndex) -> bool {
        match self.steps[step.as_usize()].state {
            StepState::Completed | StepState::Skipped | StepState::Cancelled => true,
            StepState::Failed => self.graph().step(step).on_failure == OnFailure::Continue,
            StepState::Waiting | StepState::Running => false,
        }
    }

    /// Returns whether a worker that has the step's message, or a person, may still answer the
    /// step.
    pub fn can_be_answered(&self, step: StepIndex) -> bool {
        self.accepts_replies()
            && self.graph().step(step).task.is_none()
            && self.steps[step.as_usize()].is_under_way()
    }

    /// Returns whether the step's message is with a worker, or on its way.
    pub(super) fn is_awaited(&self, step: StepIndex) -> bool {
        self.graph().step(step).has_queue() && self.steps[step.as_usize()].is_under_way()
    }

    /// Returns the steps whose message is sent, or on its way, and whose reply would still be
    /// taken.
    pub fn steps_awaiting_replies(&self) -> impl Iterator<Item = StepIndex> + '_ {
        let waits = self.awaited_replies > 0 && self.accepts_replies();
        let steps = self.graph().indices().take_while(move |_| waits);
        steps.filter(|step| self.is_awaited(*step))
    }

    /// Returns those of these steps whose message the broker has confirmed.
    pub fn confirmed_steps(&self) -> impl Iterator<Item = StepIndex> + '_ {
        self.steps_awaiting_replies().filter(|step| self.steps[step.as_usize()].confirmed)
    }

    /// Returns the items whose child jobs should be under way.
    pub fn open_children(&self) -> impl Iterator<Item = (StepIndex, u32)> + '_ {
        let is_open = !self.state.is_ended();
        self.fanning_out
            .iter()
            .filter(move |step| is_open && self.steps[step.as_usize()].is_under_way())
            .flat_map(|step| self.children_under_way(*step).map(|index| (*step, index)))
    }

    /// Returns the items of `step` whose child jobs have not reported their end.
    pub(super) fn children_under_way(&self, step: StepIndex) -> impl Iterator<Item = u32> + '_ {
        self.steps[step.as_usize()].fan_out.iter().flat_map(|fan_out| fan_out.under_way())
    }

    /// Returns how many child jobs are under way for it, at all its steps.
    pub fn child_count(&self) -> u32 {
        let fan_outs =
            self.fanning_out.iter().filter_map(|step| self.steps[step.as_usize()].fan_out.as_ref());
        fan_outs.map(|fan_out| fan_out.under_way_count()).sum()
    }

    /// Returns the id of the child job of `step` at `index`, as recorded when it was started.
    pub fn child_id(&self, step: StepIndex, index: u32) -> Option<JobId> {
        let fan_out = self.steps[step.as_usize()].fan_out.as_ref()?;
        Some(fan_out.child_id(self.origin.id, &self.graph().step(step).name, index))
    }

    /// Returns the message of the child job of `step` at `index`.
    pub fn child_message(&self, step: StepIndex, index: u32) -> Option<Message> {
        self.steps
            .get(step.as_usize())?
            .fan_out
            .as_ref()
            .map(|fan_out| fan_out.child_message(index))
    }

    /// Returns the input of a step: the merge of its dependencies' outputs in the order of the
    /// array (docs/workflow-file.md).
    pub fn step_input(&self, step: StepIndex) -> Message {
        let depends = &self.graph().step(step).depends;
        if depends.is_empty() {
            return self.message.clone();
        }
        let parts = depends.iter().filter_map(|dependency| match dependency {
            Dependency::Start => Some(&self.message),
            Dependency::Step(on) => self.steps[on.as_usize()].output.as_ref(),
        });
        Message::merge(parts)
    }

    /// Returns the input with which a step has started; `None`: it has not started.
    pub fn started_input(&self, step: StepIndex) -> Option<Message> {
        let run = &self.steps[step.as_usize()];
        let has_begun = run.attempt > 0 && run.state != StepState::Waiting;
        has_begun.then(|| match &run.fan_out {
            Some(fan_out) => fan_out.input().clone(),
            None => self.step_input(step),
        })
    }

    /// Returns the bytes of the values that the job holds.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Counts these bytes anew.
    pub(super) fn count_value_bytes(&self) -> usize {
        let of_steps = self.steps.iter().map(|run| {
            let output = run.output.as_ref().map_or(0, Message::encoded_len);
            output + run.fan_out.as_ref().map_or(0, |fan_out| fan_out.gathered_bytes())
        });
        own_bytes(&self.origin, &self.message) + of_steps.sum::<usize>()
    }

    /// Asserts the invariants. Called after every `evolve` in debug builds, and always after
    /// recovery and in the simulation.
    pub fn assert_invariants(&self) {
        let left = self.graph().indices().filter(|step| !self.is_done(*step)).count();
        assert_eq!(left, self.steps_left as usize, "steps left");
        let awaited = self.graph().indices().filter(|step| self.is_awaited(*step)).count();
        assert_eq!(awaited, self.awaited_replies as usize, "steps whose reply is awaited");
        for step in self.graph().indices() {
            let run = &self.steps[step.as_usize()];
            let name = &self.graph().step(step).name;
            let waits = self
                .graph()
                .step(step)
                .step_dependencies()
                .iter()
                .filter(|on| !self.is_done(**on))
                .count();
            assert_eq!(waits, usize::from(run.dependencies_left), "dependencies of {name}");
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
                run.retry_at().is_none() || run.state == StepState::Running,
                "a step that waits for its next attempt runs"
            );
            let runs =
                matches!(run.state, StepState::Running | StepState::Completed | StepState::Skipped);
            assert!(!runs || waits == 0, "{name} runs after its dependencies");
            let is_ready = self.ready.contains(&step);
            assert_eq!(is_ready, waits == 0 && run.state == StepState::Waiting, "{name} is ready");
        }
        assert_eq!(self.value_bytes, self.count_value_bytes(), "bytes that are held");
        if self.state == JobState::Completed {
            assert_eq!(left, 0, "a completed job has no open step");
        }
        assert_eq!(self.ended.is_some(), self.state.is_ended(), "an ended job has its time");
        assert!(
            !self.callers.has_answered() || self.state.is_ended(),
            "callers are answered after the end"
        );
    }

    /// Creates a job before its first entry, which has the message of a root job.
    pub fn before_first_entry(origin: Origin, message: Option<Message>) -> Job {
        assert!(message.is_some() || origin.parent.is_none(), "a child job has its message");
        let message = message.unwrap_or_default();
        let graph = &origin.definition.graphs[usize::from(origin.graph)];
        let steps: Vec<StepRun> = graph.steps.iter().map(StepRun::waiting).collect();
        let ready =
            graph.indices().filter(|step| steps[step.as_usize()].dependencies_left == 0).collect();
        let steps_left = u32::try_from(steps.len()).unwrap_or(u32::MAX);
        let bytes = own_bytes(&origin, &message);
        Job {
            origin,
            message,
            state: JobState::Running,
            ended: None,
            reason: None,
            deadline: None,
            expired: false,
            failed_step: None,
            round: 0,
            entry_count: 0,
            state_entry: 0,
            steps,
            ready,
            fanning_out: Vec::new(),
            awaited_replies: 0,
            steps_left,
            callers: Callers::default(),
            earlier_ends: 0,
            value_bytes: bytes,
        }
    }

    /// Returns what a step with a task fans out over.
    pub fn task_keys(&self, step: StepIndex) -> Option<&FanOutKeys> {
        let task = self.graph().step(step).task?;
        self.origin.definition.graphs[usize::from(task)].fan_out.as_ref()
    }
}
