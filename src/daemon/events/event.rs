//! The events about jobs that others receive (docs/operations.md, docs/http-api.md): one for each
//! change of the state of a job or a step, as a CloudEvent 1.0 in structured mode (JSON).
//!
//! An event follows from an entry, so it is published after the commit like any effect. Its id is
//! made of the job and the number of the entry in the job's record: an event that is sent again,
//! even after a restart, has the same id.

use base::times::Rfc3339Time;
use bytes::Bytes;
use engine::{
    Entry, Failure, FanOutEntry, ItemCounts, Job, JobEntry, JobId, JobState, Json, Progress,
    Recorded, StepEntry, StepIndex, StepState, Timestamp,
};
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
    pub fn as_str(self) -> &'static str {
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
    pub action: &'static str,
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
    pub fn from_decision(job: &Job, recorded: &Recorded, source: &str) -> Vec<Event> {
        let builder = EventBuilder::new(job, source);
        let mut events = Vec::new();
        for (number, entry) in (recorded.first + 1..).zip(&recorded.entries) {
            builder.add_events(number, entry, recorded.at, &mut events);
        }
        events
    }

    /// Makes the event that put a job in its current state.
    pub fn from_state(job: &Job, source: &str) -> Event {
        let at = job.ended().unwrap_or(job.origin().created);
        EventBuilder::new(job, source).job_event(
            job.state_entry(),
            job.state(),
            at,
            job.reason().map(|reason| &**reason),
        )
    }

    /// Makes an event for each step whose counts of child jobs differ from `last`, and updates
    /// `last`.
    pub(crate) fn from_counts(
        job: &Job,
        source: &str,
        at: Timestamp,
        last: &mut BTreeMap<StepIndex, ItemCounts>,
    ) -> Vec<Event> {
        let builder = EventBuilder::new(job, source);
        let mut events = Vec::new();
        for (step, (definition, _)) in job.graph().indices().zip(job.steps()) {
            let Some(counts) = job.item_counts(step) else { continue };
            if last.insert(step, counts) != Some(counts) {
                events.push(builder.counts_event(step, &definition.name, at, counts));
            }
        }
        events
    }

    /// Returns the name, such as `job.completed` or `step.attempt-failed`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.subject.as_str(), self.action)
    }

    /// Returns the CloudEvents type.
    pub(crate) fn cloud_event_type(&self) -> String {
        format!("{TYPE_PREFIX}{}", self.name())
    }
}

/// Builds events from the entries of one job.
struct EventBuilder<'a> {
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
    time: Rfc3339Time,
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
    details: Details<'a>,
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
    retry_at: Option<Rfc3339Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<ItemCounts>,
}

fn truncate(text: &str) -> &str {
    text.char_indices().nth(TEXT_CHARS_MAX).map_or(text, |(end, _)| &text[..end])
}

impl<'a> EventBuilder<'a> {
    fn new(job: &'a Job, source: &'a str) -> EventBuilder<'a> {
        EventBuilder { job, workflow: job.definition().full_name().into(), source }
    }

    fn add_events(&self, number: u64, entry: &Entry, at: Timestamp, events: &mut Vec<Event>) {
        match entry {
            Entry::Job(entry) => self.add_job_events(number, entry, at, events),
            Entry::Step(step, entry) => {
                events.extend(self.step_entry_event(number, *step, entry, at))
            }
            Entry::FanOut(step, entry) => {
                events.extend(self.fan_out_entry_event(number, *step, entry, at))
            }
            Entry::Caller(_) => {}
        }
    }

    fn add_job_events(
        &self,
        number: u64,
        entry: &JobEntry,
        at: Timestamp,
        events: &mut Vec<Event>,
    ) {
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
            self.add_cut_off_steps(number, at, events);
        }
        events.push(self.job_event(number, state, at, reason.map(|reason| &**reason)));
    }

    fn step_entry_event(
        &self,
        number: u64,
        step: StepIndex,
        entry: &StepEntry,
        at: Timestamp,
    ) -> Option<Event> {
        let details_of = |state: StepState| Details { state: state.as_str(), ..Details::default() };
        let (kind, details) = match entry {
            StepEntry::Started { attempt, .. } => {
                ("running", Details { attempt: Some(*attempt), ..details_of(StepState::Running) })
            }
            StepEntry::Completed(_) => ("completed", details_of(StepState::Completed)),
            StepEntry::Progressed { progress, .. } => {
                return Some(self.progress_event(number, step, at, progress));
            }
            StepEntry::AttemptFailed { attempt, failure, retry_at } => {
                let details = Details {
                    attempt: Some(*attempt),
                    retry_at: Some(Rfc3339Time(*retry_at)),
                    ..self.failure_details(StepState::Running, failure)
                };
                ("attempt-failed", details)
            }
            StepEntry::Skipped => ("skipped", details_of(StepState::Skipped)),
            StepEntry::Cancelled => ("cancelled", details_of(StepState::Cancelled)),
            StepEntry::Failed(failure) => {
                ("failed", self.failure_details(StepState::Failed, failure))
            }
            StepEntry::Confirmed
            | StepEntry::Leased(_)
            | StepEntry::Begun
            | StepEntry::Unconfirmed => return None,
        };
        Some(self.step_event(number, step, kind, at, details))
    }

    fn fan_out_entry_event(
        &self,
        number: u64,
        step: StepIndex,
        entry: &FanOutEntry,
        at: Timestamp,
    ) -> Option<Event> {
        let details_of = |state: StepState| Details { state: state.as_str(), ..Details::default() };
        let (kind, details) = match entry {
            FanOutEntry::Started { .. } => ("running", details_of(StepState::Running)),
            FanOutEntry::Restarted { attempt, .. } => {
                ("running", Details { attempt: Some(*attempt), ..details_of(StepState::Running) })
            }
            FanOutEntry::Completed => ("completed", details_of(StepState::Completed)),
            FanOutEntry::ChildrenStarted { .. }
            | FanOutEntry::ChildStarted { .. }
            | FanOutEntry::ChildCompleted { .. }
            | FanOutEntry::ChildFailed { .. } => return None,
        };
        Some(self.step_event(number, step, kind, at, details))
    }

    /// Adds events for the steps that were running when the job ended.
    fn add_cut_off_steps(&self, number: u64, at: Timestamp, events: &mut Vec<Event>) {
        for step in self.job.graph().indices() {
            if self.job.step(step).state == StepState::Running
                && self.job.step_state(step) == StepState::Cancelled
            {
                let details =
                    Details { state: StepState::Cancelled.as_str(), ..Details::default() };
                events.push(self.step_event(number, step, "cancelled", at, details));
            }
        }
    }

    fn failure_details<'b>(&self, state: StepState, failure: &'b Failure) -> Details<'b> {
        Details {
            state: state.as_str(),
            reason: Some(truncate(&failure.reason)),
            ..Details::default()
        }
    }

    fn progress_event(
        &self,
        number: u64,
        step: StepIndex,
        at: Timestamp,
        progress: &Progress,
    ) -> Event {
        let details = Details {
            state: StepState::Running.as_str(),
            status: progress.status.as_deref().map(truncate),
            progress: progress.share.as_ref(),
            message: progress.message.as_deref().map(truncate),
            ..Details::default()
        };
        self.step_event(number, step, "progressed", at, details)
    }

    fn counts_event(
        &self,
        step: StepIndex,
        name: &str,
        at: Timestamp,
        counts: ItemCounts,
    ) -> Event {
        let details = Details {
            state: self.job.step_state(step).as_str(),
            children: Some(counts),
            ..Details::default()
        };
        let mut event = self.step_event(self.job.entry_count(), step, "counted", at, details);
        // The event stands for no single entry, but for the sum of all up to this one.
        event.id = format!("{}:{name}:counted", self.event_id(self.job.entry_count()));
        event
    }

    fn job_event(
        &self,
        number: u64,
        state: JobState,
        at: Timestamp,
        reason: Option<&str>,
    ) -> Event {
        let details =
            Details { state: state.as_str(), reason: reason.map(truncate), ..Details::default() };
        let subject = self.job.id().to_string();
        self.build(
            Subject::Job,
            state.as_str(),
            self.event_id(number),
            subject,
            at,
            state.is_ended(),
            details,
        )
    }

    fn step_event(
        &self,
        number: u64,
        step: StepIndex,
        action: &'static str,
        at: Timestamp,
        details: Details<'_>,
    ) -> Event {
        let definition = self.job.graph().step(step);
        let run = self.job.step(step);
        // A later entry of the same decision may have changed the step again.
        let is_newest = self.job.step_state(step).as_str() == details.state;
        let status = if is_newest { Some(self.job.status(step)) } else { None };
        let details = Details {
            step: Some(&definition.name),
            status: details.status.or(status.map(truncate)),
            attempt: details.attempt.or((run.attempt > 0).then_some(run.attempt)),
            ..details
        };
        let id = format!("{}:{}", self.event_id(number), definition.name);
        let subject = format!("{}/{}", self.job.id(), definition.name);
        self.build(Subject::Step, action, id, subject, at, false, details)
    }

    /// Formats the id of an entry's event. A job id may be used again after its job has ended: the
    /// time of creation tells the two jobs apart.
    fn event_id(&self, number: u64) -> String {
        format!("{}:{:x}:{number}", self.job.id(), self.job.origin().created.0)
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "the parts of one event, put together in one place"
    )]
    fn build(
        &self,
        subject: Subject,
        action: &'static str,
        id: String,
        cloud_event_subject: String,
        at: Timestamp,
        is_end: bool,
        details: Details<'_>,
    ) -> Event {
        let origin = self.job.origin();
        let parent = origin.parent.map(|parent| parent.job);
        let cloud_event = CloudEvent {
            specversion: "1.0",
            id: &id,
            source: self.source,
            kind: format!("{TYPE_PREFIX}{}.{action}", subject.as_str()),
            subject: cloud_event_subject,
            time: Rfc3339Time(at),
            datacontenttype: "application/json",
            data: Data {
                workflow: &self.workflow,
                task: parent.map(|_| &*self.job.graph().name),
                job: origin.id,
                root: origin.root,
                parent,
                item: origin.parent.map(|parent| parent.index),
                details,
            },
        };
        let body = serde_json::to_string(&cloud_event).expect("texts and numbers have a JSON text");
        Event {
            id,
            workflow: self.workflow.clone(),
            subject,
            action,
            job: origin.id,
            parent,
            root: origin.root,
            at,
            is_end,
            body: body.into(),
        }
    }
}
