//! Runs the tests that users write for their workflows (`workflow-manager test FILE`,
//! docs/how-to/test-workflows.md). The engine is the real one. Time is virtual, workers are
//! scripted, and there is no broker and no journal, so a deadline of three days passes in
//! milliseconds.
//!
//! - `script`: the format of test files
//! - `simulator`: jobs, scripted workers, and a clock that jumps from one event to the next
//! - `slots`: a test of a schedule
//! - this file: runs the tests of a file, and compares the results with the expectations
//! - `changes`: the differences between two definitions of a workflow
//! - `replay`: replays a recorded job under another definition

mod changes;
mod replay;
mod script;
mod simulator;
mod slots;

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

/// Virtual times that differ by less are equal: they are printed in whole milliseconds.
const TIME_RESOLUTION: Duration = Duration::from_millis(1);

/// Why a test file cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowTestError {
    /// The test file, or the workflow file that it names, has errors.
    #[error("{0}")]
    Files(#[from] LoadErrors),
    /// A test does not fit its workflow, or goes on without an end.
    #[error("{file}: test {test:?}: {problem}")]
    Test {
        /// The test file.
        file: String,
        /// The test's name.
        test: String,
        /// What is wrong, and what was expected.
        problem: String,
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
    /// Whether the outcome of the job was as expected: there are no differences.
    pub passed: bool,
    /// The differences, one sentence each.
    pub differences: Vec<String>,
    /// The virtual time from the creation of the job to the last change of it or of a child job, or
    /// to `until` if the test sets it. In milliseconds.
    pub took_ms: u64,
    /// What happened, one line for each event, to explain a failure.
    pub story: Vec<String>,
}

/// Runs all tests of a file.
///
/// # Errors
///
/// Returns an error if a file cannot be read or is not valid, or if a test does not fit its
/// workflow or goes on without an end. An unexpected result is not an error, but a [`TestOutcome`].
pub fn run_tests(path: &Path) -> Result<Vec<TestOutcome>, WorkflowTestError> {
    let file: TestFile = load::load_data_file(path)?;
    let directory = path.parent().unwrap_or(Path::new("."));
    let workflows: Vec<_> = file.workflows.iter().map(|name| directory.join(name)).collect();
    let loaded = load::load_files(&workflows)?;
    let file_name = path.display().to_string();
    if file.tests.is_empty() {
        return Err(WorkflowTestError::NoTests(file_name));
    }
    file.tests.iter().map(|test| run_test(&file_name, &loaded.definitions, test)).collect()
}

/// Runs one test. `file_name` is for errors.
fn run_test(
    file_name: &str,
    definitions: &[Arc<Definition>],
    test: &TestCase,
) -> Result<TestOutcome, WorkflowTestError> {
    let to_error = |problem: String| WorkflowTestError::Test {
        file: file_name.to_owned(),
        test: test.name.clone(),
        problem,
    };
    let mut simulator = Simulator::new(test);
    let differences = match &test.schedule {
        Some(name) => run_schedule(&mut simulator, definitions, name, test),
        None => run_job(&mut simulator, definitions, test),
    };
    let differences = differences.map_err(to_error)?;
    let Millis(took_ms) = Millis::from_duration(simulator.elapsed());
    Ok(TestOutcome {
        name: test.name.clone(),
        passed: differences.is_empty(),
        differences,
        took_ms,
        story: simulator.story,
    })
}

/// Runs the job of a test, and returns the differences from what is expected.
fn run_job(
    simulator: &mut Simulator<'_>,
    definitions: &[Arc<Definition>],
    test: &TestCase,
) -> Result<Vec<String>, String> {
    if test.expect.slots.is_some() {
        return Err("expect.slots is for a test with a `schedule`".to_owned());
    }
    let definition = find_definition(definitions, test.workflow.as_deref())?;
    check_names(&definition, test)?;
    let message = test.message.as_ref().map_or_else(|| "{}".to_owned(), Value::to_string);
    let message =
        Message::parse(message.as_bytes()).map_err(|error| format!("message: {error}"))?;
    let job_id = simulator.create(&definition, message);
    simulator.run()?;
    Ok(find_differences(simulator, job_id, &test.expect))
}

/// Lets a schedule start jobs, and returns the differences from what is expected.
fn run_schedule(
    simulator: &mut Simulator<'_>,
    definitions: &[Arc<Definition>],
    name: &str,
    test: &TestCase,
) -> Result<Vec<String>, String> {
    slots::check_test(test)?;
    let (schedule, definition) = slots::find_schedule(definitions, name)?;
    check_names(&definition, test)?;
    simulator.fire(schedule, definition);
    simulator.run()?;
    let mut differences = find_input_differences(simulator, &test.expect);
    if let Some(expected) = &test.expect.slots {
        differences.extend(slots::find_differences(simulator, expected));
    }
    Ok(differences)
}

/// Finds the definition with a full name. The name may be `None` if there is only one definition.
fn find_definition(
    definitions: &[Arc<Definition>],
    name: Option<&str>,
) -> Result<Arc<Definition>, String> {
    let all_names = || {
        definitions.iter().map(|definition| definition.full_name()).collect::<Vec<_>>().join(", ")
    };
    match (name, definitions) {
        (None, [definition]) => Ok(definition.clone()),
        (None, _) => Err(format!("name its workflow, one of {}", all_names())),
        (Some(name), _) => {
            let definition = definitions.iter().find(|definition| definition.full_name() == name);
            definition.cloned().ok_or_else(|| {
                format!("there is no workflow {name:?}; expected one of {}", all_names())
            })
        }
    }
}

/// Checks that the state of the job and the steps that a test names exist, except for the steps of
/// `users`, which the simulator checks. Expected states and statuses of steps are not checked.
fn check_names(definition: &Definition, test: &TestCase) -> Result<(), String> {
    let all_steps: Vec<&str> =
        definition.graphs.iter().flat_map(|graph| &graph.steps).map(|step| &*step.name).collect();
    let workflow_steps: Vec<&str> =
        definition.graph().steps.iter().map(|step| &*step.name).collect();
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
    // Each name, with the steps that it may refer to: workers and inputs also exist in tasks.
    let names_of_any_graph =
        test.workers.keys().chain(inputs.keys()).map(|name| (name, &all_steps));
    let names_of_workflow = states
        .keys()
        .chain(statuses.keys())
        .chain(attempts.keys())
        .map(|name| (name, &workflow_steps));
    let mut names = names_of_any_graph.chain(names_of_workflow);
    match names.find(|(name, steps)| !steps.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, steps)) => {
            let hint = did_you_mean(name, steps.iter().copied());
            let all = steps.join(", ");
            Err(format!("there is no step {}{hint}; expected one of {all}", quote(name)))
        }
    }
}

/// Compares the outcome of a job with the expectation. Returns the differences, one sentence each.
fn find_differences(simulator: &Simulator, job_id: JobId, expect: &Expectation) -> Vec<String> {
    let mut differences = Vec::new();
    let Some(job) = simulator.job(job_id) else { return vec!["the job is gone".to_owned()] };
    let mut compare = |subject: String, expected: Value, actual: Value| {
        if expected != actual {
            differences.push(format!("{subject}: expected {expected}, got {actual}"));
        }
    };
    if let Some(state) = &expect.state {
        compare("state of the job".to_owned(), state.clone().into(), job.state().as_str().into());
    }
    if let Some(result) = &expect.result {
        compare("result".to_owned(), result.clone(), to_json(&job.result()));
    }
    let step_value = |job: &Job, read: &dyn Fn(&Job, StepIndex) -> Value, name: &str| {
        job.graph().find_index(name).map_or(Value::Null, |index| read(job, index))
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
    if let Some(reason) = &expect.reason {
        let actual = job.reason().map_or("", |reason| reason);
        if !actual.contains(reason.as_str()) {
            compare("reason (a part of it)".to_owned(), reason.clone().into(), actual.into());
        }
    }
    if let Some(expected_time) = &expect.took
        && simulator.elapsed().abs_diff(expected_time.0) >= TIME_RESOLUTION
    {
        compare(
            "virtual time".to_owned(),
            expected_time.to_string().into(),
            Millis::from_duration(simulator.elapsed()).to_string().into(),
        );
    }
    differences.extend(find_input_differences(simulator, expect));
    differences
}

/// Compares the inputs that workers received. Their order is not compared.
fn find_input_differences(simulator: &Simulator<'_>, expect: &Expectation) -> Vec<String> {
    let mut differences = Vec::new();
    for (name, inputs) in &expect.inputs {
        let mut actual: Vec<Value> = simulator.inputs(name).iter().map(to_json).collect();
        let mut expected = inputs.clone();
        actual.sort_by_key(Value::to_string);
        expected.sort_by_key(Value::to_string);
        if actual != expected {
            let (expected, actual) = (Value::from(expected), Value::from(actual));
            differences.push(format!("inputs of step {name}: expected {expected}, got {actual}"));
        }
    }
    differences
}
