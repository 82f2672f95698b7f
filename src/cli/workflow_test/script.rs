//! The format of test files, which docs/how-to/test-workflows.md describes for users.

use base::times::parse_rfc3339;
use engine::{Message, Millis, Timestamp};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A test file.
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
    /// The full name of a schedule. The test is about its slots and their jobs.
    pub(super) schedule: Option<String>,
    /// When the test begins, in virtual time.
    pub(super) now: Option<ScriptTime>,
    /// The message with which the job is created. By default an empty object.
    pub(super) message: Option<Value>,
    /// What the worker of a step does, or the person for an external step. The key is the name of a
    /// step in the workflow or a task. Workers without a script reply with their input. External
    /// steps without a script wait.
    #[serde(default)]
    pub(super) workers: BTreeMap<String, WorkerScript>,
    /// What users do while the job runs.
    #[serde(default)]
    pub(super) users: Vec<UserAction>,
    /// The virtual time at which the test stops, counted from the creation of the job. Without it,
    /// the test stops after the last event.
    pub(super) until: Option<ScriptDuration>,
    pub(super) expect: Expectation,
}

/// One action, or a list of actions. The first one that applies is used.
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
    /// Returns the first action that applies to an attempt with this input, if one does.
    pub(super) fn find_action(&self, attempt: u32, input: &Value) -> Option<&WorkerAction> {
        let applies = |action: &&WorkerAction| {
            action.attempt.is_none_or(|number| number == attempt)
                && action.when.as_ref().is_none_or(|condition| contains(input, condition))
        };
        match self {
            WorkerScript::One(action) => Some(action).filter(applies),
            WorkerScript::Several(actions) => actions.iter().find(applies),
        }
    }
}

/// What a worker does with a message. It replies with its input, unless `result`, `raw`, `error`,
/// `silent` or `dead_letter` say otherwise.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct WorkerAction {
    /// The action applies only to the attempt with this number, from 1.
    pub(super) attempt: Option<u32>,
    /// The action applies only to an input that has these keys with these values.
    #[serde(rename = "if")]
    pub(super) when: Option<Value>,
    /// How long the message waits in its queue. If the attempt ends earlier, no worker receives it.
    #[serde(default)]
    pub(super) starts_after: ScriptDuration,
    /// How long the worker takes to reply after it has received the message.
    #[serde(default)]
    pub(super) after: ScriptDuration,
    /// The worker replies with this object.
    pub(super) result: Option<Value>,
    /// The worker replies with this text, which need not be JSON.
    pub(super) raw: Option<String>,
    /// The worker replies with this error.
    pub(super) error: Option<String>,
    /// Whether another attempt may succeed after the error. By default it may.
    pub(super) retryable: Option<bool>,
    /// The worker never replies.
    #[serde(default)]
    pub(super) silent: bool,
    /// The broker dead-letters the message, for this reason.
    pub(super) dead_letter: Option<String>,
    /// The progress messages that the worker sends before its reply.
    #[serde(default)]
    pub(super) progress: Vec<ProgressMessage>,
}

/// A progress message of a worker.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProgressMessage {
    /// How long after the receipt of its message the worker sends this one.
    pub(super) after: ScriptDuration,
    /// One of the step's `statuses`.
    pub(super) status: Option<String>,
    /// The part of the work that is done, from 0 to 1.
    pub(super) progress: Option<f64>,
    /// A text for people.
    pub(super) message: Option<String>,
}

/// What a user does.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UserAction {
    /// How long after the creation of the job the user acts.
    #[serde(rename = "at")]
    pub(super) delay: ScriptDuration,
    /// One of cancel, pause, resume, retry or rerun.
    #[serde(rename = "do")]
    pub(super) operation: String,
    /// The step, for rerun.
    pub(super) step: Option<String>,
    /// For rerun: `failed`, if only the failed items of the step run again.
    pub(super) items: Option<String>,
}

/// The expected outcome. A field that is not set is not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expectation {
    /// The state of the job.
    pub(super) state: Option<String>,
    /// The result of the job.
    pub(super) result: Option<Value>,
    /// A part of the reason why the job ended.
    pub(super) reason: Option<String>,
    /// The states of steps, by step.
    #[serde(default)]
    pub(super) states: BTreeMap<String, String>,
    /// The statuses of steps, by step.
    #[serde(default)]
    pub(super) statuses: BTreeMap<String, String>,
    /// The numbers of the latest attempts, by step.
    #[serde(default)]
    pub(super) attempts: BTreeMap<String, u32>,
    /// All inputs of a step, in any order. The key is the name of a step in the workflow or a task.
    #[serde(default)]
    pub(super) inputs: BTreeMap<String, Vec<Value>>,
    /// The virtual time from the creation of the job to the last change of it or of a child job, or
    /// to `until`.
    pub(super) took: Option<ScriptDuration>,
    /// What becomes of all slots of the schedule, in order.
    pub(super) slots: Option<Vec<ExpectedSlot>>,
}

/// What is expected of a slot.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectedSlot {
    pub(super) slot: ScriptTime,
    /// How it is judged; started by default.
    pub(super) verdict: Option<String>,
    /// When it is judged, and its job starts.
    pub(super) at: Option<ScriptTime>,
    /// The state of its job when the test stops.
    pub(super) state: Option<String>,
    /// A part of the reason of the judgement.
    pub(super) reason: Option<String>,
}

/// A time such as `2026-03-29T02:30:00+01:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScriptTime(pub(super) Timestamp);

impl<'de> Deserialize<'de> for ScriptTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ScriptTime, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_rfc3339(&text).map(ScriptTime).ok_or_else(|| {
            D::Error::custom(format!(
                "{text:?} is not a time with its zone; write for example 2026-01-31T12:00:00Z, or \
                 2026-01-31T13:00:00+01:00"
            ))
        })
    }
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
        let result = humantime::parse_duration(&text).map(ScriptDuration);
        result.map_err(|_| {
            D::Error::custom(format!(
                "{text:?} is not a duration; write for example 500ms, 30s, 5m, 2h, 3d"
            ))
        })
    }
}

/// Returns whether an object has all keys of `part` with the same values. Nested objects may have
/// more keys, too. Any other value must be equal to `part`.
fn contains(value: &Value, part: &Value) -> bool {
    match (value, part) {
        (Value::Object(members), Value::Object(expected_members)) => {
            expected_members.iter().all(|(key, expected)| {
                members.get(key).is_some_and(|member| contains(member, expected))
            })
        }
        (value, part) => value == part,
    }
}

/// Converts a message to JSON, so that the order of keys does not matter.
pub(super) fn to_json(message: &Message) -> Value {
    serde_json::from_str(&message.to_text()).unwrap_or(Value::Null)
}
