//! `jobs`, `workflows` and `queues`: list the jobs, workflows and queues of a manager.

use super::arguments::ListArguments;
use super::client::Client;
use super::controls::ControlsResponse;
use super::error::ClientError;
use super::list_printer::{ListStyle, Listing};
use super::responses::{parse_list, parse_response};
use super::table::{ColumnRole, Table};
use super::text::Text;
use daemon::settings::DurationSetting;
use engine::text::escape;
use engine::{JobId, Millis};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use std::collections::HashMap;
use std::io::Write;

/// How many running jobs of one workflow are listed, and how many ended ones.
const JOBS_PER_LIST_MAX: u32 = 1_000;

/// The name of a workflow.
#[derive(Deserialize)]
struct WorkflowResponse {
    vhost: String,
    name: String,
}

impl WorkflowResponse {
    fn full_name(&self) -> String {
        if self.vhost.is_empty() {
            self.name.clone()
        } else {
            format!("{}/{}", self.vhost, self.name)
        }
    }
}

/// The jobs of a workflow.
#[derive(Default, Deserialize)]
#[serde(default)]
struct JobsResponse {
    /// The ids of the running jobs.
    running: Vec<Text>,
    /// The ids of the ended jobs, whatever their final state.
    completed: Vec<Text>,
    states: HashMap<JobId, Text>,
    /// The cursor of the next page. `None` on the last page.
    next: Option<Text>,
}

/// Runs `jobs`: lists the running jobs, and those that ended in the last `interval_minutes`, or at
/// any time if these are 0.
pub(super) fn list_jobs(
    workflow: Option<&str>,
    interval_minutes: u64,
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let client = Client::new(&arguments.target)?;
    let style = ListStyle::from_arguments(arguments.format, arguments.times);
    let names = match workflow {
        Some(name) => vec![name.to_owned()],
        None => {
            let workflows: Vec<WorkflowResponse> =
                parse_response(&client.get("/api/workflows?all=true")?)?;
            workflows.iter().map(WorkflowResponse::full_name).collect()
        }
    };
    let mut table = Table::new(&[
        ("JOB", ColumnRole::Key),
        ("WORKFLOW", ColumnRole::Plain),
        ("STATE", ColumnRole::State),
    ]);
    let mut entries = Vec::new();
    let mut is_truncated = false;
    for name in names {
        let mut list: JobsResponse = parse_response(&client.get(&format!(
            "/api/workflow/{name}?interval={interval_minutes}&limit={JOBS_PER_LIST_MAX}\
             &states=true"
        ))?)?;
        is_truncated |= list.next.is_some();
        for id in list.running.iter().chain(&list.completed) {
            let state =
                id.parse().ok().and_then(|id: JobId| list.states.remove(&id)).unwrap_or_default();
            let entry = json!({ "job": id.raw(), "workflow": name, "state": state.raw() });
            entries.push(to_raw_json(&entry)?);
            table.add_row([&**id, &*escape(&name), &*state]);
        }
    }
    let empty_text =
        format!("no jobs are running, none ended in the last {interval_minutes} minutes");
    let body = to_raw_json(&entries)?;
    Listing { body: body.get(), entries, table, empty_text: &empty_text }.print(style, out)?;
    if is_truncated && style.is_for_people() {
        writeln!(
            out,
            "… only the first {JOBS_PER_LIST_MAX} of each list are shown; the API pages through \
             all (docs/reference/http-api-jobs.md)"
        )?;
    }
    Ok(())
}

fn to_raw_json(value: &impl serde::Serialize) -> Result<Box<RawValue>, ClientError> {
    to_raw_value(value).map_err(|error| ClientError::Output(error.into()))
}

/// A workflow in a list.
#[derive(Deserialize)]
struct WorkflowRowResponse {
    #[serde(default)]
    vhost: Text,
    name: Text,
    /// The number of jobs that have not ended.
    job_count: u64,
    #[serde(rename = "loaded")]
    is_loaded: Option<bool>,
    stats: Option<StatsResponse>,
}

/// The statistics of a workflow's recent jobs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatsResponse {
    /// `None`, as the next two, at a manager that stands by: it does not count.
    created: Option<u64>,
    completed: Option<u64>,
    failed: Option<u64>,
    /// The median duration of completed jobs, in nanoseconds. `None` if no job has completed.
    p50: Option<u64>,
    /// The 95th percentile of these durations.
    p95: Option<u64>,
    oldest_running: Option<OldestJobResponse>,
}

/// The oldest running job of a workflow.
#[derive(Deserialize)]
struct OldestJobResponse {
    created: Text,
}

/// Runs `workflows`: lists the workflows. If `stats_period` is given, their statistics over this
/// period are listed too.
pub(super) fn list_workflows(
    stats_period: Option<DurationSetting>,
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let mut query = vec![("all".to_owned(), "true".to_owned())];
    query.extend(stats_period.map(|period| ("stats".to_owned(), period.to_string())));
    let client = Client::new(&arguments.target)?;
    let body = client.query("/api/workflows", &query)?;
    // A manager that stands by does not know what is in force, and has the list all the same.
    let controls = ControlsResponse::read(&client).unwrap_or_default();
    let mut columns = vec![("WORKFLOW", ColumnRole::Key), ("RUNNING", ColumnRole::Plain)];
    if stats_period.is_some() {
        columns.extend(
            ["CREATED", "COMPLETED", "FAILED", "P50", "P95"]
                .map(|title| (title, ColumnRole::Plain)),
        );
        columns.push(("OLDEST RUNNING", ColumnRole::Time));
    }
    columns.push(("NOTE", ColumnRole::Long));
    let mut table = Table::new(&columns);
    for row in parse_response::<Vec<WorkflowRowResponse>>(&body)? {
        let WorkflowRowResponse { vhost, name, job_count, is_loaded, stats } = row;
        let mut notes = controls.notes(&["workflowPause"], (&vhost, &name), None);
        let name = if vhost.is_empty() { name.to_string() } else { format!("{vhost}/{name}") };
        let mut cells = vec![name, job_count.to_string()];
        if stats_period.is_some() {
            cells.extend(stats.map_or_else(Default::default, StatsResponse::into_cells));
        }
        if is_loaded == Some(false) {
            notes.push("no longer in the files: it takes no new jobs".to_owned());
        }
        cells.push(notes.join("; "));
        table.add_row(cells);
    }
    let empty_text = "no workflow is loaded: name files with serve --workflows";
    Listing { body: &body, entries: parse_response(&body)?, table, empty_text }
        .print(ListStyle::from_arguments(arguments.format, arguments.times), out)?;
    Ok(())
}

impl StatsResponse {
    /// Converts the statistics to the cells of a row, from `CREATED` to `OLDEST RUNNING`.
    fn into_cells(self) -> [String; 6] {
        let format_duration = |nanoseconds: Option<u64>| {
            nanoseconds
                .map_or_else(String::new, |nanoseconds| Millis(nanoseconds / 1_000_000).to_string())
        };
        let format_count = |count: Option<u64>| count.map_or_else(String::new, |n| n.to_string());
        let oldest_created =
            self.oldest_running.map_or_else(String::new, |job| job.created.to_string());
        [
            format_count(self.created),
            format_count(self.completed),
            format_count(self.failed),
            format_duration(self.p50),
            format_duration(self.p95),
            oldest_created,
        ]
    }
}

/// What the manager knows about a queue. A number is `None` if it is unknown.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct QueueResponse {
    pub(super) queue: Text,
    #[serde(default)]
    vhost: Text,
    bus: Text,
    pub(super) messages: Option<u64>,
    unacknowledged: Option<u64>,
    consumers: Option<u64>,
    #[serde(default, rename = "full")]
    is_full: bool,
    #[serde(default, rename = "missing")]
    is_missing: bool,
    /// Why the state of the queue is unknown, if it is.
    pub(super) unknown: Option<Text>,
    /// Whether active jobs use the queue, but no loaded workflow.
    #[serde(default, rename = "noLongerInFiles")]
    is_no_longer_in_files: bool,
    #[serde(default)]
    used_by: Vec<QueueUseResponse>,
}

/// A step whose messages go to a queue.
#[derive(Deserialize)]
struct QueueUseResponse {
    workflow: Text,
    task: Option<Text>,
    step: Text,
}

impl QueueResponse {
    /// Formats the steps whose messages go to this queue as a list.
    pub(super) fn format_steps(&self) -> String {
        self.used_by.iter().map(QueueUseResponse::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Returns whether no worker consumes from the queue.
    pub(super) fn has_no_consumers(&self) -> bool {
        self.is_missing || self.consumers == Some(0)
    }

    /// Describes what an operator should know about the queue. The text is empty if there is
    /// nothing.
    fn note(&self, controls: &ControlsResponse) -> String {
        let subject = (&*self.vhost, &*self.queue);
        let mut notes = controls.notes(&["queuePause"], subject, Some(&self.bus));
        notes.extend(Some(self.describe_state()).filter(|state| !state.is_empty()));
        if self.is_no_longer_in_files {
            notes.push("no longer in the files: jobs under way use it".to_owned());
        }
        notes.join("; ")
    }

    /// Describes what is unusual about the queue; empty if nothing is.
    fn describe_state(&self) -> String {
        match (&self.unknown, self.is_missing) {
            (Some(reason), _) => format!("unknown: {reason}"),
            (None, true) => {
                "does not exist yet: it is declared before a message is sent".to_owned()
            }
            (None, false) => {
                let full_note = self.is_full.then_some("full: it takes no further message");
                let worker_note = self.has_no_consumers().then_some("no worker");
                full_note.into_iter().chain(worker_note).collect::<Vec<&str>>().join("; ")
            }
        }
    }
}

impl std::fmt::Display for QueueUseResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.task {
            Some(task) => write!(f, "{}: {task}: {}", self.workflow, self.step),
            None => write!(f, "{}: {}", self.workflow, self.step),
        }
    }
}

/// Runs `queues`: lists the queues, or only those without a worker.
pub(super) fn list_queues(
    is_unattended_only: bool,
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let client = Client::new(&arguments.target)?;
    let body = client.get("/api/queues")?;
    // A manager that stands by does not know what is in force, and has the list all the same.
    let controls = ControlsResponse::read(&client).unwrap_or_default();
    let style = ListStyle::from_arguments(arguments.format, arguments.times);
    let mut table = Table::new(&[
        ("QUEUE", ColumnRole::Key),
        ("VHOST", ColumnRole::Extra),
        ("BUS", ColumnRole::Extra),
        ("MESSAGES", ColumnRole::Plain),
        ("UNACKNOWLEDGED", ColumnRole::Plain),
        ("WORKERS", ColumnRole::Plain),
        ("NOTE", ColumnRole::Long),
        ("USED BY", ColumnRole::Long),
    ]);
    let mut entries = Vec::new();
    for entry in parse_list(&body, "queues")? {
        let queue: QueueResponse = parse_response(entry.get())?;
        if is_unattended_only && !queue.has_no_consumers() {
            continue;
        }
        let format_number =
            |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
        table.add_row([
            queue.queue.to_string(),
            queue.vhost.to_string(),
            queue.bus.to_string(),
            format_number(queue.messages),
            format_number(queue.unacknowledged),
            format_number(queue.consumers),
            queue.note(&controls),
            queue.format_steps(),
        ]);
        entries.push(entry);
    }
    let empty_text = if is_unattended_only {
        "every queue has a worker"
    } else {
        "the loaded workflows use no queues"
    };
    // With the flag, the JSON has only the listed queues, too.
    let filtered_body = to_raw_json(&json!({ "queues": entries }))?;
    let body = if is_unattended_only { filtered_body.get() } else { &body };
    Listing { body, entries, table, empty_text }.print(style, out)?;
    Ok(())
}
