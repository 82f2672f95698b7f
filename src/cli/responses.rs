//! The manager's responses about jobs, as far as the command line prints them.

use super::error::ClientError;
use super::text::Text;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashMap;

/// A job with its steps.
#[derive(Deserialize)]
pub(super) struct JobResponse {
    pub(super) uuid: Text,
    pub(super) workflow: Text,
    /// The task that a child job runs; `None` for a root job.
    pub(super) task: Option<Text>,
    pub(super) state: Text,
    pub(super) reason: Option<Text>,
    pub(super) created: Text,
    pub(super) ended: Option<Text>,
    pub(super) deadline: Option<Text>,
    /// When the job begins; `None`: it has begun.
    #[serde(rename = "startsAt")]
    pub(super) starts_at: Option<Text>,
    /// What the workflow has people call the job.
    pub(super) label: Option<Text>,
    #[serde(default)]
    pub(super) columns: Value,
    /// What the job waits for before it begins; `None`: for nothing.
    #[serde(rename = "waitsFor")]
    pub(super) waits_for: Option<ClaimResponse>,
    /// The parent of a child job; `None` for a root job.
    pub(super) parent: Option<ParentResponse>,
    pub(super) steps: Vec<StepResponse>,
    /// The messages of the job that are complete: its own, those of its steps, and its result.
    #[serde(default)]
    pub(super) completed: Vec<CompletedResponse>,
}

impl JobResponse {
    /// Returns whether the job is in a final state.
    pub(super) fn is_ended(&self) -> bool {
        self.state != "running" && self.state != "paused"
    }
}

/// What a job waits for.
#[derive(Deserialize)]
pub(super) struct ClaimResponse {
    pub(super) limits: Vec<ClaimedLimitResponse>,
}

/// A limit for a place of which a job waits, with the key of the place.
#[derive(Deserialize)]
pub(super) struct ClaimedLimitResponse {
    pub(super) limit: Text,
    pub(super) key: Option<Text>,
}

/// The parent of a child job.
#[derive(Deserialize)]
pub(super) struct ParentResponse {
    pub(super) job: Text,
    pub(super) root: Text,
    pub(super) item: u32,
}

/// The output of a step, or the message or the result of the job.
#[derive(Deserialize)]
pub(super) struct CompletedResponse {
    /// The name of the step, `__start__` for the message, or `__end__` for the result.
    pub(super) name: Text,
    #[serde(default)]
    pub(super) message: Option<Box<RawValue>>,
}

/// A step of a job.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StepResponse {
    pub(super) name: Text,
    pub(super) state: Text,
    pub(super) attempt: u32,
    pub(super) queue: Option<Text>,
    pub(super) reason: Option<Text>,
    pub(super) warning: Option<Text>,
    pub(super) status: Text,
    pub(super) retry_at: Option<Text>,
    /// The time from the first dispatch to the end of the step or until now, in nanoseconds.
    pub(super) elapsed: Option<u64>,
    /// The duration of the last attempt, in nanoseconds.
    pub(super) attempt_elapsed: Option<u64>,
    pub(super) attempt_start_time: Option<Text>,
    pub(super) end_time: Option<Text>,
    pub(super) progress: Option<serde_json::Value>,
    pub(super) message: Option<Text>,
    pub(super) children: Option<ChildCountsResponse>,
}

/// How many child jobs of a step are in which state.
#[derive(Deserialize)]
pub(super) struct ChildCountsResponse {
    /// The number of items, each of which gets a child job.
    pub(super) items: u32,
    pub(super) started: u32,
    /// How many have ended, including failed ones.
    pub(super) ended: u32,
    pub(super) failed: u32,
}

/// Parses a response. An error suggests that the manager has another version.
pub(super) fn parse_response<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, ClientError> {
    serde_json::from_str(text).map_err(|error| {
        ClientError::Refused(format!(
            "the manager's answer is not what this client knows ({error}): are both of the same \
             version?"
        ))
    })
}

/// Returns the unparsed elements of the list that a response has under `key`. A missing list is
/// empty.
pub(super) fn parse_list(body: &str, key: &str) -> Result<Vec<Box<RawValue>>, ClientError> {
    let mut fields: HashMap<String, Box<RawValue>> = parse_response(body)?;
    fields.remove(key).map_or_else(|| Ok(Vec::new()), |list| parse_response(list.get()))
}
