//! Steps that ask for jobs of workflows: a step whose queue is `workflow.<name>`
//! (docs/worker-protocol.md). Checks whether workflows call each other endlessly.

use super::cycles::find_cycles;
use super::diagnostics::Diagnostics;
use super::draft::{StepDraft, WorkflowDraft};
use super::location::SourceLocation;
use super::values::LocatedText;
use engine::Definition;
use engine::text::quote;
use std::collections::HashMap;

/// How many cycles are reported.
const CALL_CYCLES_LISTED_MAX: usize = 10;

/// A step without a condition whose messages ask for jobs of a workflow.
pub(super) struct CallingStep {
    file: String,
    at: SourceLocation,
    /// The full name of the step's workflow.
    from: String,
    /// The queue, prefixed with its bus and virtual host.
    queue: String,
    /// The queue on which the step's own workflow takes calls, with the same prefix.
    own_queue: String,
    step: String,
}

/// Returns the queue that a step's messages go to, with its location.
pub(super) fn message_queue(step: &StepDraft) -> Option<&LocatedText> {
    let sends = step.task.is_none() && !step.options.external.is_some_and(|(external, _)| external);
    step.queue.as_ref().or(step.name.as_ref()).filter(|_| sends)
}

/// Returns the steps of a workflow; those of a task come with the task's name.
pub(super) fn all_steps(
    draft: &WorkflowDraft,
) -> impl Iterator<Item = (Option<&LocatedText>, &StepDraft)> {
    let tasks = draft
        .tasks
        .iter()
        .flat_map(|task| task.steps.iter().map(|step| (task.name.as_ref(), step)));
    draft.graph.steps.iter().map(|step| (None, step)).chain(tasks)
}

fn qualified_queue(bus: Option<&str>, definition: &Definition, queue: &str) -> String {
    format!("{} {}/{queue}", bus.unwrap_or_default(), definition.vhost)
}

/// Returns the unconditional calls of a workflow.
pub(super) fn find_calls(
    draft: &WorkflowDraft,
    definition: &Definition,
    file: &str,
) -> Vec<CallingStep> {
    let unconditional = all_steps(draft).filter(|(_, step)| step.options.when.is_none());
    let calls = unconditional.filter_map(|(_, step)| {
        let queue = message_queue(step)?;
        queue.text.starts_with(Definition::CALL_QUEUE_PREFIX).then(|| CallingStep {
            file: file.to_owned(),
            at: queue.at,
            from: definition.full_name(),
            queue: qualified_queue(
                step.bus.as_ref().map(|bus| bus.text.as_str()).or(definition.bus.as_deref()),
                definition,
                &queue.text,
            ),
            own_queue: qualified_queue(
                definition.bus.as_deref(),
                definition,
                &Definition::call_queue(&definition.name),
            ),
            step: step.name.as_ref().map_or_else(String::new, |name| name.text.clone()),
        })
    });
    calls.collect()
}

/// Warns of workflows whose jobs each ask for another job, endlessly.
pub(super) fn warn_of_call_cycles(calls: &[CallingStep], reports: &mut [Diagnostics]) {
    let mut names: Vec<&str> = Vec::new();
    let mut indexes: HashMap<&str, usize> = HashMap::new();
    for call in calls {
        indexes.entry(&call.from).or_insert_with(|| {
            names.push(&call.from);
            names.len() - 1
        });
    }
    let by_queue: HashMap<&str, usize> = calls
        .iter()
        .filter_map(|call| Some((&*call.own_queue, *indexes.get(&*call.from)?)))
        .collect();
    let mut next = vec![Vec::new(); names.len()];
    for call in calls {
        if let (Some(from), Some(to)) = (indexes.get(&*call.from), by_queue.get(&*call.queue))
            && !next[*from].contains(to)
        {
            next[*from].push(*to);
        }
    }
    for cycle in find_cycles(&next, CALL_CYCLES_LISTED_MAX) {
        let second = cycle.get(1).unwrap_or(&cycle[0]);
        let leads_on = |call: &&CallingStep| {
            call.from == names[cycle[0]] && by_queue.get(&*call.queue) == Some(second)
        };
        let Some(call) = calls.iter().find(leads_on) else { continue };
        let Some(report) = reports.iter_mut().find(|report| report.file == call.file) else {
            continue;
        };
        let text = match cycle.as_slice() {
            [_] => "the workflow calls itself: each of its jobs asks for another one".to_owned(),
            several => {
                let path: Vec<String> =
                    several.iter().chain(&cycle[..1]).map(|at| quote(names[*at])).collect();
                format!(
                    "workflows call each other in a circle, {}: each job asks for another one",
                    path.join(" → ")
                )
            }
        };
        report.workflow = Some(Definition::split_full_name(&call.from).1.to_owned());
        report.step = Some(call.step.clone());
        report.add_warning(call.at, format!("{text}, for ever; a \"when\" can end it"));
        report.leave_scope();
        report.sort();
    }
}
