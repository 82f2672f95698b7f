//! Tests of workflows by their users: in virtual time, with scripted workers, without a broker or a
//! journal (`workflow-manager test FILE`, docs/testing.md). The engine is the real one; a deadline
//! of three days passes in milliseconds.
//!
//! - `script`: the format of test files
//! - `simulator`: jobs, scripted workers, and a clock that jumps from one event to the next
//! - this file: runs the tests of a file, and compares the results with the expectations
//! - `changes`: the differences between two definitions of a workflow
//! - `replay`: what a recorded job would have done under another definition

mod changes;
mod replay;
mod script;
mod simulator;

pub use changes::{Change, ChangeKind, diff_definitions};
pub use replay::differences_under;

use daemon::load::{self, LoadErrors};
use engine::text::{did_you_mean, quote};
use engine::{Definition, Job, JobId, JobState, Message, Millis, StepIndex};
use script::{Expectation, TestCase, TestFile, to_json};
use serde::Serialize;
use serde_json::Value;
use simulator::Simulator;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Why a test file cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowTestError {
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
pub struct TestOutcome {
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
pub fn run_tests(path: &Path) -> Result<Vec<TestOutcome>, WorkflowTestError> {
    let file: TestFile = load::load_data_file(path)?;
    let directory = path.parent().unwrap_or(Path::new("."));
    let workflows: Vec<_> = file.workflows.iter().map(|name| directory.join(name)).collect();
    let loaded = load::load_files(&workflows)?;
    let name = path.display().to_string();
    if file.tests.is_empty() {
        return Err(WorkflowTestError::NoTests(name));
    }
    file.tests.iter().map(|test| run_test(&name, &loaded.definitions, test)).collect()
}

fn run_test(
    file: &str,
    definitions: &[Arc<Definition>],
    test: &TestCase,
) -> Result<TestOutcome, WorkflowTestError> {
    let to_error = |what: String| WorkflowTestError::Test {
        file: file.to_owned(),
        test: test.name.clone(),
        what,
    };
    let definition = find_definition(definitions, test.workflow.as_deref()).map_err(to_error)?;
    check_names(&definition, test).map_err(to_error)?;
    let message = Message::parse(test.message.to_string().as_bytes())
        .map_err(|error| to_error(format!("message: {error}")))?;
    let mut simulator = Simulator::new(test);
    let id = simulator.create(&definition, message);
    simulator.run(id).map_err(to_error)?;
    let differences = check_expectations(&simulator, id, &test.expect);
    let Millis(took_ms) = Millis::from_duration(simulator.elapsed());
    Ok(TestOutcome {
        name: test.name.clone(),
        passed: differences.is_empty(),
        differences,
        took_ms,
        story: simulator.story,
    })
}

fn find_definition(
    definitions: &[Arc<Definition>],
    name: Option<&str>,
) -> Result<Arc<Definition>, String> {
    let known_names = || {
        definitions.iter().map(|definition| definition.full_name()).collect::<Vec<_>>().join(", ")
    };
    match (name, definitions) {
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(format!("name its workflow, one of {}", known_names())),
        (Some(name), _) => {
            let found = definitions.iter().find(|definition| definition.full_name() == name);
            found.cloned().ok_or_else(|| {
                format!("there is no workflow {name:?}; there are {}", known_names())
            })
        }
    }
}

/// Checks that every step which a test scripts or expects exists.
fn check_names(definition: &Definition, test: &TestCase) -> Result<(), String> {
    let all: Vec<&str> =
        definition.graphs.iter().flat_map(|graph| &graph.steps).map(|step| &*step.name).collect();
    let own: Vec<&str> = definition.graph().steps.iter().map(|step| &*step.name).collect();
    if let Some(state) =
        test.expect.state.as_deref().filter(|state| JobState::from_name(state).is_none())
    {
        let state_names = JobState::ALL.map(JobState::as_str);
        return Err(format!(
            "expect.state is {}{}; expected one of {}",
            quote(state),
            did_you_mean(state, state_names),
            state_names.join(", ")
        ));
    }
    let Expectation { states, statuses, attempts, inputs, .. } = &test.expect;
    let in_any_graph = test.workers.keys().chain(inputs.keys()).map(|name| (name, &all));
    let in_own_graph =
        states.keys().chain(statuses.keys()).chain(attempts.keys()).map(|name| (name, &own));
    match in_any_graph.chain(in_own_graph).find(|(name, known)| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, known)) => {
            let hint = did_you_mean(name, known.iter().copied());
            Err(format!("there is no step {}{hint}; there are {}", quote(name), known.join(", ")))
        }
    }
}

fn check_expectations(simulator: &Simulator, id: JobId, expect: &Expectation) -> Vec<String> {
    let mut found = Vec::new();
    let Some(job) = simulator.job(id) else { return vec!["the job is gone".to_owned()] };
    let mut compare = |what: String, expected: Value, actual: Value| {
        if expected != actual {
            found.push(format!("{what}: expected {expected}, came to {actual}"));
        }
    };
    if let Some(state) = &expect.state {
        compare("state of the job".to_owned(), state.clone().into(), job.state().as_str().into());
    }
    if let Some(result) = &expect.result {
        compare("result".to_owned(), result.clone(), to_json(&job.result()));
    }
    let step = |name: &str| job.graph().find_index(name);
    let step_value = |job: &Job, read: &dyn Fn(&Job, StepIndex) -> Value, name: &str| {
        step(name).map_or(Value::Null, |index| read(job, index))
    };
    for (name, state) in &expect.states {
        let actual = step_value(job, &|job, index| job.step_state(index).as_str().into(), name);
        compare(format!("state of step {name}"), state.clone().into(), actual);
    }
    for (name, status) in &expect.statuses {
        let actual = step_value(job, &|job, index| job.status(index).into(), name);
        compare(format!("status of step {name}"), status.clone().into(), actual);
    }
    for (name, attempts) in &expect.attempts {
        let actual = step_value(job, &|job, index| job.step(index).attempt.into(), name);
        compare(format!("attempts of step {name}"), (*attempts).into(), actual);
    }
    for (name, inputs) in &expect.inputs {
        let mut actual: Vec<Value> = simulator.inputs(name).iter().map(to_json).collect();
        let mut expected = inputs.clone();
        let order = |value: &Value| value.to_string();
        actual.sort_by_key(order);
        expected.sort_by_key(order);
        compare(format!("inputs of step {name}"), expected.into(), actual.into());
    }
    if let Some(reason) = &expect.reason {
        let actual = job.reason().map_or("", |reason| reason);
        if !actual.contains(reason.as_str()) {
            compare("reason (a part of it)".to_owned(), reason.clone().into(), actual.into());
        }
    }
    if let Some(took) = &expect.took
        && simulator.elapsed().abs_diff(took.0) >= Duration::from_millis(1)
    {
        compare(
            "virtual time".to_owned(),
            took.to_string().into(),
            Millis::from_duration(simulator.elapsed()).to_string().into(),
        );
    }
    found
}
