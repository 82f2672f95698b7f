//! How the API shows a job and its steps.

use crate::engine::{Job, JobId, JobState, Json, Message, StepIndex, StepRun, StepState, Timestamp};
use crate::journal::read::Found;
use crate::times::Time;
use serde::Serialize;

/// A job as the API shows it.
#[derive(Serialize)]
pub(super) struct JobView<'a> {
    uuid: JobId,
    workflow: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    state: JobState,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    created: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<ParentView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    running: Vec<StepEntry<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    completed: Vec<StepEntry<'a>>,
    steps: Vec<StepView<'a>>,
}

#[derive(Serialize)]
struct ParentView {
    job: JobId,
    root: JobId,
    item: u32,
}

/// `E` of SPEC §8.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StepEntry<'a> {
    name: &'a str,
    start_time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tasks: Vec<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StepView<'a> {
    name: &'a str,
    state: StepState,
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    external: bool,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'a str>,
    /// When the attempt that runs fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<Time>,
    /// When the next attempt is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<Time>,
    /// What its worker told last: the share that is done, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a Json>,
    /// And a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<ChildrenView>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ChildrenView {
    items: u32,
    started: u32,
    ended: u32,
    failed: u32,
    without_item: u32,
}

impl<'a> JobView<'a> {
    pub(super) fn of(found: &'a Found) -> JobView<'a> {
        let job = &found.job;
        let origin = job.origin();
        let created = origin.created;
        let first_start = job.steps().filter_map(|(_, run)| run.started).min().unwrap_or(created);
        let mut completed = vec![StepEntry::done("__start__", created, first_start, Vec::new(), job.message().clone())];
        let mut running = Vec::new();
        for (at, (step, run)) in job.steps().enumerate() {
            let tasks = children(job, at, run);
            let started = run.started.unwrap_or(created);
            match run.state {
                StepState::Running => running.push(StepEntry {
                    name: &step.name,
                    start_time: Time(started),
                    elapsed: None,
                    tasks,
                    message: run.fan_out.as_ref().map(|fan_out| fan_out.input().clone()),
                }),
                StepState::Completed => {
                    let output = run.output.clone().unwrap_or_default();
                    completed.push(StepEntry::done(&step.name, started, run.ended.unwrap_or(started), tasks, output));
                }
                StepState::Waiting | StepState::Failed | StepState::Skipped | StepState::Cancelled => {}
            }
        }
        if job.state() == JobState::Completed {
            let ended = job.ended().unwrap_or(created);
            completed.push(StepEntry::done("__end__", ended, ended, Vec::new(), job.result()));
        }
        JobView {
            uuid: job.id(),
            workflow: job.definition().full_name(),
            task: origin.parent.is_some().then(|| job.graph().name.as_str()),
            state: job.state(),
            reason: job.reason().map(|reason| &**reason),
            created: Time(created),
            ended: job.ended().map(Time),
            deadline: job.deadline().map(Time),
            parent: origin.parent.map(|parent| ParentView { job: parent.job, root: origin.root, item: parent.index }),
            running,
            completed,
            steps: job.graph().indices().map(|step| StepView::of(job, step)).collect(),
        }
    }
}

fn children(job: &Job, at: usize, run: &StepRun) -> Vec<JobId> {
    let Some(fan_out) = &run.fan_out else { return Vec::new() };
    let step = StepIndex(u16::try_from(at).unwrap_or(u16::MAX));
    (0..fan_out.started()).filter_map(|index| job.child_id(step, index)).collect()
}

impl<'a> StepEntry<'a> {
    fn done(name: &'a str, started: Timestamp, ended: Timestamp, tasks: Vec<JobId>, message: Message) -> StepEntry<'a> {
        // At least 1: clients know an entry without `elapsed` as one that still runs.
        StepEntry { name, start_time: Time(started), elapsed: Some((ended.0 - started.0).max(1)), tasks, message: Some(message) }
    }
}

impl<'a> StepView<'a> {
    fn of(job: &'a Job, index: StepIndex) -> StepView<'a> {
        let (step, run) = (job.graph().step(index), job.step(index));
        StepView {
            name: &step.name,
            state: job.step_state(index),
            status: job.status(index),
            queue: step.has_queue().then_some(&*step.queue),
            external: step.external,
            attempt: run.attempt,
            start_time: run.started.map(Time),
            end_time: run.ended.map(Time),
            reason: run.failure.as_ref().map(|failure| &*failure.reason),
            raw: run.failure.as_ref().and_then(|failure| failure.raw.as_deref()),
            warning: run.warning.as_deref(),
            deadline: run.deadline.map(Time),
            retry_at: run.retry_at.map(Time),
            progress: run.progress.as_ref().and_then(|progress| progress.share.as_ref()),
            message: run.progress.as_ref().and_then(|progress| progress.message.as_deref()),
            children: run.fan_out.as_ref().map(|fan_out| ChildrenView {
                items: fan_out.items(),
                started: fan_out.started(),
                ended: fan_out.ended(),
                failed: fan_out.failed(),
                without_item: fan_out.without_item(),
            }),
        }
    }
}
