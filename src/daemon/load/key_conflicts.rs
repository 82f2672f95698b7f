//! Checks for keys of a step that contradict each other, have no effect, or are missing.

use super::calls::message_queue;
use super::diagnostics::Diagnostics;
use super::draft::{GraphDraft, StepDraft};
use engine::text::quote;
use engine::{Definition, Graph};

/// How many steps without a timeout the advice lists by name.
const STEPS_LISTED_MAX: usize = 10;

/// Reports keys of a step that contradict each other or have no effect.
pub(super) fn check_keys(step: &StepDraft, report: &mut Diagnostics) {
    let external = step.options.external.filter(|(is_external, _)| *is_external);
    if let (Some((_, location)), Some(task)) = (external, &step.task) {
        report.add_error(
            location,
            format!(
                "a step is either external or starts a task, and this one names the task {}",
                quote(&task.text)
            ),
        );
    }
    let no_message_reason = if step.task.is_some() {
        Some("a step with a task sends no message of its own")
    } else if external.is_some() {
        Some("an external step sends no message")
    } else {
        None
    };
    if let Some(reason) = no_message_reason {
        // The address of a web service implies the bus, which then has the location of the queue.
        // Such a bus is not written in the file, so it gets no warning.
        let queue_location = step.queue.as_ref().map(|queue| queue.location);
        let locations = [
            ("queue", queue_location),
            (
                "bus",
                step.bus
                    .as_ref()
                    .map(|bus| bus.location)
                    .filter(|location| Some(*location) != queue_location),
            ),
            ("priority", step.priority.map(|(_, location)| location)),
        ];
        for (key, location) in
            locations.into_iter().filter_map(|(key, location)| Some((key, location?)))
        {
            report.add_warning(location, format!("{} has no effect: {reason}", quote(key)));
        }
    }
    if let (Some((_, location)), Some(reason)) = (&step.options.start_within, no_message_reason) {
        report.add_error(
            *location,
            format!(
                "\"startWithin\" bounds how long a message waits for its worker, and \
                 {reason}: take it away; \"timeout\" bounds how long the step takes"
            ),
        );
    }
    if let Some((_, location)) = &step.options.wait_at_most
        && step.limits.is_empty()
    {
        report.add_error(
            *location,
            "\"waitAtMost\" bounds how long the step waits for its limits, and it names none: add \
             a \"limit\", or take it away; \"startWithin\" bounds how long a message waits for \
             its worker",
        );
    }
    if let (Some((_, location)), Some(reason)) = (&step.options.reply_users, no_message_reason) {
        report.add_error(*location, format!("\"replyUsers\" has nothing to look at: {reason}"));
    } else if let Some((_, location)) = &step.options.reply_users
        && message_queue(step)
            .is_some_and(|queue| queue.text.starts_with(Definition::WORKFLOW_QUEUE_PREFIX))
    {
        report.add_error(
            *location,
            "the queue is a workflow's: the manager answers there, and no user: take \
             \"replyUsers\" away",
        );
    }
    if let (Some(location), None) = (step.options.statuses_location, &step.options.status.key) {
        report.add_warning(
            location,
            "no reply reports one of these: a \"statusKey\" is missing; without it only progress \
             messages do",
        );
    }
    if let (Some(location), None) = (step.options.skipped_location, &step.options.when) {
        report.add_warning(
            location,
            "\"skippedStatus\" has no effect: only a step with a \"when\" is skipped",
        );
    }
}

/// Advises a timeout for the steps of a graph that have a queue but no timeout
/// (docs/reference/workflow-file.md).
pub(super) fn advise_timeouts(draft: &GraphDraft, graph: &Graph, report: &mut Diagnostics) {
    let step_names: Vec<&str> = graph
        .steps
        .iter()
        .filter(|step| step.has_queue() && step.timeout.is_none())
        .map(|step| &*step.name)
        .collect();
    let mut listed_names: Vec<String> =
        step_names.iter().take(STEPS_LISTED_MAX).map(|name| quote(name)).collect();
    if step_names.len() > STEPS_LISTED_MAX {
        listed_names.push(format!("{} more", step_names.len() - STEPS_LISTED_MAX));
    }
    let Some(last_name) = listed_names.pop() else { return };
    let list = if listed_names.is_empty() {
        last_name
    } else {
        format!("{} and {last_name}", listed_names.join(", "))
    };
    let (noun, verb) = if step_names.len() == 1 { ("step", "has") } else { ("steps", "have") };
    report.add_advice(
        draft.name.as_ref().map_or(draft.location, |name| name.location),
        format!(
            "the {noun} {list} {verb} no \"timeout\": nothing else notices a worker that \
             acknowledges a message and dies before it replies"
        ),
    );
}
