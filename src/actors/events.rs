//! What happens to jobs, as others hear of it (SPEC §4, §8): an event for each change of the state
//! of a job or a step, in the form of CloudEvents 1.0 (structured, JSON).
//!
//! An event follows from an entry, so it leaves after the commit like any effect. Its id follows
//! from the job and the number of the entry in the job's record: an event that is sent again, also
//! after a restart, has the same id.

use super::job::JobActor;
use super::outbox::Outgoing;
use crate::engine::{
    Entry, Failure, Job, JobId, JobState, Json, Progress, StepIndex, StepState, Timestamp,
};
use crate::journal::Notice;
use crate::times::Time;
use bytes::Bytes;
use serde::Serialize;
use std::sync::Arc;

/// The content type of an event.
pub const CONTENT_TYPE: &str = "application/cloudevents+json";

/// What every event's type begins with.
const TYPE_PREFIX: &str = "workflow-manager.";

/// How much of a reason, a status or a message an event repeats, in characters.
const TEXT_CHARS_MAX: usize = 1_000;

/// Whose state changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A job's, or a child job's.
    Job,
    /// A step's.
    Step,
}

impl Subject {
    /// The word for users.
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
    /// Unique, and the same whenever the event is sent.
    pub id: String,
    /// The workflow's full name.
    pub workflow: Arc<str>,
    /// Whose state changed.
    pub subject: Subject,
    /// What happened: a state, `progressed` or `attempt-failed`.
    pub word: &'static str,
    /// The job or child job.
    pub job: JobId,
    /// Its parent.
    pub parent: Option<JobId>,
    /// The top-level job.
    pub root: JobId,
    /// When it happened.
    pub at: Timestamp,
    /// Whether the job has come to an end by it.
    pub is_end: bool,
    /// The CloudEvent.
    pub body: Bytes,
}

impl Event {
    /// What followed from a job's newest `entries`, which are applied.
    pub fn of_entries(job: &Job, entries: &[Entry], source: &str) -> Vec<Event> {
        let teller = Teller::new(job, source);
        let mut events = Vec::new();
        let mut number = job.length() - entries.len() as u64;
        for entry in entries {
            number += 1;
            teller.tell(number, entry, &mut events);
        }
        events
    }

    /// The one that gave a job the state that it has.
    pub fn of_state(job: &Job, source: &str) -> Event {
        let at = job.ended().unwrap_or(job.origin().created);
        Teller::new(job, source).job(
            job.turned(),
            job.state(),
            at,
            job.reason().map(|reason| &**reason),
        )
    }

    /// `job.completed`, `step.attempt-failed`, …
    pub fn name(&self) -> String {
        format!("{}.{}", self.subject.word(), self.word)
    }

    /// The CloudEvents type.
    pub fn kind(&self) -> String {
        format!("{TYPE_PREFIX}{}", self.name())
    }
}

/// Turns the entries of one job into events.
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
    told: Told<'a>,
}

/// What differs from event to event.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told<'a> {
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
}

fn shortened(text: &str) -> &str {
    text.char_indices().nth(TEXT_CHARS_MAX).map_or(text, |(end, _)| &text[..end])
}

impl<'a> Teller<'a> {
    fn new(job: &'a Job, source: &'a str) -> Teller<'a> {
        Teller { job, workflow: job.definition().full_name().into(), source }
    }

    fn tell(&self, number: u64, entry: &Entry, events: &mut Vec<Event>) {
        let state = |told: StepState| Told { state: told.word(), ..Told::default() };
        match entry {
            Entry::JobCreated { .. } => {
                events.push(self.job(number, JobState::Running, self.job.origin().created, None))
            }
            Entry::JobResumed { at }
            | Entry::JobRetried { at, .. }
            | Entry::JobRerun { at, .. } => {
                events.push(self.job(number, JobState::Running, *at, None));
            }
            Entry::JobPaused { at } => events.push(self.job(number, JobState::Paused, *at, None)),
            Entry::JobCompleted { at } => {
                events.push(self.job(number, JobState::Completed, *at, None))
            }
            Entry::JobFailed { at, reason, .. } => {
                self.tell_cut_off(number, *at, events);
                events.push(self.job(number, JobState::Failed, *at, Some(reason)));
            }
            Entry::JobCancelled { at, reason } => {
                self.tell_cut_off(number, *at, events);
                events.push(self.job(number, JobState::Cancelled, *at, Some(reason)));
            }
            Entry::StepStarted { step, attempt, at, .. }
            | Entry::FanOutRestarted { step, attempt, at, .. } => {
                let told = Told { attempt: Some(*attempt), ..state(StepState::Running) };
                events.push(self.step(number, *step, "running", *at, told));
            }
            Entry::FanOutStarted { step, at, .. } => {
                events.push(self.step(number, *step, "running", *at, state(StepState::Running)))
            }
            Entry::StepCompleted { step, at, .. } | Entry::FanOutCompleted { step, at } => {
                events.push(self.step(
                    number,
                    *step,
                    "completed",
                    *at,
                    state(StepState::Completed),
                ));
            }
            Entry::StepProgressed { step, at, progress, .. } => {
                events.push(self.progressed(number, *step, *at, progress))
            }
            Entry::AttemptFailed { step, attempt, at, failure, retry_at } => {
                let told = Told {
                    attempt: Some(*attempt),
                    retry_at: Some(Time(*retry_at)),
                    ..self.failed(StepState::Running, failure)
                };
                events.push(self.step(number, *step, "attempt-failed", *at, told));
            }
            Entry::StepSkipped { step, at } => {
                events.push(self.step(number, *step, "skipped", *at, state(StepState::Skipped)))
            }
            Entry::StepCancelled { step, at } => {
                events.push(self.step(number, *step, "cancelled", *at, state(StepState::Cancelled)))
            }
            Entry::StepFailed { step, at, failure } => {
                events.push(self.step(
                    number,
                    *step,
                    "failed",
                    *at,
                    self.failed(StepState::Failed, failure),
                ));
            }
            Entry::StepConfirmed { .. }
            | Entry::StepUnconfirmed { .. }
            | Entry::ChildrenStarted { .. }
            | Entry::ChildCompleted { .. }
            | Entry::ChildFailed { .. }
            | Entry::CallerJoined { .. }
            | Entry::CallerAnswered { .. } => {}
        }
    }

    /// The steps that ran when the job was ended for good.
    fn tell_cut_off(&self, number: u64, at: Timestamp, events: &mut Vec<Event>) {
        for step in self.job.graph().indices() {
            if self.job.step(step).state == StepState::Running
                && self.job.step_state(step) == StepState::Cancelled
            {
                let told = Told { state: StepState::Cancelled.word(), ..Told::default() };
                events.push(self.step(number, step, "cancelled", at, told));
            }
        }
    }

    fn failed<'b>(&self, state: StepState, failure: &'b Failure) -> Told<'b> {
        Told { state: state.word(), reason: Some(shortened(&failure.reason)), ..Told::default() }
    }

    fn progressed(
        &self,
        number: u64,
        step: StepIndex,
        at: Timestamp,
        progress: &Progress,
    ) -> Event {
        let told = Told {
            state: StepState::Running.word(),
            status: progress.status.as_deref().map(shortened),
            progress: progress.share.as_ref(),
            message: progress.message.as_deref().map(shortened),
            ..Told::default()
        };
        self.step(number, step, "progressed", at, told)
    }

    fn job(&self, number: u64, state: JobState, at: Timestamp, reason: Option<&str>) -> Event {
        let told = Told { state: state.word(), reason: reason.map(shortened), ..Told::default() };
        let subject = self.job.id().to_string();
        self.event(Subject::Job, state.word(), self.id(number), subject, at, state.is_ended(), told)
    }

    fn step(
        &self,
        number: u64,
        step: StepIndex,
        word: &'static str,
        at: Timestamp,
        told: Told<'_>,
    ) -> Event {
        let definition = self.job.graph().step(step);
        let run = self.job.step(step);
        // What followed in the same decision may have changed the step once more.
        let is_newest = self.job.step_state(step).word() == told.state;
        let status = if is_newest { Some(self.job.status(step)) } else { None };
        let told = Told {
            step: Some(&definition.name),
            status: told.status.or(status.map(shortened)),
            attempt: told.attempt.or((run.attempt > 0).then_some(run.attempt)),
            ..told
        };
        let id = format!("{}:{}", self.id(number), definition.name);
        let subject = format!("{}/{}", self.job.id(), definition.name);
        self.event(Subject::Step, word, id, subject, at, false, told)
    }

    /// A UUID may come back once the job that had it has ended: the time of creation tells the two
    /// apart.
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
        told: Told<'_>,
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
        // Strings and numbers alone: serialising them cannot fail.
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

/// What is told of a decision.
#[derive(Default)]
pub(super) struct News {
    /// To all who listen, after the commit.
    pub(super) announced: Option<Outgoing>,
    /// To the webhook: committed with the decision.
    pub(super) notice: Option<Notice>,
}

impl JobActor {
    /// What is to be told of a decision that is applied; nothing is made while nobody listens.
    pub(super) fn news(&self, entries: &[Entry]) -> News {
        let Some(job) = self.job() else { return News::default() };
        let shared = &self.shared;
        let is_announced = shared.announces(job);
        let is_noticed = self.parent.is_none()
            && shared.settings.events.webhook.is_on()
            && entries.iter().any(|entry| entry.job_state().is_some_and(JobState::is_ended));
        if !is_announced && !is_noticed {
            return News::default();
        }
        let events = Event::of_entries(job, entries, &shared.settings.events.source);
        let end = events.iter().rev().find(|event| event.is_end).filter(|_| is_noticed);
        let notice = end.map(|event| Notice {
            at: event.at,
            body: String::from_utf8_lossy(&event.body).into(),
        });
        let announced = (is_announced && !events.is_empty())
            .then(|| Outgoing::Announce(events.into_iter().map(Arc::new).collect()));
        News { announced, notice }
    }
}
