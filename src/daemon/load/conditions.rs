//! Compiles the conditions of steps, reports errors at their locations in the file, and compares
//! the steps that they refer to with the graph.

use super::diagnostics::Diagnostics;
use super::draft::{ConditionDraft, GraphDraft};
use super::limits::CONDITION_BYTES_MAX;
use engine::expression::ExpressionError;
use engine::text::quote;
use engine::{Expression, Graph, StepIndex};
use std::collections::HashMap;

/// The compiled conditions of a file: equal texts are compiled once.
#[derive(Default)]
pub(super) struct CompiledConditions {
    compiled: HashMap<String, Result<Expression, ExpressionError>>,
    bytes: usize,
}

impl CompiledConditions {
    /// Compiles a condition; `None` if an error was reported.
    pub(super) fn compile(
        &mut self,
        draft: &ConditionDraft,
        report: &mut Diagnostics,
    ) -> Option<Expression> {
        if !self.compiled.contains_key(&draft.text) {
            let before = self.bytes;
            self.bytes = self.bytes.saturating_add(draft.text.len());
            if self.bytes > CONDITION_BYTES_MAX {
                if before <= CONDITION_BYTES_MAX {
                    let kib = CONDITION_BYTES_MAX / 1024;
                    report.add_error(
                        draft.at,
                        format!(
                            "the conditions of the file have more than {kib} KiB together up to \
                             here; split the file"
                        ),
                    );
                }
                return None;
            }
            self.compiled.insert(draft.text.clone(), Expression::parse(&draft.text));
        }
        match self.compiled.get(&draft.text)? {
            Ok(expression) => Some(expression.clone()),
            Err(error) => {
                let (at, place) = draft.locate_error(error);
                report.add_error(
                    at,
                    format!("the condition {}{place}: {}", quote(&draft.text), error.message),
                );
                None
            }
        }
    }
}

/// Reports references of a step's conditions to steps that do not exist, or that have no result
/// yet.
pub(super) fn check_references(
    draft: &GraphDraft,
    own: usize,
    when: Option<&Expression>,
    cancel_when: Option<&Expression>,
    report: &mut Diagnostics,
) {
    let step = &draft.steps[own];
    for (key, condition, expression) in
        [("when", &step.options.when, when), ("cancelWhen", &step.options.cancel_when, cancel_when)]
    {
        let (Some(condition), Some(expression)) = (condition, expression) else { continue };
        for mistake in expression.mistakes() {
            let (at, place) = condition.locate_error(mistake);
            report.add_error(at, format!("{}{place}: {}", quote(key), mistake.message));
        }
        for name in expression.steps() {
            let names =
                || draft.steps.iter().filter_map(|step| Some(step.name.as_ref()?.text.as_str()));
            let at = condition.locate_step(name);
            if !names().any(|known| known == name) {
                let guess = report.suggest(name, names());
                report.add_error(
                    at,
                    format!(
                        "{} looks at the step {}, which is not a step here{guess}",
                        quote(key),
                        quote(name)
                    ),
                );
            } else if key == "when" && step.name.as_ref().is_some_and(|own| own.text == *name) {
                report.add_error(
                    at,
                    "\"when\" looks at its own step, which has neither status nor output before \
                     it runs",
                );
            }
        }
    }
}

/// Warns of each `when` that refers to a step which its own step does not wait for.
pub(super) fn warn_of_races(draft: &GraphDraft, graph: &Graph, report: &mut Diagnostics) {
    if graph.steps.iter().all(|step| step.when.as_ref().is_none_or(|when| when.steps().is_empty()))
    {
        return;
    }
    let awaited = find_awaited(graph);
    for (at, step) in graph.indices().zip(&graph.steps) {
        let (Some(when), Some(condition)) = (&step.when, &draft.steps[at.as_usize()].options.when)
        else {
            continue;
        };
        report.step = Some(step.name.to_string());
        for name in when.steps() {
            if graph.find_index(name).is_some_and(|other| !awaited[at.as_usize()].contains(other)) {
                report.add_warning(
                    condition.locate_step(name),
                    format!(
                        "\"when\" looks at the step {name}, for which this step does not wait: \
                         what it sees is a matter of timing; add {name} to `depends`",
                        name = quote(name)
                    ),
                );
            }
        }
        report.step = None;
    }
}

/// A set of steps.
#[derive(Clone)]
struct StepSet(Vec<u64>);

impl StepSet {
    fn contains(&self, step: StepIndex) -> bool {
        self.0[step.as_usize() / 64] >> (step.as_usize() % 64) & 1 == 1
    }

    fn insert(&mut self, step: StepIndex) {
        self.0[step.as_usize() / 64] |= 1 << (step.as_usize() % 64);
    }
}

/// Returns for each step all the steps that it waits for, directly or through others. The graph
/// must have no cycle.
fn find_awaited(graph: &Graph) -> Vec<StepSet> {
    let none = StepSet(vec![0; graph.steps.len().div_ceil(64)]);
    let mut awaited = vec![none; graph.steps.len()];
    let mut open: Vec<usize> =
        graph.steps.iter().map(|step| step.step_dependencies().len()).collect();
    let mut ready: Vec<StepIndex> = graph.indices().filter(|at| open[at.as_usize()] == 0).collect();
    while let Some(done) = ready.pop() {
        let behind = awaited[done.as_usize()].clone();
        for next in graph.dependents(done) {
            for (all, more) in awaited[next.as_usize()].0.iter_mut().zip(&behind.0) {
                *all |= more;
            }
            awaited[next.as_usize()].insert(done);
            open[next.as_usize()] -= 1;
            if open[next.as_usize()] == 0 {
                ready.push(*next);
            }
        }
    }
    awaited
}
