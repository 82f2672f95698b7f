//! Workflow files: any text is loaded or refused, twice alike; what is loaded is sound.

use workflow_manager::engine::{Definition, Graph, StepState, id::is_valid_name};
use workflow_manager::load::{STEPS_IN_ALL_MAX, load_text};

/// The most characters of problems for each byte of the file, beside a constant: no file makes a
/// flood of them.
const PROBLEM_BYTES_PER_BYTE: usize = 1_000;
const PROBLEM_BYTES_FREE: usize = 100_000;

/// One file.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (first, second) = (load_text("f.yaml", text), load_text("f.yaml", text));
    match (first, second) {
        (Ok(loaded), Ok(again)) => {
            assert_eq!(loaded.definitions, again.definitions);
            let steps: usize = loaded
                .definitions
                .iter()
                .flat_map(|definition| &definition.graphs)
                .map(|graph| graph.steps.len())
                .sum();
            assert!(steps <= STEPS_IN_ALL_MAX);
            loaded.definitions.iter().for_each(|definition| sound(definition));
        }
        (Err(errors), Err(again)) => {
            assert_eq!(errors, again);
            assert!(!errors.0.is_empty(), "refused without a reason");
            // YAML also ends a line at a carriage return that stands alone.
            let lines = text.matches(['\n', '\r']).count() + 2;
            for problem in &errors.0 {
                assert!(problem.line <= lines, "line {} of {lines}: {problem}", problem.line);
                assert!(!problem.message.is_empty());
            }
            let said = errors.to_string().len();
            assert!(
                said <= PROBLEM_BYTES_FREE + PROBLEM_BYTES_PER_BYTE * text.len(),
                "{said} bytes of problems for {} bytes",
                text.len()
            );
        }
        (first, second) => panic!("loaded once and refused once: {first:?} {second:?}"),
    }
}

fn sound(definition: &Definition) {
    assert!(is_valid_name(&definition.name));
    let stored = serde_json::to_string(definition).expect("a definition serialises");
    let read: Definition = serde_json::from_str(&stored).expect("a stored definition parses");
    assert_eq!(read, *definition);
    assert!(!definition.graphs.is_empty());
    for (at, graph) in definition.graphs.iter().enumerate() {
        assert_eq!(graph.fan_out.is_some(), at > 0, "tasks fan out, workflows do not");
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
        assert!(ends(graph), "a cycle was loaded");
    }
}

/// Whether every step can be reached when steps are done one after the other.
fn ends(graph: &Graph) -> bool {
    let mut states = vec![StepState::Waiting; graph.steps.len()];
    let mut waits: Vec<usize> =
        graph.steps.iter().map(|step| step.step_dependencies().len()).collect();
    let mut ready: Vec<_> = graph.indices().filter(|step| waits[step.as_usize()] == 0).collect();
    while let Some(step) = ready.pop() {
        states[step.as_usize()] = StepState::Completed;
        for next in graph.dependents(step) {
            waits[next.as_usize()] -= 1;
            if waits[next.as_usize()] == 0 {
                ready.push(*next);
            }
        }
    }
    states.iter().all(|state| *state == StepState::Completed)
}
