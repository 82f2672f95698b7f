//! Checks of Kafka: whether the brokers can be reached, and the state of the workflows' topics.

use super::broker::place;
use super::finding::Finding;
use super::local::Local;
use crate::bus::kafka::{Survey, survey};
use crate::engine::words::{enumerated, quoted};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const BROKER: &str = "kafka";
const TOPICS: &str = "topics";

/// Checks the brokers of each Kafka bus, without changing anything.
pub(super) fn look(local: &Local, found: &mut Vec<Finding>) {
    let settings = &local.settings;
    for name in settings.bus_kinds().into_keys() {
        let Some(section) = settings.kafka_bus(name) else { continue };
        let place = place(settings, name, "");
        let waits = waits_of(local, name);
        match actix_rt::System::new().block_on(survey(section, &waits)) {
            Err(reason) => {
                let to_do = "see that they run, and that the settings servers and properties are \
                             right; the manager tries again by itself";
                found.push(Finding::error(BROKER, format!("{reason}{place}"), to_do));
            }
            Ok(looked) => tell(&looked, &section.reply_topic, &place, found),
        }
    }
}

/// Returns the queues that the workflows have on a bus, each with the longest time that a message
/// waits there.
fn waits_of(local: &Local, bus: &str) -> BTreeMap<Arc<str>, Option<Duration>> {
    let default = local.settings.default_bus();
    let mut waits: BTreeMap<Arc<str>, Option<Duration>> = BTreeMap::new();
    for definition in &local.definitions {
        for step in definition.sending_steps() {
            let named = step.bus.as_ref().or(definition.bus.as_ref());
            if named.map_or(default, |named| named) == bus {
                let timeout = step.timeout.map(|timeout| Duration::from_millis(timeout.0));
                let longest = waits.entry(step.queue.clone()).or_default();
                *longest = timeout.max(*longest);
            }
        }
    }
    waits
}

fn tell(looked: &Survey, reply_topic: &str, place: &str, found: &mut Vec<Finding>) {
    found.push(Finding::ok(BROKER, format!("the brokers answer{place}")));
    for (topic, why) in &looked.objections {
        let to_do = "mend the topic; the manager sends nothing there until then, and looks again \
                     by itself";
        found.push(Finding::error(TOPICS, format!("topic {}: {why}{place}", quoted(topic)), to_do));
    }
    let mut missing: Vec<&str> = looked.missing.iter().map(|queue| &**queue).collect();
    if !looked.has_replies {
        missing.push(reply_topic);
    }
    if missing.is_empty() && looked.objections.is_empty() {
        found.push(Finding::ok(
            TOPICS,
            format!("all are there, and keep messages long enough{place}"),
        ));
    } else if !missing.is_empty() {
        let missing = enumerated(missing, "and");
        let text = format!("{missing} not there yet: the manager makes what is missing{place}");
        found.push(Finding::ok(TOPICS, text));
    }
}
