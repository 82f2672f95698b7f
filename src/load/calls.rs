//! Steps that ask for jobs of workflows: a step whose queue is `workflow.<name>` (SPEC §4). Which
//! workflow calls which, and whether that ever ends.

use super::cycles::cycles;
use super::draft::{StepDraft, WorkflowDraft};
use super::place::Position;
use super::report::Report;
use super::values::Word;
use crate::engine::Definition;
use crate::engine::words::quoted;
use crate::settings::unreadable_queue;
use std::collections::HashMap;

/// The most circles that are reported.
const CIRCLES_MAX: usize = 10;

/// A step without a condition whose messages ask for jobs of a workflow.
pub(super) struct CallingStep {
    file: String,
    at: Position,
    /// The workflow of the step, by its full name.
    from: String,
    /// The queue, with the virtual host before it.
    queue: String,
    step: String,
}

/// The queue that a step's messages go to, and where it is written.
fn queue(step: &StepDraft) -> Option<&Word> {
    let sends = step.task.is_none() && !step.options.external.is_some_and(|(external, _)| external);
    step.queue.as_ref().or(step.name.as_ref()).filter(|_| sends)
}

fn steps(draft: &WorkflowDraft) -> impl Iterator<Item = (Option<&Word>, &StepDraft)> {
    let tasks = draft
        .tasks
        .iter()
        .flat_map(|task| task.steps.iter().map(|step| (task.name.as_ref(), step)));
    draft.graph.steps.iter().map(|step| (None, step)).chain(tasks)
}

fn in_vhost(definition: &Definition, queue: &str) -> String {
    format!("{}/{queue}", definition.vhost)
}

/// The calls of a workflow that end only with their replies.
pub(super) fn of(draft: &WorkflowDraft, definition: &Definition, file: &str) -> Vec<CallingStep> {
    let unconditional = steps(draft).filter(|(_, step)| step.options.when.is_none());
    let calls = unconditional.filter_map(|(_, step)| {
        let queue = queue(step)?;
        queue.text.starts_with(Definition::CALL_QUEUE_PREFIX).then(|| CallingStep {
            file: file.to_owned(),
            at: queue.at,
            from: definition.full_name(),
            queue: in_vhost(definition, &queue.text),
            step: step.name.as_ref().map_or_else(String::new, |name| name.text.clone()),
        })
    });
    calls.collect()
}

/// Refuses steps that send to the queue of the manager's replies or to that of unreadable messages,
/// and workflows that would take these messages for calls.
pub(super) fn refuse_queues(draft: &WorkflowDraft, reply_queue: &str, report: &mut Report) {
    let unreadable = unreadable_queue(reply_queue);
    let kept = [
        (reply_queue, "replies wait"),
        (unreadable.as_str(), "messages that cannot be read are kept"),
    ];
    let taken = |name: &str| {
        let (name, what) = kept.into_iter().find(|(kept, _)| *kept == name)?;
        Some(format!("{what} in the queue {} (setting amqp.reply_queue)", quoted(name)))
    };
    if let Some(name) = &draft.name
        && let Some(taken) = taken(&Definition::call_queue(&name.text))
    {
        report.error(
            name.at,
            format!("{taken}: the workflow cannot take its calls there, choose another name"),
        );
    }
    for (task, step) in steps(draft) {
        if let Some((queue, taken)) =
            queue(step).and_then(|queue| Some((queue, taken(&queue.text)?)))
        {
            report.task = task.map(|task| task.text.clone());
            report.step = step.name.as_ref().map(|name| name.text.clone());
            report
                .error(queue.at, format!("{taken}: step messages cannot go there, choose another"));
        }
    }
    (report.task, report.step) = (None, None);
}

/// Warns of workflows whose jobs each ask for another job, for ever.
pub(super) fn warn_of_circles(calls: &[CallingStep], reports: &mut [Report]) {
    let mut names: Vec<&str> = Vec::new();
    let mut number: HashMap<&str, usize> = HashMap::new();
    for call in calls {
        number.entry(&call.from).or_insert_with(|| {
            names.push(&call.from);
            names.len() - 1
        });
    }
    let queue_of = |name: &str| {
        let (vhost, name) = name.rsplit_once('/').unwrap_or(("", name));
        format!("{vhost}/{}", Definition::call_queue(name))
    };
    let by_queue: HashMap<String, usize> =
        names.iter().enumerate().map(|(at, name)| (queue_of(name), at)).collect();
    let mut next = vec![Vec::new(); names.len()];
    for call in calls {
        if let (Some(from), Some(to)) = (number.get(&*call.from), by_queue.get(&call.queue))
            && !next[*from].contains(to)
        {
            next[*from].push(*to);
        }
    }
    for circle in cycles(&next, CIRCLES_MAX) {
        let second = circle.get(1).unwrap_or(&circle[0]);
        let leads_on = |call: &&CallingStep| {
            call.from == names[circle[0]] && by_queue.get(&call.queue) == Some(second)
        };
        let Some(call) = calls.iter().find(leads_on) else { continue };
        let Some(report) = reports.iter_mut().find(|report| report.file == call.file) else {
            continue;
        };
        let text = match circle.as_slice() {
            [_] => "the workflow calls itself: each of its jobs asks for another one".to_owned(),
            several => {
                let round: Vec<String> =
                    several.iter().chain(&circle[..1]).map(|at| quoted(names[*at])).collect();
                format!(
                    "workflows call each other in a circle, {}: each job asks for another one",
                    round.join(" → ")
                )
            }
        };
        report.workflow = Some(call.from.rsplit('/').next().unwrap_or_default().to_owned());
        report.step = Some(call.step.clone());
        report.warn(call.at, format!("{text}, for ever; a \"when\" can end it"));
        report.leave();
        report.sort();
    }
}
