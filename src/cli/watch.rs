//! `watch`: follows events, one line for each.

use super::ClientArguments;
use super::client::{Client, ClientError};
use super::show::parse;
use super::text::Text;
use crate::engine::JobId;
use serde::Deserialize;
use std::io::{BufRead, Write};
use std::process::ExitCode;

/// What an event says, as far as the command line shows it.
#[derive(Deserialize)]
struct EventAnswer {
    time: Text,
    data: DataAnswer,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DataAnswer {
    workflow: Text,
    task: Option<Text>,
    job: Text,
    step: Option<Text>,
    status: Option<Text>,
    attempt: Option<u32>,
    reason: Option<Text>,
    retry_at: Option<Text>,
    progress: Option<serde_json::Number>,
    message: Option<Text>,
}

#[derive(Deserialize)]
struct LaggedAnswer {
    missed: u64,
}

/// `watch [ID]`: without an id until it is interrupted. With one until the job has ended: exit code
/// 0 when it completes, 1 when it does not.
pub(super) fn watch(
    id: Option<JobId>,
    arguments: &ClientArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let client = Client::new(arguments);
    let path = id.map_or_else(|| "/api/events".to_owned(), |id| format!("/api/job/{id}/events"));
    let mut name = String::new();
    for line in client.stream(&path)?.lines() {
        let line = line.map_err(|error| {
            client.unreachable(format!("the stream of events has ended: {error}"))
        })?;
        if let Some(text) = line.strip_prefix("event: ") {
            text.clone_into(&mut name);
        }
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if arguments.json {
            writeln!(out, "{data}")?;
        } else if name == "lagged" {
            let lagged: LaggedAnswer = parse(data)?;
            writeln!(
                out,
                "… {} events were missed: they come faster than they are read",
                lagged.missed
            )?;
        } else {
            writeln!(out, "{}", line_of(&name, parse(data)?))?;
        }
        out.flush()?;
        let Some(id) =
            id.filter(|_| matches!(&*name, "job.completed" | "job.failed" | "job.cancelled"))
        else {
            continue;
        };
        let event: EventAnswer = parse(data)?;
        if *event.data.job == *id.to_string() {
            return Ok(if name == "job.completed" { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
    Err(client.unreachable("the stream of events has ended".to_owned()))
}

fn line_of(name: &str, event: EventAnswer) -> String {
    let EventAnswer { time, data } = event;
    let what = Text::new(name.split_once('.').map_or(name, |(_, what)| what));
    let mut line = format!("{time}  {}  {}", data.job, data.workflow);
    if let Some(task) = &data.task {
        line.push_str(&format!(" {task}"));
    }
    match &data.step {
        Some(step) => line.push_str(&format!("  step {step} {what}")),
        None => line.push_str(&format!("  job {what}")),
    }
    let mut notes: Vec<String> =
        data.status.iter().filter(|status| !status.is_empty()).map(Text::to_string).collect();
    notes.extend(
        data.attempt.filter(|attempt| *attempt > 1).map(|attempt| format!("attempt {attempt}")),
    );
    notes.extend(data.progress.map(|progress| format!("progress {progress}")));
    notes.extend(data.message.iter().chain(&data.reason).map(Text::to_string));
    notes.extend(data.retry_at.map(|at| format!("next attempt at {at}")));
    if !notes.is_empty() {
        line.push_str(&format!("  {}", notes.join(", ")));
    }
    line
}
