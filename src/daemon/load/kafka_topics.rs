//! Checks steps whose messages go to topics of Kafka.

use super::buses::{SendingStep, steps_on_bus};
use super::diagnostics::Diagnostics;
use super::draft::{StepDraft, WorkflowDraft};
use super::values::LocatedText;
use crate::settings::{BusKind, Settings};
use bus::check_topic;
use engine::Definition;

/// Refuses such steps if they have no timeout or their queues cannot be topics, and warns of keys
/// that have no effect. Which buses use Kafka follows from the settings, if they are known.
pub(super) fn check_topics(
    draft: &WorkflowDraft,
    settings: Option<&Settings>,
    report: &mut Diagnostics,
) {
    for SendingStep { task, step, queue, bus } in steps_on_bus(BusKind::Kafka, draft, settings) {
        report.task = task.map(|task| task.text.clone());
        report.step = step.name.as_ref().map(|name| name.text.clone());
        let topic = settings.and_then(|known| Some(known.kafka_bus(bus)?.topic(&queue.text)));
        check_step(step, queue, topic.as_deref().unwrap_or(&queue.text), report);
    }
    (report.task, report.step) = (None, None);
}

fn check_step(step: &StepDraft, queue: &LocatedText, topic: &str, report: &mut Diagnostics) {
    if let Err(why) = check_topic(topic) {
        report.add_error(queue.at, format!("the queue is a topic of Kafka: {why}"));
    }
    if queue.text.starts_with(Definition::CALL_QUEUE_PREFIX) {
        report.add_error(
            queue.at,
            "no workflow takes calls over Kafka: name another bus for this step, or a task"
                .to_owned(),
        );
    }
    if step.options.timeout.is_none() {
        report.add_error(
            queue.at,
            "a step whose messages go over Kafka has a \"timeout\", and this one has none: nobody \
             there counts how often a message was given to workers, or notices that one was passed \
             over"
                .to_owned(),
        );
    }
    if let Some((_, at)) = &step.options.reply_users {
        report.add_error(
            *at,
            "\"replyUsers\" cannot be kept over Kafka, which does not tell who has written a \
             record: let its access rules say who may write to the topic of replies",
        );
    }
    if let Some((_, at)) = step.priority {
        report
            .add_warning(at, "\"priority\" has no effect: a topic of Kafka has one order for all");
    }
}
