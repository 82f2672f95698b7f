//! The client commands: create and follow a job, list jobs.

use super::client::{Client, ClientError};
use super::text::Text;
use super::{ClientArguments, RunArguments};
use crate::engine::JobId;
use crate::engine::words::escaped;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

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
    pub(super) completed: Vec<EntryAnswer>,
}

#[derive(Deserialize)]
pub(super) struct ParentAnswer {
    pub(super) job: Text,
    pub(super) root: Text,
    pub(super) item: u32,
}

#[derive(Deserialize)]
pub(super) struct EntryAnswer {
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

/// The pauses between two looks at a job that is followed, from the first to the longest.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_LONGEST: Duration = Duration::from_millis(500);

/// The exit code of a command that Ctrl-C has ended, as shells have it.
const EXIT_INTERRUPTED: i32 = 130;

/// Jobs listed for one workflow.
const LISTED_MAX: u32 = 1_000;

/// `run`: exit code 0 when the job completes, 1 when it does not.
pub(super) fn run(arguments: &RunArguments, out: &mut dyn Write) -> Result<ExitCode, ClientError> {
    let client = Client::new(&arguments.client);
    let message = message(&arguments.message)?;
    let query: Vec<(String, String)> =
        arguments.id.iter().map(|id| ("id".to_owned(), id.to_string())).collect();
    let created =
        client.post(&format!("/api/workflow/{}", arguments.workflow), &query, &message)?;
    let id = parse::<serde_json::Value>(&created)?
        .get("id")
        .and_then(|id| id.as_str().map(str::to_owned))
        .unwrap_or_default();
    if arguments.detach {
        writeln!(out, "{}", if arguments.client.json { &created } else { &id })?;
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.client.json {
        tell(&format!("job {id}"));
    }
    tell_when_interrupted(id.clone());
    let job = follow(&client, &id).inspect_err(|error| {
        if matches!(error, ClientError::Unreachable { .. }) {
            tell(&goes_on(&id));
        }
    })?;
    let result = job
        .completed
        .iter()
        .find(|entry| entry.name == "__end__")
        .and_then(|entry| entry.message.as_ref())
        .map_or("null", |message| message.get());
    if arguments.client.json {
        let reason = serde_json::json!(job.reason.as_ref().map(Text::raw));
        writeln!(
            out,
            "{{\"id\":\"{id}\",\"state\":\"{}\",\"reason\":{reason},\"result\":{result}}}",
            job.state
        )?;
    } else if job.state == "completed" {
        writeln!(out, "{result}")?;
    }
    if job.state == "completed" {
        return Ok(ExitCode::SUCCESS);
    }
    Err(ClientError::Refused(format!(
        "job {id} is {}: {}",
        job.state,
        job.reason.unwrap_or_default()
    )))
}

fn goes_on(id: &str) -> String {
    format!("job {id} goes on: workflow-manager watch {id}")
}

/// Says something that is no result: on standard error.
fn tell(text: &str) {
    // With standard error closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Ctrl-C ends the following, not the job.
fn tell_when_interrupted(id: String) {
    std::thread::spawn(move || {
        let interrupted = actix_rt::System::new().block_on(tokio::signal::ctrl_c());
        if interrupted.is_ok() {
            tell(&format!("\n{}", goes_on(&id)));
            std::process::exit(EXIT_INTERRUPTED);
        }
    });
}

pub(super) fn message(argument: &str) -> Result<String, ClientError> {
    let cannot = |what: &str, error: std::io::Error| {
        ClientError::Usage(format!("--message: cannot read {what}: {error}"))
    };
    if argument == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| cannot("standard input", error))?;
        return Ok(text);
    }
    match argument.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).map_err(|error| cannot(file, error)),
        None => Ok(argument.to_owned()),
    }
}

fn follow(client: &Client, id: &str) -> Result<JobAnswer, ClientError> {
    let bar = ProgressBar::new(0);
    bar.set_style(
        ProgressStyle::with_template("{spinner} {elapsed_precise} [{bar:30}] {pos}/{len} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let mut pause = LOOK_FIRST;
    loop {
        let job: JobAnswer = parse(&client.get(&format!("/api/job/{id}"))?)?;
        let (done, all, running) = progress(&job);
        bar.set_length(all);
        bar.set_position(done);
        bar.set_message(running);
        if job.state != "running" && job.state != "paused" {
            bar.finish_and_clear();
            return Ok(job);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOOK_LONGEST);
    }
}

/// Steps and child jobs done, all of them, and the names of those that run.
fn progress(job: &JobAnswer) -> (u64, u64, String) {
    let mut done = 0;
    let mut all = 0;
    for step in &job.steps {
        let (ended, items) = step
            .children
            .as_ref()
            .map_or((0, 0), |children| (u64::from(children.ended), u64::from(children.items)));
        done += ended + u64::from(step.state == "completed");
        all += items + 1;
    }
    let running: Vec<&str> =
        job.steps.iter().filter(|step| step.state == "running").map(|step| &*step.name).collect();
    (done, all, running.join(", "))
}

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
            "… only the first {LISTED_MAX} of each list are shown; the API pages through all (docs/http-api.md)"
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
    serde_json::from_str(text)
        .map_err(|error| ClientError::Refused(format!("the manager's answer is not what this client knows ({error}): are both of the same version?")))
}
