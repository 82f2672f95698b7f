//! One step of a job, and what a reply makes of it.

use super::definition::Step;
use super::entry::{Context, Failure, REPLY_KEPT_BYTES_MAX, Reply, Timestamp};
use super::fanout::FanOut;
use super::json::Message;
use serde::Serialize;
use std::sync::Arc;

/// The states of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepState {
    /// A step that it depends on is not done.
    Waiting,
    /// Its message, or its child jobs, are out.
    Running,
    /// Its reply came.
    Completed,
    /// Its attempts are spent.
    Failed,
}

/// One step of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRun {
    /// Its state.
    pub state: StepState,
    /// Dispatches so far.
    pub attempt: u32,
    /// Whether the broker confirmed the last dispatch.
    pub confirmed: bool,
    /// When it started.
    pub started: Option<Timestamp>,
    /// When it was settled.
    pub ended: Option<Timestamp>,
    /// Its output, once completed.
    pub output: Option<Message>,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// What the reader should know about its input.
    pub warning: Option<Arc<str>>,
    /// Its child jobs, for a step with a task that has started.
    pub fan_out: Option<Box<FanOut>>,
    /// Steps that it depends on and that are not done.
    pub(super) waits_for: u16,
}

impl StepRun {
    pub(super) fn waiting(step: &Step) -> StepRun {
        StepRun {
            state: StepState::Waiting,
            attempt: 0,
            confirmed: false,
            started: None,
            ended: None,
            output: None,
            failure: None,
            warning: None,
            fan_out: None,
            waits_for: u16::try_from(step.depended_on().len()).unwrap_or(u16::MAX),
        }
    }
}

/// A reply's output, or why the attempt failed (SPEC §3.2).
pub(super) fn parse_reply(reply: Reply, ctx: &Context<'_>) -> Result<Message, Failure> {
    let failure = |reason: String, raw: Option<&[u8]>| Failure { reason: reason.into(), raw: raw.map(kept) };
    match reply {
        Reply::Result(body) if body.len() > ctx.limits.reply_bytes_max => {
            let limit = ctx.limits.reply_bytes_max;
            let reason =
                format!("the reply has {} bytes, the limit is {limit} (setting limits.reply_bytes_max): pass large data by reference", body.len());
            Err(failure(reason, Some(&body)))
        }
        Reply::Result(body) => Message::parse(&body).map_err(|error| failure(format!("the reply is no JSON object: {error}"), Some(&body))),
        Reply::Error(body) => {
            let stated = Message::parse(&body).ok().and_then(|message| serde_json::from_str::<String>(message.get("error")?.text()).ok());
            Err(match stated {
                Some(text) => failure(format!("the worker reported an error: {text}"), None),
                None => failure("the worker reported an error without a text under \"error\"".to_owned(), Some(&body)),
            })
        }
        Reply::DeadLettered { queue, reason } => Err(failure(format!("the broker dead-lettered its message in queue \"{queue}\": {reason}"), None)),
    }
}

fn kept(raw: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(&raw[..raw.len().min(REPLY_KEPT_BYTES_MAX)]).into()
}
