//! `watch`: prints events, one line each.

use super::arguments::WatchArguments;
use super::client::{Client, StreamResponse};
use super::error::ClientError;
use super::follow::{FollowEvent, JobFollower, ReconnectPolicy, print_notice};
use super::progress::{JobProgressBar, PROGRESS_INTERVAL};
use super::responses::parse_response;
use super::screen::{Screen, print_json};
use super::stream::{EventReader, StreamItem};
use super::text::Text;
use serde::Deserialize;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// How long one call of [`EventReader::next`] waits. After a timeout the call is repeated.
const EVENT_TIMEOUT: Duration = Duration::from_secs(3600);

/// An event, as far as the command line prints it.
#[derive(Deserialize)]
struct EventResponse {
    time: Text,
    data: EventDataResponse,
}

/// The data of an event. What is `None` does not apply to its kind.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventDataResponse {
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

/// The data of the event `lagged`.
#[derive(Deserialize)]
struct LaggedResponse {
    /// How many events were missed.
    missed: u64,
}

/// Runs `watch [ID]`. Without an id it runs until it is interrupted. With one it runs until the job
/// has ended; the exit code is 0 if the job has completed, and 1 otherwise.
pub(super) fn watch(
    arguments: &WatchArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let client = Client::new(&arguments.client.target)?;
    let screen = Screen::for_stdout(arguments.times);
    let mut printer =
        EventPrinter { is_json: arguments.client.json, is_disconnected: false, screen, out };
    let reconnect_timeout = arguments.reconnect_for.0;
    let Some(id) = &arguments.id else {
        return watch_all(&client, reconnect_timeout, &mut printer);
    };
    let id = id.resolve(&client)?;
    let follower = JobFollower::new(&client, id, !arguments.no_children, reconnect_timeout)
        .with_tick(PROGRESS_INTERVAL);
    let mut bar = JobProgressBar::new();
    let end = follower.follow(|follower, event| {
        bar.suspend(|| printer.print(&event))?;
        bar.handle_event(follower, &event)
    });
    bar.clear();
    let end = end?;
    Ok(if end.state == "completed" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the events of all jobs, until the manager has not answered for the timeout.
fn watch_all(
    client: &Client,
    reconnect_timeout: Duration,
    printer: &mut EventPrinter<'_>,
) -> Result<ExitCode, ClientError> {
    let mut reconnect = ReconnectPolicy::new(reconnect_timeout, false);
    loop {
        let reason = match client.open_stream("/api/events", "") {
            Ok(StreamResponse::Stream(body)) => {
                let (opened_at, stream) = (reconnect.handle_open(), EventReader::new(body));
                let reason = loop {
                    match stream.next(EVENT_TIMEOUT) {
                        StreamItem::Event(event) => printer.print(&FollowEvent::Event(&event))?,
                        StreamItem::TimedOut => {}
                        StreamItem::Closed(reason) => break reason,
                    }
                };
                reconnect.handle_close(opened_at);
                reason
            }
            Ok(StreamResponse::NoContent) => "it is over".to_owned(),
            Ok(StreamResponse::Refused(_, detail)) => return Err(ClientError::Refused(detail)),
            Err(ClientError::Unreachable { error, .. }) => {
                reconnect
                    .handle_failure(&error)
                    .map_err(|error| client.unreachable_error(error))?;
                error
            }
            Err(error) => return Err(error),
        };
        printer.print(&FollowEvent::Disconnected(&reason))?;
        reconnect.wait();
    }
}

/// Prints events, one line each.
struct EventPrinter<'o> {
    is_json: bool,
    /// Whether the connection is broken, and that was reported.
    is_disconnected: bool,
    screen: Screen,
    out: &'o mut dyn Write,
}

impl EventPrinter<'_> {
    /// Prints an event. If the connection breaks, prints that once.
    fn print(&mut self, follow_event: &FollowEvent<'_>) -> Result<(), ClientError> {
        let event = match follow_event {
            FollowEvent::Event(event) => event,
            FollowEvent::Disconnected(reason) => {
                if !self.is_disconnected {
                    print_notice(&format!(
                        "… the stream of events was cut ({reason}); connecting again"
                    ));
                }
                self.is_disconnected = true;
                return Ok(());
            }
            FollowEvent::Idle => return Ok(()),
        };
        self.is_disconnected = false;
        if self.is_json {
            print_json(&event.data, self.out)?;
        } else if event.name == "lagged" {
            let LaggedResponse { missed } = parse_response(&event.data)?;
            writeln!(
                self.out,
                "… {missed} events were missed: they come faster than they are read"
            )?;
        } else {
            writeln!(
                self.out,
                "{}",
                render_event(&event.name, parse_response(&event.data)?, self.screen)
            )?;
        }
        self.out.flush()?;
        Ok(())
    }
}

/// Renders an event as one line: its time, job, workflow and change, then what is known beyond.
fn render_event(name: &str, event: EventResponse, screen: Screen) -> String {
    let time = screen.format_time(&event.time).into_owned();
    let change = render_change(name, &event.data, screen);
    format!("{time}  {}  {change}", event.data.job)
}

/// Renders the body of an event without its time and its job. Returns `None` if it cannot be
/// parsed.
pub(super) fn render_body(name: &str, body: &str, screen: Screen) -> Option<String> {
    let event: EventResponse = parse_response(body).ok()?;
    Some(render_change(name, &event.data, screen))
}

/// Renders the workflow and the change of an event, then what is known beyond.
fn render_change(name: &str, data: &EventDataResponse, screen: Screen) -> String {
    let change = Text::new(name.split_once('.').map_or(name, |(_, kind)| kind));
    let mut line = data.workflow.to_string();
    if let Some(task) = &data.task {
        line.push_str(&format!(" {task}"));
    }
    match &data.step {
        Some(step) => line.push_str(&format!("  step {step} {}", screen.colour(&change, &change))),
        None => line.push_str(&format!("  job {}", screen.colour(&change, &change))),
    }
    let mut notes: Vec<String> =
        data.status.iter().filter(|status| !status.is_empty()).map(Text::to_string).collect();
    notes.extend(
        data.attempt.filter(|attempt| *attempt > 1).map(|attempt| format!("attempt {attempt}")),
    );
    notes.extend(data.progress.as_ref().map(|progress| format!("progress {progress}")));
    notes.extend(data.message.iter().chain(&data.reason).map(Text::to_string));
    notes.extend(
        data.retry_at
            .as_ref()
            .map(|retry_at| format!("next attempt at {}", screen.format_time(retry_at))),
    );
    if !notes.is_empty() {
        line.push_str(&format!("  {}", notes.join(", ")));
    }
    line
}
