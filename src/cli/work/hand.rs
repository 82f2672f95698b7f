//! A message in hand: the program runs, the lease is extended meanwhile, and the reply is sent
//! until the manager has taken it.

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

/// How long a program has for its end after SIGTERM, before SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// The same, when the worker was told twice to end.
const GRACE_SHORT: Duration = Duration::from_secs(2);

/// The lease is extended after this part of it.
const LEASE_PARTS: u32 = 3;

/// An extension that did not reach the manager is tried again after no more than this.
const EXTEND_AGAIN: Duration = Duration::from_secs(2);

/// The pauses between two attempts to reply, from the first to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LONGEST: Duration = Duration::from_secs(5);

/// How much of an output that is no JSON object is told, in bytes.
const TOLD_BYTES: usize = 60;

/// After how long a message is lent again whose program could not be started.
const NOT_STARTED_DELAY: &str = "10s";

/// What every message is worked on with.
pub(super) struct Bench {
    pub(super) client: Client,
    pub(super) program: Program,
    pub(super) lease: Duration,
    pub(super) is_quiet: bool,
}

/// What the hands tell.
pub(super) enum News {
    /// The worker is asked to end.
    Stop,
    /// The reply to this message did not reach the manager yet.
    Unsent(String),
    /// The program cannot be started.
    NotStarted(io::Error),
    /// This message is no longer in hand.
    Done(String, End),
}

/// How the work on a message ended.
pub(super) enum End {
    /// It is not settled.
    Open,
    Settled,
    /// Settled by an output that no step can have, and why.
    WrongOutput(String),
}

/// A message in hand.
pub(super) struct Hand<'b> {
    pub(super) bench: &'b Bench,
    pub(super) message: Message,
    pub(super) to_me: Sender<Event>,
    pub(super) events: Receiver<Event>,
    pub(super) news: Sender<News>,
}

/// Why a program was asked to end.
enum Stopped {
    /// The manager does not want the reply any more.
    Gone(String),
    /// What it gave is too large; the reply tells.
    TooLarge,
    GivenUp,
}

/// What the manager says of a reply.
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
    /// Works on the message.
    pub(super) fn work(mut self) -> End {
        let begun = clock::ticks();
        let Bench { program, is_quiet, .. } = self.bench;
        let input = std::mem::take(&mut self.message.body);
        let running = match program.start(self.message.variables(), input, &self.to_me) {
            Ok(running) => running,
            Err(error) => {
                self.give_back(NOT_STARTED_DELAY);
                // Whoever takes messages outlives the hands.
                let _ = self.news.send(News::NotStarted(error));
                return End::Open;
            }
        };
        let stopped = self.watch(&running);
        if stopped.is_some() {
            // What it has started ends with it.
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

    /// Waits until the program has ended; why it was asked to, if it was.
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

    /// Says that the message is in hand still. An error: the manager did not hear it, or, with a
    /// reason, does not want the reply any more.
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
            // Nobody listens if the worker ends.
            let _ = self.news.send(News::Unsent(self.message.id()));
            let until = clock::ticks() + pause;
            loop {
                let left = until.saturating_duration_since(clock::ticks());
                match self.events.recv_timeout(left) {
                    Ok(Event::GiveUp) => {
                        self.give_back("0s");
                        return Err(format!(", not sent: {trouble}"));
                    }
                    // Any delivery may be replied to.
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

/// Whether the manager may take later what it refused with this code.
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
