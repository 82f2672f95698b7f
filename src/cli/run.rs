//! `run`: creates a job, follows it to its end, prints its result.

use super::arguments::RunArguments;
use super::client::{Client, ClientError};
use super::follow::{Follower, Heard, say};
use super::show::{JobAnswer, parse};
use super::text::Text;
use crate::clock;
use crate::engine::JobId;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::Instant;
use ureq::http::StatusCode;

/// The shortest time between two updates of the progress bar.
const BAR_EVERY: Duration = Duration::from_millis(250);

/// The exit code of a command that was ended by Ctrl-C, as in shells.
const EXIT_INTERRUPTED: i32 = 130;

/// `run`: exit code 0 when the job completes, 1 when it does not.
pub(super) fn run(arguments: &RunArguments, out: &mut dyn Write) -> Result<ExitCode, ClientError> {
    let client = Client::new(&arguments.client);
    let message = message(&arguments.message)?;
    let query: Vec<(String, String)> =
        arguments.id.iter().map(|id| ("id".to_owned(), id.to_string())).collect();
    let created =
        client.post(&format!("/api/workflow/{}", arguments.workflow), &query, &message)?;
    let id = created_id(&created)?;
    if arguments.detach {
        let id = id.to_string();
        writeln!(out, "{}", if arguments.client.json { &created } else { &id })?;
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.client.json {
        say(&format!("job {id}"));
    }
    tell_when_interrupted(id);
    let mut bar = Bar::new();
    let follower =
        Follower::new(&client, id, false, arguments.reconnect_for.0).of_new().every(BAR_EVERY);
    let end = follower.follow(|follower, heard| bar.tell(follower, &heard));
    bar.0.finish_and_clear();
    let end = end.inspect_err(|error| {
        if matches!(error, ClientError::Unreachable { .. }) {
            say(&goes_on(id));
        }
    })?;
    let is_completed = end.state == "completed";
    let result = if is_completed { Some(result(&client, id)?) } else { None };
    if arguments.client.json {
        let reason = serde_json::json!(end.reason.as_ref().map(Text::raw));
        let result = result.as_deref().unwrap_or("null");
        writeln!(
            out,
            "{{\"id\":\"{id}\",\"state\":\"{}\",\"reason\":{reason},\"result\":{result}}}",
            end.state
        )?;
    } else if let Some(result) = &result {
        writeln!(out, "{result}")?;
    }
    if is_completed {
        return Ok(ExitCode::SUCCESS);
    }
    let reason = end.reason.unwrap_or_default();
    Err(ClientError::Refused(format!("job {id} is {}: {reason}", end.state)))
}

fn created_id(created: &str) -> Result<JobId, ClientError> {
    #[derive(serde::Deserialize)]
    struct Created {
        id: JobId,
    }
    parse::<Created>(created).map(|created| created.id)
}

/// The result alone; an older manager gives it only with the whole job.
fn result(client: &Client, id: JobId) -> Result<String, ClientError> {
    match client.ask(&format!("/api/job/{id}/result"))? {
        Ok(result) => return Ok(result),
        Err((StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND, _)) => {}
        Err((_, detail)) => return Err(ClientError::Refused(detail)),
    }
    let job: JobAnswer = parse(&client.get(&format!("/api/job/{id}"))?)?;
    let end = job.completed.iter().find(|entry| entry.name == "__end__");
    let result = end.and_then(|entry| entry.message.as_ref());
    Ok(result.map_or("null", |message| message.get()).to_owned())
}

fn goes_on(id: JobId) -> String {
    format!("job {id} goes on: workflow-manager watch {id}")
}

/// Ctrl-C ends the following, not the job.
fn tell_when_interrupted(id: JobId) {
    std::thread::spawn(move || {
        let interrupted = actix_rt::System::new().block_on(tokio::signal::ctrl_c());
        if interrupted.is_ok() {
            say(&format!("\n{}", goes_on(id)));
            std::process::exit(EXIT_INTERRUPTED);
        }
    });
}

/// The message that an argument gives: JSON, `@FILE`, or `-` for standard input.
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

/// The progress of a job, on a terminal. Elsewhere there is none, and no call is made for it.
struct Bar(ProgressBar, Shown);

/// What the bar shows.
struct Shown {
    /// Something has happened since.
    is_behind: bool,
    /// Whether child jobs run: their ends are not events of this job.
    has_children: bool,
    at: Option<Instant>,
}

impl Bar {
    fn new() -> Bar {
        let bar = ProgressBar::new(0);
        let template = "{spinner} {elapsed_precise} [{bar:30}] {pos}/{len} {wide_msg}";
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        Bar(bar, Shown { is_behind: true, has_children: false, at: None })
    }

    fn tell(&mut self, follower: &mut Follower<'_>, heard: &Heard<'_>) -> Result<(), ClientError> {
        let Bar(bar, shown) = self;
        if bar.is_hidden() {
            return Ok(());
        }
        match heard {
            Heard::Event(_) => shown.is_behind = true,
            Heard::Nothing => bar.tick(),
            Heard::Cut(why) => {
                bar.set_message(format!("connecting again: {why}"));
                shown.is_behind = true;
                return Ok(());
            }
        }
        let is_due = shown.at.is_none_or(|at| at.elapsed() >= BAR_EVERY);
        if !is_due || !(shown.is_behind || shown.has_children) {
            return Ok(());
        }
        let job = follower.look()?;
        *shown = Shown {
            is_behind: false,
            has_children: job
                .steps
                .iter()
                .any(|step| step.state == "running" && step.children.is_some()),
            at: Some(clock::ticks()),
        };
        let (done, all, running) = progress(&job);
        bar.set_length(all);
        bar.set_position(done);
        bar.set_message(running);
        Ok(())
    }
}

/// How many steps and child jobs are done, how many there are, and the names of those that run.
fn progress(job: &JobAnswer) -> (u64, u64, String) {
    let mut done = 0;
    let mut all = 0;
    for step in &job.steps {
        let (ended, items) = step
            .children
            .as_ref()
            .map_or((0, 0), |children| (u64::from(children.ended), u64::from(children.items)));
        done += ended + u64::from(step.state != "waiting" && step.state != "running");
        all += items + 1;
    }
    let running: Vec<&str> =
        job.steps.iter().filter(|step| step.state == "running").map(|step| &*step.name).collect();
    (done, all, running.join(", "))
}
