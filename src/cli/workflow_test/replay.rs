//! Replays the record of a job under another definition, to find out what the job would have done.
//! Each recorded reply is applied at the time at which it arrived.

use super::changes::{Change, ChangeKind, StepMapping, dependency_names, diff_definitions};
use engine::{
    Cause, ChildEnd, ChildOutcome, ClaimState, Context, Definition, Entry, FanOutEntry, Graph,
    Input, Job, JobEntry, JobState, Json, Limits, Message, Operation, Origin, Recorded, Reply,
    Sender, StepEntry, StepIndex, StepState, Timestamp, UnreadReplies,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// The limits of a replay: none, so that everything that was accepted once is accepted again.
const LIMITS: Limits = Limits {
    step_message_bytes_max: usize::MAX,
    reply_bytes_max: usize::MAX,
    depth_max: u16::MAX,
    window: u32::MAX,
    window_bytes: u64::MAX,
};

/// Returns what would differ for `job`, whose record is given, if it had been created with
/// `new_definition`. The list is empty if nothing would differ, and for a child job.
///
/// Timeouts are not compared: it is unknown whether a worker would have been faster.
pub fn differences_under(
    job: &Job,
    record: &[Recorded],
    new_definition: &Arc<Definition>,
) -> Vec<Change> {
    if job.origin().parent.is_some() {
        // A child job runs a task, which the new definition may not have.
        return Vec::new();
    }
    // The record is replayed under both definitions, so what a replay omits is not a difference.
    let old_job = Replay::run(job, record, job.definition());
    let new_job = Replay::run(job, record, new_definition);
    compare(job, &old_job, &new_job)
}

/// A replay of a record by a new job.
struct Replay<'r> {
    /// The new job.
    job: Job,
    /// Maps the steps of the recorded job to those of the new one.
    mapping: StepMapping,
    /// The time at which the replayed entries were recorded.
    now: Timestamp,
    /// Inputs for steps of the new job that are not ready for them yet.
    pending: VecDeque<(StepIndex, RecordedInput<'r>)>,
}

/// A recorded input of a step.
enum RecordedInput<'r> {
    Reply(Reply),
    /// The child job of the item with this index ended: with this result, or with `None` if it
    /// failed.
    ChildEnded(u32, Option<Message>),
    /// The output of a completed fan-out. It becomes the result of the step if the step is no
    /// fan-out in the new definition.
    Gathered(&'r Message),
}

impl<'r> Replay<'r> {
    /// Replays the record of a job under a definition, and returns the new job.
    fn run(recorded: &'r Job, record: &'r [Recorded], definition: &Arc<Definition>) -> Job {
        let origin = Origin { definition: definition.clone(), ..recorded.origin().clone() };
        let now = origin.created;
        let context = Context { now, limits: &LIMITS, pauses: None, spare: None };
        let (job, _) = Job::create(origin, recorded.message().clone(), &context);
        let mapping = StepMapping::from_graphs(recorded.graph(), job.graph());
        let mut replay = Replay { job, mapping, now, pending: VecDeque::new() };
        // When it began does not matter, either.
        if let Some(due) = replay.job.begins_at() {
            let unread = replay.unread_replies();
            replay.apply_input(Input::Timer { due, unread });
        }
        replay.admit_waiting();
        for row in record {
            replay.now = row.at;
            for entry in &row.entries {
                replay.replay_entry(recorded, entry);
                replay.deliver_pending();
            }
        }
        replay.job
    }

    /// Derives inputs from an entry of the recorded job.
    fn replay_entry(&mut self, recorded: &'r Job, entry: &'r Entry) {
        match entry {
            Entry::Job(entry) => self.replay_job_entry(recorded, entry),
            Entry::Step(step, entry) => self.replay_step_entry(recorded, *step, entry),
            Entry::FanOut(step, entry) => self.replay_fan_out_entry(recorded, *step, entry),
            Entry::Caller(_) => {}
        }
    }

    fn replay_job_entry(&mut self, recorded: &Job, entry: &JobEntry) {
        let operation = match entry {
            JobEntry::Paused => Operation::Pause,
            JobEntry::Resumed => Operation::Resume,
            JobEntry::Retried { .. } => Operation::Retry,
            JobEntry::Rerun { step, only_failed_items, .. } => {
                let Some(new) = self.mapping.find_new(*step) else { return };
                let step = self.job.graph().step(new).name.to_string();
                Operation::Rerun { step, only_failed_items: *only_failed_items }
            }
            JobEntry::Cancelled { reason, .. } => Operation::Cancel { reason: reason.clone() },
            JobEntry::Failed { expired: true, .. } => {
                // The recorded deadline applies: what would have happened until another one is
                // unknown.
                let due = recorded.origin().created.max(self.now);
                return self.apply_input(Input::Timer { due, unread: self.unread_replies() });
            }
            JobEntry::Created { .. }
            | JobEntry::Begun
            | JobEntry::Claimed { .. }
            | JobEntry::Admitted
            | JobEntry::Completed
            | JobEntry::Failed { .. }
            | JobEntry::ToldAgain
            | JobEntry::Asked { .. } => return,
        };
        self.apply_input(Input::from_request(operation));
    }

    fn replay_step_entry(&mut self, recorded: &'r Job, step: StepIndex, entry: &'r StepEntry) {
        // A fan-out fails when a replayed child job fails, so its own failure is not replayed.
        let is_fan_out = recorded.graph().step(step).task.is_some();
        let error_reply = |reason: &str, retryable: bool| {
            let body = serde_json::json!({ "error": reason, "retryable": retryable });
            Reply::Error(body.to_string().into())
        };
        let reply = match entry {
            StepEntry::Completed(output) => Reply::Result(output.to_text().into()),
            StepEntry::Progressed { progress, .. } => Reply::Progress(
                serde_json::json!({
                    "status": progress.status,
                    "progress": progress.share,
                    "message": progress.message,
                })
                .to_string()
                .into(),
            ),
            StepEntry::AttemptFailed { failure, .. } => error_reply(&failure.reason, true),
            StepEntry::Failed(failure) if !is_fan_out => error_reply(&failure.reason, false),
            StepEntry::Failed(_)
            | StepEntry::Started { .. }
            | StepEntry::Confirmed
            | StepEntry::Leased(_)
            | StepEntry::Begun
            | StepEntry::Unconfirmed
            | StepEntry::Claimed { .. }
            | StepEntry::ResendClaimed
            | StepEntry::Skipped
            | StepEntry::Cancelled => return,
        };
        self.enqueue(step, RecordedInput::Reply(reply));
    }

    fn replay_fan_out_entry(&mut self, recorded: &'r Job, step: StepIndex, entry: &'r FanOutEntry) {
        match entry {
            FanOutEntry::ChildCompleted { index, item, others } => {
                let Some(new) = self.mapping.find_new(step) else { return };
                let key = item_key(self.job.definition(), self.job.graph(), new);
                let mut members: Vec<(u16, Arc<str>, Json)> = others.clone();
                // The journal stores the item separately from the other members of the result.
                // Both store the position that a member had in the result.
                if let (Some((position, value)), Some(key)) = (item, key) {
                    members.push((*position, key, value.clone()));
                }
                members.sort_by_key(|(position, ..)| *position);
                let result: Message =
                    members.into_iter().map(|(_, key, value)| (key, value)).collect();
                self.enqueue(step, RecordedInput::ChildEnded(*index, Some(result)));
            }
            FanOutEntry::ChildFailed { index } => {
                self.enqueue(step, RecordedInput::ChildEnded(*index, None))
            }
            FanOutEntry::Completed => {
                if let Some(output) = &recorded.step(step).output {
                    self.enqueue(step, RecordedInput::Gathered(output));
                }
            }
            FanOutEntry::Started { .. }
            | FanOutEntry::Restarted { .. }
            | FanOutEntry::ChildrenStarted { .. }
            | FanOutEntry::ChildStarted { .. } => {}
        }
    }

    /// Queues an input for the matching step of the new definition. Drops it if there is none.
    fn enqueue(&mut self, old_step: StepIndex, input: RecordedInput<'r>) {
        if let Some(new_step) = self.mapping.find_new(old_step) {
            self.pending.push_back((new_step, input));
        }
    }

    /// Delivers the pending inputs to the steps that are ready for them, until none is. The inputs
    /// of one step are delivered in order.
    fn deliver_pending(&mut self) {
        loop {
            let is_first_of_step = |index: usize| {
                let step = self.pending[index].0;
                !self.pending.iter().take(index).any(|(earlier, _)| *earlier == step)
            };
            let ready = (0..self.pending.len()).find(|index| {
                let (step, input) = &self.pending[*index];
                is_first_of_step(*index) && self.can_deliver(*step, input)
            });
            let Some((step, input)) = ready.and_then(|index| self.pending.remove(index)) else {
                return;
            };
            if let Some(due) = self.job.step(step).retry_at() {
                // The recorded job had begun the attempt by now, so the backoff is over.
                self.apply_input(Input::Timer { due, unread: self.unread_replies() });
            }
            self.deliver_input(step, input);
        }
    }

    /// Returns whether a step is ready for an input.
    fn can_deliver(&self, step: StepIndex, input: &RecordedInput<'_>) -> bool {
        let is_running = self.job.step_state(step) == StepState::Running;
        match input {
            RecordedInput::Reply(_) => is_running && self.job.graph().step(step).task.is_none(),
            // `deliver_input` drops it for a fan-out.
            RecordedInput::Gathered(_) => is_running,
            RecordedInput::ChildEnded(index, _) => match &self.job.step(step).fan_out {
                Some(fan_out) => fan_out.active_children().any(|active| active == *index),
                // `deliver_input` drops it for a step that is not a fan-out.
                None => is_running,
            },
        }
    }

    /// Returns unread replies for all steps. With an unread reply no attempt times out by a timer:
    /// the record says which attempts did.
    fn unread_replies(&self) -> UnreadReplies {
        self.job.graph().indices().map(|step| (step, Timestamp(i64::MAX))).collect()
    }

    /// Applies an input to a step that is ready for it, or drops the input if it does not fit the
    /// step.
    fn deliver_input(&mut self, step: StepIndex, input: RecordedInput<'_>) {
        let definition = self.job.graph().step(step);
        let (name, is_fan_out) = (definition.name.to_string(), definition.task.is_some());
        let reply = match input {
            RecordedInput::ChildEnded(index, result) => {
                let Some(child) = self.job.child_id(step, index) else { return };
                let outcome = match result {
                    Some(result) => ChildOutcome::Completed(result),
                    None => ChildOutcome::Failed(Cause::from_job("as recorded")),
                };
                let ended = ChildEnd { child, round: self.job.round(), outcome };
                return self.apply_input(Input::ChildEnded { step, index, ended });
            }
            RecordedInput::Gathered(_) if is_fan_out => return,
            RecordedInput::Gathered(output) => Reply::Result(output.to_text().into()),
            RecordedInput::Reply(reply) => reply,
        };
        let input = if definition.external {
            Input::from_request(Operation::Reply { step: name, reply })
        } else {
            Input::Reply { step: name, attempt: None, reply, from: Sender::Manager }
        };
        self.apply_input(input);
    }

    fn apply_input(&mut self, input: Input) {
        let context = Context { now: self.now, limits: &LIMITS, pauses: None, spare: None };
        // A rejected input has no effect, and effects are not carried out.
        let _ = self.job.handle_input(input, &context);
        self.admit_waiting();
    }

    /// Admits every attempt that waits for limits: when it was admitted does not matter.
    fn admit_waiting(&mut self) {
        let context = Context { now: self.now, limits: &LIMITS, pauses: None, spare: None };
        for (step, demand) in self.job.demands() {
            if demand.claim.state == ClaimState::Waiting {
                let ticket = demand.claim.ticket;
                let input = Input::Admitted { step, ticket, marks: Vec::new() };
                let _ = self.job.handle_input(input, &context);
            }
        }
    }
}

/// Returns the key of the item in the messages of a fan-out. `None` if the step is not a fan-out.
fn item_key(definition: &Definition, graph: &Graph, step: StepIndex) -> Option<Arc<str>> {
    let task = graph.step(step).task?;
    Some(definition.graphs.get(usize::from(task))?.fan_out.as_ref()?.item_key.clone())
}

/// Compares the jobs of two replays. Returns the differences that matter to the recorded `job`.
fn compare(job: &Job, old_job: &Job, new_job: &Job) -> Vec<Change> {
    let (old_graph, new_graph) = (old_job.graph(), new_job.graph());
    let mapping = StepMapping::from_graphs(old_graph, new_graph);
    let definition_changes = diff_definitions(old_job.definition(), new_job.definition());
    let mut changes = Vec::new();
    for old_index in old_graph.indices() {
        let name = &*old_graph.step(old_index).name;
        let mut add_change = |kind, text| {
            changes.push(Change { kind, task: None, step: Some(name.to_owned()), text });
        };
        let old_state = old_job.step_state(old_index);
        let Some(new_index) = mapping.find_new(old_index) else {
            add_change(
                ChangeKind::Gone,
                format!("is {} and would not be there", old_state.as_str()),
            );
            continue;
        };
        let new_state = new_job.step_state(new_index);
        if old_state != new_state {
            add_change(
                classify_state_change(old_state, new_state),
                describe_state_change(old_state, new_state, new_job, new_index),
            );
        } else if old_job.status(old_index) != new_job.status(new_index) {
            let (old_status, new_status) = (old_job.status(old_index), new_job.status(new_index));
            add_change(
                ChangeKind::Status,
                format!("has the status {old_status}, would have {new_status}"),
            );
        }
        // What the definition says about a step matters until the step has ended.
        let is_open =
            !job.state().is_ended() && matches!(old_state, StepState::Waiting | StepState::Running);
        let task = old_graph
            .step(old_index)
            .task
            .and_then(|task| old_job.definition().graphs.get(usize::from(task)));
        for change in &definition_changes {
            let is_about_step = change.task.is_none() && change.step.as_deref() == Some(name);
            let is_about_task = change.task.is_some()
                && task.is_some_and(|task| change.task.as_ref() == Some(&task.name));
            if is_about_step && (is_open || change.kind == ChangeKind::Renamed) {
                add_change(change.kind, change.text.clone());
            } else if is_about_task && is_open {
                let subject =
                    change.step.as_ref().map_or(String::new(), |step| format!("step {step} "));
                add_change(ChangeKind::Task, format!("its child jobs: {subject}{}", change.text));
            }
        }
    }
    for new_index in new_graph.indices().filter(|index| mapping.is_new(*index)) {
        let (kind, step) = (ChangeKind::New, Some(new_graph.step(new_index).name.to_string()));
        let text = format!("is new and would be {}", new_job.step_state(new_index).as_str());
        changes.push(Change { kind, task: None, step, text });
    }
    let job_change = |kind, text| Change { kind, task: None, step: None, text };
    if old_job.state() != new_job.state() {
        let (old_state, new_state) = (old_job.state().as_str(), new_job.state().as_str());
        changes.push(job_change(
            ChangeKind::State,
            format!("the job is {old_state}, would be {new_state}"),
        ));
    } else if old_job.state() == JobState::Completed && old_job.result() != new_job.result() {
        changes
            .push(job_change(ChangeKind::Result, "the job would have another result".to_owned()));
    }
    changes
}

/// Returns the kind of a change of a step's state.
fn classify_state_change(old_state: StepState, new_state: StepState) -> ChangeKind {
    let states_from_conditions = [StepState::Skipped, StepState::Cancelled];
    if states_from_conditions.contains(&old_state) || states_from_conditions.contains(&new_state) {
        ChangeKind::Condition
    } else {
        ChangeKind::State
    }
}

/// Describes a change of a step's state. `step` is the index in `new_job`.
fn describe_state_change(
    old_state: StepState,
    new_state: StepState,
    new_job: &Job,
    step: StepIndex,
) -> String {
    let (graph, old_name) = (new_job.graph(), old_state.as_str());
    match new_state {
        StepState::Waiting => {
            let is_open = |name: &Arc<str>| {
                graph.find_index(name).is_some_and(|index| {
                    matches!(new_job.step_state(index), StepState::Waiting | StepState::Running)
                })
            };
            let open_dependencies: Vec<Arc<str>> =
                dependency_names(graph, graph.step(step)).into_iter().filter(is_open).collect();
            let waits_for = if open_dependencies.is_empty() {
                String::new()
            } else {
                format!(" for {}", open_dependencies.join(", "))
            };
            format!("is {old_name}, would be waiting{waits_for}")
        }
        StepState::Skipped => {
            format!("is {old_name}, would be skipped: its condition is false")
        }
        StepState::Cancelled => {
            format!("is {old_name}, would be cancelled: its condition is true")
        }
        StepState::Running | StepState::Completed | StepState::Failed => {
            format!("is {old_name}, would be {}", new_state.as_str())
        }
    }
}
