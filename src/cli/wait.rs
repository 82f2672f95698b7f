//! `wait`: waits until a job is in a state.

use super::arguments::{WaitArguments, WaitedFor};
use super::bar::BAR_EVERY;
use super::client::Client;
use super::error::ClientError;
use super::follow::{Follower, Heard};
use crate::clock;
use crate::engine::JobId;
use serde_json::json;
use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;

impl WaitedFor {
    /// Returns the name of the state, or `None` for any final state.
    const fn word(self) -> Option<&'static str> {
        match self {
            WaitedFor::Ended => None,
            WaitedFor::Running => Some("running"),
            WaitedFor::Paused => Some("paused"),
            WaitedFor::Completed => Some("completed"),
            WaitedFor::Failed => Some("failed"),
            WaitedFor::Cancelled => Some("cancelled"),
        }
    }

    fn is(self, state: &str) -> bool {
        match self.word() {
            Some(word) => word == state,
            None => matches!(state, "completed" | "failed" | "cancelled"),
        }
    }
}

/// Why waiting stopped before the end of the job.
enum Stop {
    Reached(String),
    Late,
}

/// Runs `wait ID`.
pub(super) fn wait(
    arguments: &WaitArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let client = Client::new(&arguments.client.reach)?;
    let (id, wanted) = (arguments.id.find(&client)?, arguments.state);
    let begun = clock::ticks();
    let is_late = || arguments.timeout.is_some_and(|most| begun.elapsed() >= most.0);
    let mut has_looked = false;
    let mut last = String::new();
    let follower = Follower::new(&client, id, false, arguments.reconnect_for.0).every(BAR_EVERY);
    let went = follower.follow_until(|follower, heard| {
        match heard {
            Heard::Event(sent) => {
                let state = sent.name.strip_prefix("job.").unwrap_or_default();
                if wanted.is(state) {
                    return Ok(ControlFlow::Break(Stop::Reached(state.to_owned())));
                }
            }
            Heard::Cut(_) => has_looked = false,
            Heard::Nothing => {}
        }
        // The stream has no events from before it was opened, so the job is polled once.
        if !has_looked && !matches!(heard, Heard::Cut(_)) {
            last = follower.look()?.state.to_string();
            has_looked = true;
            if wanted.is(&last) {
                return Ok(ControlFlow::Break(Stop::Reached(last.clone())));
            }
        }
        Ok(if is_late() { ControlFlow::Break(Stop::Late) } else { ControlFlow::Continue(()) })
    })?;
    match went {
        ControlFlow::Break(Stop::Reached(state)) => tell(arguments, id, &state, out),
        ControlFlow::Continue(end) if wanted.is(&end.state) => tell(arguments, id, &end.state, out),
        ControlFlow::Continue(end) => {
            let word = wanted.word().unwrap_or("ended");
            let why = end.reason.map_or_else(String::new, |reason| format!(": {reason}"));
            Err(ClientError::Refused(format!(
                "job {id} is {}, and will not be {word} by itself{why}",
                end.state
            )))
        }
        ControlFlow::Break(Stop::Late) => {
            let missed = wanted
                .word()
                .map_or_else(|| "has not ended".to_owned(), |word| format!("has not been {word}"));
            let most = arguments.timeout.map_or_else(String::new, |most| most.to_string());
            let seen = if last.is_empty() { String::new() } else { format!(", it was {last}") };
            Err(ClientError::Late(format!(
                "job {id} {missed} within {most}{seen}; workflow-manager why {id} tells more"
            )))
        }
    }
}

fn tell(
    arguments: &WaitArguments,
    id: JobId,
    state: &str,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    if arguments.client.json {
        writeln!(out, "{}", json!({ "id": id.to_string(), "state": state }))?;
    } else {
        writeln!(out, "job {id} is {state}")?;
    }
    Ok(ExitCode::SUCCESS)
}
