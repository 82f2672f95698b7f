//! `run`: creates a job, follows it until it has ended, and prints its result.

use super::arguments::RunArguments;
use super::client::Client;
use super::error::ClientError;
use super::follow::{JobFollower, print_notice};
use super::progress::{self, JobProgressBar, PROGRESS_INTERVAL};
use super::responses::parse_response;
use super::text::Text;
use daemon::settings::files;
use engine::JobId;
use std::io::Write;

/// The exit code after Ctrl-C: 128 plus the number of SIGINT, as in shells.
const EXIT_INTERRUPTED: i32 = 130;

/// Runs `run`: creates a job, and prints its result once it has completed.
///
/// # Errors
///
/// Returns an error if the job fails or is cancelled, or if the manager cannot be reached.
pub(super) fn run(arguments: &RunArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    let client = Client::new(&arguments.client.target)?;
    let message = read_message(&arguments.message)?;
    let id = arguments.id.map(|id| id.to_string());
    let parameters =
        [("id", id.as_ref()), ("after", arguments.after.as_ref()), ("at", arguments.at.as_ref())];
    let query: Vec<(String, String)> = parameters
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?.clone())))
        .collect();
    let response =
        client.post(&format!("/api/workflow/{}", arguments.workflow), &query, &message)?;
    let id = parse_created_id(&response)?;
    if arguments.detach {
        let id = id.to_string();
        writeln!(out, "{}", if arguments.client.json { &response } else { &id })?;
        return Ok(());
    }
    if !arguments.client.json {
        print_notice(&format!("job {id}"));
    }
    exit_on_interrupt(id);
    let mut bar = JobProgressBar::new();
    let follower = JobFollower::new(&client, id, false, arguments.reconnect_for.0)
        .for_new_job()
        .with_tick(PROGRESS_INTERVAL);
    let end = follower.follow(|follower, event| bar.handle_event(follower, &event));
    bar.clear();
    let end = end.inspect_err(|error| {
        if matches!(error, ClientError::Unreachable { .. }) {
            print_notice(&still_running_hint(id));
        }
    })?;
    if !arguments.client.json && !bar.is_visible() {
        print_children_summary(&client, id);
    }
    let is_completed = end.state == "completed";
    let result =
        if is_completed { Some(client.get(&format!("/api/job/{id}/result"))?) } else { None };
    if arguments.client.json {
        // The result is inserted as it is, so that its numbers are not changed.
        let reason_json = serde_json::json!(end.reason.as_ref().map(Text::raw));
        let result_json = result.as_deref().unwrap_or("null");
        writeln!(
            out,
            "{{\"id\":\"{id}\",\"state\":\"{}\",\"reason\":{reason_json},\
             \"result\":{result_json}}}",
            end.state
        )?;
    } else if let Some(result) = &result {
        writeln!(out, "{result}")?;
    }
    if is_completed {
        return Ok(());
    }
    let reason = end.reason.unwrap_or_default();
    Err(ClientError::Refused(format!("job {id} is {}: {reason}", end.state)))
}

/// Prints one line about the child jobs of an ended job. It replaces the progress bar, which needs
/// a terminal.
fn print_children_summary(client: &Client, id: JobId) {
    let response = client.get(&format!("/api/job/{id}?view=light"));
    // The line is not part of the result, so an error is ignored.
    let line = response
        .and_then(|body| parse_response(&body))
        .ok()
        .and_then(|job| progress::summarize_children(&job));
    if let Some(line) = line {
        print_notice(&line);
    }
}

/// Parses the id in the response to the creation of a job.
fn parse_created_id(response: &str) -> Result<JobId, ClientError> {
    #[derive(serde::Deserialize)]
    struct CreationResponse {
        id: JobId,
    }
    parse_response::<CreationResponse>(response).map(|created| created.id)
}

fn still_running_hint(id: JobId) -> String {
    format!("job {id} goes on: workflow-manager watch {id}")
}

/// Handles Ctrl-C on a background thread: ends the process, but not the job.
fn exit_on_interrupt(id: JobId) {
    std::thread::spawn(move || {
        let result = actix_rt::System::new().block_on(tokio::signal::ctrl_c());
        if result.is_ok() {
            print_notice(&format!("\n{}", still_running_hint(id)));
            std::process::exit(EXIT_INTERRUPTED);
        }
    });
}

/// The maximum size of a message from a file or standard input, in bytes. It is far larger than a
/// manager accepts.
pub(super) const MESSAGE_BYTES_MAX: u64 = 1 << 30;

/// Reads the message of an argument: JSON, `@FILE`, or `-` for standard input.
pub(super) fn read_message(argument: &str) -> Result<String, ClientError> {
    let to_usage_error = |source: &str, error: std::io::Error| {
        ClientError::Usage(format!("--message: cannot read {source}: {error}"))
    };
    if argument == "-" {
        return files::read_text(std::io::stdin(), MESSAGE_BYTES_MAX)
            .map_err(|error| to_usage_error("standard input", error));
    }
    match argument.strip_prefix('@') {
        Some(file) => files::read_file(file.as_ref(), MESSAGE_BYTES_MAX)
            .map_err(|error| to_usage_error(file, error)),
        None => Ok(argument.to_owned()),
    }
}
