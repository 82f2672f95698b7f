//! Fuzzes the loading of workflow files. A text is loaded or refused, always with the same result,
//! and loaded definitions are sound.

use workflow_manager::engine::{Definition, Graph, StepState, id::is_valid_name};
use workflow_manager::load::{STEPS_IN_ALL_MAX, load_text};

/// The maximum size of all problems of a file, in bytes: a base, plus a factor for each byte of the
/// file. So no small file fills the log.
const PROBLEM_BYTES_BASE: usize = 100_000;
const PROBLEM_BYTES_PER_FILE_BYTE: usize = 1_000;

/// Loads a file twice.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match (load_text("f.yaml", text), load_text("f.yaml", text)) {
        (Ok(loaded), Ok(reloaded)) => {
            assert_eq!(loaded.definitions, reloaded.definitions);
            let steps: usize = loaded
                .definitions
                .iter()
                .flat_map(|definition| definition.graphs.iter())
                .map(|graph| graph.steps.len())
                .sum();
            assert!(steps <= STEPS_IN_ALL_MAX);
            loaded.definitions.iter().for_each(|definition| check_definition(definition));
        }
        (Err(errors), Err(errors_of_reload)) => {
            assert_eq!(errors, errors_of_reload);
            assert!(!errors.0.is_empty(), "refused without a reason");
            // In YAML a lone carriage return also ends a line. An error at the end of the file may
            // be reported for the line after the last one.
            let line_max = text.matches(['\n', '\r']).count() + 2;
            for problem in &errors.0 {
                assert!(problem.line <= line_max, "line {} of {line_max}: {problem}", problem.line);
                assert!(!problem.message.is_empty());
            }
            let problem_bytes = errors.to_string().len();
            assert!(
                problem_bytes <= PROBLEM_BYTES_BASE + PROBLEM_BYTES_PER_FILE_BYTE * text.len(),
                "{problem_bytes} bytes of problems for {} bytes",
                text.len()
            );
        }
        (first, second) => panic!("loaded once and refused once: {first:?} {second:?}"),
    }
}

/// Checks that a definition is sound, and unchanged after it was stored.
fn check_definition(definition: &Definition) {
    assert!(is_valid_name(&definition.name));
    let stored = serde_json::to_string(definition).expect("a definition serializes");
    let restored: Definition = serde_json::from_str(&stored).expect("a stored definition parses");
    assert_eq!(restored, *definition);
    assert!(!definition.graphs.is_empty());
    for (index, graph) in definition.graphs.iter().enumerate() {
        assert_eq!(graph.fan_out.is_some(), index > 0, "tasks fan out, workflows do not");
        for step in &graph.steps {
            assert!(is_valid_name(&step.name));
            assert!(
                step.task
                    .is_none_or(|task| task > 0 && usize::from(task) < definition.graphs.len())
            );
            assert_eq!(
                graph.find_index(&step.name).map(|index| graph.step(index)),
                Some(step),
                "names are unique"
            );
        }
        assert!(is_acyclic(graph), "a cycle was loaded");
    }
}

/// Returns whether a graph has no cycle: every step is reached if each is completed once its
/// dependencies are.
fn is_acyclic(graph: &Graph) -> bool {
    let mut states = vec![StepState::Waiting; graph.steps.len()];
    let mut open_dependencies: Vec<usize> =
        graph.steps.iter().map(|step| step.step_dependencies().len()).collect();
    let mut ready: Vec<_> =
        graph.indices().filter(|step| open_dependencies[step.as_usize()] == 0).collect();
    while let Some(step) = ready.pop() {
        states[step.as_usize()] = StepState::Completed;
        for dependent in graph.dependents(step) {
            open_dependencies[dependent.as_usize()] -= 1;
            if open_dependencies[dependent.as_usize()] == 0 {
                ready.push(*dependent);
            }
        }
    }
    states.iter().all(|state| *state == StepState::Completed)
}
