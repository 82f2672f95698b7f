//! The simulator: runs the job of a test, and its child jobs, on the real engine. Workers follow
//! the script of the test, and the virtual clock jumps from one scheduled event to the next.

use super::script::{ProgressMessage, TestCase, UserAction, WorkerAction, WorkerScript, to_json};
use base::times::format_rfc3339;
use engine::schedule::{Judgement, Ledger};
use engine::{
    Admission, ClaimState, Context, Decision, Definition, Demand, Effect, Entry, FanOutEntry, Gate,
    Input, Job, JobEntry, JobId, Limits, Message, Millis, Operation, OperationError, Origin,
    ParentItem, Reply, Schedule, Sender, StepDemands, StepEntry, StepIndex, StepState, Timestamp,
    UnreadReplies,
};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

mod slots;

/// The virtual time at which a test begins that names none: 2026-01-01T00:00:00Z.
const START: Timestamp = Timestamp(1_767_225_600_000_000_000);

/// The maximum number of events. A test with more is considered an endless loop.
const EVENTS_MAX: usize = 1_000_000;

/// The maximum number of lines of the story. Later lines are dropped.
const STORY_LINES_MAX: usize = 200;

/// The maximum length of an output in the story, in characters.
const STORY_OUTPUT_CHARS_MAX: usize = 200;

/// The id of the job under test.
const JOB_ID: JobId = JobId(Uuid::from_u128(0x0a11_ce00_0000_4000_8000_0000_0000_0001));

/// A scheduled event.
enum ScheduledEvent {
    /// A worker, or a person, starts an attempt, and does the action.
    Start { job: JobId, step: StepIndex, attempt: u32, input: Message, action: WorkerAction },
    /// A worker, or a person, replies.
    Reply { job: JobId, step: StepIndex, name: Arc<str>, attempt: u32, reply: Reply },
    /// A user operates on the job under test.
    User(UserAction),
    /// Somebody may be admitted by a limit.
    Gate,
    /// Slots of the schedule are due at this time.
    Slots(Timestamp),
    /// The timer of a job is due at this time. It is ignored if the job has another timer by then.
    Timer(JobId, Timestamp),
}

/// The schedule of a test, and what became of its slots.
struct Firing {
    schedule: Arc<Schedule>,
    definition: Arc<Definition>,
    ledger: Ledger,
    /// How all slots were judged, in order.
    judgements: Vec<Judgement>,
    /// The time of the scheduled event at which slots are judged next; `None`: there is none.
    due: Option<Timestamp>,
}

/// What follows from a decision, and is carried out later.
enum PendingEffect {
    Effect(Effect),
    /// What the job and its steps want of the gate from now on.
    Demands(StepDemands),
}

/// A simulation of one test.
pub(super) struct Simulator<'t> {
    test: &'t TestCase,
    /// The job under test and its child jobs, including those that have ended.
    jobs: HashMap<JobId, Job>,
    /// The schedule that starts jobs; `None`: the test is about one job.
    firing: Option<Firing>,
    /// The virtual time at which the test begins.
    start: Timestamp,
    /// The virtual time.
    now: Timestamp,
    /// When a job was last changed. Once the test has stopped because of `until`, that time.
    last_change: Timestamp,
    /// The events that are to come, sorted by time, then by the order of scheduling.
    scheduled: BTreeMap<(Timestamp, u64), ScheduledEvent>,
    /// How many events were scheduled: the second part of the key of the latest one.
    scheduled_count: u64,
    /// What is not carried out yet, each with the job that caused it.
    effects: VecDeque<(JobId, PendingEffect)>,
    /// The inputs that were sent to workers, by step.
    inputs: HashMap<Arc<str>, Vec<Message>>,
    /// The ids of the jobs that are not closed. No other job may be started with one of them.
    open_jobs: HashSet<JobId>,
    /// The limits.
    gate: Gate,
    /// The numbers by which the gate knows the jobs.
    gate_numbers: HashMap<JobId, i64>,
    /// What happened, one line for each event.
    pub(super) story: Vec<String>,
}

impl<'t> Simulator<'t> {
    pub(super) fn new(test: &'t TestCase) -> Simulator<'t> {
        let start = test.now.map_or(START, |now| now.0);
        Simulator {
            test,
            jobs: HashMap::new(),
            firing: None,
            start,
            now: start,
            last_change: start,
            scheduled: BTreeMap::new(),
            scheduled_count: 0,
            effects: VecDeque::new(),
            inputs: HashMap::new(),
            open_jobs: HashSet::new(),
            gate: Gate::default(),
            gate_numbers: HashMap::new(),
            story: Vec::new(),
        }
    }

    pub(super) fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// Returns the inputs that were sent to the workers of a step.
    pub(super) fn inputs(&self, step: &str) -> &[Message] {
        self.inputs.get(step).map_or(&[], Vec::as_slice)
    }

    /// Returns the virtual time from the creation of the job under test to the last change of any
    /// job, or to `until`.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.duration_until(self.last_change)
    }

    /// Creates the job under test, and schedules what users do. Returns the id of the job.
    pub(super) fn create(&mut self, definition: &Arc<Definition>, message: Message) -> JobId {
        let id = JOB_ID;
        for action in &self.test.users {
            self.schedule(action.delay.0, ScheduledEvent::User(action.clone()));
        }
        let origin = Origin::for_root_job(id, definition.clone(), self.now);
        self.start_job(origin, message);
        id
    }

    /// Runs until no event is scheduled, or until the time at which the test stops.
    ///
    /// # Errors
    ///
    /// Returns an error if an operation of a user is refused, or if there are too many events.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let stop_time = self.test.until.map_or(Timestamp(i64::MAX), |duration| {
            Timestamp(self.start.0.saturating_add(to_nanoseconds(duration.0)))
        });
        for _ in 0..EVENTS_MAX {
            self.run_effects();
            let Some(next_event) =
                self.scheduled.first_entry().filter(|next| next.key().0 <= stop_time)
            else {
                if stop_time.0 < i64::MAX {
                    self.last_change = stop_time;
                }
                return Ok(());
            };
            let ((time, _), event) = next_event.remove_entry();
            self.now = time;
            self.handle_event(event)?;
            self.run_effects();
            self.judge_waiting();
        }
        Err(format!(
            "it goes on after {EVENTS_MAX} events: does a step repeat for ever? Set `until`"
        ))
    }

    /// Handles a due event.
    fn handle_event(&mut self, event: ScheduledEvent) -> Result<(), String> {
        match event {
            ScheduledEvent::Start { job, step, attempt, input, action } => {
                self.start_work(job, step, attempt, &input, &action);
            }
            ScheduledEvent::Reply { job, step, name, attempt, reply } => {
                let is_external =
                    self.jobs.get(&job).is_some_and(|job| job.graph().step(step).external);
                let input = if is_external {
                    let operation = Operation::Reply { step: name.to_string(), reply };
                    if let Some(OperationError::Invalid(text)) =
                        self.check_operation(job, &operation)
                    {
                        self.add_line(format!(
                            "the reply for the external step \"{name}\" is refused: {text}"
                        ));
                        return Ok(());
                    }
                    Input::from_request(operation)
                } else {
                    Input::Reply {
                        step: name.to_string(),
                        attempt: Some(attempt),
                        reply,
                        from: Sender::Manager,
                    }
                };
                self.apply_input(job, input);
            }
            ScheduledEvent::Timer(job, due) => {
                if self.jobs.get(&job).and_then(Job::next_timer) == Some(due) {
                    self.apply_input(job, Input::Timer { due, unread: UnreadReplies::new() });
                }
            }
            ScheduledEvent::Gate => self.advance_gate(),
            ScheduledEvent::Slots(due) => self.judge_due(due),
            ScheduledEvent::User(action) => {
                let id = JOB_ID;
                let operation = parse_operation(&action)?;
                if let Some(objection) = self.check_operation(id, &operation) {
                    return Err(format!("users, at {}: {}", action.delay, objection.message()));
                }
                self.add_line(format!("a user asks for {}", operation.as_str()));
                self.apply_input(id, Input::from_request(operation));
            }
        }
        Ok(())
    }

    /// Returns why an operation is refused, if it is.
    fn check_operation(&self, id: JobId, operation: &Operation) -> Option<OperationError> {
        self.jobs.get(&id)?.check_operation(operation, context(self.now).limits)
    }

    /// Schedules an event after a delay from now.
    fn schedule(&mut self, delay: Duration, event: ScheduledEvent) {
        let time = Timestamp(self.now.0.saturating_add(to_nanoseconds(delay)));
        self.scheduled_count += 1;
        self.scheduled.insert((time, self.scheduled_count), event);
    }

    /// Starts a job. If another job with its id is not closed, notifies the parent instead.
    fn start_job(&mut self, origin: Origin, message: Message) {
        let id = origin.id;
        if !self.open_jobs.insert(id) {
            if let Some(ParentItem { job, step, index }) = origin.parent {
                self.apply_input(job, Input::IdConflict { step, index, id });
            }
            return;
        }
        let (job, decision) = Job::create(origin, message, &context(self.now));
        self.jobs.insert(id, job);
        self.handle_decision(id, decision);
    }

    /// Applies an input to a job, and schedules what follows from it.
    fn apply_input(&mut self, id: JobId, input: Input) {
        let context = context(self.now);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        // A rejected input has no effect.
        if let Ok(decision) = job.handle_input(input, &context) {
            self.handle_decision(id, decision);
        }
    }

    /// Adds the entries of a decision to the story, and schedules what follows: effects and timers.
    fn handle_decision(&mut self, id: JobId, decision: Decision) {
        self.last_change = self.now;
        for entry in &decision.recorded.entries {
            self.add_entry(id, entry);
            // The engine sends no message for an external step. This dispatch stands for the
            // person, who sees that the step runs.
            if let (Entry::Step(step, StepEntry::Started { attempt, .. }), Some(job)) =
                (entry, self.jobs.get(&id))
                && job.graph().step(*step).external
            {
                let (step, attempt, input) = (*step, *attempt, job.step_input(*step));
                let dispatch = Effect::Dispatch { step, attempt, input };
                self.effects.push_back((id, PendingEffect::Effect(dispatch)));
            }
        }
        if decision.closed {
            self.open_jobs.remove(&id);
        }
        let effects = decision.effects.into_iter().map(PendingEffect::Effect);
        self.effects.extend(effects.map(|effect| (id, effect)));
        if !decision.demands.is_empty() {
            self.effects.push_back((id, PendingEffect::Demands(decision.demands)));
        }
        if let Some(due) = self.jobs.get(&id).and_then(Job::next_timer) {
            self.scheduled_count += 1;
            self.scheduled
                .insert((due.max(self.now), self.scheduled_count), ScheduledEvent::Timer(id, due));
        }
    }

    /// Carries out all effects, and those that follow from them.
    fn run_effects(&mut self) {
        while let Some((id, pending)) = self.effects.pop_front() {
            let effect = match pending {
                PendingEffect::Effect(effect) => effect,
                PendingEffect::Demands(demands) => {
                    for (step, demand) in demands {
                        self.demand(id, step, demand.as_ref());
                    }
                    self.advance_gate();
                    continue;
                }
            };
            match effect {
                Effect::Dispatch { step, attempt, input } => {
                    self.dispatch(id, step, attempt, input)
                }
                Effect::StartChild { origin, message } => self.start_job(*origin, message),
                Effect::OrderChild { child, order, .. } => {
                    self.apply_input(child, Input::Order(order))
                }
                // The job was not started by a message, so it has no caller.
                Effect::AnswerCaller { .. } => {}
                Effect::NotifyParent(parent, ended) => {
                    self.apply_input(
                        parent.job,
                        Input::ChildEnded { step: parent.step, index: parent.index, ended },
                    );
                }
            }
        }
    }

    /// Tells the gate what a step wants.
    fn demand(&mut self, id: JobId, step: StepIndex, demand: Option<&Demand>) {
        let Some(job) = self.jobs.get(&id) else { return };
        if demand.is_some_and(|demand| demand.claim.state == ClaimState::Delayed) {
            return;
        }
        let definition = job.definition().clone();
        for limit in &definition.limits {
            self.gate.configure(&definition.full_limit_name(&limit.name), limit.setting());
        }
        let next_number = i64::try_from(self.gate_numbers.len()).unwrap_or(i64::MAX);
        let number = *self.gate_numbers.entry(id).or_insert(next_number);
        let full_name = |limit: &Arc<str>| definition.full_limit_name(limit);
        self.gate.demand((number, id, step), demand, full_name);
    }

    /// Admits whom the limits allow, and schedules the next time.
    fn advance_gate(&mut self) {
        for Admission { id, step, ticket, marks, .. } in self.gate.advance(self.now) {
            self.apply_input(id, Input::Admitted { step, ticket, marks });
        }
        if let Some(due) = self.gate.next_due() {
            self.scheduled_count += 1;
            self.scheduled.insert((due.max(self.now), self.scheduled_count), ScheduledEvent::Gate);
        }
    }

    /// Dispatches an attempt to the worker of the step, or to the person of an external step.
    fn dispatch(&mut self, id: JobId, step: StepIndex, attempt: u32, input: Message) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (name, is_external) =
            (job.graph().step(step).name.clone(), job.graph().step(step).external);
        let action = match self
            .test
            .workers
            .get(&*name)
            .map(|script: &WorkerScript| script.find_action(attempt, &to_json(&input)))
        {
            Some(Some(action)) => action.clone(),
            // No action of the script applies.
            Some(None) => WorkerAction { silent: true, ..WorkerAction::default() },
            // There is no script: a worker replies with its input, and a person does nothing.
            None => WorkerAction { silent: is_external, ..WorkerAction::default() },
        };
        let delay = action.starts_after.0;
        if delay.is_zero() {
            self.start_work(id, step, attempt, &input, &action);
        } else {
            self.schedule(delay, ScheduledEvent::Start { job: id, step, attempt, input, action });
        }
    }

    /// Delivers the message of an attempt to the worker, unless the attempt is over, and schedules
    /// its replies.
    fn start_work(
        &mut self,
        id: JobId,
        step: StepIndex,
        attempt: u32,
        input: &Message,
        action: &WorkerAction,
    ) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (name, step_run) = (job.graph().step(step).name.clone(), job.step(step));
        let is_over = !step_run.has_active_attempt()
            || step_run.attempt != attempt
            || job.step_state(step) != StepState::Running;
        if is_over {
            return self.add_line(format!(
                "the message of attempt {attempt} of step {name} is gone before a worker took it"
            ));
        }
        self.inputs.entry(name.clone()).or_default().push(input.clone());
        self.apply_input(id, Input::Begun { step, attempt });
        for message in &action.progress {
            let reply = Reply::Progress(progress_body(message).into());
            self.schedule(
                message.after.0,
                ScheduledEvent::Reply { job: id, step, name: name.clone(), attempt, reply },
            );
        }
        if action.silent {
            return;
        }
        let reply = if let Some(reason) = &action.dead_letter {
            Reply::DeadLettered { queue: name.to_string(), reason: reason.clone() }
        } else if let Some(error) = &action.error {
            Reply::Error(
                serde_json::json!({ "error": error, "retryable": action.retryable.unwrap_or(true) })
                    .to_string()
                    .into(),
            )
        } else if let Some(raw) = &action.raw {
            Reply::Result(raw.clone().into())
        } else {
            Reply::Result(
                action.result.as_ref().map_or_else(|| input.to_text(), Value::to_string).into(),
            )
        };
        self.schedule(
            action.after.0,
            ScheduledEvent::Reply { job: id, step, name, attempt, reply },
        );
    }

    /// Adds a line to the story, with the virtual time.
    fn add_line(&mut self, text: String) {
        if self.story.len() < STORY_LINES_MAX {
            let elapsed = Millis::from_duration(self.start.duration_until(self.now));
            self.story.push(format!("{elapsed:>12}  {text}"));
        }
    }

    /// Adds an entry of a job to the story, unless users have no use for it.
    fn add_entry(&mut self, id: JobId, entry: &Entry) {
        let Some(job) = self.jobs.get(&id) else { return };
        let name = |step: &StepIndex| job.graph().step(*step).name.clone();
        let text = match entry {
            Entry::Job(entry) => describe_job_entry(entry, name),
            Entry::Step(step, entry) => describe_step_entry(&name(step), entry),
            Entry::FanOut(step, entry) => describe_fan_out_entry(&name(step), entry),
            Entry::Caller(_) => None,
        };
        let subject = if id == JOB_ID {
            "job".to_owned()
        } else if let Some(slot) = &job.origin().slot {
            format!("job of slot {}", format_rfc3339(slot.slot))
        } else {
            format!("child job of item {}", job.origin().parent.map_or(0, |parent| parent.index))
        };
        if let Some(text) = text {
            self.add_line(format!("{subject}: {text}"));
        }
    }
}

/// Describes an entry of a job. `name` returns the name of a step. `None` if the entry is not part
/// of the story.
fn describe_job_entry(entry: &JobEntry, name: impl Fn(&StepIndex) -> Arc<str>) -> Option<String> {
    Some(match entry {
        JobEntry::Completed => "completed".to_owned(),
        JobEntry::Failed { reason, .. } => format!("failed: {reason}"),
        JobEntry::Cancelled { reason, .. } => format!("cancelled: {reason}"),
        JobEntry::Paused => "paused".to_owned(),
        JobEntry::Resumed => "resumed".to_owned(),
        JobEntry::Retried { .. } => "retried".to_owned(),
        JobEntry::Rerun { step, only_failed_items: true, .. } => {
            format!("rerun from the failed items of step {}", name(step))
        }
        JobEntry::Rerun { step, .. } => format!("rerun from step {}", name(step)),
        JobEntry::Begun => "begun".to_owned(),
        JobEntry::Claimed { place } => format!("claims a place of {}", place.limit),
        JobEntry::Admitted => "admitted".to_owned(),
        JobEntry::Created { .. } | JobEntry::ToldAgain | JobEntry::Asked { .. } => return None,
    })
}

/// Describes an entry of a step. `None` if the entry is not part of the story.
fn describe_step_entry(name: &str, entry: &StepEntry) -> Option<String> {
    Some(match entry {
        StepEntry::Started { attempt, .. } => format!("step {name} starts, attempt {attempt}"),
        StepEntry::Progressed { progress, .. } => {
            format!("step {name} tells {}", serde_json::json!(progress))
        }
        StepEntry::Completed(output) => {
            let output = output.to_text();
            format!("step {name} completes with {output:.STORY_OUTPUT_CHARS_MAX$}")
        }
        StepEntry::AttemptFailed { attempt, failure, .. } => {
            format!("attempt {attempt} of step {name} fails: {}", failure.reason)
        }
        StepEntry::Skipped => format!("step {name} is skipped"),
        StepEntry::Cancelled => format!("step {name} is cancelled"),
        StepEntry::Failed(failure) => format!("step {name} fails: {}", failure.reason),
        StepEntry::Claimed { places } => {
            let limits: Vec<&str> = places.iter().map(|place| &*place.limit).collect();
            format!("step {name} claims a place of {}", limits.join(" and "))
        }
        StepEntry::Confirmed
        | StepEntry::Leased(_)
        | StepEntry::Begun
        | StepEntry::Unconfirmed
        | StepEntry::ResendClaimed => return None,
    })
}

/// Describes an entry of a fan-out. `None` if the entry is not part of the story.
fn describe_fan_out_entry(name: &str, entry: &FanOutEntry) -> Option<String> {
    Some(match entry {
        FanOutEntry::Started { items, .. } => format!("step {name} fans out over {items} items"),
        FanOutEntry::Restarted { .. } => format!("step {name} goes on with what has no result"),
        FanOutEntry::Completed => format!("step {name} has gathered all results"),
        FanOutEntry::ChildrenStarted { .. }
        | FanOutEntry::ChildStarted { .. }
        | FanOutEntry::ChildCompleted { .. }
        | FanOutEntry::ChildFailed { .. } => return None,
    })
}

/// Parses the operation of a user.
fn parse_operation(action: &UserAction) -> Result<Operation, String> {
    let only_failed_items = match (action.operation.as_str(), action.items.as_deref()) {
        (_, None) => false,
        ("rerun", Some("failed")) => true,
        ("rerun", Some(other)) => {
            return Err(format!(
                "users: items of rerun is {other:?}; it can only be failed: without it all items \
                 run again"
            ));
        }
        (other, Some(_)) => return Err(format!("users: items is for rerun, not for {other:?}")),
    };
    Ok(match (action.operation.as_str(), &action.step) {
        ("cancel", None) => Operation::Cancel { reason: "by a user".into() },
        ("pause", None) => Operation::Pause,
        ("resume", None) => Operation::Resume,
        ("retry", None) => Operation::Retry,
        ("rerun", Some(step)) => Operation::Rerun { step: step.clone(), only_failed_items },
        ("rerun", None) => return Err("users: rerun needs a step".to_owned()),
        (other, _) => {
            return Err(format!(
                "users: {other:?} is none of cancel, pause, resume, retry (without a step) and \
                 rerun (with one)"
            ));
        }
    })
}

/// Renders the body of a progress message.
fn progress_body(message: &ProgressMessage) -> String {
    let ProgressMessage { status, progress, message, .. } = message;
    serde_json::json!({ "status": status, "progress": progress, "message": message }).to_string()
}

/// Converts a duration to nanoseconds. Durations that do not fit become `i64::MAX`.
fn to_nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the context of a decision, with limits like those of a manager.
fn context(now: Timestamp) -> Context<'static> {
    const LIMITS: Limits = Limits {
        step_message_bytes_max: 16 << 20,
        reply_bytes_max: 16 << 20,
        depth_max: 32,
        window: 10_000,
        window_bytes: 1 << 26,
    };
    Context { now, limits: &LIMITS, pauses: None, spare: None }
}
