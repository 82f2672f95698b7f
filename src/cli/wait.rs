//! `wait`: waits until a job is in a state.

use super::arguments::{AwaitedState, WaitArguments};
use super::client::Client;
use super::error::ClientError;
use super::follow::{FollowEvent, JobFollower};
use super::progress::PROGRESS_INTERVAL;
use base::clock;
use engine::JobId;
use serde_json::json;
use std::io::Write;
use std::ops::ControlFlow;

impl AwaitedState {
    /// Returns the name of the state. `None` stands for any final state.
    const fn as_str(self) -> Option<&'static str> {
        match self {
            AwaitedState::Ended => None,
            AwaitedState::Running => Some("running"),
            AwaitedState::Paused => Some("paused"),
            AwaitedState::Completed => Some("completed"),
            AwaitedState::Failed => Some("failed"),
            AwaitedState::Cancelled => Some("cancelled"),
        }
    }

    /// Returns whether `state` is the awaited state.
    fn includes(self, state: &str) -> bool {
        match self.as_str() {
            Some(awaited) => awaited == state,
            None => matches!(state, "completed" | "failed" | "cancelled"),
        }
    }
}

/// Why the wait stopped before the job has ended.
enum WaitStop {
    /// The job was in this state, which is the awaited one.
    Reached(String),
    /// The timeout of the arguments is over.
    TimedOut,
}

/// Runs `wait ID`: waits until the job is in the awaited state, and prints the state.
///
/// # Errors
///
/// Returns an error if the job has ended in another state, or if the timeout is over.
pub(super) fn wait(arguments: &WaitArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    let client = Client::new(&arguments.client.target)?;
    let (id, awaited) = (arguments.id.resolve(&client)?, arguments.state);
    let start = clock::timer_now();
    let has_timed_out = || arguments.timeout.is_some_and(|timeout| start.elapsed() >= timeout.0);
    // Whether the job was polled since the current stream was opened.
    let mut has_polled = false;
    // The state at the last poll; empty before the first one.
    let mut last_state = String::new();
    let follower = JobFollower::new(&client, id, false, arguments.reconnect_for.0)
        .with_tick(PROGRESS_INTERVAL);
    let outcome = follower.follow_until(|follower, event| {
        match event {
            FollowEvent::Event(event) => {
                let state = event.name.strip_prefix("job.");
                if let Some(state) = state.filter(|state| awaited.includes(state)) {
                    return Ok(ControlFlow::Break(WaitStop::Reached(state.to_owned())));
                }
            }
            FollowEvent::Disconnected(_) => has_polled = false,
            FollowEvent::Idle => {}
        }
        // A stream has no events from before it was opened, so the job is polled once for each.
        if !has_polled && !matches!(event, FollowEvent::Disconnected(_)) {
            last_state = follower.fetch_job()?.state.to_string();
            has_polled = true;
            if awaited.includes(&last_state) {
                return Ok(ControlFlow::Break(WaitStop::Reached(last_state.clone())));
            }
        }
        Ok(if has_timed_out() {
            ControlFlow::Break(WaitStop::TimedOut)
        } else {
            ControlFlow::Continue(())
        })
    })?;
    match outcome {
        ControlFlow::Break(WaitStop::Reached(state)) => print_state(arguments, id, &state, out),
        ControlFlow::Continue(end) if awaited.includes(&end.state) => {
            print_state(arguments, id, &end.state, out)
        }
        ControlFlow::Continue(end) => {
            let awaited_name = awaited.as_str().unwrap_or("ended");
            let reason = end.reason.map_or_else(String::new, |reason| format!(": {reason}"));
            Err(ClientError::Refused(format!(
                "job {id} is {}, and will not be {awaited_name} by itself{reason}",
                end.state
            )))
        }
        ControlFlow::Break(WaitStop::TimedOut) => {
            let condition = awaited.as_str().map_or_else(
                || "has not ended".to_owned(),
                |state| format!("has not been {state}"),
            );
            let timeout = arguments.timeout.map_or_else(String::new, |timeout| timeout.to_string());
            let polled_state = if last_state.is_empty() {
                String::new()
            } else {
                format!(", it was {last_state}")
            };
            Err(ClientError::TimedOut(format!(
                "job {id} {condition} within {timeout}{polled_state}; workflow-manager why {id} \
                 tells more"
            )))
        }
    }
}

fn print_state(
    arguments: &WaitArguments,
    id: JobId,
    state: &str,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    if arguments.client.json {
        writeln!(out, "{}", json!({ "id": id.to_string(), "state": state }))?;
    } else {
        writeln!(out, "job {id} is {state}")?;
    }
    Ok(())
}
