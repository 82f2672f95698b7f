//! `jobs`, `workflows` and `queues`.

use super::arguments::ListArguments;
use super::client::Client;
use super::error::ClientError;
use super::listing::{Form, Listing};
use super::show::{entries, parse};
use super::table::{Role, Table};
use super::text::Text;
use crate::engine::words::escaped;
use crate::engine::{JobId, Millis};
use crate::settings::Span;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;

/// How many jobs of one workflow are listed.
const LISTED_MAX: u32 = 1_000;

#[derive(Deserialize)]
struct WorkflowAnswer {
    vhost: String,
    name: String,
}

impl WorkflowAnswer {
    fn full_name(&self) -> String {
        if self.vhost.is_empty() {
            self.name.clone()
        } else {
            format!("{}/{}", self.vhost, self.name)
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JobsAnswer {
    running: Vec<Text>,
    completed: Vec<Text>,
    states: HashMap<JobId, Text>,
    next: Option<Text>,
}

/// Runs `jobs`.
pub(super) fn jobs(
    workflow: Option<&str>,
    interval: u64,
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let client = Client::new(&arguments.reach)?;
    let form = Form::of(arguments.form, arguments.times);
    let names = match workflow {
        Some(name) => vec![name.to_owned()],
        None => {
            let all: Vec<WorkflowAnswer> = parse(&client.get("/api/workflows?all=true")?)?;
            all.iter().map(WorkflowAnswer::full_name).collect()
        }
    };
    let mut table =
        Table::new(&[("JOB", Role::Key), ("WORKFLOW", Role::Plain), ("STATE", Role::State)]);
    let mut entries = Vec::new();
    let mut is_cut = false;
    for name in names {
        let mut list: JobsAnswer = parse(&client.get(&format!(
            "/api/workflow/{name}?interval={interval}&limit={LISTED_MAX}&states=true"
        ))?)?;
        is_cut |= list.next.is_some();
        for id in list.running.iter().chain(&list.completed) {
            let state =
                id.parse().ok().and_then(|id: JobId| list.states.remove(&id)).unwrap_or_default();
            let entry = json!({ "job": id.raw(), "workflow": name, "state": state.raw() });
            entries.push(raw(&entry)?);
            table.add([&**id, &*escaped(&name), &*state]);
        }
    }
    let nothing = format!("no jobs are running, none ended in the last {interval} minutes");
    let body = raw(&entries)?;
    Listing { body: body.get(), entries, table, nothing: &nothing }.print(form, out)?;
    if is_cut && form.is_for_people() {
        writeln!(
            out,
            "… only the first {LISTED_MAX} of each list are shown; the API pages through all \
             (docs/http-api.md)"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn raw(value: &impl serde::Serialize) -> Result<Box<RawValue>, ClientError> {
    to_raw_value(value).map_err(|error| ClientError::Output(error.into()))
}

#[derive(Deserialize)]
struct RowAnswer {
    #[serde(default)]
    vhost: Text,
    name: Text,
    job_count: u64,
    loaded: Option<bool>,
    stats: Option<StatsAnswer>,
}

/// The statistics of a workflow's recent jobs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatsAnswer {
    created: u64,
    completed: u64,
    failed: u64,
    /// In nanoseconds.
    p50: Option<u64>,
    p95: Option<u64>,
    oldest_running: Option<OldestAnswer>,
}

#[derive(Deserialize)]
struct OldestAnswer {
    created: Text,
}

/// Runs `workflows`.
pub(super) fn workflows(
    stats: Option<Span>,
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let mut query = vec![("all".to_owned(), "true".to_owned())];
    query.extend(stats.map(|span| ("stats".to_owned(), span.to_string())));
    let body = Client::new(&arguments.reach)?.query("/api/workflows", &query)?;
    let mut columns = vec![("WORKFLOW", Role::Key), ("RUNNING", Role::Plain)];
    if stats.is_some() {
        columns.extend(
            ["CREATED", "COMPLETED", "FAILED", "P50", "P95"].map(|title| (title, Role::Plain)),
        );
        columns.push(("OLDEST RUNNING", Role::Time));
    }
    columns.push(("NOTE", Role::Long));
    let mut table = Table::new(&columns);
    for row in parse::<Vec<RowAnswer>>(&body)? {
        let RowAnswer { vhost, name, job_count, loaded, stats: fared } = row;
        let name = if vhost.is_empty() { name.to_string() } else { format!("{vhost}/{name}") };
        let mut cells = vec![name, job_count.to_string()];
        if stats.is_some() {
            cells.extend(fared.map_or_else(Default::default, |fared| fared.cells()));
        }
        let note =
            if loaded == Some(false) { "no longer in the files: it takes no new jobs" } else { "" };
        cells.push(note.to_owned());
        table.add(cells);
    }
    let nothing = "no workflow is loaded: name files with serve --workflows";
    Listing { body: &body, entries: parse(&body)?, table, nothing }
        .print(Form::of(arguments.form, arguments.times), out)?;
    Ok(ExitCode::SUCCESS)
}

impl StatsAnswer {
    /// Returns the cells of these columns, in order.
    fn cells(self) -> [String; 6] {
        let took = |nanoseconds: Option<u64>| {
            nanoseconds.map_or_else(String::new, |took| Millis(took / 1_000_000).to_string())
        };
        let oldest = self.oldest_running.map_or_else(String::new, |job| job.created.to_string());
        [
            self.created.to_string(),
            self.completed.to_string(),
            self.failed.to_string(),
            took(self.p50),
            took(self.p95),
            oldest,
        ]
    }
}

/// What the manager knows about a queue.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct QueueAnswer {
    pub(super) queue: Text,
    #[serde(default)]
    vhost: Text,
    bus: Text,
    pub(super) messages: Option<u64>,
    unacknowledged: Option<u64>,
    consumers: Option<u64>,
    #[serde(default)]
    full: bool,
    #[serde(default)]
    missing: bool,
    pub(super) unknown: Option<Text>,
    #[serde(default)]
    no_longer_in_files: bool,
    #[serde(default)]
    used_by: Vec<UseAnswer>,
}

#[derive(Deserialize)]
struct UseAnswer {
    workflow: Text,
    task: Option<Text>,
    step: Text,
}

impl QueueAnswer {
    /// Returns the steps whose messages go to this queue.
    pub(super) fn used_by(&self) -> String {
        self.used_by.iter().map(UseAnswer::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Returns whether no worker consumes from the queue.
    pub(super) fn is_unattended(&self) -> bool {
        self.missing || self.consumers == Some(0)
    }

    fn note(&self) -> String {
        let found = match (&self.unknown, self.missing) {
            (Some(why), _) => format!("unknown: {why}"),
            (None, true) => {
                "does not exist yet: it is declared before a message is sent".to_owned()
            }
            (None, false) => {
                let full = self.full.then_some("full: it takes no further message");
                let idle = self.is_unattended().then_some("no worker");
                full.into_iter().chain(idle).collect::<Vec<&str>>().join("; ")
            }
        };
        if !self.no_longer_in_files {
            return found;
        }
        let kept = "no longer in the files: jobs under way use it";
        if found.is_empty() { kept.to_owned() } else { format!("{found}; {kept}") }
    }
}

impl std::fmt::Display for UseAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.task {
            Some(task) => write!(f, "{}: {task}: {}", self.workflow, self.step),
            None => write!(f, "{}: {}", self.workflow, self.step),
        }
    }
}

/// Runs `queues`.
pub(super) fn queues(
    is_unattended: bool,
    arguments: &ListArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let body = Client::new(&arguments.reach)?.get("/api/queues")?;
    let form = Form::of(arguments.form, arguments.times);
    let mut table = Table::new(&[
        ("QUEUE", Role::Key),
        ("VHOST", Role::Extra),
        ("BUS", Role::Extra),
        ("MESSAGES", Role::Plain),
        ("UNACKNOWLEDGED", Role::Plain),
        ("WORKERS", Role::Plain),
        ("NOTE", Role::Long),
        ("USED BY", Role::Long),
    ]);
    let mut kept = Vec::new();
    for entry in entries(&body, "queues")? {
        let queue: QueueAnswer = parse(entry.get())?;
        if is_unattended && !queue.is_unattended() {
            continue;
        }
        let number =
            |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
        table.add([
            queue.queue.to_string(),
            queue.vhost.to_string(),
            queue.bus.to_string(),
            number(queue.messages),
            number(queue.unacknowledged),
            number(queue.consumers),
            queue.note(),
            queue.used_by(),
        ]);
        kept.push(entry);
    }
    let nothing = if is_unattended {
        "every queue has a worker"
    } else {
        "the loaded workflows use no queues"
    };
    // A filtered list is printed, not the manager's own response.
    let filtered = raw(&json!({ "queues": kept }))?;
    let body = if is_unattended { filtered.get() } else { &body };
    Listing { body, entries: kept, table, nothing }.print(form, out)?;
    Ok(ExitCode::SUCCESS)
}
