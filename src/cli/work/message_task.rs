//! The task of one message: runs the program, extends the lease meanwhile, and sends the reply
//! until the manager has answered it.

use super::super::client::Client;
use super::super::text::Text;
use super::message::WorkMessage;
use super::program::{EndedProgram, Program, RunningProgram, TaskEvent};
use base::clock;
use daemon::telemetry::log::print;
use engine::text::escape;
use engine::{Message as Object, Millis};
use serde::Deserialize;
use serde_json::json;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use tokio::time::Instant;
use ureq::http::StatusCode;

/// The grace period between SIGTERM and SIGKILL, and between two SIGKILLs.
const TERMINATION_GRACE: Duration = Duration::from_secs(10);

/// The grace period between SIGTERM and SIGKILL after the second stop signal.
const TERMINATION_GRACE_SHORT: Duration = Duration::from_secs(2);

/// How often a lease is extended within its duration.
const EXTENSIONS_PER_LEASE: u32 = 3;

/// The maximum delay before a failed extension is retried.
const EXTEND_RETRY_MAX: Duration = Duration::from_secs(2);

/// The bounds of the exponential backoff between two tries to send the reply.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// The maximum length of the quoted beginning of an invalid output, in bytes.
const QUOTED_BYTES_MAX: usize = 60;

/// The delay with which a message is requeued if the program could not be started.
const SPAWN_FAILURE_DELAY: &str = "10s";

/// The context that all tasks share.
pub(super) struct WorkContext {
    pub(super) program: Program,
    /// The duration of each lease.
    pub(super) lease: Duration,
    /// Whether the log omits messages that were settled.
    pub(super) is_quiet: bool,
    /// Whether the program is started again when one of its files changes.
    pub(super) is_watching: bool,
}

/// An event for the dispatcher. A `String` is the id of a message.
pub(super) enum DispatcherEvent {
    /// A stop signal was received.
    Stop,
    /// These files of the program have changed.
    FilesChanged(Vec<PathBuf>),
    /// A try to send the reply to this message failed. It is retried.
    ReplyUnsent(String),
    /// The program cannot be started.
    SpawnFailed(io::Error),
    /// The message is no longer in flight.
    TaskEnded(String, TaskOutcome),
}

/// How the task of a message ended.
pub(super) enum TaskOutcome {
    /// The message is not settled.
    Unsettled,
    /// The message is settled by a result or an error.
    Settled,
    /// The message is settled, but its result failed the attempt, for this reason.
    InvalidOutput(String),
}

/// The task of one message in flight.
pub(super) struct MessageTask<'b> {
    pub(super) context: &'b WorkContext,
    pub(super) client: Client,
    pub(super) message: WorkMessage,
    /// Cloned for the threads of the program.
    pub(super) event_sender: Sender<TaskEvent>,
    /// The events of the program and of the dispatcher.
    pub(super) events: Receiver<TaskEvent>,
    pub(super) dispatcher: Sender<DispatcherEvent>,
}

/// Why a program was stopped.
enum StopReason {
    /// The attempt is over, for this reason, and the manager does not want a reply.
    AttemptOver(String),
    /// The output is too large. The program fails with an error that says so.
    OutputTooLarge,
    /// The message is to be requeued.
    Requeued,
    /// A file of the program has changed. The program is started again.
    Restarted,
}

/// The manager's response to a reply.
#[derive(Deserialize)]
struct ReplyResponse {
    /// Whether the reply took effect.
    taken: bool,
    /// Why it did not.
    reason: Option<Text>,
    /// Why the result failed the attempt, if it did. Managers up to 0.1.0 do not report it.
    failed: Option<Text>,
}

/// What became of a reply that the manager has received.
#[derive(Default)]
struct ReplyOutcome {
    /// A note that the reply changed nothing, for the log. Empty if it took effect.
    note: String,
    /// Why the result failed the attempt, if it did.
    failure: Option<String>,
}

impl MessageTask<'_> {
    /// Processes the message, and returns how that ended.
    pub(super) fn run(mut self) -> TaskOutcome {
        let start_time = clock::timer_now();
        let is_quiet = self.context.is_quiet;
        let (stop_reason, ended_program) = loop {
            match self.run_program() {
                Ok((Some(StopReason::Restarted), _)) => {}
                Ok(end) => break end,
                Err(error) => {
                    self.requeue(SPAWN_FAILURE_DELAY);
                    // Sending cannot fail: the dispatcher outlives the tasks.
                    let _ = self.dispatcher.send(DispatcherEvent::SpawnFailed(error));
                    return TaskOutcome::Unsettled;
                }
            }
        };
        let elapsed = Millis::from_duration(start_time.elapsed());
        let result = match (stop_reason, ended_program) {
            (Some(StopReason::AttemptOver(reason)), _) => {
                self.log(&format!("stopped after {elapsed}: {reason}"));
                return TaskOutcome::Unsettled;
            }
            (Some(StopReason::Requeued), _) => {
                self.requeue("0s");
                return TaskOutcome::Unsettled;
            }
            (Some(StopReason::OutputTooLarge | StopReason::Restarted) | None, Ok(ended)) => {
                ended.into_output()
            }
            (Some(StopReason::OutputTooLarge | StopReason::Restarted) | None, Err(error)) => {
                Err(format!("the end of the program is not known: {error}"))
            }
        };
        // An invalid output is sent anyway: the manager keeps its beginning for diagnosis.
        let mut output_error = result.as_ref().ok().and_then(|output| find_output_error(output));
        let (is_settled, note) = match self.reply(&result) {
            Ok(ReplyOutcome { note, failure }) => {
                // The manager also checks what the step requires of a result.
                output_error = output_error.or(failure);
                (true, note)
            }
            Err(note) => (false, note),
        };
        if !is_quiet || !is_settled {
            let summary = match (&result, &output_error) {
                (Ok(_), None) => "result".to_owned(),
                (Ok(_), Some(error)) => format!("error: {error}"),
                (Err(error), _) => format!("error: {}", error.lines().next().unwrap_or_default()),
            };
            self.log(&format!("took {elapsed}, {summary}{note}"));
        }
        match output_error {
            _ if !is_settled => TaskOutcome::Unsettled,
            None => TaskOutcome::Settled,
            Some(reason) => TaskOutcome::InvalidOutput(reason),
        }
    }

    /// Runs the program once, and returns why it was stopped, if it was, and how it ended.
    ///
    /// # Errors
    ///
    /// Returns an error if the program cannot be started.
    fn run_program(&mut self) -> io::Result<(Option<StopReason>, io::Result<EndedProgram>)> {
        let WorkContext { program, is_watching, .. } = self.context;
        let input = if *is_watching {
            self.message.body.clone()
        } else {
            std::mem::take(&mut self.message.body)
        };
        let running_program =
            program.start(self.message.environment(), input, &self.event_sender)?;
        let stop_reason = self.wait_for_exit(&running_program);
        if stop_reason.is_some() {
            // Child processes of the program may have ignored SIGTERM.
            running_program.kill();
        }
        Ok((stop_reason, running_program.wait_for_output()))
    }

    /// Waits until the program has ended. Extends the lease until there is a reason to stop the
    /// program, and returns that reason, if there was one.
    fn wait_for_exit(&mut self, program: &RunningProgram) -> Option<StopReason> {
        let interval = self.context.lease / EXTENSIONS_PER_LEASE;
        let mut extend_at = clock::timer_now() + interval;
        let mut kill_at: Option<Instant> = None;
        let mut stop_reason = None;
        // `kill_at` is set exactly if there is a stop reason.
        loop {
            let next_timer = kill_at.unwrap_or(extend_at);
            let timeout = next_timer.saturating_duration_since(clock::timer_now());
            let reason = match self.events.recv_timeout(timeout) {
                Ok(TaskEvent::ProgramEnded) | Err(RecvTimeoutError::Disconnected) => {
                    return stop_reason;
                }
                Ok(TaskEvent::Redelivered(reply_to)) => {
                    self.message.update_lease(reply_to);
                    extend_at = clock::timer_now() + interval;
                    continue;
                }
                Ok(TaskEvent::OutputTooLarge) => StopReason::OutputTooLarge,
                Ok(TaskEvent::Requeue) => StopReason::Requeued,
                Ok(TaskEvent::Restart) => StopReason::Restarted,
                Err(RecvTimeoutError::Timeout) if stop_reason.is_some() => {
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
                    Err(Some(reason)) => reason,
                },
            };
            let grace = match reason {
                StopReason::Requeued | StopReason::Restarted => TERMINATION_GRACE_SHORT,
                StopReason::AttemptOver(_) | StopReason::OutputTooLarge => TERMINATION_GRACE,
            };
            kill_at = Some(clock::timer_now() + grace);
            // Whatever else happens to the message outweighs a restart.
            if matches!(stop_reason, None | Some(StopReason::Restarted)) {
                stop_reason = Some(reason);
            }
            program.terminate();
        }
    }

    /// Extends the lease.
    ///
    /// # Errors
    ///
    /// Returns an error with the reason to stop the program if the attempt is over, and `None` as
    /// the error if the call failed and may be retried.
    fn extend(&self) -> Result<(), Option<StopReason>> {
        let lease = humantime::format_duration(self.context.lease).to_string();
        match self.message.extend(&self.client, &lease) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err((StatusCode::GONE, detail))) => Err(Some(StopReason::AttemptOver(detail))),
            Ok(Err(_)) | Err(_) => Err(None),
        }
    }

    /// Sends the reply, and retries with exponential backoff until the manager has received it. If
    /// the manager refuses a result as too large, an error is sent instead.
    ///
    /// # Errors
    ///
    /// Returns a note for the log if the manager refused the reply, or if the message was requeued
    /// instead.
    fn reply(&self, result: &Result<Vec<u8>, String>) -> Result<ReplyOutcome, String> {
        let error_body =
            |error: &str| json!({ "error": error, "retryable": true }).to_string().into_bytes();
        let (mut is_error, mut body) = match result {
            Ok(output) => (false, output.clone()),
            Err(error) => (true, error_body(error)),
        };
        let mut backoff = BACKOFF_MIN;
        // Why the manager refused the result. Set at most once: the next reply is an error.
        let mut refusal = None;
        loop {
            let error = match self.message.reply(&self.client, is_error, &body) {
                Ok(Ok(response)) => {
                    let ReplyOutcome { note, failure } = parse_reply_outcome(&response);
                    return Ok(ReplyOutcome { note, failure: refusal.or(failure) });
                }
                Ok(Err((StatusCode::PAYLOAD_TOO_LARGE, detail))) if !is_error => {
                    let reason = format!("the manager refused it: {detail}");
                    (is_error, body) = (true, error_body(&reason));
                    refusal = Some(reason);
                    continue;
                }
                Ok(Err((status, detail))) if !is_retryable(status) => {
                    return Err(format!(", refused: {detail}"));
                }
                Ok(Err((_, detail))) => detail,
                Err(error) => error.to_string(),
            };
            // Sending cannot fail: the dispatcher outlives the tasks.
            let _ = self.dispatcher.send(DispatcherEvent::ReplyUnsent(self.message.id()));
            let retry_at = clock::timer_now() + backoff;
            loop {
                let timeout = retry_at.saturating_duration_since(clock::timer_now());
                match self.events.recv_timeout(timeout) {
                    Ok(TaskEvent::Requeue) => {
                        self.requeue("0s");
                        return Err(format!(", not sent: {error}"));
                    }
                    // The path of an earlier delivery still works for a reply.
                    Ok(
                        TaskEvent::Redelivered(_)
                        | TaskEvent::ProgramEnded
                        | TaskEvent::OutputTooLarge
                        | TaskEvent::Restart,
                    ) => {}
                    Err(_) => break,
                }
            }
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Requeues the message, and logs whether that succeeded.
    fn requeue(&self, delay: &str) {
        match self.message.requeue(&self.client, delay) {
            Ok(()) => self.log("given back"),
            Err(error) => self.log(&format!(
                "not given back, another worker gets it when its lease ends: {error}"
            )),
        }
    }

    fn log(&self, text: &str) {
        print(&format!("{}: {text}", self.message.describe()));
    }
}

/// Returns why an output is not valid, if it is not: it must be a JSON object. The manager applies
/// the same rules, and those of the step.
fn find_output_error(output: &[u8]) -> Option<String> {
    let error = Object::parse(output).err()?;
    let output_start = String::from_utf8_lossy(&output[..output.len().min(QUOTED_BYTES_MAX)]);
    let ellipsis = if output.len() > QUOTED_BYTES_MAX { "…" } else { "" };
    Some(format!(
        "the output is not a JSON object: {error}; it begins with {}{ellipsis}",
        quote_start(&output_start)
    ))
}

/// Quotes the start of an output. Drops the replacement characters at its end, which a truncated
/// character has become.
fn quote_start(text: &str) -> String {
    format!("\"{}\"", escape(text.trim_end_matches('\u{fffd}')))
}

/// Returns whether the manager may accept later what it refused with this status. This includes a
/// missing or insufficient token, since its rights may be changed meanwhile.
fn is_retryable(status: StatusCode) -> bool {
    let retryable = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_server_error() || retryable.contains(&status)
}

/// Parses the response to a reply. A response that cannot be parsed counts as a success.
fn parse_reply_outcome(response: &str) -> ReplyOutcome {
    match serde_json::from_str(response) {
        Ok(ReplyResponse { taken: false, reason, .. }) => ReplyOutcome {
            note: format!(", which changed nothing: {}", reason.unwrap_or_default()),
            failure: None,
        },
        Ok(ReplyResponse { taken: true, failed, .. }) => {
            ReplyOutcome { note: String::new(), failure: failed.map(|reason| reason.to_string()) }
        }
        Err(_) => ReplyOutcome::default(),
    }
}
