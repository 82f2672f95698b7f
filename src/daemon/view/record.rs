//! Views of the entries of a job's record.

use base::times::Rfc3339Time;
use engine::{
    CallerEntry, Entry, Failure, FanOutEntry, Graph, JobEntry, JobId, Json, Message, Recorded,
    StepEntry, StepIndex, Timestamp,
};
use serde::Serialize;
use utoipa::ToSchema;

/// The size limit of the payload in a view, in bytes. A larger payload is left out of the view.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 4096;

/// One entry of a job's record. Keys that mean nothing for its kind are left out.
#[derive(Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Entry)]
pub struct EntryView<'a> {
    /// The number of the entry, from 1. The ids of events contain it.
    n: u64,
    at: Rfc3339Time,
    /// What happened: `job.created`, `step.completed`, `child.failed`, …
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    /// The index of a child job's item.
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<u32>,
    /// The number of items.
    #[serde(skip_serializing_if = "Option::is_none")]
    items: Option<u32>,
    /// The child jobs that were started: the index of the first item, and how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    /// A child job's id, where the entry contains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    /// The operation that was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'a str>,
    /// Who requested the operation: the name of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<Rfc3339Time>,
    /// When the job was to begin, if later than it was created.
    #[serde(rename = "startsAt", skip_serializing_if = "Option::is_none")]
    starts_at: Option<Rfc3339Time>,
    /// The schedule and the slot for which the job was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<Rfc3339Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<Rfc3339Time>,
    /// Which delivery of a step's message a worker was given, from 1, and when its lease ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<Rfc3339Time>,
    /// How often the job was retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    round: Option<u32>,
    /// Whether a rerun runs only the items again that have failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    only_failed_items: bool,
    /// Whether the job's deadline has passed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    expired: bool,
    /// Whether the parent job ordered it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    by_parent: bool,
    /// The caller that waits for the end, numbered in the order of arrival, and the queue for its
    /// answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a str>,
    /// The job's message, the step's output, or the value of the item.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    payload: Option<Payload<'a>>,
    /// The size of the payload, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_bytes: Option<usize>,
    /// Whether the payload is left out because it is larger than 4,096 bytes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    payload_omitted: bool,
}

/// The value that an entry carries.
#[derive(Serialize)]
#[serde(untagged)]
enum Payload<'a> {
    Message(&'a Message),
    Value(&'a Json),
}

impl Payload<'_> {
    /// Returns the size of the payload as JSON text, in bytes.
    fn byte_len(&self) -> usize {
        match self {
            Payload::Message(message) => message.encoded_len(),
            Payload::Value(value) => value.text().len(),
        }
    }
}

impl<'a> EntryView<'a> {
    /// Creates the views of the entries in a row of the record. `graph` is what the job runs.
    pub fn from_row(
        graph: &'a Graph,
        row: &'a Recorded,
    ) -> impl Iterator<Item = EntryView<'a>> + use<'a> {
        (row.first + 1..).zip(&row.entries).map(|(number, entry)| {
            let view = EntryView { n: number, at: Rfc3339Time(row.at), ..EntryView::default() };
            match entry {
                Entry::Job(entry) => view.with_job_entry(graph, entry),
                Entry::Step(step, entry) => view.with_step(graph, *step).with_step_entry(entry),
                Entry::FanOut(step, entry) => {
                    view.with_step(graph, *step).with_fan_out_entry(entry)
                }
                Entry::Caller(CallerEntry::Joined(caller)) => {
                    EntryView { kind: "caller.joined", queue: Some(&caller.reply_to), ..view }
                }
                Entry::Caller(CallerEntry::Answered(caller)) => {
                    EntryView { kind: "caller.answered", caller: Some(*caller), ..view }
                }
            }
        })
    }

    /// Adds the name of a step.
    fn with_step(self, graph: &'a Graph, step: StepIndex) -> EntryView<'a> {
        EntryView { step: graph.steps.get(step.as_usize()).map(|step| &*step.name), ..self }
    }

    /// Adds what an entry about the job contains.
    fn with_job_entry(self, graph: &'a Graph, entry: &'a JobEntry) -> EntryView<'a> {
        match entry {
            JobEntry::Created { message, deadline, trace: _, trace_state: _, starts_at, slot } => {
                let view = EntryView {
                    kind: "job.created",
                    starts_at: starts_at.map(Rfc3339Time),
                    schedule: slot.as_ref().map(|slot| &*slot.schedule),
                    slot: slot.as_ref().map(|slot| Rfc3339Time(slot.slot)),
                    ..self
                }
                .with_deadline(*deadline);
                match message {
                    Some(message) => view.with_payload(Payload::Message(message)),
                    None => view,
                }
            }
            JobEntry::Begun => EntryView { kind: "job.begun", ..self },
            JobEntry::Claimed { .. } => EntryView { kind: "job.limited", ..self },
            JobEntry::Admitted => EntryView { kind: "job.admitted", ..self },
            JobEntry::Completed => EntryView { kind: "job.completed", ..self },
            JobEntry::Failed { reason, expired, step } => {
                let view = EntryView {
                    kind: "job.failed",
                    reason: Some(reason),
                    expired: *expired,
                    ..self
                };
                match step {
                    Some(step) => view.with_step(graph, *step),
                    None => view,
                }
            }
            JobEntry::Paused => EntryView { kind: "job.paused", ..self },
            JobEntry::Resumed => EntryView { kind: "job.resumed", ..self },
            JobEntry::Retried { round, deadline } => {
                EntryView { kind: "job.retried", round: Some(*round), ..self }
                    .with_deadline(*deadline)
            }
            JobEntry::Rerun { step, deadline, only_failed_items } => {
                let only_failed_items = *only_failed_items;
                EntryView { kind: "job.rerun", only_failed_items, ..self }
                    .with_step(graph, *step)
                    .with_deadline(*deadline)
            }
            JobEntry::Cancelled { reason, by_parent } => EntryView {
                kind: "job.cancelled",
                reason: Some(reason),
                by_parent: *by_parent,
                ..self
            },
            JobEntry::ToldAgain => EntryView { kind: "job.told-again", ..self },
            JobEntry::Asked { operation, step, reason, by } => {
                let view = EntryView {
                    kind: "job.asked",
                    operation: Some(operation),
                    reason: reason.as_deref(),
                    by: by.as_deref(),
                    ..self
                };
                match step {
                    Some(step) => view.with_step(graph, *step),
                    None => view,
                }
            }
        }
    }

    /// Adds what an entry about a step contains, except the step's name.
    fn with_step_entry(self, entry: &'a StepEntry) -> EntryView<'a> {
        match entry {
            StepEntry::Started { attempt, deadline } => {
                EntryView { kind: "step.started", attempt: Some(*attempt), ..self }
                    .with_deadline(*deadline)
            }
            StepEntry::Confirmed => EntryView { kind: "step.confirmed", ..self },
            StepEntry::Leased(lease) => EntryView {
                kind: "step.leased",
                delivery: Some(lease.delivery),
                lease_until: Some(Rfc3339Time(lease.until)),
                ..self
            },
            StepEntry::Claimed { .. } => EntryView { kind: "step.limited", ..self },
            StepEntry::ResendClaimed => EntryView { kind: "step.resend-limited", ..self },
            StepEntry::Begun => EntryView { kind: "step.begun", ..self },
            StepEntry::Unconfirmed => EntryView { kind: "step.redispatched", ..self },
            StepEntry::Completed(output) => {
                EntryView { kind: "step.completed", ..self }.with_payload(Payload::Message(output))
            }
            StepEntry::Progressed { progress, deadline } => EntryView {
                kind: "step.progressed",
                status: progress.status.as_deref(),
                progress: progress.share.as_ref(),
                message: progress.message.as_deref(),
                ..self
            }
            .with_deadline(*deadline),
            StepEntry::AttemptFailed { attempt, failure, retry_at } => EntryView {
                kind: "step.attempt-failed",
                attempt: Some(*attempt),
                retry_at: Some(Rfc3339Time(*retry_at)),
                ..self
            }
            .with_failure(failure),
            StepEntry::Skipped => EntryView { kind: "step.skipped", ..self },
            StepEntry::Cancelled => EntryView { kind: "step.cancelled", ..self },
            StepEntry::Failed(failure) => {
                EntryView { kind: "step.failed", ..self }.with_failure(failure)
            }
        }
    }

    /// Adds what an entry about a fan-out contains, except the step's name.
    fn with_fan_out_entry(self, entry: &'a FanOutEntry) -> EntryView<'a> {
        match entry {
            FanOutEntry::Started { items, warning, deadline } => EntryView {
                kind: "step.started",
                items: Some(*items),
                warning: warning.as_deref(),
                ..self
            }
            .with_deadline(*deadline),
            FanOutEntry::Restarted { attempt, deadline } => {
                EntryView { kind: "step.restarted", attempt: Some(*attempt), ..self }
                    .with_deadline(*deadline)
            }
            FanOutEntry::ChildrenStarted { from, count, own_ids: _ } => EntryView {
                kind: "children.started",
                from: Some(*from),
                count: Some(*count),
                ..self
            },
            FanOutEntry::ChildStarted { index, id } => {
                EntryView { kind: "child.started", item: Some(*index), job: Some(*id), ..self }
            }
            FanOutEntry::ChildCompleted { index, item, others: _ } => {
                let view = EntryView { kind: "child.completed", item: Some(*index), ..self };
                match item {
                    Some((_, value)) => view.with_payload(Payload::Value(value)),
                    None => view,
                }
            }
            FanOutEntry::ChildFailed { index } => {
                EntryView { kind: "child.failed", item: Some(*index), ..self }
            }
            FanOutEntry::Completed => EntryView { kind: "step.completed", ..self },
        }
    }

    /// Adds the size of a payload, and the payload itself unless it is too large.
    fn with_payload(self, payload: Payload<'a>) -> EntryView<'a> {
        let bytes = payload.byte_len();
        let is_large = bytes > PAYLOAD_BYTES_MAX;
        EntryView {
            payload: (!is_large).then_some(payload),
            payload_bytes: Some(bytes),
            payload_omitted: is_large,
            ..self
        }
    }

    fn with_deadline(self, deadline: Option<Timestamp>) -> EntryView<'a> {
        EntryView { deadline: deadline.map(Rfc3339Time), ..self }
    }

    /// Adds the reason of a failure, and the beginning of the reply if that is the reason.
    fn with_failure(self, failure: &'a Failure) -> EntryView<'a> {
        EntryView { reason: Some(&failure.reason), raw: failure.raw.as_deref(), ..self }
    }
}
