//! Checks for keys that contradict each other, that have no effect, or that are missing.

use super::calls::{all_steps, message_queue};
use super::diagnostics::Diagnostics;
use super::draft::{GraphDraft, StepDraft, WorkflowDraft};
use engine::text::quote;
use engine::{Definition, Graph};

/// How many steps without a timeout are named.
const STEPS_LISTED_MAX: usize = 10;

/// Reports keys of a step that conflict.
pub(super) fn check_keys(step: &StepDraft, report: &mut Diagnostics) {
    let external = step.options.external.filter(|(external, _)| *external);
    if let (Some((_, at)), Some(task)) = (external, &step.task) {
        report.add_error(
            at,
            format!(
                "a step is either external or starts a task, and this one names the task {}",
                quote(&task.text)
            ),
        );
    }
    let reason = if step.task.is_some() {
        Some("a step with a task sends no message of its own")
    } else if external.is_some() {
        Some("an external step sends no message")
    } else {
        None
    };
    if let Some(reason) = reason {
        // The address of a web service sets the bus too.
        let queue_at = step.queue.as_ref().map(|queue| queue.at);
        let places = [
            ("queue", queue_at),
            ("bus", step.bus.as_ref().map(|bus| bus.at).filter(|at| Some(*at) != queue_at)),
            ("priority", step.priority.map(|(_, at)| at)),
        ];
        for (key, at) in places.into_iter().filter_map(|(key, at)| Some((key, at?))) {
            report.add_warning(at, format!("{} has no effect: {reason}", quote(key)));
        }
    }
    if let (Some((_, at)), Some(reason)) = (&step.options.start_within, reason) {
        report.add_error(
            *at,
            format!(
                "\"startWithin\" bounds how long a message waits for its worker, and {reason}: \
                 take it away; \"timeout\" bounds how long the step takes"
            ),
        );
    }
    if let (Some((_, at)), Some(reason)) = (&step.options.reply_users, reason) {
        report.add_error(*at, format!("\"replyUsers\" has nothing to look at: {reason}"));
    } else if let Some((_, at)) = &step.options.reply_users
        && message_queue(step)
            .is_some_and(|queue| queue.text.starts_with(Definition::CALL_QUEUE_PREFIX))
    {
        report.add_error(
            *at,
            "the queue is a workflow's: the manager answers there, and no user: take \
             \"replyUsers\" away",
        );
    }
    if let (Some(at), None) = (step.options.statuses_at, &step.options.status.key) {
        report.add_warning(
            at,
            "no reply reports one of these: a \"statusKey\" is missing; without it only progress \
             messages do",
        );
    }
    if let (Some(at), None) = (step.options.skipped_at, &step.options.when) {
        report.add_warning(
            at,
            "\"skippedStatus\" has no effect: only a step with a \"when\" is skipped",
        );
    }
}

/// Warns of waits that are not shorter than the deadline of the workflow.
pub(super) fn warn_of_long_waits(draft: &WorkflowDraft, report: &mut Diagnostics) {
    let Some(deadline) = draft.deadline else { return };
    for (task, step) in all_steps(draft) {
        let Some((wait, at)) = step.options.start_within.filter(|(wait, _)| *wait >= deadline)
        else {
            continue;
        };
        report.task = task.map(|task| task.text.clone());
        report.step = step.name.as_ref().map(|name| name.text.clone());
        report.add_warning(
            at,
            format!(
                "\"startWithin\" has no effect: it is {wait}, and the workflow's \"deadline\" \
                 fails the whole job after {deadline}; write less than that"
            ),
        );
    }
    (report.task, report.step) = (None, None);
}

/// Advises timeouts for the steps of a graph that wait for a worker without one
/// (docs/workflow-file.md).
pub(super) fn advise_timeouts(draft: &GraphDraft, graph: &Graph, report: &mut Diagnostics) {
    let names: Vec<&str> = graph
        .steps
        .iter()
        .filter(|step| step.has_queue() && step.timeout.is_none())
        .map(|step| &*step.name)
        .collect();
    let mut listed: Vec<String> =
        names.iter().take(STEPS_LISTED_MAX).map(|name| quote(name)).collect();
    if names.len() > STEPS_LISTED_MAX {
        listed.push(format!("{} more", names.len() - STEPS_LISTED_MAX));
    }
    let Some(last) = listed.pop() else { return };
    let list = if listed.is_empty() { last } else { format!("{} and {last}", listed.join(", ")) };
    let (noun, verb) = if names.len() == 1 { ("step", "has") } else { ("steps", "have") };
    report.add_advice(
        draft.name.as_ref().map_or(draft.at, |name| name.at),
        format!(
            "the {noun} {list} {verb} no \"timeout\": nothing else notices a worker that \
             acknowledges a message and dies before it replies"
        ),
    );
}
