//! `jobs`, and what answers say about jobs.

use super::arguments::ClientArguments;
use super::client::{Client, ClientError};
use super::text::Text;
use crate::engine::JobId;
use crate::engine::words::escaped;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;

/// What a job's answer says, as far as the command line shows it.
#[derive(Deserialize)]
pub(super) struct JobAnswer {
    pub(super) uuid: Text,
    pub(super) workflow: Text,
    pub(super) task: Option<Text>,
    pub(super) state: Text,
    pub(super) reason: Option<Text>,
    pub(super) created: Text,
    pub(super) ended: Option<Text>,
    pub(super) deadline: Option<Text>,
    pub(super) parent: Option<ParentAnswer>,
    pub(super) steps: Vec<StepAnswer>,
    #[serde(default)]
    pub(super) completed: Vec<CompletedAnswer>,
}

impl JobAnswer {
    pub(super) fn is_ended(&self) -> bool {
        self.state != "running" && self.state != "paused"
    }
}

#[derive(Deserialize)]
pub(super) struct ParentAnswer {
    pub(super) job: Text,
    pub(super) root: Text,
    pub(super) item: u32,
}

#[derive(Deserialize)]
pub(super) struct CompletedAnswer {
    pub(super) name: Text,
    #[serde(default)]
    pub(super) message: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StepAnswer {
    pub(super) name: Text,
    pub(super) state: Text,
    pub(super) attempt: u32,
    pub(super) queue: Option<Text>,
    pub(super) reason: Option<Text>,
    pub(super) warning: Option<Text>,
    pub(super) status: Text,
    pub(super) retry_at: Option<Text>,
    pub(super) elapsed: Option<u64>,
    pub(super) attempt_elapsed: Option<u64>,
    pub(super) attempt_start_time: Option<Text>,
    pub(super) end_time: Option<Text>,
    pub(super) progress: Option<serde_json::Value>,
    pub(super) message: Option<Text>,
    pub(super) children: Option<ChildrenAnswer>,
}

#[derive(Deserialize)]
pub(super) struct ChildrenAnswer {
    pub(super) items: u32,
    pub(super) started: u32,
    pub(super) ended: u32,
    pub(super) failed: u32,
}

#[derive(Deserialize)]
struct WorkflowAnswer {
    vhost: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListAnswer {
    running: Vec<Text>,
    completed: Vec<Text>,
    states: HashMap<JobId, Text>,
    next: Option<Text>,
}

/// Jobs listed for one workflow.
const LISTED_MAX: u32 = 1_000;

/// `jobs`
pub(super) fn jobs(
    workflow: Option<&str>,
    interval: u64,
    arguments: &ClientArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let client = Client::new(arguments);
    let names = match workflow {
        Some(name) => vec![name.to_owned()],
        None => {
            let all: Vec<WorkflowAnswer> = parse(&client.get("/api/workflows?all=true")?)?;
            all.into_iter()
                .map(|row| {
                    if row.vhost.is_empty() {
                        row.name
                    } else {
                        format!("{}/{}", row.vhost, row.name)
                    }
                })
                .collect()
        }
    };
    let mut table = table(&["JOB", "WORKFLOW", "STATE"]);
    let mut rows = Vec::new();
    let mut cut = false;
    for name in names {
        let mut list: ListAnswer = parse(&client.get(&format!(
            "/api/workflow/{name}?interval={interval}&limit={LISTED_MAX}&states=true"
        ))?)?;
        cut |= list.next.is_some();
        rows.extend(list.running.into_iter().chain(list.completed).map(|id| {
            let state =
                id.parse().ok().and_then(|id: JobId| list.states.remove(&id)).unwrap_or_default();
            (id, name.clone(), state)
        }));
    }
    if arguments.json {
        let list: Vec<serde_json::Value> =
            rows.iter().map(|(id, workflow, state)| serde_json::json!({ "job": id.raw(), "workflow": workflow, "state": state.raw() })).collect();
        writeln!(out, "{}", serde_json::Value::from(list))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (id, workflow, state) in &rows {
        table.add_row([&**id, &*escaped(workflow), state]);
    }
    if rows.is_empty() {
        writeln!(out, "no jobs are running, none ended in the last {interval} minutes")?;
    } else {
        writeln!(out, "{table}")?;
    }
    if cut {
        writeln!(
            out,
            "… only the first {LISTED_MAX} of each list are shown; the API pages through all \
             (docs/http-api.md)"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.to_vec());
    table
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, ClientError> {
    serde_json::from_str(text).map_err(|error| {
        ClientError::Refused(format!(
            "the manager's answer is not what this client knows ({error}): are both of the same \
             version?"
        ))
    })
}
