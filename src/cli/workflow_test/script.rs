//! The format of test files.

use engine::{Message, Millis};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TestFile {
    /// The workflow files, relative to the test file.
    pub(super) workflows: Vec<PathBuf>,
    pub(super) tests: Vec<TestCase>,
}

/// One test: a job, and what is expected of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TestCase {
    pub(super) name: String,
    /// The workflow's full name. It may be omitted if there is only one workflow.
    pub(super) workflow: Option<String>,
    #[serde(default = "empty")]
    pub(super) message: Value,
    /// What the worker of each step does, or the person for an external step; by step, in the
    /// workflow and its tasks. Other workers reply with their input; other external steps wait.
    #[serde(default)]
    pub(super) workers: BTreeMap<String, WorkerScript>,
    /// What users do meanwhile.
    #[serde(default)]
    pub(super) users: Vec<UserAction>,
    /// When the test stops. Without it, the test stops when nothing more would happen.
    pub(super) until: Option<ScriptDuration>,
    pub(super) expect: Expectation,
}

fn empty() -> Value {
    Value::Object(serde_json::Map::new())
}

/// One action, or a list of which the first that fits is used.
#[derive(Debug)]
pub(super) enum WorkerScript {
    Several(Vec<WorkerAction>),
    One(WorkerAction),
}

impl<'de> Deserialize<'de> for WorkerScript {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WorkerScript, D::Error> {
        struct OneOrSeveral;

        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = WorkerScript;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("what is done, such as { result: { .. } }, or a list of that")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WorkerScript, A::Error> {
                WorkerAction::deserialize(MapAccessDeserializer::new(map)).map(WorkerScript::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<WorkerScript, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(WorkerScript::Several)
            }
        }

        deserializer.deserialize_any(OneOrSeveral)
    }
}

impl WorkerScript {
    /// Returns what a worker does with an attempt, if an action fits.
    pub(super) fn find_action(&self, attempt: u32, input: &Value) -> Option<&WorkerAction> {
        let fits = |act: &&WorkerAction| {
            act.attempt.is_none_or(|number| number == attempt)
                && act.when.as_ref().is_none_or(|part| contains(input, part))
        };
        match self {
            WorkerScript::One(act) => Some(act).filter(fits),
            WorkerScript::Several(acts) => acts.iter().find(fits),
        }
    }
}

/// What a worker does with a step message. Without `result`, `error` and the like it replies with
/// its input.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct WorkerAction {
    /// Applies to this attempt only.
    pub(super) attempt: Option<u32>,
    /// Applies only to an input that has these keys with these values.
    #[serde(rename = "if")]
    pub(super) when: Option<Value>,
    /// How long the message waits for a worker. If the attempt ends before that, no worker gets it.
    #[serde(default)]
    pub(super) starts_after: ScriptDuration,
    /// How long the worker takes.
    #[serde(default)]
    pub(super) after: ScriptDuration,
    /// Replies with this object.
    pub(super) result: Option<Value>,
    /// Replies with these bytes.
    pub(super) raw: Option<String>,
    /// Replies with an error.
    pub(super) error: Option<String>,
    /// Whether another attempt may succeed.
    pub(super) retryable: Option<bool>,
    /// Never replies.
    #[serde(default)]
    pub(super) silent: bool,
    /// The broker dead-letters the message, for this reason.
    pub(super) dead_letter: Option<String>,
    /// The progress messages that it sends before its reply.
    #[serde(default)]
    pub(super) progress: Vec<ProgressMessage>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProgressMessage {
    /// How long after the worker has received the step message.
    pub(super) after: ScriptDuration,
    pub(super) status: Option<String>,
    pub(super) progress: Option<f64>,
    pub(super) message: Option<String>,
}

/// What a user does.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UserAction {
    /// How long after the creation of the job.
    pub(super) at: ScriptDuration,
    /// One of cancel, pause, resume, retry or rerun.
    #[serde(rename = "do")]
    pub(super) operation: String,
    /// The step, for rerun.
    pub(super) step: Option<String>,
}

/// The expected outcome. What it does not name is not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expectation {
    pub(super) state: Option<String>,
    pub(super) result: Option<Value>,
    /// A part of the reason why the job ended.
    pub(super) reason: Option<String>,
    #[serde(default)]
    pub(super) states: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) statuses: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) attempts: BTreeMap<String, u32>,
    /// By step, in the workflow and its tasks: all inputs, in any order.
    #[serde(default)]
    pub(super) inputs: BTreeMap<String, Vec<Value>>,
    /// The virtual time from the creation to the last event.
    pub(super) took: Option<ScriptDuration>,
}

/// A duration such as `500ms`, `30s`, `5m`, `2h`, `3d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScriptDuration(pub(super) Duration);

impl fmt::Display for ScriptDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Millis::from_duration(self.0).fmt(f)
    }
}

impl<'de> Deserialize<'de> for ScriptDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ScriptDuration, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = humantime::parse_duration(&text).map(ScriptDuration);
        parsed.map_err(|_| {
            D::Error::custom(format!(
                "{text:?} is no duration; write for example 500ms, 30s, 5m, 2h, 3d"
            ))
        })
    }
}

/// Returns whether `whole` contains everything in `part`.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| contains(whole, part)))
        }
        (whole, part) => whole == part,
    }
}

/// Converts a message to JSON, so that the order of keys does not matter.
pub(super) fn to_json(message: &Message) -> Value {
    serde_json::from_str(&message.to_text()).unwrap_or(Value::Null)
}
