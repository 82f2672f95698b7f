//! Tests of workflows by their users: in virtual time, with scripted workers, without a broker or a
//! journal (`workflow-manager test FILE`, docs/testing.md). The engine is the real one; a deadline
//! of three days passes in milliseconds.
//!
//! - `script`: the format of test files
//! - `simulator`: jobs, scripted workers, and a clock that jumps from one event to the next
//! - this file: runs the tests of a file, and compares the results with the expectations
//! - `changes`: the differences between two definitions of a workflow
//! - `replay`: what a recorded job would have done under another definition

mod against;
mod changes;
mod script;
mod stage;

pub use against::differences_under;
pub use changes::{Change, ChangeKind, changes};

use crate::engine::words::{did_you_mean, quoted};
use crate::engine::{Definition, Job, JobId, JobState, Message, Millis, StepIndex};
use crate::load::{self, LoadErrors};
use script::{Expect, File, Test};
use serde::Serialize;
use serde_json::Value;
use stage::Stage;
use std::path::Path;
use std::sync::Arc;

/// Why a test file cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RehearsalError {
    /// The test file, or the workflow file that it names, has errors.
    #[error("{0}")]
    Files(#[from] LoadErrors),
    /// A test does not fit its workflow.
    #[error("{file}: test {test:?}: {what}")]
    Test {
        /// The test file.
        file: String,
        /// The test's name.
        test: String,
        /// The error, and what was expected.
        what: String,
    },
    /// The file has no tests.
    #[error("{0}: \"tests\" is empty, expected at least one test")]
    NoTests(String),
}

/// The outcome of one test.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The test's name.
    pub name: String,
    /// Whether everything was as expected.
    pub passed: bool,
    /// The differences, one sentence each.
    pub differences: Vec<String>,
    /// The virtual time that the test took, in milliseconds.
    pub took_ms: u64,
    /// What happened, one line for each event, to explain a failure.
    pub story: Vec<String>,
}

/// Runs all tests of a file.
///
/// # Errors
///
/// Returns an error if a file cannot be read or is not valid. An unexpected result is not an error,
/// but a [`TestOutcome`].
pub fn rehearse(path: &Path) -> Result<Vec<Outcome>, RehearsalError> {
    let file: File = load::data_file(path)?;
    let beside = path.parent().unwrap_or(Path::new("."));
    let workflows: Vec<_> = file.workflows.iter().map(|name| beside.join(name)).collect();
    let loaded = load::load_files(&workflows)?;
    let shown = path.display().to_string();
    if file.tests.is_empty() {
        return Err(RehearsalError::NoTests(shown));
    }
    file.tests.iter().map(|test| run(&shown, &loaded.definitions, test)).collect()
}

fn run(
    file: &str,
    definitions: &[Arc<Definition>],
    test: &Test,
) -> Result<Outcome, RehearsalError> {
    let wrong = |what: String| RehearsalError::Test {
        file: file.to_owned(),
        test: test.name.clone(),
        what,
    };
    let definition = chosen(definitions, test.workflow.as_deref()).map_err(wrong)?;
    check_names(&definition, test).map_err(wrong)?;
    let message = Message::parse(test.message.to_string().as_bytes())
        .map_err(|error| wrong(format!("message: {error}")))?;
    let mut stage = Stage::new(test);
    let id = stage.create(&definition, message);
    stage.play(id).map_err(wrong)?;
    let differences = differences(&stage, id, &test.expect);
    let took_ms = u64::try_from(stage.elapsed_ns() / 1_000_000).unwrap_or_default();
    Ok(Outcome {
        name: test.name.clone(),
        passed: differences.is_empty(),
        differences,
        took_ms,
        story: stage.story,
    })
}

fn chosen(definitions: &[Arc<Definition>], name: Option<&str>) -> Result<Arc<Definition>, String> {
    let known = || {
        definitions.iter().map(|definition| definition.full_name()).collect::<Vec<_>>().join(", ")
    };
    match (name, definitions) {
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(format!("name its workflow, one of {}", known())),
        (Some(name), _) => {
            let found = definitions.iter().find(|definition| definition.full_name() == name);
            found
                .cloned()
                .ok_or_else(|| format!("there is no workflow {name:?}; there are {}", known()))
        }
    }
}

/// Checks that every step which a test scripts or expects exists.
fn check_names(definition: &Definition, test: &Test) -> Result<(), String> {
    let all: Vec<&str> =
        definition.graphs.iter().flat_map(|graph| &graph.steps).map(|step| &*step.name).collect();
    let own: Vec<&str> = definition.graph().steps.iter().map(|step| &*step.name).collect();
    if let Some(state) =
        test.expect.state.as_deref().filter(|state| JobState::of_word(state).is_none())
    {
        let words = JobState::ALL.map(JobState::word);
        return Err(format!(
            "expect.state is {}{}; expected one of {}",
            quoted(state),
            did_you_mean(state, words),
            words.join(", ")
        ));
    }
    let Expect { states, statuses, attempts, inputs, .. } = &test.expect;
    let anywhere = test.workers.keys().chain(inputs.keys()).map(|name| (name, &all));
    let here = states.keys().chain(statuses.keys()).chain(attempts.keys()).map(|name| (name, &own));
    match anywhere.chain(here).find(|(name, known)| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, known)) => {
            let hint = did_you_mean(name, known.iter().copied());
            Err(format!("there is no step {}{hint}; there are {}", quoted(name), known.join(", ")))
        }
    }
}

fn differences(stage: &Stage, id: JobId, expect: &Expect) -> Vec<String> {
    let mut found = Vec::new();
    let Some(job) = stage.job(id) else { return vec!["the job is gone".to_owned()] };
    let mut compare = |what: String, expected: Value, came: Value| {
        if expected != came {
            found.push(format!("{what}: expected {expected}, came to {came}"));
        }
    };
    if let Some(state) = &expect.state {
        compare("state of the job".to_owned(), state.clone().into(), job.state().word().into());
    }
    if let Some(result) = &expect.result {
        compare("result".to_owned(), result.clone(), value(&job.result()));
    }
    let step = |name: &str| job.graph().index_of(name);
    let of_steps = |job: &Job, told: &dyn Fn(&Job, StepIndex) -> Value, name: &str| {
        step(name).map_or(Value::Null, |index| told(job, index))
    };
    for (name, state) in &expect.states {
        let came = of_steps(job, &|job, index| job.step_state(index).word().into(), name);
        compare(format!("state of step {name}"), state.clone().into(), came);
    }
    for (name, status) in &expect.statuses {
        let came = of_steps(job, &|job, index| job.status(index).into(), name);
        compare(format!("status of step {name}"), status.clone().into(), came);
    }
    for (name, attempts) in &expect.attempts {
        let came = of_steps(job, &|job, index| job.step(index).attempt.into(), name);
        compare(format!("attempts of step {name}"), (*attempts).into(), came);
    }
    for (name, inputs) in &expect.inputs {
        let mut came: Vec<Value> = stage.inputs(name).iter().map(value).collect();
        let mut expected = inputs.clone();
        let order = |value: &Value| value.to_string();
        came.sort_by_key(order);
        expected.sort_by_key(order);
        compare(format!("inputs of step {name}"), expected.into(), came.into());
    }
    if let Some(reason) = &expect.reason {
        let came = job.reason().map_or("", |reason| reason);
        if !came.contains(reason.as_str()) {
            compare("reason (a part of it)".to_owned(), reason.clone().into(), came.into());
        }
    }
    if let Some(took) = &expect.took {
        let came = i64::try_from(took.0.as_nanos()).unwrap_or(i64::MAX);
        if (stage.elapsed_ns() - came).abs() >= 1_000_000 {
            compare(
                "virtual time".to_owned(),
                took.to_string().into(),
                Millis::of(stage.elapsed()).to_string().into(),
            );
        }
    }
    found
}

/// Converts a message to JSON, so that the order of keys does not matter.
fn value(message: &Message) -> Value {
    serde_json::from_str(&message.to_text()).unwrap_or(Value::Null)
}
