//! Views of a job with its steps: the whole view, and the light view, whose size depends only on
//! the number of steps.

use super::cells::CellsView;
use base::times::Rfc3339Time;
use engine::{
    ClaimedPlace, DefinitionHash, ItemCounts, Job, JobId, JobState, Json, Message, StepClaim,
    StepIndex, StepRun, StepState, Timestamp,
};
use serde::Serialize;
use std::borrow::Cow;
use std::sync::Arc;
use utoipa::ToSchema;

/// The length to which the light view truncates texts of workers and people, in characters.
const LIGHT_TEXT_CHARS_MAX: usize = 1_000;

/// The longest progress that the light view contains, in bytes of its JSON text. JSON numbers can
/// have any number of digits.
const LIGHT_NUMBER_BYTES_MAX: usize = 32;

/// A job with its steps.
#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
pub struct JobView<'a> {
    uuid: JobId,
    workflow: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    state: JobState,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// What its workflow has people call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    label: Option<Arc<str>>,
    #[serde(skip_serializing_if = "CellsView::is_empty")]
    #[schema(value_type = Object)]
    columns: CellsView,
    created: Rfc3339Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Rfc3339Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<Rfc3339Time>,
    /// When it begins, until it has begun.
    #[serde(rename = "startsAt", skip_serializing_if = "Option::is_none")]
    starts_at: Option<Rfc3339Time>,
    /// The schedule and the slot for which it was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<Rfc3339Time>,
    /// The limit for a place of which it waits before it begins.
    #[serde(rename = "waitsFor", skip_serializing_if = "Option::is_none")]
    waits_for: Option<ClaimView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<ParentView>,
    /// How many entries its record has. Only in the light view.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<u64>,
    /// The hash of the definition that it runs. Only in the light view.
    #[serde(skip_serializing_if = "Option::is_none")]
    definition: Option<DefinitionHash>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    running: Vec<StepEntry<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    completed: Vec<StepEntry<'a>>,
    steps: Vec<StepView<'a>>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Parent)]
struct ParentView {
    job: JobId,
    root: JobId,
    item: u32,
}

/// An entry of a step in a job (docs/reference/http-api-jobs.md, "A job").
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StepRun)]
struct StepEntry<'a> {
    name: &'a str,
    start_time: Rfc3339Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tasks: Vec<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Step)]
pub(super) struct StepView<'a> {
    name: &'a str,
    state: StepState,
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    external: bool,
    attempt: u32,
    /// When the step first started.
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<Rfc3339Time>,
    /// When the last attempt started.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_start_time: Option<Rfc3339Time>,
    /// Nanoseconds from the first start to the end, or until now.
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed: Option<i64>,
    /// Nanoseconds from the start of the last attempt to the end, or until now.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_elapsed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<Rfc3339Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    warning: Option<Cow<'a, str>>,
    /// When the running attempt fails for lack of a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<Rfc3339Time>,
    /// When the attempt fails unless its message has been taken by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    start_by: Option<Rfc3339Time>,
    /// When the next attempt is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<Rfc3339Time>,
    /// The limits whose places its message waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<ClaimView<'a>>,
    /// The progress that its worker reported last: the share that is done, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a Json>,
    /// The sentence that its worker reported last.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<ChildrenView>,
}

/// What a message waits for before it is sent, or a job before it begins.
#[derive(Serialize, ToSchema)]
#[schema(as = Claim)]
struct ClaimView<'a> {
    /// Since when.
    since: Rfc3339Time,
    limits: Vec<ClaimedLimitView<'a>>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ClaimedLimit)]
struct ClaimedLimitView<'a> {
    limit: &'a str,
    /// The key of the place, if the limit has keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Children)]
struct ChildrenView {
    items: u32,
    started: u32,
    ended: u32,
    failed: u32,
    without_item: u32,
    /// Child jobs that have not started.
    waiting: u32,
    /// Child jobs that have started, and whose end the step has not received yet.
    running: u32,
    completed: u32,
    /// Child jobs that were running when the step or the job ended.
    cancelled: u32,
}

impl<'a> ClaimView<'a> {
    fn new(claim: &'a StepClaim) -> ClaimView<'a> {
        let view_place = |place: &'a ClaimedPlace| ClaimedLimitView {
            limit: &place.limit,
            key: place.key.as_deref(),
        };
        let limits = claim.places.iter().map(view_place).collect();
        ClaimView { since: Rfc3339Time(claim.since), limits }
    }
}

impl<'a> JobView<'a> {
    /// Creates the whole view, with messages, outputs and the ids of child jobs. Elapsed times of
    /// running steps end at `now`.
    pub fn whole(job: &'a Job, now: Timestamp) -> JobView<'a> {
        let created = job.origin().created;
        let first_start = job.steps().filter_map(|(_, run)| run.started).min().unwrap_or(created);
        let mut completed = vec![StepEntry::completed(
            "__start__",
            created,
            first_start,
            Vec::new(),
            job.message().clone(),
        )];
        let mut running = Vec::new();
        for (index, (step, run)) in job.graph().indices().zip(job.steps()) {
            let tasks = child_ids(job, index, run);
            let started = run.started.unwrap_or(created);
            match job.step_state(index) {
                // In a job that has ended, such as a failed one, a step runs only while a reply to
                // it would still be accepted.
                StepState::Running if job.state().is_ended() && !job.can_be_answered(index) => {}
                StepState::Running => running.push(StepEntry {
                    name: &step.name,
                    start_time: Rfc3339Time(started),
                    elapsed: None,
                    tasks,
                    message: run.fan_out.as_ref().map(|fan_out| fan_out.input().clone()),
                }),
                StepState::Completed => {
                    let output = run.output.clone().expect("a completed step has its output");
                    completed.push(StepEntry::completed(
                        &step.name,
                        started,
                        run.ended.unwrap_or(started),
                        tasks,
                        output,
                    ));
                }
                StepState::Waiting
                | StepState::Failed
                | StepState::Skipped
                | StepState::Cancelled => {}
            }
        }
        if job.state() == JobState::Completed {
            let ended = job.ended().unwrap_or(created);
            completed.push(StepEntry::completed("__end__", ended, ended, Vec::new(), job.result()));
        }
        let steps = job.graph().indices().map(|step| StepView::new(job, step, now)).collect();
        JobView { running, completed, ..JobView::common(job, steps) }
    }

    /// Creates the light view: without messages, outputs and ids of child jobs, and with truncated
    /// texts. Its size depends only on the number of steps.
    pub fn light(job: &'a Job, now: Timestamp) -> JobView<'a> {
        let steps =
            job.graph().indices().map(|step| StepView::new(job, step, now).into_light()).collect();
        let view = JobView::common(job, steps);
        JobView {
            entries: Some(job.entry_count()),
            definition: Some(job.definition().hash()),
            reason: view.reason.map(truncate),
            ..view
        }
    }

    /// Creates the view without what is only in the whole or only in the light view.
    fn common(job: &'a Job, steps: Vec<StepView<'a>>) -> JobView<'a> {
        let origin = job.origin();
        let (label, columns) = CellsView::from_cells(job.cells());
        JobView {
            label,
            columns,
            uuid: job.id(),
            workflow: job.definition().full_name(),
            task: origin.parent.is_some().then(|| job.graph().name.as_str()),
            state: job.state(),
            reason: job.reason().map(|reason| &**reason),
            created: Rfc3339Time(origin.created),
            ended: job.ended().map(Rfc3339Time),
            deadline: job.deadline().map(Rfc3339Time),
            starts_at: job.begins_at().map(Rfc3339Time),
            schedule: origin.slot.as_ref().map(|slot| &*slot.schedule),
            slot: origin.slot.as_ref().map(|slot| Rfc3339Time(slot.slot)),
            waits_for: job
                .waiting_claim()
                .filter(|_| job.state() == JobState::Running)
                .map(ClaimView::new),
            parent: origin.parent.map(|parent| ParentView {
                job: parent.job,
                root: origin.root,
                item: parent.index,
            }),
            entries: None,
            definition: None,
            running: Vec::new(),
            completed: Vec::new(),
            steps,
        }
    }
}

/// Returns the ids of the child jobs that a step has started.
fn child_ids(job: &Job, step: StepIndex, run: &StepRun) -> Vec<JobId> {
    let Some(fan_out) = &run.fan_out else { return Vec::new() };
    (0..fan_out.started()).filter_map(|index| job.child_id(step, index)).collect()
}

impl<'a> StepEntry<'a> {
    /// Creates the entry of a completed step.
    fn completed(
        name: &'a str,
        started: Timestamp,
        ended: Timestamp,
        tasks: Vec<JobId>,
        message: Message,
    ) -> StepEntry<'a> {
        // At least 1, as docs/reference/http-api-jobs.md promises: to clients, an entry without
        // `elapsed` still runs.
        StepEntry {
            name,
            start_time: Rfc3339Time(started),
            elapsed: Some((ended.0 - started.0).max(1)),
            tasks,
            message: Some(message),
        }
    }
}

impl<'a> StepView<'a> {
    /// Creates the view of a step. Elapsed times of a running step end at `now`.
    pub(super) fn new(job: &'a Job, index: StepIndex, now: Timestamp) -> StepView<'a> {
        let (step, run) = (job.graph().step(index), job.step(index));
        let is_running = run.state == StepState::Running;
        let end = run.ended.or(job.ended()).or(is_running.then_some(now));
        let elapsed_since = |start: Option<Timestamp>| Some((end?.0 - start?.0).max(0));
        let state = job.step_state(index);
        // A step that was cut off by the end of the job has no end of its own.
        let ended_with_job = job.ended().filter(|_| state == StepState::Cancelled);
        StepView {
            name: &step.name,
            state,
            status: job.status(index),
            queue: step.has_queue().then_some(&*step.queue),
            external: step.external,
            attempt: run.attempt,
            start_time: run.started.map(Rfc3339Time),
            attempt_start_time: run.attempt_started.map(Rfc3339Time),
            elapsed: elapsed_since(run.started),
            // Between two attempts, no attempt runs.
            attempt_elapsed: elapsed_since(run.attempt_started)
                .filter(|_| run.retry_at().is_none()),
            end_time: run.ended.or(ended_with_job).map(Rfc3339Time),
            reason: run.failure.as_ref().map(|failure| &*failure.reason),
            raw: run.failure.as_ref().and_then(|failure| failure.raw.as_deref()),
            warning: find_warning(run, job.item_counts(index)),
            deadline: run.timeout_at().map(Rfc3339Time),
            start_by: run.start_by().map(Rfc3339Time),
            retry_at: run.retry_at().map(Rfc3339Time),
            waits_for: run
                .waiting_claim()
                .filter(|_| is_running && job.state() == JobState::Running)
                .map(ClaimView::new),
            progress: run.progress.as_ref().and_then(|progress| progress.share.as_ref()),
            message: run.progress.as_ref().and_then(|progress| progress.message.as_deref()),
            children: run.fan_out.as_ref().zip(job.item_counts(index)).map(|(fan_out, counts)| {
                ChildrenView {
                    items: counts.items,
                    started: fan_out.started(),
                    ended: fan_out.ended(),
                    failed: counts.failed,
                    without_item: fan_out.without_item(),
                    waiting: counts.waiting,
                    running: counts.running,
                    completed: counts.completed,
                    cancelled: counts.cancelled,
                }
            }),
        }
    }

    /// Truncates the texts, and removes values of unbounded size.
    fn into_light(self) -> StepView<'a> {
        StepView {
            reason: self.reason.map(truncate),
            raw: None,
            warning: self.warning.map(|warning| match warning {
                Cow::Borrowed(text) => Cow::Borrowed(truncate(text)),
                Cow::Owned(text) => Cow::Owned(text),
            }),
            progress: self.progress.filter(|share| share.text().len() <= LIGHT_NUMBER_BYTES_MAX),
            message: self.message.map(truncate),
            ..self
        }
    }
}

/// Describes the failures that a completed job has tolerated. The text is meant to continue a
/// sentence, and begins with `; `. It is empty if there were no failures.
pub fn describe_failures(job: &Job) -> String {
    let mut text = String::new();
    for (step, (definition, run)) in job.graph().indices().zip(job.steps()) {
        let name = &definition.name;
        if run.state == StepState::Failed {
            text += &format!("; step \"{name}\" failed, and its `onFailure` lets the job go on");
        } else if let Some(counts) = job.item_counts(step).filter(|counts| counts.failed > 0) {
            let (failed, items) = (counts.failed, counts.items);
            text += &format!(
                "; {failed} of {items} items of step \"{name}\" failed, which its task \
                 tolerates"
            );
        }
    }
    text
}

/// Returns the first [`LIGHT_TEXT_CHARS_MAX`] characters of a text.
pub(super) fn truncate(text: &str) -> &str {
    text.char_indices().nth(LIGHT_TEXT_CHARS_MAX).map_or(text, |(end, _)| &text[..end])
}

/// Returns the warning that was recorded about the step's input; otherwise one about results of its
/// child jobs that lack the item key, if there are such results.
fn find_warning(run: &StepRun, counts: Option<ItemCounts>) -> Option<Cow<'_, str>> {
    if let Some(warning) = &run.warning {
        return Some(Cow::Borrowed(warning));
    }
    let fan_out = run.fan_out.as_ref().filter(|fan_out| fan_out.without_item() > 0)?;
    let (missing, results, key) = (fan_out.without_item(), counts?.completed, fan_out.item_key());
    Some(Cow::Owned(format!(
        "{missing} of {results} results came without the key \"{key}\": null stands in for them"
    )))
}
