//! The events about jobs that others receive (docs/operations.md, docs/http-api.md): one for each
//! change of the state of a job or a step, as a CloudEvent 1.0 in structured mode (JSON).
//!
//! An event follows from an entry, so it is published after the commit like any effect. Its id is
//! made of the job and the number of the entry in the job's record: an event that is sent again,
//! even after a restart, has the same id.

use crate::engine::{
    Entry, Failure, FanOutEntry, ItemCounts, Job, JobEntry, JobId, JobState, Json, Progress,
    Recorded, StepEntry, StepIndex, StepState, Timestamp,
};
use crate::times::Time;
use bytes::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The content type of an event.
pub const CONTENT_TYPE: &str = "application/cloudevents+json";

/// The prefix of every event's type.
const TYPE_PREFIX: &str = "workflow-manager.";

/// How much of a reason, a status or a message an event contains, in characters.
const TEXT_CHARS_MAX: usize = 1_000;

/// What the state belongs to that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A job or a child job.
    Job,
    /// A step.
    Step,
}

impl Subject {
    /// Returns the name for users.
    pub fn word(self) -> &'static str {
        match self {
            Subject::Job => "job",
            Subject::Step => "step",
        }
    }
}

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The id: unique, and the same whenever the event is sent.
    pub id: String,
    /// The workflow's full name.
    pub workflow: Arc<str>,
    /// What the state belongs to that has changed.
    pub subject: Subject,
    /// What happened: a state, `progressed`, `attempt-failed` or `counted`.
    pub word: &'static str,
    /// The id of the job or child job.
    pub job: JobId,
    /// The id of its parent job.
    pub parent: Option<JobId>,
    /// The id of its root job.
    pub root: JobId,
    /// When it happened.
    pub at: Timestamp,
    /// Whether the job has ended with it.
    pub is_end: bool,
    /// The serialised CloudEvent.
    pub body: Bytes,
}

impl Event {
    /// Makes the events of a job's newest decision, which is already applied to the job.
    pub fn of_decision(job: &Job, recorded: &Recorded, source: &str) -> Vec<Event> {
        let teller = Teller::new(job, source);
        let mut events = Vec::new();
        for (number, entry) in (recorded.first + 1..).zip(&recorded.entries) {
            teller.tell(number, entry, recorded.at, &mut events);
        }
        events
    }

    /// Makes the event that put a job in its current state.
    pub fn of_state(job: &Job, source: &str) -> Event {
        let at = job.ended().unwrap_or(job.origin().created);
        Teller::new(job, source).job(
            job.state_entry(),
            job.state(),
            at,
            job.reason().map(|reason| &**reason),
        )
    }

    /// Makes an event for each step whose counts of child jobs differ from `last`, and updates
    /// `last`.
    pub fn of_counts(
        job: &Job,
        source: &str,
        at: Timestamp,
        told: &mut BTreeMap<StepIndex, Counts>,
    ) -> Vec<Event> {
        let teller = Teller::new(job, source);
        let mut events = Vec::new();
        for (step, (definition, _)) in job.graph().indices().zip(job.steps()) {
            let Some(counts) = job.item_counts(step).map(Counts::of) else { continue };
            if told.insert(step, counts) != Some(counts) {
                events.push(teller.counted(step, &definition.name, at, counts));
            }
        }
        events
    }

    /// Returns the name, such as `job.completed` or `step.attempt-failed`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.subject.word(), self.word)
    }

    /// Returns the CloudEvents type.
    pub fn kind(&self) -> String {
        format!("{TYPE_PREFIX}{}", self.name())
    }
}

/// Builds events from the entries of one job.
struct Teller<'a> {
    job: &'a Job,
    workflow: Arc<str>,
    source: &'a str,
}

/// A CloudEvent in structured mode.
#[derive(Serialize)]
struct CloudEvent<'a> {
    specversion: &'a str,
    id: &'a str,
    source: &'a str,
    #[serde(rename = "type")]
    kind: String,
    subject: String,
    time: Time,
    datacontenttype: &'a str,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data<'a> {
    workflow: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    job: JobId,
    root: JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<JobId>,
    /// The index of a child job's item.
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<u32>,
    #[serde(flatten)]
    told: Details<'a>,
}

/// The fields that differ from event to event.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Details<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Counts>,
}

/// How many child jobs of a step are in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counts {
    items: u32,
    waiting: u32,
    running: u32,
    completed: u32,
    failed: u32,
    cancelled: u32,
}

impl Counts {
    fn of(counts: ItemCounts) -> Counts {
        let ItemCounts { items, waiting, running, completed, failed, cancelled } = counts;
        Counts { items, waiting, running, completed, failed, cancelled }
    }
}

fn shortened(text: &str) -> &str {
    text.char_indices().nth(TEXT_CHARS_MAX).map_or(text, |(end, _)| &text[..end])
}

impl<'a> Teller<'a> {
    fn new(job: &'a Job, source: &'a str) -> Teller<'a> {
        Teller { job, workflow: job.definition().full_name().into(), source }
    }

    fn tell(&self, number: u64, entry: &Entry, at: Timestamp, events: &mut Vec<Event>) {
        match entry {
            Entry::Job(entry) => self.tell_job(number, entry, at, events),
            Entry::Step(step, entry) => events.extend(self.of_step(number, *step, entry, at)),
            Entry::FanOut(step, entry) => events.extend(self.of_fan_out(number, *step, entry, at)),
            Entry::Caller(_) => {}
        }
    }

    fn tell_job(&self, number: u64, entry: &JobEntry, at: Timestamp, events: &mut Vec<Event>) {
        let (state, at, reason) = match entry {
            JobEntry::Created { .. } => (JobState::Running, self.job.origin().created, None),
            JobEntry::Resumed | JobEntry::Retried { .. } | JobEntry::Rerun { .. } => {
                (JobState::Running, at, None)
            }
            JobEntry::Paused => (JobState::Paused, at, None),
            JobEntry::Completed => (JobState::Completed, at, None),
            JobEntry::Failed { reason, .. } => (JobState::Failed, at, Some(reason)),
            JobEntry::Cancelled { reason, .. } => (JobState::Cancelled, at, Some(reason)),
            JobEntry::ToldAgain | JobEntry::Asked { .. } => return,
        };
        if reason.is_some() {
            self.tell_cut_off(number, at, events);
        }
        events.push(self.job(number, state, at, reason.map(|reason| &**reason)));
    }

    fn of_step(
        &self,
        number: u64,
        step: StepIndex,
        entry: &StepEntry,
        at: Timestamp,
    ) -> Option<Event> {
        let state = |told: StepState| Details { state: told.word(), ..Details::default() };
        let (word, told) = match entry {
            StepEntry::Started { attempt, .. } => {
                ("running", Details { attempt: Some(*attempt), ..state(StepState::Running) })
            }
            StepEntry::Completed(_) => ("completed", state(StepState::Completed)),
            StepEntry::Progressed { progress, .. } => {
                return Some(self.progressed(number, step, at, progress));
            }
            StepEntry::AttemptFailed { attempt, failure, retry_at } => {
                let told = Details {
                    attempt: Some(*attempt),
                    retry_at: Some(Time(*retry_at)),
                    ..self.failed(StepState::Running, failure)
                };
                ("attempt-failed", told)
            }
            StepEntry::Skipped => ("skipped", state(StepState::Skipped)),
            StepEntry::Cancelled => ("cancelled", state(StepState::Cancelled)),
            StepEntry::Failed(failure) => ("failed", self.failed(StepState::Failed, failure)),
            StepEntry::Confirmed
            | StepEntry::Leased(_)
            | StepEntry::Begun
            | StepEntry::Unconfirmed => return None,
        };
        Some(self.step(number, step, word, at, told))
    }

    fn of_fan_out(
        &self,
        number: u64,
        step: StepIndex,
        entry: &FanOutEntry,
        at: Timestamp,
    ) -> Option<Event> {
        let state = |told: StepState| Details { state: told.word(), ..Details::default() };
        let (word, told) = match entry {
            FanOutEntry::Started { .. } => ("running", state(StepState::Running)),
            FanOutEntry::Restarted { attempt, .. } => {
                ("running", Details { attempt: Some(*attempt), ..state(StepState::Running) })
            }
            FanOutEntry::Completed => ("completed", state(StepState::Completed)),
            FanOutEntry::ChildrenStarted { .. }
            | FanOutEntry::ChildStarted { .. }
            | FanOutEntry::ChildCompleted { .. }
            | FanOutEntry::ChildFailed { .. } => return None,
        };
        Some(self.step(number, step, word, at, told))
    }

    /// Adds events for the steps that were running when the job ended.
    fn tell_cut_off(&self, number: u64, at: Timestamp, events: &mut Vec<Event>) {
        for step in self.job.graph().indices() {
            if self.job.step(step).state == StepState::Running
                && self.job.step_state(step) == StepState::Cancelled
            {
                let told = Details { state: StepState::Cancelled.word(), ..Details::default() };
                events.push(self.step(number, step, "cancelled", at, told));
            }
        }
    }

    fn failed<'b>(&self, state: StepState, failure: &'b Failure) -> Details<'b> {
        Details {
            state: state.word(),
            reason: Some(shortened(&failure.reason)),
            ..Details::default()
        }
    }

    fn progressed(
        &self,
        number: u64,
        step: StepIndex,
        at: Timestamp,
        progress: &Progress,
    ) -> Event {
        let told = Details {
            state: StepState::Running.word(),
            status: progress.status.as_deref().map(shortened),
            progress: progress.share.as_ref(),
            message: progress.message.as_deref().map(shortened),
            ..Details::default()
        };
        self.step(number, step, "progressed", at, told)
    }

    fn counted(&self, step: StepIndex, name: &str, at: Timestamp, counts: Counts) -> Event {
        let told = Details {
            state: self.job.step_state(step).word(),
            children: Some(counts),
            ..Details::default()
        };
        let mut event = self.step(self.job.length(), step, "counted", at, told);
        // The event stands for no single entry, but for the sum of all up to this one.
        event.id = format!("{}:{name}:counted", self.id(self.job.length()));
        event
    }

    fn job(&self, number: u64, state: JobState, at: Timestamp, reason: Option<&str>) -> Event {
        let told =
            Details { state: state.word(), reason: reason.map(shortened), ..Details::default() };
        let subject = self.job.id().to_string();
        self.event(Subject::Job, state.word(), self.id(number), subject, at, state.is_ended(), told)
    }

    fn step(
        &self,
        number: u64,
        step: StepIndex,
        word: &'static str,
        at: Timestamp,
        told: Details<'_>,
    ) -> Event {
        let definition = self.job.graph().step(step);
        let run = self.job.step(step);
        // A later entry of the same decision may have changed the step again.
        let is_newest = self.job.step_state(step).word() == told.state;
        let status = if is_newest { Some(self.job.status(step)) } else { None };
        let told = Details {
            step: Some(&definition.name),
            status: told.status.or(status.map(shortened)),
            attempt: told.attempt.or((run.attempt > 0).then_some(run.attempt)),
            ..told
        };
        let id = format!("{}:{}", self.id(number), definition.name);
        let subject = format!("{}/{}", self.job.id(), definition.name);
        self.event(Subject::Step, word, id, subject, at, false, told)
    }

    /// Formats the id of an entry's event. A job id may be used again after its job has ended: the
    /// time of creation tells the two jobs apart.
    fn id(&self, number: u64) -> String {
        format!("{}:{:x}:{number}", self.job.id(), self.job.origin().created.0)
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "the parts of one event, put together in one place"
    )]
    fn event(
        &self,
        subject: Subject,
        word: &'static str,
        id: String,
        about: String,
        at: Timestamp,
        is_end: bool,
        told: Details<'_>,
    ) -> Event {
        let origin = self.job.origin();
        let parent = origin.parent.map(|parent| parent.job);
        let cloud_event = CloudEvent {
            specversion: "1.0",
            id: &id,
            source: self.source,
            kind: format!("{TYPE_PREFIX}{}.{word}", subject.word()),
            subject: about,
            time: Time(at),
            datacontenttype: "application/json",
            data: Data {
                workflow: &self.workflow,
                task: parent.map(|_| &*self.job.graph().name),
                job: origin.id,
                root: origin.root,
                parent,
                item: origin.parent.map(|parent| parent.index),
                told,
            },
        };
        // Only strings and numbers: serialising them cannot fail.
        let body = serde_json::to_string(&cloud_event).unwrap_or_default().into();
        Event {
            id,
            workflow: self.workflow.clone(),
            subject,
            word,
            job: origin.id,
            parent,
            root: origin.root,
            at,
            is_end,
            body,
        }
    }
}
