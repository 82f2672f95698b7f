//! Checks whether workflows call each other in a cycle. A step whose queue is `workflow.<name>`
//! calls that workflow: its message creates a job (docs/reference/worker-protocol.md).

use super::cycles::find_cycles;
use super::diagnostics::Diagnostics;
use super::draft::{StepDraft, WorkflowDraft};
use super::location::SourceLocation;
use super::values::LocatedText;
use engine::Definition;
use engine::text::quote;
use std::collections::HashMap;

/// How many cycles of calls are reported.
const CALL_CYCLES_LISTED_MAX: usize = 10;

/// A step without a `when` that calls a workflow.
pub(super) struct CallingStep {
    file: String,
    location: SourceLocation,
    /// The full name of the step's workflow.
    caller: String,
    /// The queue to which the step sends, as a [`qualified_queue`].
    queue: String,
    /// The queue on which the caller takes calls itself, as a [`qualified_queue`].
    caller_queue: String,
    step: String,
}

/// Returns the queue to which a step sends its messages; `None` if it sends none.
pub(super) fn message_queue(step: &StepDraft) -> Option<&LocatedText> {
    let is_external = step.options.external.is_some_and(|(is_external, _)| is_external);
    let has_messages = step.task.is_none() && !is_external;
    step.queue.as_ref().or(step.name.as_ref()).filter(|_| has_messages)
}

/// Returns all steps of a workflow, each with the name of its task if it belongs to one.
pub(super) fn all_steps(
    draft: &WorkflowDraft,
) -> impl Iterator<Item = (Option<&LocatedText>, &StepDraft)> {
    let tasks = draft
        .tasks
        .iter()
        .flat_map(|task| task.steps.iter().map(|step| (task.name.as_ref(), step)));
    draft.graph.steps.iter().map(|step| (None, step)).chain(tasks)
}

/// Returns a queue prefixed with its bus and virtual host. Two queues are the same if these texts
/// are equal.
fn qualified_queue(bus: Option<&str>, definition: &Definition, queue: &str) -> String {
    format!("{} {}/{queue}", bus.unwrap_or_default(), definition.vhost)
}

/// Returns the steps of a workflow that call a workflow unconditionally: those without a `when`.
pub(super) fn find_calls(
    draft: &WorkflowDraft,
    definition: &Definition,
    file: &str,
) -> Vec<CallingStep> {
    let unconditional_steps = all_steps(draft).filter(|(_, step)| step.options.when.is_none());
    let calls = unconditional_steps.filter_map(|(_, step)| {
        let queue = message_queue(step)?;
        queue.text.starts_with(Definition::WORKFLOW_QUEUE_PREFIX).then(|| CallingStep {
            file: file.to_owned(),
            location: queue.location,
            caller: definition.full_name(),
            queue: qualified_queue(
                step.bus.as_ref().map(|bus| bus.text.as_str()).or(definition.bus.as_deref()),
                definition,
                &queue.text,
            ),
            caller_queue: qualified_queue(
                definition.bus.as_deref(),
                definition,
                &Definition::workflow_queue(&definition.name),
            ),
            step: step.name.as_ref().map_or_else(String::new, |name| name.text.clone()),
        })
    });
    calls.collect()
}

/// Warns about workflows that call each other in a cycle, so that they create jobs without end.
pub(super) fn warn_of_call_cycles(calls: &[CallingStep], reports: &mut [Diagnostics]) {
    // The nodes of the graph are the callers. A workflow that calls none is on no cycle.
    let mut callers: Vec<&str> = Vec::new();
    let mut indexes: HashMap<&str, usize> = HashMap::new();
    for call in calls {
        indexes.entry(&call.caller).or_insert_with(|| {
            callers.push(&call.caller);
            callers.len() - 1
        });
    }
    let index_by_queue: HashMap<&str, usize> = calls
        .iter()
        .filter_map(|call| Some((&*call.caller_queue, *indexes.get(&*call.caller)?)))
        .collect();
    let mut successors = vec![Vec::new(); callers.len()];
    for call in calls {
        if let (Some(caller), Some(callee)) =
            (indexes.get(&*call.caller), index_by_queue.get(&*call.queue))
            && !successors[*caller].contains(callee)
        {
            successors[*caller].push(*callee);
        }
    }
    for cycle in find_cycles(&successors, CALL_CYCLES_LISTED_MAX) {
        // A workflow that calls itself is a cycle of one node.
        let second = cycle.get(1).unwrap_or(&cycle[0]);
        let is_first_edge = |call: &&CallingStep| {
            call.caller == callers[cycle[0]] && index_by_queue.get(&*call.queue) == Some(second)
        };
        let Some(call) = calls.iter().find(is_first_edge) else { continue };
        let Some(report) = reports.iter_mut().find(|report| report.file == call.file) else {
            continue;
        };
        let description = match cycle.as_slice() {
            [_] => "the workflow calls itself: each of its jobs asks for another one".to_owned(),
            nodes => {
                let path: Vec<String> =
                    nodes.iter().chain(&cycle[..1]).map(|index| quote(callers[*index])).collect();
                format!(
                    "workflows call each other in a circle, {}: each job asks for another one",
                    path.join(" → ")
                )
            }
        };
        report.workflow = Some(Definition::split_full_name(&call.caller).1.to_owned());
        report.step = Some(call.step.clone());
        report
            .add_warning(call.location, format!("{description}, for ever; a \"when\" can end it"));
        report.leave_scope();
        report.sort();
    }
}
