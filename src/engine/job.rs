//! The state of a job: its steps, and what it waits for.
//!
//! Other files contain its behaviour: `decide` returns what follows from an input, `evolve` applies
//! an entry, and `effects` returns what an entry causes outside the job.

use super::caller::Callers;
use super::definition::{Definition, Dependency, FanOutKeys, Graph, OnFailure, Step};
use super::fanout::ItemCounts;
use super::id::{JobId, StepIndex};
use super::input::UnreadReplies;
use super::json::Message;
use super::limit::{ClaimState, JobClaim, StepClaim};
use super::origin::Origin;
use super::state::{JobState, StepState};
use super::step::StepRun;
use super::time::Timestamp;
use super::value_bytes::own_bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// The state of one job: a root job or a child job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub(super) origin: Origin,
    /// The message with which it was created.
    pub(super) message: Message,
    pub(super) state: JobState,
    /// When it ended; `None` if it has not ended.
    pub(super) ended: Option<Timestamp>,
    /// Why it failed or was cancelled; `None`: it has not, or was reopened since.
    pub(super) reason: Option<Arc<str>>,
    /// The time at which it fails, unless it is done; `None`: no deadline.
    pub(super) deadline: Option<Timestamp>,
    /// When it begins, while it waits for that; `None`: it has begun.
    pub(super) begins_at: Option<Timestamp>,
    /// Whether it has failed because its deadline passed. It then accepts no more replies.
    pub(super) is_expired: bool,
    /// The step whose failure failed the job; `None`: no step did.
    pub(super) failed_step: Option<StepIndex>,
    /// How many times it was retried.
    pub(super) round: u32,
    /// The number of entries that were applied to it.
    pub(super) entry_count: u64,
    /// The number of the entry that set its state; 0 before the first entry.
    pub(super) state_entry: u64,
    /// The steps that have claimed places of limits, in their order: all that have a claim, and
    /// maybe some that have none any more.
    pub(super) claimants: Vec<StepIndex>,
    /// What it claims or holds of the limit of its workflow; `None`: nothing.
    pub(super) claim: Option<Box<JobClaim>>,
    pub(super) steps: Vec<StepRun>,
    /// The steps that can start, because their dependencies are done, in the order in which they
    /// became ready.
    pub(super) ready: VecDeque<StepIndex>,
    /// The running fan-out steps.
    pub(super) active_fan_outs: Vec<StepIndex>,
    /// The number of steps whose message is sent, or being sent: replies may still arrive.
    pub(super) awaited_replies: u32,
    /// The number of steps that are not done (see [`Job::is_done`]).
    pub(super) steps_left: u32,
    /// The callers that requested it by a message on its workflow's queue.
    pub(super) callers: Callers,
    /// How many times it has ended and been reopened.
    pub(super) earlier_ends: u32,
    /// When it was reopened last; `None`: never.
    pub(super) reopened: Option<Timestamp>,
    /// The size of the values that it holds, in bytes.
    pub(super) value_bytes: usize,
}

impl Job {
    /// Creates a job to which no entry is applied yet. `message`: the job's message; `None` for a
    /// root job that is recovered, whose first entry contains it.
    ///
    /// # Panics
    ///
    /// Panics if a child job has no message.
    pub fn before_first_entry(origin: Origin, message: Option<Message>) -> Job {
        assert!(message.is_some() || origin.parent.is_none(), "a child job has a message");
        let message = message.unwrap_or_default();
        let graph = &origin.definition.graphs[usize::from(origin.graph)];
        let steps: Vec<StepRun> = graph.steps.iter().map(StepRun::new).collect();
        let ready =
            graph.indices().filter(|step| steps[step.as_usize()].dependencies_left == 0).collect();
        let steps_left = u32::try_from(steps.len()).unwrap_or(u32::MAX);
        let value_bytes = own_bytes(&origin, &message);
        Job {
            origin,
            message,
            state: JobState::Running,
            ended: None,
            reason: None,
            deadline: None,
            begins_at: None,
            is_expired: false,
            failed_step: None,
            round: 0,
            entry_count: 0,
            state_entry: 0,
            claimants: Vec::new(),
            claim: None,
            steps,
            ready,
            active_fan_outs: Vec::new(),
            awaited_replies: 0,
            steps_left,
            callers: Callers::default(),
            earlier_ends: 0,
            reopened: None,
            value_bytes,
        }
    }

    /// Returns the job's id.
    pub fn id(&self) -> JobId {
        self.origin.id
    }

    /// Returns the job's origin.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the message with which it was created.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Returns the job's state.
    pub fn state(&self) -> JobState {
        self.state
    }

    /// Returns when it ended; `None`: it has not ended.
    pub fn ended(&self) -> Option<Timestamp> {
        self.ended
    }

    /// Returns why it failed or was cancelled; `None`: it did neither.
    pub fn reason(&self) -> Option<&Arc<str>> {
        self.reason.as_ref()
    }

    /// Returns why it failed or was cancelled, or `no reason`.
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

    /// Returns the state of a step for users. A step that was running when its job was cancelled or
    /// expired counts as cancelled.
    pub fn step_state(&self, step: StepIndex) -> StepState {
        let state = self.steps[step.as_usize()].state;
        let is_cut_off = self.state == JobState::Cancelled || self.is_expired;
        if is_cut_off && state == StepState::Running { StepState::Cancelled } else { state }
    }

    /// Returns the number of items of a step in each state; `None`: the step has no child jobs. No
    /// item counts as running once the step or the job has ended.
    pub fn item_counts(&self, step: StepIndex) -> Option<ItemCounts> {
        let fan_out = self.steps[step.as_usize()].fan_out.as_ref()?;
        Some(fan_out.counts(self.items_end(step).is_some()))
    }

    /// Returns whether the job has completed although items of it have failed: the task tolerates
    /// them, or the job goes on without the step.
    pub fn has_failed_items(&self) -> bool {
        self.state == JobState::Completed
            && self.graph().indices().any(|step| self.has_failed_items_of(step))
    }

    /// Returns whether a step has ended, and items of it have no result.
    pub(super) fn has_failed_items_of(&self, step: StepIndex) -> bool {
        let fan_out = self.steps[step.as_usize()].fan_out.as_ref();
        self.has_settled_items(step) && fan_out.is_some_and(|fan_out| fan_out.without_result() > 0)
    }

    /// Returns whether a step has completed or failed, so that no item of it is under way.
    pub(super) fn has_settled_items(&self, step: StepIndex) -> bool {
        matches!(self.steps[step.as_usize()].state, StepState::Completed | StepState::Failed)
    }

    /// Returns the time from which no item of a step counts as running: the end of the step, or of
    /// the job; `None`: neither has ended.
    pub fn items_end(&self, step: StepIndex) -> Option<Timestamp> {
        let run = &self.steps[step.as_usize()];
        run.ended.or(self.ended)
    }

    /// Returns since when something has gone on that began at this time: since then, or since the
    /// job was reopened. The time in which the job had ended does not count.
    pub fn going_on_since(&self, begin: Timestamp) -> Timestamp {
        self.reopened.map_or(begin, |reopened| reopened.max(begin))
    }

    /// Returns the status of a step (docs/how-to/read-statuses-by-sql.md).
    pub fn status(&self, step: StepIndex) -> &str {
        let (words, run) = (&self.graph().step(step).status, &self.steps[step.as_usize()]);
        match self.step_state(step) {
            StepState::Waiting => "",
            StepState::Running => run.status.as_deref().unwrap_or_else(|| words.running()),
            StepState::Completed => run.status.as_deref().unwrap_or("COMPLETED"),
            StepState::Failed => "FAILED",
            StepState::Skipped => words.skipped(),
            StepState::Cancelled => words.cancelled(),
        }
    }

    /// Returns when the job fails if it is not done by then; `None`: it has no deadline, or has
    /// ended.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadline.filter(|_| !self.state.is_ended())
    }

    /// Returns when it begins, while it waits for that; `None`: it has begun, or has ended.
    pub fn begins_at(&self) -> Option<Timestamp> {
        self.begins_at.filter(|_| !self.state.is_ended())
    }

    /// Returns what it claims or holds of the limit of its workflow; `None`: nothing.
    pub fn claim(&self) -> Option<&StepClaim> {
        self.claim.as_deref().map(|job_claim| &job_claim.claim)
    }

    /// Returns the claim with which it waits for its place; `None`: it does not wait for one.
    pub fn waiting_claim(&self) -> Option<&StepClaim> {
        self.claim().filter(|claim| claim.state == ClaimState::Waiting)
    }

    /// Returns whether it runs, and does not wait for the time or the place to begin.
    pub(super) fn is_under_way(&self) -> bool {
        self.state == JobState::Running
            && self.begins_at.is_none()
            && self.waiting_claim().is_none()
    }

    /// Returns how often it was retried.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Returns the earliest time at which a deadline, a timeout or a retry of the job is due, which
    /// is when [`Input::Timer`](super::Input::Timer) must be sent to it; `None`: there is no such
    /// time.
    pub fn next_timer(&self) -> Option<Timestamp> {
        self.next_timer_without(&UnreadReplies::new())
    }

    /// Returns the same time as [`Job::next_timer`], without the timeouts of the steps in `unread`:
    /// their replies may lie unread in a queue.
    pub fn next_timer_without(&self, unread: &UnreadReplies) -> Option<Timestamp> {
        let accepts_replies = self.accepts_replies();
        let timeouts = self
            .graph()
            .indices()
            .filter(|step| !unread.contains_key(step))
            .map(|step| &self.steps[step.as_usize()])
            .filter(|run| accepts_replies && run.has_active_attempt())
            .filter_map(|run| run.timeout_at().or(run.start_by()));
        let can_retry = self.is_under_way();
        let retries = self
            .steps
            .iter()
            .filter(|run| can_retry && run.state == StepState::Running)
            .filter_map(StepRun::retry_at);
        let waits = self.graph().indices().filter_map(|step| self.wait_until(step));
        let times = timeouts.chain(retries).chain(waits);
        times.chain(self.deadline()).chain(self.begins_at()).chain(self.place_wait_until()).min()
    }

    /// Returns the number of entries that were applied to it, which is the number of its last
    /// entry. A restart does not change it.
    pub fn entry_count(&self) -> u64 {
        self.entry_count
    }

    /// Returns the number of the entry that gave it its state.
    pub fn state_entry(&self) -> u64 {
        self.state_entry
    }

    /// Returns the job's result: the merged outputs of its last steps
    /// (docs/reference/workflow-data.md). Before the job completes, outputs may be missing.
    pub fn result(&self) -> Message {
        Message::merge(
            self.graph()
                .last_steps()
                .iter()
                .filter_map(|step| self.steps[step.as_usize()].output.as_ref()),
        )
    }

    /// Returns whether nothing is left to do: the job has ended, waits for no reply, and its
    /// callers have their answers.
    pub fn is_closed(&self) -> bool {
        if self.callers.has_waiting() {
            return false;
        }
        match self.state {
            JobState::Running | JobState::Paused => false,
            JobState::Failed => self.is_expired || self.awaited_replies == 0,
            JobState::Completed | JobState::Cancelled => true,
        }
    }

    /// Returns whether a reply may change the job. A failed job accepts replies: its retry
    /// continues from them.
    pub(super) fn accepts_replies(&self) -> bool {
        match self.state {
            JobState::Running | JobState::Paused => true,
            JobState::Failed => !self.is_expired,
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

    /// Returns whether a reply to the running attempt of a step, from a worker or a person, would
    /// be accepted.
    pub fn can_be_answered(&self, step: StepIndex) -> bool {
        self.accepts_replies()
            && self.graph().step(step).task.is_none()
            && self.steps[step.as_usize()].has_active_attempt()
    }

    /// Returns whether the step waits for a reply: its message is sent, or being sent.
    pub(super) fn is_awaited(&self, step: StepIndex) -> bool {
        self.graph().step(step).has_queue() && self.steps[step.as_usize()].has_active_attempt()
    }

    /// Returns the steps whose message is sent, or being sent, and whose reply would be accepted.
    pub fn steps_awaiting_replies(&self) -> impl Iterator<Item = StepIndex> + '_ {
        let awaits_replies = self.awaited_replies > 0 && self.accepts_replies();
        let steps = self.graph().indices().take_while(move |_| awaits_replies);
        steps.filter(|step| self.is_awaited(*step))
    }

    /// Returns the [steps awaiting replies](Job::steps_awaiting_replies) whose message the broker
    /// has confirmed.
    pub fn confirmed_steps(&self) -> impl Iterator<Item = StepIndex> + '_ {
        self.steps_awaiting_replies().filter(|step| self.steps[step.as_usize()].confirmed)
    }

    /// Returns the steps and items whose child jobs should be active.
    pub fn open_children(&self) -> impl Iterator<Item = (StepIndex, u32)> + '_ {
        let is_open = !self.state.is_ended();
        self.active_fan_outs
            .iter()
            .filter(move |step| is_open && self.steps[step.as_usize()].has_active_attempt())
            .flat_map(|step| self.active_children(*step).map(|index| (*step, index)))
    }

    /// Returns the items of `step` whose child jobs have started and not reported their end.
    pub(super) fn active_children(&self, step: StepIndex) -> impl Iterator<Item = u32> + '_ {
        self.steps[step.as_usize()].fan_out.iter().flat_map(|fan_out| fan_out.active_children())
    }

    /// Returns the number of active child jobs of all its steps.
    pub fn child_count(&self) -> u32 {
        let fan_outs = self
            .active_fan_outs
            .iter()
            .filter_map(|step| self.steps[step.as_usize()].fan_out.as_ref());
        fan_outs.map(|fan_out| fan_out.active_count()).sum()
    }

    /// Returns the id of the child job of `step` for the item at `index`; `None`: the step has not
    /// started child jobs.
    pub fn child_id(&self, step: StepIndex, index: u32) -> Option<JobId> {
        let fan_out = self.steps[step.as_usize()].fan_out.as_ref()?;
        Some(fan_out.child_id(self.origin.id, &self.graph().step(step).name, index))
    }

    /// Returns the message of the child job of `step` for the item at `index`; `None`: the step has
    /// not started child jobs.
    pub fn child_message(&self, step: StepIndex, index: u32) -> Option<Message> {
        self.steps
            .get(step.as_usize())?
            .fan_out
            .as_ref()
            .map(|fan_out| fan_out.child_message(index))
    }

    /// Returns what a fan-out step fans out over; `None`: the step has no task.
    pub fn task_keys(&self, step: StepIndex) -> Option<&FanOutKeys> {
        let task = self.graph().step(step).task?;
        self.origin.definition.graphs[usize::from(task)].fan_out.as_ref()
    }

    /// Returns the input of a step: the outputs of its dependencies, merged in the order of
    /// `depends` (docs/reference/workflow-data.md). For a dependency on the start, and for a step
    /// without dependencies, it is the message of the job.
    pub fn step_input(&self, step: StepIndex) -> Message {
        let depends = &self.graph().step(step).depends;
        if depends.is_empty() {
            return self.message.clone();
        }
        let parts = depends.iter().filter_map(|dependency| match dependency {
            Dependency::Start => Some(&self.message),
            Dependency::Step(index) => self.steps[index.as_usize()].output.as_ref(),
        });
        Message::merge(parts)
    }

    /// Returns the input with which a step started; `None`: it has not started.
    pub fn started_input(&self, step: StepIndex) -> Option<Message> {
        let run = &self.steps[step.as_usize()];
        let has_started = run.attempt > 0 && run.state != StepState::Waiting;
        has_started.then(|| match &run.fan_out {
            Some(fan_out) => fan_out.input().clone(),
            None => self.step_input(step),
        })
    }

    /// Returns the size of the values that the job holds, in bytes.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Returns roughly how much memory the job takes for each of its items, in bytes, without the
    /// items' values.
    pub fn bookkeeping_bytes(&self) -> usize {
        let fan_outs = self.steps.iter().filter_map(|run| run.fan_out.as_ref());
        fan_outs.map(|fan_out| fan_out.bookkeeping_bytes()).sum()
    }

    /// Computes [`Job::value_bytes`] from the message and the steps.
    pub(super) fn count_value_bytes(&self) -> usize {
        let step_bytes = self.steps.iter().map(|run| {
            let output = run.output.as_ref().map_or(0, Message::encoded_len);
            output + run.fan_out.as_ref().map_or(0, |fan_out| fan_out.gathered_bytes())
        });
        own_bytes(&self.origin, &self.message) + step_bytes.sum::<usize>()
    }

    /// Asserts the invariants of a job. The recovery from the journal calls it in every build,
    /// [`Job::evolve`] only in debug builds.
    ///
    /// # Panics
    ///
    /// Panics if an invariant does not hold.
    pub fn assert_invariants(&self) {
        let open_count = self.graph().indices().filter(|step| !self.is_done(*step)).count();
        assert_eq!(open_count, self.steps_left as usize, "steps that are not done");
        let awaited_count = self.graph().indices().filter(|step| self.is_awaited(*step)).count();
        assert_eq!(awaited_count, self.awaited_replies as usize, "steps whose reply is awaited");
        assert!(self.claimants.is_sorted(), "the steps that have claimed are in order");
        for step in self.graph().indices() {
            let run = &self.steps[step.as_usize()];
            let name = &self.graph().step(step).name;
            let is_known = run.claim.is_none() || self.claimants.contains(&step);
            assert!(is_known, "{name} has a claim, so it is among those that have claimed");
            let open_dependencies = self
                .graph()
                .step(step)
                .step_dependencies()
                .iter()
                .filter(|dependency| !self.is_done(**dependency))
                .count();
            assert_eq!(
                open_dependencies,
                usize::from(run.dependencies_left),
                "open dependencies of {name}"
            );
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
            let has_started =
                matches!(run.state, StepState::Running | StepState::Completed | StepState::Skipped);
            assert!(!has_started || open_dependencies == 0, "{name} starts after its dependencies");
            let is_startable = open_dependencies == 0 && run.state == StepState::Waiting;
            assert_eq!(self.ready.contains(&step), is_startable, "{name} is ready");
        }
        assert_eq!(self.value_bytes, self.count_value_bytes(), "the size of the values");
        if self.state == JobState::Completed {
            assert_eq!(open_count, 0, "a completed job has no open step");
        }
        assert_eq!(self.ended.is_some(), self.state.is_ended(), "an ended job has its time");
        assert!(
            !self.callers.has_answered() || self.state.is_ended(),
            "callers are answered after the end"
        );
    }
}
