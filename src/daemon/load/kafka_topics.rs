//! Checks steps that send their messages over Kafka, where the queue of a step is a topic.

use super::buses::{SendingStep, steps_on_bus};
use super::diagnostics::Diagnostics;
use super::draft::{StepDraft, WorkflowDraft};
use super::values::LocatedText;
use crate::settings::{BusKind, Settings};
use bus::check_topic;
use engine::Definition;

/// Reports steps on Kafka that have no timeout or have `replyUsers`, and those whose queue is not a
/// valid topic or is a workflow queue. Warns about keys that have no effect.
/// Without settings, only the predefined bus `kafka` is known to be one.
pub(super) fn check_topics(
    draft: &WorkflowDraft,
    settings: Option<&Settings>,
    report: &mut Diagnostics,
) {
    for SendingStep { task, step, queue, bus } in steps_on_bus(BusKind::Kafka, draft, settings) {
        report.task = task.map(|task| task.text.clone());
        report.step = step.name.as_ref().map(|name| name.text.clone());
        let topic = settings.and_then(|settings| Some(settings.kafka_bus(bus)?.topic(&queue.text)));
        check_step(step, queue, topic.as_deref().unwrap_or(&queue.text), report);
    }
    (report.task, report.step) = (None, None);
}

/// Checks one step. `topic` is the full name of the topic for its queue.
fn check_step(step: &StepDraft, queue: &LocatedText, topic: &str, report: &mut Diagnostics) {
    if let Err(reason) = check_topic(topic) {
        report.add_error(queue.location, format!("the queue is a topic of Kafka: {reason}"));
    }
    if queue.text.starts_with(Definition::WORKFLOW_QUEUE_PREFIX) {
        report.add_error(
            queue.location,
            "no workflow takes calls over Kafka: name another bus for this step, or a task"
                .to_owned(),
        );
    }
    if step.options.timeout.is_none() {
        report.add_error(
            queue.location,
            "a step whose messages go over Kafka has a \"timeout\", and this one has none: nobody \
             there counts how often a message was given to workers, or notices that one was passed \
             over"
                .to_owned(),
        );
    }
    if let Some((_, location)) = &step.options.reply_users {
        report.add_error(
            *location,
            "\"replyUsers\" cannot be kept over Kafka, which does not tell who has written a \
             record: let its access rules say who may write to the topic of replies",
        );
    }
    if let Some((_, location)) = step.priority {
        report.add_warning(
            location,
            "\"priority\" has no effect: a topic of Kafka has one order for all",
        );
    }
}
