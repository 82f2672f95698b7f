//! Replays the record of a job under another definition, to find out what the job would have done:
//! each recorded reply is applied at the time at which it came.

use super::changes::{Change, ChangeKind, StepMapping, dependency_names, diff_definitions};
use engine::{
    Cause, ChildEnd, ChildOutcome, Context, Definition, Entry, FanOutEntry, Graph, Input, Job,
    JobEntry, JobState, Json, Limits, Message, Operation, Origin, Recorded, Reply, Sender,
    StepEntry, StepIndex, StepState, Timestamp, UnreadReplies,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// The limits of a replay. Nothing is refused for its size, since it was accepted before.
const LIMITS: Limits = Limits {
    step_message_bytes_max: usize::MAX,
    reply_bytes_max: usize::MAX,
    depth_max: u16::MAX,
    window: u32::MAX,
    window_bytes: u64::MAX,
};

/// Returns what would differ for `job`, whose record this is, if it had begun under `new`. The list
/// is empty if nothing would differ, and for a child job, whose start is up to its parent.
///
/// Timeouts are not compared: whether a worker would have been faster is unknown.
pub fn differences_under(job: &Job, record: &[Recorded], new: &Arc<Definition>) -> Vec<Change> {
    if job.origin().parent.is_some() {
        // A child job runs a task, which `new` may not have.
        return Vec::new();
    }
    // Both definitions are replayed, so that what a replay leaves out differs in neither.
    let before = Replay::run(job, record, job.definition());
    let after = Replay::run(job, record, new);
    compare(job, &before, &after)
}

/// A replay of a record to a new job.
struct Replay<'r> {
    job: Job,
    mapping: StepMapping,
    now: Timestamp,
    /// Inputs for steps that have not begun yet.
    pending: VecDeque<(StepIndex, RecordedInput<'r>)>,
}

/// A recorded input of a step.
enum RecordedInput<'r> {
    Reply(Reply),
    /// A child job ended: with this result, or with none if it failed.
    ChildEnded(u32, Option<Message>),
    /// The output of a step whose child jobs may not have been started.
    Gathered(&'r Message),
}

impl<'r> Replay<'r> {
    fn run(recorded: &'r Job, record: &'r [Recorded], definition: &Arc<Definition>) -> Job {
        let origin = Origin { definition: definition.clone(), ..recorded.origin().clone() };
        let now = origin.created;
        let context = Context { now, limits: &LIMITS };
        let (job, _) = Job::create(origin, recorded.message().clone(), &context);
        let mapping = StepMapping::from_graphs(recorded.graph(), job.graph());
        let mut replay = Replay { job, mapping, now, pending: VecDeque::new() };
        for row in record {
            replay.now = row.at;
            for entry in &row.entries {
                replay.replay_entry(recorded, entry);
                replay.deliver_pending();
            }
        }
        replay.job
    }

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
            JobEntry::Rerun { step, .. } => {
                let Some(new) = self.mapping.find_new(*step) else { return };
                Operation::Rerun { step: self.job.graph().step(new).name.to_string() }
            }
            JobEntry::Cancelled { reason, .. } => Operation::Cancel { reason: reason.clone() },
            JobEntry::Failed { expired: true, .. } => {
                // The recorded deadline: what would have come before another one is unknown.
                let due = recorded.origin().created.max(self.now);
                return self.apply_input(Input::Timer { due, unread: self.unread_replies() });
            }
            JobEntry::Created { .. }
            | JobEntry::Completed
            | JobEntry::Failed { .. }
            | JobEntry::ToldAgain
            | JobEntry::Asked { .. } => return,
        };
        self.apply_input(Input::from_request(operation));
    }

    fn replay_step_entry(&mut self, recorded: &'r Job, step: StepIndex, entry: &'r StepEntry) {
        // The failure of child jobs follows from their own records.
        let has_task = recorded.graph().step(step).task.is_some();
        let error = |reason: &str, retryable: bool| {
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
            StepEntry::AttemptFailed { failure, .. } => error(&failure.reason, true),
            StepEntry::Failed(failure) if !has_task => error(&failure.reason, false),
            StepEntry::Failed(_)
            | StepEntry::Started { .. }
            | StepEntry::Confirmed
            | StepEntry::Leased(_)
            | StepEntry::Begun
            | StepEntry::Unconfirmed
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
                if let (Some((place, value)), Some(key)) = (item, key) {
                    members.push((*place, key, value.clone()));
                }
                members.sort_by_key(|(place, ..)| *place);
                // Puts together the result, which the journal keeps in parts.
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

    /// Queues an input for the matching step of the new definition. Drops it if that step is gone.
    fn enqueue(&mut self, old: StepIndex, input: RecordedInput<'r>) {
        if let Some(new) = self.mapping.find_new(old) {
            self.pending.push_back((new, input));
        }
    }

    /// Delivers the pending inputs to the steps that run, until no other step starts by it. The
    /// inputs of one step are delivered in order.
    fn deliver_pending(&mut self) {
        loop {
            let is_first = |at: usize, early: &VecDeque<(StepIndex, RecordedInput<'r>)>| {
                !early.iter().take(at).any(|(step, _)| *step == early[at].0)
            };
            let ready = (0..self.pending.len()).find(|at| {
                is_first(*at, &self.pending)
                    && self.can_deliver(self.pending[*at].0, &self.pending[*at].1)
            });
            let Some((step, input)) = ready.and_then(|at| self.pending.remove(at)) else { return };
            if let Some(due) = self.job.step(step).retry_at() {
                // By now the attempt that matches the recorded one has begun.
                self.apply_input(Input::Timer { due, unread: self.unread_replies() });
            }
            self.deliver_input(step, input);
        }
    }

    fn can_deliver(&self, step: StepIndex, input: &RecordedInput<'_>) -> bool {
        let is_running = self.job.step_state(step) == StepState::Running;
        match input {
            RecordedInput::Reply(_) => is_running && self.job.graph().step(step).task.is_none(),
            // Each of the two matters to one kind of step only; the other kind ignores it.
            RecordedInput::Gathered(_) => is_running,
            RecordedInput::ChildEnded(index, _) => match &self.job.step(step).fan_out {
                Some(fan_out) => fan_out.active_children().any(|active| active == *index),
                None => is_running,
            },
        }
    }

    /// Reports replies that are never too late, so that no attempt times out by itself: the record
    /// says which did.
    fn unread_replies(&self) -> UnreadReplies {
        self.job.graph().indices().map(|step| (step, Timestamp(i64::MAX))).collect()
    }

    fn deliver_input(&mut self, step: StepIndex, input: RecordedInput<'_>) {
        let definition = self.job.graph().step(step);
        let (name, has_task) = (definition.name.to_string(), definition.task.is_some());
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
            RecordedInput::Gathered(_) if has_task => return,
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
        let context = Context { now: self.now, limits: &LIMITS };
        // A rejected input has no effect, and effects are not carried out.
        let _ = self.job.handle_input(input, &context);
    }
}

fn item_key(definition: &Definition, graph: &Graph, step: StepIndex) -> Option<Arc<str>> {
    let task = graph.step(step).task?;
    Some(definition.graphs.get(usize::from(task))?.fan_out.as_ref()?.item_key.clone())
}

/// Returns the differences between the two replays that still matter to `job`.
fn compare(job: &Job, before: &Job, after: &Job) -> Vec<Change> {
    let (old, new) = (before.graph(), after.graph());
    let mapping = StepMapping::from_graphs(old, new);
    let definition_changes = diff_definitions(before.definition(), after.definition());
    let mut found = Vec::new();
    for at in old.indices() {
        let name = &*old.step(at).name;
        let mut add_change = |kind, text| {
            found.push(Change { kind, task: None, step: Some(name.to_owned()), text });
        };
        let old_state = before.step_state(at);
        let Some(other) = mapping.find_new(at) else {
            add_change(
                ChangeKind::Gone,
                format!("is {} and would not be there", old_state.as_str()),
            );
            continue;
        };
        let new_state = after.step_state(other);
        if old_state != new_state {
            add_change(
                classify(old_state, new_state),
                describe_state_change(old_state, new_state, after, other),
            );
        } else if before.status(at) != after.status(other) {
            let (old_status, new_status) = (before.status(at), after.status(other));
            add_change(
                ChangeKind::Status,
                format!("has the status {old_status}, would have {new_status}"),
            );
        }
        // What the definition says about a step matters until the step has ended.
        let is_open =
            !job.state().is_ended() && matches!(old_state, StepState::Waiting | StepState::Running);
        let task =
            old.step(at).task.and_then(|task| before.definition().graphs.get(usize::from(task)));
        for change in &definition_changes {
            let is_own = change.task.is_none() && change.step.as_deref() == Some(name);
            let is_of_children = change.task.is_some()
                && task.is_some_and(|task| change.task.as_ref() == Some(&task.name));
            if is_own && (is_open || change.kind == ChangeKind::Renamed) {
                add_change(change.kind, change.text.clone());
            } else if is_of_children && is_open {
                let subject =
                    change.step.as_ref().map_or(String::new(), |step| format!("step {step} "));
                add_change(ChangeKind::Task, format!("its child jobs: {subject}{}", change.text));
            }
        }
    }
    for at in new.indices().filter(|at| mapping.is_new(*at)) {
        let (kind, step) = (ChangeKind::New, Some(new.step(at).name.to_string()));
        let text = format!("is new and would be {}", after.step_state(at).as_str());
        found.push(Change { kind, task: None, step, text });
    }
    let about_job = |kind, text| Change { kind, task: None, step: None, text };
    if before.state() != after.state() {
        let (old_state, new_state) = (before.state().as_str(), after.state().as_str());
        found.push(about_job(
            ChangeKind::State,
            format!("the job is {old_state}, would be {new_state}"),
        ));
    } else if before.state() == JobState::Completed && before.result() != after.result() {
        found.push(about_job(ChangeKind::Result, "the job would have another result".to_owned()));
    }
    found
}

fn classify(old_state: StepState, new_state: StepState) -> ChangeKind {
    let by_condition = [StepState::Skipped, StepState::Cancelled];
    if by_condition.contains(&old_state) || by_condition.contains(&new_state) {
        ChangeKind::Condition
    } else {
        ChangeKind::State
    }
}

fn describe_state_change(
    old_state: StepState,
    new_state: StepState,
    after: &Job,
    step: StepIndex,
) -> String {
    let (graph, old_name) = (after.graph(), old_state.as_str());
    match new_state {
        StepState::Waiting => {
            let open = |name: &Arc<str>| {
                let on = graph.find_index(name);
                on.is_some_and(|on| {
                    matches!(after.step_state(on), StepState::Waiting | StepState::Running)
                })
            };
            let waits: Vec<Arc<str>> =
                dependency_names(graph, graph.step(step)).into_iter().filter(open).collect();
            let waits =
                if waits.is_empty() { String::new() } else { format!(" for {}", waits.join(", ")) };
            format!("is {old_name}, would be waiting{waits}")
        }
        StepState::Skipped => {
            format!("is {old_name}, would be skipped: its condition comes to false")
        }
        StepState::Cancelled => {
            format!("is {old_name}, would be cancelled: its condition comes to true")
        }
        StepState::Running | StepState::Completed | StepState::Failed => {
            format!("is {old_name}, would be {}", new_state.as_str())
        }
    }
}
