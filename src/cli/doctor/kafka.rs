//! Checks of Kafka: whether the brokers can be reached, and the state of the workflows' topics.

use super::broker::format_location;
use super::finding::Finding;
use super::installation::Installation;
use engine::text::{enumerate_quoted, quote};
use kafka::{TopicSurvey, survey_topics};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

// The names of the checks.
const BROKER: &str = "kafka";
const TOPICS: &str = "topics";

/// Checks the brokers and topics of each Kafka bus. Nothing is changed.
pub(super) fn inspect(installation: &Installation, findings: &mut Vec<Finding>) {
    let settings = &installation.settings;
    for name in settings.bus_kinds().into_keys() {
        let Some(section) = settings.kafka_bus(name) else { continue };
        let location = format_location(settings, name, "");
        let timeouts = longest_timeouts(installation, name);
        match actix_rt::System::new().block_on(survey_topics(section, &timeouts)) {
            Err(reason) => {
                let remedy = "see that they run, and that the settings servers and properties are \
                             right; the manager tries again by itself";
                findings.push(Finding::error(BROKER, format!("{reason}{location}"), remedy));
            }
            Ok(survey) => check_topics(&survey, &section.reply_topic, &location, findings),
        }
    }
}

/// Returns the topics that the workflows use on a bus, each with the longest timeout of its steps,
/// for which it must keep messages. The timeout is `None` if none of its steps has one.
fn longest_timeouts(
    installation: &Installation,
    bus: &str,
) -> BTreeMap<Arc<str>, Option<Duration>> {
    let mut timeouts: BTreeMap<Arc<str>, Option<Duration>> = BTreeMap::new();
    for (_, step) in installation.steps_on_bus(bus) {
        let timeout = step.timeout.map(|timeout| Duration::from_millis(timeout.0));
        let longest_timeout = timeouts.entry(step.queue.clone()).or_default();
        // `None` is less than any timeout.
        *longest_timeout = timeout.max(*longest_timeout);
    }
    timeouts
}

/// Adds findings about the topics of a bus whose brokers answer.
fn check_topics(
    survey: &TopicSurvey,
    reply_topic: &str,
    location: &str,
    findings: &mut Vec<Finding>,
) {
    findings.push(Finding::ok(BROKER, format!("the brokers answer{location}")));
    for (topic, problem) in &survey.problems {
        let remedy = "mend the topic; the manager sends nothing there until then, and looks again \
                     by itself";
        findings.push(Finding::error(
            TOPICS,
            format!("topic {}: {problem}{location}", quote(topic)),
            remedy,
        ));
    }
    let mut missing_topics: Vec<&str> =
        survey.missing_queues.iter().map(|queue| &**queue).collect();
    if !survey.has_reply_topic {
        missing_topics.push(reply_topic);
    }
    if missing_topics.is_empty() && survey.problems.is_empty() {
        findings.push(Finding::ok(
            TOPICS,
            format!("all are there, and keep messages long enough{location}"),
        ));
    } else if !missing_topics.is_empty() {
        let topic_list = enumerate_quoted(missing_topics, "and");
        let text =
            format!("{topic_list} not there yet: the manager makes what is missing{location}");
        findings.push(Finding::ok(TOPICS, text));
    }
}
