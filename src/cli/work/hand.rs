//! The task of one message: runs the program, extends the lease meanwhile, and sends the reply
//! until the manager has accepted it.

use super::super::client::Client;
use super::super::text::Text;
use super::message::Message;
use super::program::{Event, Program, Running};
use crate::clock;
use crate::engine::words::escaped;
use crate::engine::{Message as Object, Millis};
use crate::telemetry::log::say;
use serde::Deserialize;
use serde_json::json;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use tokio::time::Instant;
use ureq::http::StatusCode;

/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// The same, after the second signal to stop.
const GRACE_SHORT: Duration = Duration::from_secs(2);

/// The lease is extended when this fraction of it has passed: one over this number.
const LEASE_PARTS: u32 = 3;

/// The longest pause before an extension that did not reach the manager is tried again.
const EXTEND_AGAIN: Duration = Duration::from_secs(2);

/// The bounds of the pause between two attempts to reply.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LONGEST: Duration = Duration::from_secs(5);

/// How much of an invalid output is quoted, in bytes.
const TOLD_BYTES: usize = 60;

/// The delay of the redelivery if the program could not be started.
const NOT_STARTED_DELAY: &str = "10s";

/// What all tasks share.
pub(super) struct Bench {
    pub(super) client: Client,
    pub(super) program: Program,
    pub(super) lease: Duration,
    pub(super) is_quiet: bool,
}

/// An event for the dispatcher.
pub(super) enum News {
    /// A signal asks the worker to stop.
    Stop,
    /// The reply to the message with this id did not reach the manager yet.
    Unsent(String),
    /// The program cannot be started.
    NotStarted(io::Error),
    /// The message with this id is no longer in flight.
    Done(String, End),
}

/// How the task of a message ended.
pub(super) enum End {
    /// The message is not settled.
    Open,
    Settled,
    /// The message is settled by an output that no step can have, for this reason.
    WrongOutput(String),
}

/// The task of one message in flight.
pub(super) struct Hand<'b> {
    pub(super) bench: &'b Bench,
    pub(super) message: Message,
    pub(super) to_me: Sender<Event>,
    pub(super) events: Receiver<Event>,
    pub(super) news: Sender<News>,
}

/// Why a program was asked to end.
enum Stopped {
    /// The manager no longer wants the reply.
    Gone(String),
    /// The output is too large. The reply says so.
    TooLarge,
    GivenUp,
}

/// The manager's answer to a reply.
#[derive(Deserialize)]
struct Taken {
    taken: bool,
    reason: Option<Text>,
    /// Why the attempt failed by the result. Managers up to 0.1.0 do not say it.
    failed: Option<Text>,
}

/// What became of a reply that was sent.
#[derive(Default)]
struct Outcome {
    /// That it changed nothing, if so.
    useless: String,
    /// Why the result failed the attempt, if it did.
    failed: Option<String>,
}

impl Hand<'_> {
    /// Processes the message, and returns how that ended.
    pub(super) fn work(mut self) -> End {
        let begun = clock::ticks();
        let Bench { program, is_quiet, .. } = self.bench;
        let input = std::mem::take(&mut self.message.body);
        let running = match program.start(self.message.variables(), input, &self.to_me) {
            Ok(running) => running,
            Err(error) => {
                self.give_back(NOT_STARTED_DELAY);
                // Sending cannot fail: the dispatcher outlives the tasks.
                let _ = self.news.send(News::NotStarted(error));
                return End::Open;
            }
        };
        let stopped = self.watch(&running);
        if stopped.is_some() {
            // Also ends the processes that it has started.
            running.kill();
        }
        let ended = running.end();
        let took = Millis::of(begun.elapsed());
        let result = match (stopped, ended) {
            (Some(Stopped::Gone(why)), _) => {
                self.tell(&format!("stopped after {took}: {why}"));
                return End::Open;
            }
            (Some(Stopped::GivenUp), _) => {
                self.give_back("0s");
                return End::Open;
            }
            (Some(Stopped::TooLarge) | None, Ok(ended)) => ended.output(),
            (Some(Stopped::TooLarge) | None, Err(error)) => {
                Err(format!("the end of the program is not known: {error}"))
            }
        };
        // It is sent all the same: the manager keeps its beginning for the reader.
        let mut wrong = result.as_ref().ok().and_then(|output| wrong_output(output));
        let (is_settled, outcome) = match self.reply(&result) {
            Ok(Outcome { useless, failed }) => {
                // What the step asks of a result besides, the manager alone knows.
                wrong = wrong.or(failed);
                (true, useless)
            }
            Err(unsettled) => (false, unsettled),
        };
        if !is_quiet || !is_settled {
            let what = match (&result, &wrong) {
                (Ok(_), None) => "result".to_owned(),
                (Ok(_), Some(wrong)) => format!("error: {wrong}"),
                (Err(error), _) => format!("error: {}", error.lines().next().unwrap_or_default()),
            };
            self.tell(&format!("took {took}, {what}{outcome}"));
        }
        match wrong {
            _ if !is_settled => End::Open,
            None => End::Settled,
            Some(wrong) => End::WrongOutput(wrong),
        }
    }

    /// Waits until the program has ended. Returns why it was asked to end, if it was.
    fn watch(&mut self, running: &Running) -> Option<Stopped> {
        let part = self.bench.lease / LEASE_PARTS;
        let mut extend_at = clock::ticks() + part;
        let mut kill_at: Option<Instant> = None;
        let mut stopped = None;
        loop {
            let until = kill_at.unwrap_or(extend_at);
            let left = until.saturating_duration_since(clock::ticks());
            let reason = match self.events.recv_timeout(left) {
                Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => return stopped,
                Ok(Event::LentAgain(reply_to)) => {
                    self.message.lent_again(reply_to);
                    extend_at = clock::ticks() + part;
                    continue;
                }
                Ok(Event::TooLarge) => Stopped::TooLarge,
                Ok(Event::GiveUp) => Stopped::GivenUp,
                Err(RecvTimeoutError::Timeout) if stopped.is_some() => {
                    running.kill();
                    kill_at = Some(clock::ticks() + GRACE);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => match self.extend() {
                    Ok(()) => {
                        extend_at = clock::ticks() + part;
                        continue;
                    }
                    Err(None) => {
                        extend_at = clock::ticks() + part.min(EXTEND_AGAIN);
                        continue;
                    }
                    Err(Some(gone)) => gone,
                },
            };
            let grace = if matches!(reason, Stopped::GivenUp) { GRACE_SHORT } else { GRACE };
            kill_at = Some(clock::ticks() + grace);
            stopped.get_or_insert(reason);
            running.terminate();
        }
    }

    /// Extends the lease.
    ///
    /// Returns an error without a reason if the manager was not reached, and with a reason if it no
    /// longer wants the reply.
    fn extend(&self) -> Result<(), Option<Stopped>> {
        let lease = humantime::format_duration(self.bench.lease).to_string();
        match self.message.extend(&self.bench.client, &lease) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err((StatusCode::GONE, why))) => Err(Some(Stopped::Gone(why))),
            Ok(Err(_)) | Err(_) => Err(None),
        }
    }

    /// Replies until the manager has taken it; an error if it came to nothing.
    fn reply(&self, result: &Result<Vec<u8>, String>) -> Result<Outcome, String> {
        let failed =
            |why: &str| json!({ "error": why, "retryable": true }).to_string().into_bytes();
        let (mut is_error, mut body) = match result {
            Ok(output) => (false, output.clone()),
            Err(why) => (true, failed(why)),
        };
        let mut pause = PAUSE_FIRST;
        let mut refused = None;
        loop {
            let trouble = match self.message.reply(&self.bench.client, is_error, &body) {
                Ok(Ok(answer)) => {
                    let Outcome { useless, failed } = outcome(&answer);
                    return Ok(Outcome { useless, failed: refused.or(failed) });
                }
                Ok(Err((StatusCode::PAYLOAD_TOO_LARGE, why))) if !is_error => {
                    let why = format!("the manager refused it: {why}");
                    (is_error, body) = (true, failed(&why));
                    refused = Some(why);
                    continue;
                }
                Ok(Err((status, why))) if !may_pass(status) => {
                    return Err(format!(", refused: {why}"));
                }
                Ok(Err((_, why))) => why,
                Err(error) => error.to_string(),
            };
            // Sending fails only if the worker stops.
            let _ = self.news.send(News::Unsent(self.message.id()));
            let until = clock::ticks() + pause;
            loop {
                let left = until.saturating_duration_since(clock::ticks());
                match self.events.recv_timeout(left) {
                    Ok(Event::GiveUp) => {
                        self.give_back("0s");
                        return Err(format!(", not sent: {trouble}"));
                    }
                    // The reply may go to any delivery of the message.
                    Ok(Event::LentAgain(_) | Event::Ended | Event::TooLarge) => {}
                    Err(_) => break,
                }
            }
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    fn give_back(&self, delay: &str) {
        match self.message.give_back(&self.bench.client, delay) {
            Ok(()) => self.tell("given back"),
            Err(why) => self.tell(&format!(
                "not given back, another worker gets it when its lease ends: {why}"
            )),
        }
    }

    fn tell(&self, what: &str) {
        say(&format!("{}: {what}", self.message.name()));
    }
}

/// Why an output can be no step's, if so: it is no JSON object. The manager judges by the same
/// rules, and by those of the step.
fn wrong_output(output: &[u8]) -> Option<String> {
    let why = Object::parse(output).err()?;
    let text = String::from_utf8_lossy(&output[..output.len().min(TOLD_BYTES)]);
    let more = if output.len() > TOLD_BYTES { "…" } else { "" };
    Some(format!("the output is no JSON object: {why}; it begins with {}{more}", quoted(&text)))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text.trim_end_matches('\u{fffd}')))
}

/// Returns whether the manager may accept later what it refused with this status.
fn may_pass(status: StatusCode) -> bool {
    let passing = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_server_error() || passing.contains(&status)
}

/// What the manager says of a reply.
fn outcome(answer: &str) -> Outcome {
    match serde_json::from_str(answer) {
        Ok(Taken { taken: false, reason, .. }) => Outcome {
            useless: format!(", which changed nothing: {}", reason.unwrap_or_default()),
            failed: None,
        },
        Ok(Taken { taken: true, failed, .. }) => {
            Outcome { useless: String::new(), failed: failed.map(|why| why.to_string()) }
        }
        Err(_) => Outcome::default(),
    }
}
