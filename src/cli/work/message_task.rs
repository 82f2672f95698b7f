//! The task of one message: runs the program, extends the lease meanwhile, and sends the reply
//! until the manager has accepted it.

use super::super::client::Client;
use super::super::text::Text;
use super::message::WorkMessage;
use super::program::{Program, RunningProgram, TaskEvent};
use base::clock;
use daemon::telemetry::log::print;
use engine::text::escape;
use engine::{Message as Object, Millis};
use serde::Deserialize;
use serde_json::json;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use tokio::time::Instant;
use ureq::http::StatusCode;

/// The time between SIGTERM and SIGKILL.
const TERMINATION_GRACE: Duration = Duration::from_secs(10);

/// The same, after the second signal to stop.
const TERMINATION_GRACE_SHORT: Duration = Duration::from_secs(2);

/// The lease is extended when this fraction of it has passed: one over this number.
const EXTENSIONS_PER_LEASE: u32 = 3;

/// The longest pause before an extension that did not reach the manager is tried again.
const EXTEND_RETRY_MAX: Duration = Duration::from_secs(2);

/// The bounds of the pause between two attempts to reply.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// How much of an invalid output is quoted, in bytes.
const QUOTED_BYTES_MAX: usize = 60;

/// The delay of the redelivery if the program could not be started.
const SPAWN_FAILURE_DELAY: &str = "10s";

/// What all tasks share.
pub(super) struct WorkContext {
    pub(super) client: Client,
    pub(super) program: Program,
    pub(super) lease: Duration,
    pub(super) is_quiet: bool,
}

/// An event for the dispatcher.
pub(super) enum DispatcherEvent {
    /// A signal asks the worker to stop.
    Stop,
    /// The reply to the message with this id did not reach the manager yet.
    ReplyUnsent(String),
    /// The program cannot be started.
    SpawnFailed(io::Error),
    /// The message with this id is no longer in flight.
    TaskEnded(String, TaskOutcome),
}

/// How the task of a message ended.
pub(super) enum TaskOutcome {
    /// The message is not settled.
    Unsettled,
    Settled,
    /// The message is settled by an output that no step can have, for this reason.
    InvalidOutput(String),
}

/// The task of one message in flight.
pub(super) struct MessageTask<'b> {
    pub(super) context: &'b WorkContext,
    pub(super) message: WorkMessage,
    pub(super) event_sender: Sender<TaskEvent>,
    pub(super) events: Receiver<TaskEvent>,
    pub(super) dispatcher: Sender<DispatcherEvent>,
}

/// Why a program was asked to end.
enum StopReason {
    /// The manager no longer wants the reply.
    AttemptOver(String),
    /// The output is too large. The reply says so.
    OutputTooLarge,
    Requeued,
}

/// The manager's answer to a reply.
#[derive(Deserialize)]
struct ReplyResponse {
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

impl MessageTask<'_> {
    /// Processes the message, and returns how that ended.
    pub(super) fn run(mut self) -> TaskOutcome {
        let begun = clock::timer_now();
        let WorkContext { program, is_quiet, .. } = self.context;
        let input = std::mem::take(&mut self.message.body);
        let program = match program.start(self.message.environment(), input, &self.event_sender) {
            Ok(running) => running,
            Err(error) => {
                self.requeue(SPAWN_FAILURE_DELAY);
                // Sending cannot fail: the dispatcher outlives the tasks.
                let _ = self.dispatcher.send(DispatcherEvent::SpawnFailed(error));
                return TaskOutcome::Unsettled;
            }
        };
        let stopped = self.wait_for_exit(&program);
        if stopped.is_some() {
            // Also ends the processes that it has started.
            program.kill();
        }
        let ended = program.wait_for_output();
        let took = Millis::from_duration(begun.elapsed());
        let result = match (stopped, ended) {
            (Some(StopReason::AttemptOver(why)), _) => {
                self.log(&format!("stopped after {took}: {why}"));
                return TaskOutcome::Unsettled;
            }
            (Some(StopReason::Requeued), _) => {
                self.requeue("0s");
                return TaskOutcome::Unsettled;
            }
            (Some(StopReason::OutputTooLarge) | None, Ok(ended)) => ended.into_output(),
            (Some(StopReason::OutputTooLarge) | None, Err(error)) => {
                Err(format!("the end of the program is not known: {error}"))
            }
        };
        // It is sent all the same: the manager keeps its beginning for the reader.
        let mut wrong = result.as_ref().ok().and_then(|output| find_output_error(output));
        let (is_settled, outcome) = match self.reply(&result) {
            Ok(Outcome { useless, failed }) => {
                // What the step asks of a result besides, the manager alone knows.
                wrong = wrong.or(failed);
                (true, useless)
            }
            Err(unsettled) => (false, unsettled),
        };
        if !is_quiet || !is_settled {
            let summary = match (&result, &wrong) {
                (Ok(_), None) => "result".to_owned(),
                (Ok(_), Some(wrong)) => format!("error: {wrong}"),
                (Err(error), _) => format!("error: {}", error.lines().next().unwrap_or_default()),
            };
            self.log(&format!("took {took}, {summary}{outcome}"));
        }
        match wrong {
            _ if !is_settled => TaskOutcome::Unsettled,
            None => TaskOutcome::Settled,
            Some(wrong) => TaskOutcome::InvalidOutput(wrong),
        }
    }

    /// Waits until the program has ended. Returns why it was asked to end, if it was.
    fn wait_for_exit(&mut self, program: &RunningProgram) -> Option<StopReason> {
        let interval = self.context.lease / EXTENSIONS_PER_LEASE;
        let mut extend_at = clock::timer_now() + interval;
        let mut kill_at: Option<Instant> = None;
        let mut stopped = None;
        loop {
            let until = kill_at.unwrap_or(extend_at);
            let left = until.saturating_duration_since(clock::timer_now());
            let reason = match self.events.recv_timeout(left) {
                Ok(TaskEvent::ProgramEnded) | Err(RecvTimeoutError::Disconnected) => {
                    return stopped;
                }
                Ok(TaskEvent::Redelivered(reply_to)) => {
                    self.message.update_lease(reply_to);
                    extend_at = clock::timer_now() + interval;
                    continue;
                }
                Ok(TaskEvent::OutputTooLarge) => StopReason::OutputTooLarge,
                Ok(TaskEvent::Requeue) => StopReason::Requeued,
                Err(RecvTimeoutError::Timeout) if stopped.is_some() => {
                    program.kill();
                    kill_at = Some(clock::timer_now() + TERMINATION_GRACE);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => match self.extend() {
                    Ok(()) => {
                        extend_at = clock::timer_now() + interval;
                        continue;
                    }
                    Err(None) => {
                        extend_at = clock::timer_now() + interval.min(EXTEND_RETRY_MAX);
                        continue;
                    }
                    Err(Some(gone)) => gone,
                },
            };
            let grace = if matches!(reason, StopReason::Requeued) {
                TERMINATION_GRACE_SHORT
            } else {
                TERMINATION_GRACE
            };
            kill_at = Some(clock::timer_now() + grace);
            stopped.get_or_insert(reason);
            program.terminate();
        }
    }

    /// Extends the lease.
    ///
    /// Returns an error without a reason if the manager was not reached, and with a reason if it no
    /// longer wants the reply.
    fn extend(&self) -> Result<(), Option<StopReason>> {
        let lease = humantime::format_duration(self.context.lease).to_string();
        match self.message.extend(&self.context.client, &lease) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err((StatusCode::GONE, why))) => Err(Some(StopReason::AttemptOver(why))),
            Ok(Err(_)) | Err(_) => Err(None),
        }
    }

    /// Replies until the manager has taken it; an error if it came to nothing.
    fn reply(&self, result: &Result<Vec<u8>, String>) -> Result<Outcome, String> {
        let error_body =
            |why: &str| json!({ "error": why, "retryable": true }).to_string().into_bytes();
        let (mut is_error, mut body) = match result {
            Ok(output) => (false, output.clone()),
            Err(why) => (true, error_body(why)),
        };
        let mut pause = BACKOFF_MIN;
        let mut refused = None;
        loop {
            let error = match self.message.reply(&self.context.client, is_error, &body) {
                Ok(Ok(answer)) => {
                    let Outcome { useless, failed } = outcome(&answer);
                    return Ok(Outcome { useless, failed: refused.or(failed) });
                }
                Ok(Err((StatusCode::PAYLOAD_TOO_LARGE, why))) if !is_error => {
                    let why = format!("the manager refused it: {why}");
                    (is_error, body) = (true, error_body(&why));
                    refused = Some(why);
                    continue;
                }
                Ok(Err((status, why))) if !is_retryable(status) => {
                    return Err(format!(", refused: {why}"));
                }
                Ok(Err((_, why))) => why,
                Err(error) => error.to_string(),
            };
            // Sending fails only if the worker stops.
            let _ = self.dispatcher.send(DispatcherEvent::ReplyUnsent(self.message.id()));
            let until = clock::timer_now() + pause;
            loop {
                let left = until.saturating_duration_since(clock::timer_now());
                match self.events.recv_timeout(left) {
                    Ok(TaskEvent::Requeue) => {
                        self.requeue("0s");
                        return Err(format!(", not sent: {error}"));
                    }
                    // The reply may go to any delivery of the message.
                    Ok(
                        TaskEvent::Redelivered(_)
                        | TaskEvent::ProgramEnded
                        | TaskEvent::OutputTooLarge,
                    ) => {}
                    Err(_) => break,
                }
            }
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }

    fn requeue(&self, delay: &str) {
        match self.message.requeue(&self.context.client, delay) {
            Ok(()) => self.log("given back"),
            Err(why) => self
                .log(&format!("not given back, another worker gets it when its lease ends: {why}")),
        }
    }

    fn log(&self, text: &str) {
        print(&format!("{}: {text}", self.message.describe()));
    }
}

/// Why an output can be no step's, if so: it is no JSON object. The manager judges by the same
/// rules, and by those of the step.
fn find_output_error(output: &[u8]) -> Option<String> {
    let why = Object::parse(output).err()?;
    let text = String::from_utf8_lossy(&output[..output.len().min(QUOTED_BYTES_MAX)]);
    let more = if output.len() > QUOTED_BYTES_MAX { "…" } else { "" };
    Some(format!(
        "the output is no JSON object: {why}; it begins with {}{more}",
        quote_start(&text)
    ))
}

fn quote_start(text: &str) -> String {
    format!("\"{}\"", escape(text.trim_end_matches('\u{fffd}')))
}

/// Returns whether the manager may accept later what it refused with this status.
fn is_retryable(status: StatusCode) -> bool {
    let retryable = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_server_error() || retryable.contains(&status)
}

/// What the manager says of a reply.
fn outcome(answer: &str) -> Outcome {
    match serde_json::from_str(answer) {
        Ok(ReplyResponse { taken: false, reason, .. }) => Outcome {
            useless: format!(", which changed nothing: {}", reason.unwrap_or_default()),
            failed: None,
        },
        Ok(ReplyResponse { taken: true, failed, .. }) => {
            Outcome { useless: String::new(), failed: failed.map(|why| why.to_string()) }
        }
        Err(_) => Outcome::default(),
    }
}
