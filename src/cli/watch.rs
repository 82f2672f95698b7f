//! `watch`: prints events, one line each.

use super::arguments::WatchArguments;
use super::bar::{BAR_EVERY, Bar};
use super::client::{Client, Opened};
use super::error::ClientError;
use super::follow::{Follower, Heard, Silence, say};
use super::screen::{Screen, print_json};
use super::show::parse;
use super::stream::{Next, Stream};
use super::text::Text;
use serde::Deserialize;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// How long to wait for an event. There is nothing else to do, so this is long.
const LONG: Duration = Duration::from_secs(3600);

/// An event, as far as the command line prints it.
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

/// Runs `watch [ID]`. Without an id it runs until it is interrupted. With one it runs until the job
/// has ended; the exit code is 0 if the job has completed, and 1 otherwise.
pub(super) fn watch(
    arguments: &WatchArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let client = Client::new(&arguments.client.reach)?;
    let screen = Screen::of(arguments.times);
    let mut printer = Printer { is_json: arguments.client.json, is_cut: false, screen, out };
    let patience = arguments.reconnect_for.0;
    let Some(id) = &arguments.id else { return watch_all(&client, patience, &mut printer) };
    let id = id.find(&client)?;
    let follower = Follower::new(&client, id, !arguments.no_children, patience).every(BAR_EVERY);
    let mut bar = Bar::new();
    let end = follower.follow(|follower, heard| {
        bar.aside(|| printer.tell(&heard))?;
        bar.tell(follower, &heard)
    });
    bar.clear();
    let end = end?;
    Ok(if end.state == "completed" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints all events, until the manager has not answered for too long.
fn watch_all(
    client: &Client,
    patience: Duration,
    printer: &mut Printer<'_>,
) -> Result<ExitCode, ClientError> {
    let mut silence = Silence::new(patience, false);
    loop {
        let why = match client.open("/api/events", "") {
            Ok(Opened::Stream(body)) => {
                let (opened, stream) = (silence.answered(), Stream::new(body));
                let why = loop {
                    match stream.next(LONG) {
                        Next::Event(sent) => printer.tell(&Heard::Event(&sent))?,
                        Next::Nothing => {}
                        Next::Ended(why) => break why,
                    }
                };
                silence.ended(opened);
                why
            }
            Ok(Opened::Nothing) => "it is over".to_owned(),
            Ok(Opened::Refused(_, detail)) => return Err(ClientError::Refused(detail)),
            Err(ClientError::Unreachable { error, .. }) => {
                silence.note(&error).map_err(|error| client.unreachable(error))?;
                error
            }
            Err(error) => return Err(error),
        };
        printer.tell(&Heard::Cut(&why))?;
        silence.pause();
    }
}

struct Printer<'o> {
    is_json: bool,
    /// Whether it was reported that the stream is disconnected.
    is_cut: bool,
    screen: Screen,
    out: &'o mut dyn Write,
}

impl Printer<'_> {
    fn tell(&mut self, heard: &Heard<'_>) -> Result<(), ClientError> {
        let sent = match heard {
            Heard::Event(sent) => sent,
            Heard::Cut(why) => {
                if !self.is_cut {
                    say(&format!("… the stream of events was cut ({why}); connecting again"));
                }
                self.is_cut = true;
                return Ok(());
            }
            Heard::Nothing => return Ok(()),
        };
        self.is_cut = false;
        if self.is_json {
            print_json(&sent.data, self.out)?;
        } else if sent.name == "lagged" {
            let LaggedAnswer { missed } = parse(&sent.data)?;
            let why = "they come faster than they are read";
            writeln!(self.out, "… {missed} events were missed: {why}")?;
        } else {
            writeln!(self.out, "{}", line_of(&sent.name, parse(&sent.data)?, self.screen))?;
        }
        self.out.flush()?;
        Ok(())
    }
}

fn line_of(name: &str, event: EventAnswer, screen: Screen) -> String {
    let EventAnswer { time, data } = event;
    let what = Text::new(name.split_once('.').map_or(name, |(_, what)| what));
    let time = screen.time(&time);
    let mut line = format!("{time}  {}  {}", data.job, data.workflow);
    if let Some(task) = &data.task {
        line.push_str(&format!(" {task}"));
    }
    match &data.step {
        Some(step) => line.push_str(&format!("  step {step} {}", screen.painted(&what, &what))),
        None => line.push_str(&format!("  job {}", screen.painted(&what, &what))),
    }
    let mut notes: Vec<String> =
        data.status.iter().filter(|status| !status.is_empty()).map(Text::to_string).collect();
    notes.extend(
        data.attempt.filter(|attempt| *attempt > 1).map(|attempt| format!("attempt {attempt}")),
    );
    notes.extend(data.progress.map(|progress| format!("progress {progress}")));
    notes.extend(data.message.iter().chain(&data.reason).map(Text::to_string));
    notes.extend(data.retry_at.map(|at| format!("next attempt at {}", screen.time(&at))));
    if !notes.is_empty() {
        line.push_str(&format!("  {}", notes.join(", ")));
    }
    line
}
