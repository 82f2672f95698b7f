//! Views of workflows as their files describe them.

use engine::{
    Definition, Expression, Graph, OnFailure, QueueArguments, QueueType, Retry, Step, Tolerate,
};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// A workflow with its steps and tasks. The keys are those of the workflow file.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WorkflowDefinition)]
pub struct DefinitionView<'d> {
    vhost: &'d str,
    name: &'d str,
    /// The bus that the workflow names.
    #[serde(skip_serializing_if = "Option::is_none")]
    bus: Option<&'d str>,
    steps: Vec<StepView<'d>>,
    tasks: Vec<TaskView<'d>>,
    #[schema(value_type = Vec<String>)]
    queues: Vec<Arc<str>>,
    result: Vec<&'d str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention: Option<String>,
    /// The limit of the jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<JobLimitView<'d>>,
    /// What people call a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'d str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    columns: Vec<ColumnView<'d>>,
}

/// A value by which people find jobs.
#[derive(Serialize, ToSchema)]
#[schema(as = Column)]
struct ColumnView<'d> {
    name: &'d str,
    value: &'d str,
}

/// The limit of the jobs of a workflow.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = JobLimit)]
struct JobLimitView<'d> {
    r#use: &'d str,
    then: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_at_most: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskDefinition)]
struct TaskView<'d> {
    name: &'d str,
    item_list_key: &'d str,
    item_key: &'d str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tolerate: Option<String>,
    recursive: bool,
    steps: Vec<StepView<'d>>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StepDefinition)]
struct StepView<'d> {
    name: &'d str,
    depends: Vec<&'d str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'d str>,
    /// The bus that the step or its workflow names.
    #[serde(skip_serializing_if = "Option::is_none")]
    bus: Option<&'d str>,
    /// The type with which the queue is declared if it is missing, as the step or its workflow
    /// names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_type: Option<&'static str>,
    /// The arguments with which the queue is declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    queue_arguments: Option<&'d QueueArguments>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'d str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_within: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_at_most: Option<String>,
    /// The limits whose places its attempts claim.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Vec<String>)]
    limit: &'d [Arc<str>],
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<RetryView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    when: Option<&'d str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel_when: Option<&'d str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_failure: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    external: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_key: Option<&'d str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Vec<String>)]
    statuses: &'d [Arc<str>],
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped_status: Option<&'d str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancelled_status: Option<&'d str>,
    /// The users whose replies are accepted. Absent: everybody's are.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Vec<String>)]
    reply_users: &'d [Arc<str>],
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Retry)]
struct RetryView {
    attempts: u32,
    backoff: String,
    factor: f64,
    max_backoff: String,
}

impl<'d> DefinitionView<'d> {
    /// Creates the view of a definition.
    pub fn from_definition(definition: &'d Definition) -> DefinitionView<'d> {
        let graph = definition.graph();
        // The first graph is the workflow's own; the others are its tasks.
        let tasks = definition.graphs.iter().enumerate().skip(1).filter_map(|(index, task)| {
            let keys = task.fan_out.as_ref()?;
            Some(TaskView {
                name: &task.name,
                item_list_key: &keys.list_key,
                item_key: &keys.item_key,
                max_concurrency: keys.max_concurrency,
                tolerate: (keys.tolerate != Tolerate::default()).then(|| keys.tolerate.to_string()),
                recursive: is_recursive(definition, index),
                steps: to_step_views(definition, task),
            })
        });
        DefinitionView {
            vhost: &definition.vhost,
            name: &definition.name,
            bus: definition.bus.as_deref(),
            steps: to_step_views(definition, graph),
            tasks: tasks.collect(),
            queues: definition.queues(),
            result: graph.last_steps().iter().map(|step| &*graph.step(*step).name).collect(),
            deadline: definition.deadline.map(|duration| duration.to_string()),
            retention: definition.retention.map(|duration| duration.to_string()),
            limit: definition.limit.as_ref().map(|limit| JobLimitView {
                r#use: &limit.name,
                then: limit.then.as_str(),
                delay: limit.delay.map(|duration| duration.to_string()),
                wait_at_most: limit.wait_at_most.map(|duration| duration.to_string()),
            }),
            label: definition.columns.label.as_ref().map(Expression::text),
            columns: definition
                .columns
                .list
                .iter()
                .map(|column| ColumnView { name: &column.name, value: column.value.text() })
                .collect(),
        }
    }
}

/// Returns the views of a graph's steps.
fn to_step_views<'d>(definition: &'d Definition, graph: &'d Graph) -> Vec<StepView<'d>> {
    let view = |step: &'d Step| StepView {
        name: &step.name,
        depends: step.depends.iter().map(|dependency| graph.dependency_name(*dependency)).collect(),
        queue: step.has_queue().then_some(&*step.queue),
        bus: step.bus.as_deref(),
        queue_type: step.declared.kind.map(QueueType::name),
        queue_arguments: step.declared.arguments.as_ref(),
        task: step.task.map(|task| definition.graphs[usize::from(task)].name.as_str()),
        priority: step.priority,
        timeout: step.timeout.map(|duration| duration.to_string()),
        start_within: step.start_within.map(|duration| duration.to_string()),
        wait_at_most: step.wait_at_most.map(|duration| duration.to_string()),
        limit: &step.limits,
        retry: step.retry.map(to_retry_view),
        when: step.when.as_ref().map(Expression::text),
        cancel_when: step.cancel_when.as_ref().map(Expression::text),
        on_failure: match step.on_failure {
            OnFailure::Fail => None,
            OnFailure::Continue => Some("continue"),
        },
        external: step.external,
        status_key: step.status.key.as_deref(),
        statuses: &step.status.words,
        skipped_status: step.status.skipped.as_deref(),
        cancelled_status: step.status.cancelled.as_deref(),
        reply_users: &step.reply_users,
    };
    graph.steps.iter().map(view).collect()
}

/// Returns the view of a `retry`, with the keys of the workflow file.
fn to_retry_view(retry: Retry) -> RetryView {
    RetryView {
        attempts: retry.attempts,
        backoff: retry.backoff.to_string(),
        factor: f64::from(retry.factor_milli) / 1_000.0,
        max_backoff: retry.max_backoff.to_string(),
    }
}

/// Returns whether a task starts itself, directly or through other tasks. `task` is the index of
/// its graph.
fn is_recursive(definition: &Definition, task: usize) -> bool {
    let find_subtasks = |task: usize| {
        definition.graphs[task].steps.iter().filter_map(|step| step.task).map(usize::from)
    };
    let mut is_visited = vec![false; definition.graphs.len()];
    let mut pending_tasks: Vec<usize> = find_subtasks(task).collect();
    while let Some(subtask) = pending_tasks.pop() {
        if subtask == task {
            return true;
        }
        if !std::mem::replace(&mut is_visited[subtask], true) {
            pending_tasks.extend(find_subtasks(subtask));
        }
    }
    false
}
