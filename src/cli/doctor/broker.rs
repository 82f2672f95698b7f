//! Checks of the broker: whether it can be reached, what it allows, and the state of its queues.

use super::finding::Finding;
use super::local::Local;
use crate::bus::amqp::{AmqpSettings, PolicyLook, Probe, probe};
use crate::bus::{QueueLook, Served};
use crate::engine::words::quoted;
use crate::settings::{AmqpSection, BusKind, Settings};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BROKER: &str = "broker";
const REPLIES: &str = "replies";
const POLICY: &str = "policy";
const QUEUES: &str = "queues";

/// Checks each broker, in each virtual host of the workflows. `has_manager` says whether a manager
/// answers.
pub(super) fn look(local: &Local, has_manager: bool, found: &mut Vec<Finding>) {
    let settings = &local.settings;
    let kinds = settings.bus_kinds();
    if !kinds.values().any(|kind| matches!(kind, BusKind::Amqp | BusKind::Kafka)) {
        let text = "no broker is set: workers take messages over HTTP or are part of the process";
        found.push(Finding::ok(BROKER, text));
        return;
    }
    let is_running = local.is_locked.unwrap_or(has_manager);
    let brokers = kinds.into_keys().filter_map(|name| Some((name, settings.amqp_bus(name)?)));
    for (name, section) in brokers {
        for (vhost, queues) in queues_of(local, name) {
            let queues: Vec<Arc<str>> = queues.into_iter().collect();
            // The settings were validated, so their file of authorities can be read.
            let amqp = AmqpSettings::of(section, &vhost, Served::default(), true)
                .trusting(settings.authorities().unwrap_or_default());
            let looked = actix_rt::System::new().block_on(probe(&amqp, &queues));
            let place = place(settings, name, &vhost);
            match looked {
                Err(reason) => {
                    let to_do = "see that it runs, and that the setting server has the right \
                                 address, user and password; the manager tries again by itself";
                    found.push(Finding::error(BROKER, format!("{reason}{place}"), to_do));
                }
                Ok(probe) => {
                    tell(section, &probe, &place, is_running, found);
                    // A running manager has already reported them.
                    if !(has_manager && is_running) {
                        found.extend(unattended(&queues, &probe.queues, &place));
                    }
                }
            }
        }
    }
}

/// Returns the queues that the workflows have on a bus, by virtual host. There is at least the
/// virtual host of the bus's address.
pub(super) fn queues_of(local: &Local, bus: &str) -> BTreeMap<String, BTreeSet<Arc<str>>> {
    let default = local.settings.default_bus();
    let mut queues: BTreeMap<String, BTreeSet<Arc<str>>> = BTreeMap::new();
    for definition in &local.definitions {
        let is_on = |named: Option<&Arc<str>>| named.map_or(default, |named| named) == bus;
        if is_on(definition.bus.as_ref()) {
            queues.entry(definition.vhost.clone()).or_default();
        }
        for step in definition.sending_steps().filter(|step| is_on(step.bus.as_ref())) {
            queues.entry(definition.vhost.clone()).or_default().insert(step.queue.clone());
        }
    }
    if queues.is_empty() {
        queues.insert(String::new(), BTreeSet::new());
    }
    queues
}

/// Describes the bus and the virtual host of a finding. The text is empty for the default bus and
/// the virtual host of its address.
pub(super) fn place(settings: &Settings, bus: &str, vhost: &str) -> String {
    let bus = (bus != settings.default_bus()).then(|| format!("bus {}", quoted(bus)));
    let vhost = (!vhost.is_empty()).then(|| format!("virtual host {}", quoted(vhost)));
    let parts: Vec<String> = bus.into_iter().chain(vhost).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

fn tell(
    section: &AmqpSection,
    probe: &Probe,
    place: &str,
    is_running: bool,
    found: &mut Vec<Finding>,
) {
    found.push(match &probe.may_work {
        Ok(()) => Finding::ok(BROKER, format!("a message went through it{place}")),
        Err(reason) => {
            let to_do = "give the user configure, write and read on the queues of the steps, the \
                         reply queue and the default exchange: rabbitmqctl set_permissions";
            Finding::error(BROKER, format!("{reason}{place}"), to_do)
        }
    });
    found.push(replies(section, &probe.reply_queue, place, is_running));
    if let Some(Ok(look)) = &probe.policy
        && !look.drops_replies.is_empty()
    {
        let text = format!(
            "the reply queue {}{place} drops replies that wait, or vanishes with them: {}",
            quoted(&section.reply_queue),
            look.drops_replies.join("; ")
        );
        let to_do = "take the reply queue out of that policy, by its pattern; what was declared \
                     so has to be deleted while it is empty and no manager runs: each reply that \
                     is dropped leaves its step running until its timeout";
        found.push(Finding::warning(REPLIES, text, to_do));
    }
    found.push(policy(probe.policy.as_ref(), place));
}

fn replies(section: &AmqpSection, look: &QueueLook, place: &str, is_running: bool) -> Finding {
    let name = format!("the reply queue {}{place}", quoted(&section.reply_queue));
    match look {
        QueueLook::Missing if is_running => Finding::error(
            REPLIES,
            format!("{name} is missing, although a manager runs"),
            "see the manager's log: it declares the queue when it connects",
        ),
        QueueLook::Missing => {
            Finding::ok(REPLIES, format!("{name} is not there yet: a start declares it"))
        }
        QueueLook::Unknown(why) => Finding::error(
            REPLIES,
            format!("nothing is known of {name}: {why}"),
            "an exclusive queue of this name belongs to another program: stop that, or choose \
             another amqp.reply_queue",
        ),
        // This does not happen: a broker's queue is no web service.
        QueueLook::Service { .. } => Finding::ok(REPLIES, format!("{name} is a web service")),
        QueueLook::There { consumers, messages, .. } => {
            let text = format!("{name}: {messages} messages wait, {consumers} take them");
            match consumers {
                0 if is_running => Finding::error(
                    REPLIES,
                    text,
                    "a manager runs, and takes no replies: see workflow-manager whoami and its log",
                ),
                0 => Finding::ok(REPLIES, text),
                1 if is_running => Finding::ok(REPLIES, text),
                1 => Finding::warning(
                    REPLIES,
                    text,
                    "another program takes the replies: if it is a manager with another journal, \
                     give each its own amqp.reply_queue",
                ),
                _ => Finding::error(
                    REPLIES,
                    text,
                    "managers that share a reply queue take each other's replies: give each its \
                     own amqp.reply_queue",
                ),
            }
        }
    }
}

fn policy(look: Option<&Result<PolicyLook, String>>, place: &str) -> Finding {
    match look {
        None => Finding::warning(
            POLICY,
            format!("whether dead letters come back cannot be told{place}"),
            "set amqp.management, then the manager sets the policy itself; or set it by hand as in \
             docs/operations.md. Without it a rejected message is lost",
        ),
        Some(Err(why)) => Finding::error(
            POLICY,
            format!("the management API does not answer as it should{place}: {why}"),
            "see that amqp.management has the right address, and a user with the tag policymaker",
        ),
        Some(Ok(PolicyLook { is_set: false, .. })) => Finding::warning(
            POLICY,
            format!("the dead-letter policy is not set{place}"),
            "a manager sets it at its start; if one runs, its log says why it could not",
        ),
        Some(Ok(PolicyLook { others, .. })) if others.is_empty() => {
            Finding::ok(POLICY, format!("dead letters come to the reply queue{place}"))
        }
        Some(Ok(PolicyLook { others, .. })) => Finding::warning(
            POLICY,
            format!(
                "other policies send the dead letters of {} elsewhere{place}",
                others.join(", ")
            ),
            "give those policies the dead-letter-routing-key of the reply queue, or a lower \
             priority than -1",
        ),
    }
}

/// Returns a warning for each queue without a consumer.
fn unattended(queues: &[Arc<str>], looks: &[QueueLook], place: &str) -> Vec<Finding> {
    let waiting = queues.iter().zip(looks).filter_map(|(queue, look)| match look {
        QueueLook::There { consumers: 0, messages, .. } => Some((queue, *messages)),
        QueueLook::Missing => Some((queue, 0)),
        QueueLook::There { .. } | QueueLook::Unknown(_) | QueueLook::Service { .. } => None,
    });
    let found: Vec<Finding> = waiting
        .map(|(queue, messages)| {
            Finding::warning(
                QUEUES,
                format!("{}{place} has no worker, and {messages} messages wait", quoted(queue)),
                "start a worker that takes from it",
            )
        })
        .collect();
    if found.is_empty() && !queues.is_empty() {
        return vec![Finding::ok(QUEUES, format!("each has a worker{place}"))];
    }
    found
}
