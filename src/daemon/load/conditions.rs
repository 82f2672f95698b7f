//! Compiles the conditions of steps, and checks the steps that they refer to. Errors have the
//! locations within the conditions, if these can be determined.

use super::diagnostics::Diagnostics;
use super::draft::{ConditionDraft, GraphDraft};
use super::limits::CONDITION_BYTES_MAX;
use super::location::SourceLocation;
use engine::expression::ExpressionError;
use engine::text::quote;
use engine::{Expression, Graph, StepIndex};
use std::collections::HashMap;

/// The compiled conditions of a file. Equal texts are compiled only once.
#[derive(Default)]
pub(super) struct CompiledConditions {
    /// The results of compiling, by the text of the condition.
    results: HashMap<String, Result<Expression, ExpressionError>>,
    /// The total length of the compiled texts and of those beyond the limit, in bytes.
    total_bytes: usize,
}

impl CompiledConditions {
    /// Compiles a condition. Returns `None` if it is invalid, which is reported, or if it is beyond
    /// [`CONDITION_BYTES_MAX`], which is reported once for each file.
    pub(super) fn compile(
        &mut self,
        draft: &ConditionDraft,
        report: &mut Diagnostics,
    ) -> Option<Expression> {
        if !self.results.contains_key(&draft.text) {
            let bytes_before = self.total_bytes;
            self.total_bytes = bytes_before.saturating_add(draft.text.len());
            if self.total_bytes > CONDITION_BYTES_MAX {
                if bytes_before <= CONDITION_BYTES_MAX {
                    let kib = CONDITION_BYTES_MAX / 1024;
                    report.add_error(
                        draft.location,
                        format!(
                            "the conditions of the file have more than {kib} KiB together up to \
                             here; split the file"
                        ),
                    );
                }
                return None;
            }
            self.results.insert(draft.text.clone(), Expression::parse(&draft.text));
        }
        match self.results.get(&draft.text)? {
            Ok(expression) => Some(expression.clone()),
            Err(error) => {
                let (location, inner_location) = draft.locate_error(error);
                let text = quote(&draft.text);
                let what = match &*draft.key {
                    "when" | "cancelWhen" => format!("the condition {text}"),
                    key => format!("the expression {text} of {}", quote(key)),
                };
                report.add_error(location, format!("{what}{inner_location}: {}", error.message));
                None
            }
        }
    }
}

/// Checks the compiled conditions of the step with this index. Reports obvious mistakes, references
/// to steps that do not exist, and a `when` that refers to its own step.
pub(super) fn check_references(
    draft: &GraphDraft,
    index: usize,
    when: Option<&Expression>,
    cancel_when: Option<&Expression>,
    report: &mut Diagnostics,
) {
    let step = &draft.steps[index];
    for (key, condition, expression) in
        [("when", &step.options.when, when), ("cancelWhen", &step.options.cancel_when, cancel_when)]
    {
        let (Some(condition), Some(expression)) = (condition, expression) else { continue };
        report_mistakes(key, condition, expression, report);
        for name in expression.steps() {
            let names =
                || draft.steps.iter().filter_map(|step| Some(step.name.as_ref()?.text.as_str()));
            let location = condition.locate_step(name);
            if !names().any(|step_name| step_name == name) {
                let suggestion = report.suggest(name, names());
                report.add_error(
                    location,
                    format!(
                        "{} looks at the step {}, which is not a step here{suggestion}",
                        quote(key),
                        quote(name)
                    ),
                );
            } else if key == "when"
                && step.name.as_ref().is_some_and(|step_name| step_name.text == *name)
            {
                report.add_error(
                    location,
                    "\"when\" looks at its own step, which has neither status nor output before \
                     it runs",
                );
            }
        }
    }
}

/// Warns about race conditions: a `when` that refers to a step for which its own step does not
/// wait, directly or through others.
pub(super) fn warn_of_races(draft: &GraphDraft, graph: &Graph, report: &mut Diagnostics) {
    if graph.steps.iter().all(|step| step.when.as_ref().is_none_or(|when| when.steps().is_empty()))
    {
        return;
    }
    let ancestors = find_ancestors(graph);
    for (index, step) in graph.indices().zip(&graph.steps) {
        let (Some(when), Some(condition)) =
            (&step.when, &draft.steps[index.as_usize()].options.when)
        else {
            continue;
        };
        report.step = Some(step.name.to_string());
        for name in when.steps() {
            if graph
                .find_index(name)
                .is_some_and(|target| !ancestors[index.as_usize()].contains(target))
            {
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

/// How many steps one word of a [`StepSet`] covers.
const STEPS_PER_WORD: usize = u64::BITS as usize;

/// A set of steps, as a bitmap indexed by [`StepIndex`].
#[derive(Clone)]
struct StepSet(Vec<u64>);

impl StepSet {
    fn contains(&self, step: StepIndex) -> bool {
        let word = self.0[step.as_usize() / STEPS_PER_WORD];
        word >> (step.as_usize() % STEPS_PER_WORD) & 1 == 1
    }

    fn insert(&mut self, step: StepIndex) {
        self.0[step.as_usize() / STEPS_PER_WORD] |= 1 << (step.as_usize() % STEPS_PER_WORD);
    }

    /// Adds all steps of another set of the same size.
    fn extend(&mut self, other: &StepSet) {
        for (word, other_word) in self.0.iter_mut().zip(&other.0) {
            *word |= other_word;
        }
    }
}

/// Returns for each step its ancestors: the steps that it waits for, directly or through others
/// (Kahn's algorithm). The graph must have no cycle.
fn find_ancestors(graph: &Graph) -> Vec<StepSet> {
    let empty = StepSet(vec![0; graph.steps.len().div_ceil(STEPS_PER_WORD)]);
    let mut ancestors = vec![empty; graph.steps.len()];
    let mut unvisited_dependencies: Vec<usize> =
        graph.steps.iter().map(|step| step.step_dependencies().len()).collect();
    let mut ready_steps: Vec<StepIndex> =
        graph.indices().filter(|step| unvisited_dependencies[step.as_usize()] == 0).collect();
    while let Some(step) = ready_steps.pop() {
        let step_ancestors = ancestors[step.as_usize()].clone();
        for dependent in graph.dependents(step) {
            ancestors[dependent.as_usize()].extend(&step_ancestors);
            ancestors[dependent.as_usize()].insert(step);
            unvisited_dependencies[dependent.as_usize()] -= 1;
            if unvisited_dependencies[dependent.as_usize()] == 0 {
                ready_steps.push(*dependent);
            }
        }
    }
    ancestors
}

/// Reports what is wrong in the text of an expression. `name`: its key.
pub(super) fn report_mistakes(
    name: &str,
    condition: &ConditionDraft,
    expression: &Expression,
    report: &mut Diagnostics,
) {
    for error in expression.mistakes() {
        let (location, inner_location) = condition.locate_error(error);
        report.add_error(location, format!("{}{inner_location}: {}", quote(name), error.message));
    }
}

/// What an expression is for that has a text, a number or a bool as its value.
pub(super) struct ValueUse {
    /// The value, such as `a column`.
    pub(super) noun: &'static str,
    /// What it can read beside `job`.
    pub(super) other_source: &'static str,
    pub(super) example: &'static str,
}

/// Reports an expression whose value does not depend on the job, or cannot be a text, a number or a
/// bool. `name`: its key.
pub(super) fn report_no_value(
    name: &str,
    location: SourceLocation,
    expression: &Expression,
    ValueUse { noun, other_source, example }: ValueUse,
    report: &mut Diagnostics,
) {
    let name = quote(name);
    if !expression.reads_data() {
        report.add_error(
            location,
            format!(
                "{name} is the same for every job: it reads neither `job` nor `{other_source}`, \
                 such as {example}"
            ),
        );
    } else if let Some(kind) = expression.literal_kind() {
        report.add_error(
            location,
            format!(
                "{name} gives {kind}, and {noun} is a text, a number, or true or false: name one \
                 value, such as {example}"
            ),
        );
    }
}
