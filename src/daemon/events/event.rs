//! The events about jobs (docs/how-to/get-events.md, docs/reference/http-api-operations.md): one
//! for each change of a job or a step, as a CloudEvent 1.0 in structured mode (JSON).
//!
//! An event follows from an entry, so it is published after the commit, like any effect. Its id
//! consists of the job and the number of the entry in the job's record. So an event has the same id
//! each time it is sent, even after a restart.

use crate::view::CellsView;
use base::times::Rfc3339Time;
use bytes::Bytes;
use engine::{
    Entry, Failure, FanOutEntry, ItemCounts, Job, JobEntry, JobId, JobState, Json, Progress,
    Recorded, StepEntry, StepIndex, StepState, Timestamp,
};
use serde::Serialize;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The content type of an event.
pub const CONTENT_TYPE: &str = "application/cloudevents+json";

/// The prefix of every event's type.
const TYPE_PREFIX: &str = "workflow-manager.";

/// The length to which a reason, a status or a message is truncated in an event, in characters.
const TEXT_CHARS_MAX: usize = 1_000;

/// The kind of thing whose state has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A job or a child job.
    Job,
    /// A step.
    Step,
}

impl Subject {
    /// Returns the name in events and in queries of the API.
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
    /// The id: unique, and the same each time the event is sent.
    pub id: String,
    /// The workflow's full name.
    pub workflow: Arc<str>,
    /// The kind of thing whose state has changed.
    pub subject: Subject,
    /// What happened: a state, `progressed`, `attempt-failed`, `asked` or `counted`.
    pub action: &'static str,
    /// The id of the job or child job.
    pub job: JobId,
    /// The id of its parent job; `None` for a root job.
    pub parent: Option<JobId>,
    /// The id of its root job.
    pub root: JobId,
    /// When it happened.
    pub at: Timestamp,
    /// Whether the event reports the end of the job.
    pub is_end: bool,
    /// The serialised CloudEvent.
    pub body: Bytes,
}

impl Event {
    /// Builds the events of a job's newest decision, which is already applied to the job.
    pub fn from_decision(job: &Job, recorded: &Recorded, source: &str) -> Vec<Event> {
        let builder = EventBuilder::new(job, source);
        let mut events = Vec::new();
        for (entry_number, entry) in (recorded.first + 1..).zip(&recorded.entries) {
            builder.add_events(entry_number, entry, recorded.at, &mut events);
        }
        events
    }

    /// Builds the event of the last change of a job's state. Its time is the end of the job, or the
    /// creation of a job that has not ended.
    pub fn from_state(job: &Job, source: &str) -> Event {
        let time = job.ended().unwrap_or(job.origin().created);
        EventBuilder::new(job, source).job_event(
            job.state_entry(),
            job.state(),
            time,
            job.reason().map(|reason| &**reason),
        )
    }

    /// Builds an event for each step whose counts of child jobs differ from `last_counts`, and
    /// updates `last_counts`.
    pub(crate) fn from_counts(
        job: &Job,
        source: &str,
        time: Timestamp,
        last_counts: &mut BTreeMap<StepIndex, ItemCounts>,
    ) -> Vec<Event> {
        let builder = EventBuilder::new(job, source);
        let mut events = Vec::new();
        for step in job.graph().indices() {
            let Some(counts) = job.item_counts(step) else { continue };
            if last_counts.insert(step, counts) != Some(counts) {
                events.push(builder.counts_event(step, time, counts));
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
    /// The job, to which the entries are already applied.
    job: &'a Job,
    /// The workflow's full name.
    workflow: Arc<str>,
    /// The CloudEvents source: a URI or a path that the settings give to this manager.
    source: &'a str,
    /// The job's label and columns. They are computed for its first event, if there is one.
    cells: OnceCell<(Option<Arc<str>>, CellsView)>,
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

/// The `data` of a CloudEvent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data<'a> {
    workflow: &'a str,
    /// The name of the task that a child job runs; `None` for a root job.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    job: JobId,
    root: JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<JobId>,
    /// The index of the item; `None` for a root job.
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    #[serde(skip_serializing_if = "CellsView::is_empty")]
    columns: &'a CellsView,
    #[serde(flatten)]
    details: Details<'a>,
}

/// The part of [`Data`] that depends on the kind of event. Only `state` is always present.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Details<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    /// The state of the step, or of the job if there is no step.
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<Rfc3339Time>,
    /// The share of the work that is done, as the worker reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<ItemCounts>,
}

impl<'a> Details<'a> {
    /// Returns the details of a step in a state, without any others.
    fn from_state(state: StepState) -> Details<'a> {
        Details { state: state.as_str(), ..Details::default() }
    }

    /// Returns the details of a failure that leaves the step in `state`.
    fn from_failure(state: StepState, failure: &'a Failure) -> Details<'a> {
        Details { reason: Some(truncate(&failure.reason)), ..Details::from_state(state) }
    }
}

/// Returns the first [`TEXT_CHARS_MAX`] characters of a text.
fn truncate(text: &str) -> &str {
    text.char_indices().nth(TEXT_CHARS_MAX).map_or(text, |(end, _)| &text[..end])
}

impl<'a> EventBuilder<'a> {
    fn new(job: &'a Job, source: &'a str) -> EventBuilder<'a> {
        let workflow = job.definition().full_name().into();
        EventBuilder { job, workflow, source, cells: OnceCell::new() }
    }

    /// Adds the events of an entry. Entries about callers have none.
    fn add_events(
        &self,
        entry_number: u64,
        entry: &Entry,
        time: Timestamp,
        events: &mut Vec<Event>,
    ) {
        match entry {
            Entry::Job(entry) => self.add_job_events(entry_number, entry, time, events),
            Entry::Step(step, entry) => {
                events.extend(self.step_entry_event(entry_number, *step, entry, time));
                events.extend(self.asked_event(entry_number, *step, entry, time));
            }
            Entry::FanOut(step, entry) => {
                events.extend(self.fan_out_entry_event(entry_number, *step, entry, time))
            }
            Entry::Caller(_) => {}
        }
    }

    /// Adds the event of an entry about the job, preceded by those of the steps that a failure or
    /// cancellation of the job has cancelled.
    fn add_job_events(
        &self,
        entry_number: u64,
        entry: &JobEntry,
        time: Timestamp,
        events: &mut Vec<Event>,
    ) {
        let (state, time, reason) = match entry {
            JobEntry::Created { .. } => (JobState::Running, self.job.origin().created, None),
            JobEntry::Resumed | JobEntry::Retried { .. } | JobEntry::Rerun { .. } => {
                (JobState::Running, time, None)
            }
            JobEntry::Paused => (JobState::Paused, time, None),
            JobEntry::Completed => (JobState::Completed, time, None),
            JobEntry::Failed { reason, .. } => (JobState::Failed, time, Some(reason)),
            JobEntry::Cancelled { reason, .. } => (JobState::Cancelled, time, Some(reason)),
            JobEntry::Begun
            | JobEntry::Claimed { .. }
            | JobEntry::Admitted
            | JobEntry::ToldAgain
            | JobEntry::Asked { .. } => return,
        };
        if reason.is_some() {
            self.add_cancelled_steps(entry_number, time, events);
        }
        events.push(self.job_event(entry_number, state, time, reason.map(|reason| &**reason)));
    }

    /// Returns the event of an entry about a step; `None` for an entry that is not published.
    fn step_entry_event(
        &self,
        entry_number: u64,
        step: StepIndex,
        entry: &StepEntry,
        time: Timestamp,
    ) -> Option<Event> {
        let (action, details) = match entry {
            StepEntry::Started { attempt, .. } => (
                "running",
                Details { attempt: Some(*attempt), ..Details::from_state(StepState::Running) },
            ),
            StepEntry::Claimed { .. } => ("limited", Details::from_state(StepState::Running)),
            StepEntry::Completed(_) => ("completed", Details::from_state(StepState::Completed)),
            StepEntry::Progressed { progress, .. } => {
                return Some(self.progress_event(entry_number, step, time, progress));
            }
            StepEntry::AttemptFailed { attempt, failure, retry_at } => {
                let details = Details {
                    attempt: Some(*attempt),
                    retry_at: Some(Rfc3339Time(*retry_at)),
                    ..Details::from_failure(StepState::Running, failure)
                };
                ("attempt-failed", details)
            }
            StepEntry::Skipped => ("skipped", Details::from_state(StepState::Skipped)),
            StepEntry::Cancelled => ("cancelled", Details::from_state(StepState::Cancelled)),
            StepEntry::Failed(failure) => {
                ("failed", Details::from_failure(StepState::Failed, failure))
            }
            StepEntry::Confirmed
            | StepEntry::Leased(_)
            | StepEntry::Begun
            | StepEntry::Unconfirmed
            | StepEntry::ResendClaimed => return None,
        };
        Some(self.step_event(entry_number, step, action, time, details))
    }

    /// Returns the event that an attempt of a step waits for people, or for another system; `None`:
    /// the entry starts no such attempt.
    fn asked_event(
        &self,
        entry_number: u64,
        step: StepIndex,
        entry: &StepEntry,
        time: Timestamp,
    ) -> Option<Event> {
        let StepEntry::Started { attempt, .. } = entry else { return None };
        if !self.job.graph().step(step).external {
            return None;
        }
        let details =
            Details { attempt: Some(*attempt), ..Details::from_state(StepState::Running) };
        Some(self.step_event(entry_number, step, "asked", time, details))
    }

    /// Returns the event of an entry about a fan-out; `None` for an entry that is not published.
    fn fan_out_entry_event(
        &self,
        entry_number: u64,
        step: StepIndex,
        entry: &FanOutEntry,
        time: Timestamp,
    ) -> Option<Event> {
        let (action, details) = match entry {
            FanOutEntry::Started { .. } => ("running", Details::from_state(StepState::Running)),
            FanOutEntry::Restarted { attempt, .. } => (
                "running",
                Details { attempt: Some(*attempt), ..Details::from_state(StepState::Running) },
            ),
            FanOutEntry::Completed => ("completed", Details::from_state(StepState::Completed)),
            FanOutEntry::ChildrenStarted { .. }
            | FanOutEntry::ChildStarted { .. }
            | FanOutEntry::ChildCompleted { .. }
            | FanOutEntry::ChildFailed { .. } => return None,
        };
        Some(self.step_event(entry_number, step, action, time, details))
    }

    /// Adds events for the steps that the end of the job has cancelled: they are recorded as
    /// running, but count as cancelled.
    fn add_cancelled_steps(&self, entry_number: u64, time: Timestamp, events: &mut Vec<Event>) {
        for step in self.job.graph().indices() {
            if self.job.step(step).state == StepState::Running
                && self.job.step_state(step) == StepState::Cancelled
            {
                let details = Details::from_state(StepState::Cancelled);
                events.push(self.step_event(entry_number, step, "cancelled", time, details));
            }
        }
    }

    /// Builds the event of a worker's progress message.
    fn progress_event(
        &self,
        entry_number: u64,
        step: StepIndex,
        time: Timestamp,
        progress: &Progress,
    ) -> Event {
        let details = Details {
            status: progress.status.as_deref().map(truncate),
            progress: progress.share.as_ref(),
            message: progress.message.as_deref().map(truncate),
            ..Details::from_state(StepState::Running)
        };
        self.step_event(entry_number, step, "progressed", time, details)
    }

    /// Builds the event of changed counts of child jobs of a step. It follows from all entries up
    /// to the job's newest one.
    fn counts_event(&self, step: StepIndex, time: Timestamp, counts: ItemCounts) -> Event {
        let details =
            Details { children: Some(counts), ..Details::from_state(self.job.step_state(step)) };
        self.step_event(self.job.entry_count(), step, "counted", time, details)
    }

    /// Builds the event of a job's state.
    fn job_event(
        &self,
        entry_number: u64,
        state: JobState,
        time: Timestamp,
        reason: Option<&str>,
    ) -> Event {
        let details =
            Details { state: state.as_str(), reason: reason.map(truncate), ..Details::default() };
        let subject = self.job.id().to_string();
        self.build(
            Subject::Job,
            state.as_str(),
            self.event_id(entry_number),
            subject,
            time,
            state.is_ended(),
            details,
        )
    }

    /// Builds an event about a step. Adds its name to the details, and its status and attempt
    /// unless the details have them.
    fn step_event(
        &self,
        entry_number: u64,
        step: StepIndex,
        action: &'static str,
        time: Timestamp,
        details: Details<'_>,
    ) -> Event {
        let definition = self.job.graph().step(step);
        let run = self.job.step(step);
        // A later entry of the same decision may have changed the step again. Then its current
        // status does not belong to this event.
        let is_newest = self.job.step_state(step).as_str() == details.state;
        let status = if is_newest { Some(self.job.status(step)) } else { None };
        let details = Details {
            step: Some(&definition.name),
            status: details.status.or(status.map(truncate)),
            attempt: details.attempt.or((run.attempt > 0).then_some(run.attempt)),
            ..details
        };
        // Such an event shares its entry with another one of the step.
        let suffix = match action {
            "asked" => ":asked",
            "counted" => ":counted",
            _ => "",
        };
        let id = format!("{}:{}{suffix}", self.event_id(entry_number), definition.name);
        let subject = format!("{}/{}", self.job.id(), definition.name);
        self.build(Subject::Step, action, id, subject, time, false, details)
    }

    /// Formats the id of an entry's event. Clients may reuse a job id after its job has ended, so
    /// the id contains the time of creation too.
    fn event_id(&self, entry_number: u64) -> String {
        format!("{}:{:x}:{entry_number}", self.job.id(), self.job.origin().created.0)
    }

    /// Builds an event and its CloudEvent.
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
        time: Timestamp,
        is_end: bool,
        details: Details<'_>,
    ) -> Event {
        let origin = self.job.origin();
        let parent = origin.parent.map(|parent| parent.job);
        let (label, columns) = self.cells.get_or_init(|| CellsView::from_cells(self.job.cells()));
        let cloud_event = CloudEvent {
            specversion: "1.0",
            id: &id,
            source: self.source,
            kind: format!("{TYPE_PREFIX}{}.{action}", subject.as_str()),
            subject: cloud_event_subject,
            time: Rfc3339Time(time),
            datacontenttype: "application/json",
            data: Data {
                workflow: &self.workflow,
                task: parent.map(|_| &*self.job.graph().name),
                job: origin.id,
                root: origin.root,
                parent,
                item: origin.parent.map(|parent| parent.index),
                label: label.as_deref(),
                columns,
                details,
            },
        };
        let body =
            serde_json::to_string(&cloud_event).expect("texts and numbers serialize to JSON");
        Event {
            id,
            workflow: self.workflow.clone(),
            subject,
            action,
            job: origin.id,
            parent,
            root: origin.root,
            at: time,
            is_end,
            body: body.into(),
        }
    }
}
