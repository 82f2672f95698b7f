//! Checks of the AMQP brokers: whether they can be reached, what they permit, and the state of the
//! queues.

use super::broker_probe::{BrokerProbe, probe_broker};
use super::finding::Finding;
use super::installation::Installation;
use amqp::{AmqpSettings, PolicyStatus};
use bus::{QueueStatus, ServedQueues};
use daemon::load::CONSUMER_TIMEOUT_DEFAULT;
use daemon::settings::{AmqpSection, BusKind, Settings};
use engine::text::quote;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

// The names of the checks.
const BROKER: &str = "broker";
const REPLIES: &str = "replies";
const POLICY: &str = "policy";
const QUEUES: &str = "queues";
const TIMEOUTS: &str = "timeouts";

/// Checks each AMQP broker, in each virtual host of the workflows. `has_manager` is whether a
/// manager answers over its API.
pub(super) fn inspect(installation: &Installation, has_manager: bool, findings: &mut Vec<Finding>) {
    let settings = &installation.settings;
    let kinds = settings.bus_kinds();
    if !kinds.values().any(|kind| matches!(kind, BusKind::Amqp | BusKind::Kafka)) {
        let text = "no broker is set: workers take messages over HTTP or are part of the process";
        findings.push(Finding::ok(BROKER, text));
        return;
    }
    // Another manager may answer, so the journal shows more reliably whether the manager of these
    // settings is running.
    let is_running = installation.is_journal_open.unwrap_or(has_manager);
    let brokers = kinds.into_keys().filter_map(|name| Some((name, settings.amqp_bus(name)?)));
    for (name, section) in brokers {
        findings.extend(check_timeouts(installation, name));
        for (vhost, queues) in queues_on_bus(installation, name) {
            let queues: Vec<Arc<str>> = queues.into_iter().collect();
            let amqp = AmqpSettings::from_section(section, &vhost, ServedQueues::default(), true)
                .with_authorities(installation.authorities.clone());
            let result = actix_rt::System::new().block_on(probe_broker(&amqp, &queues));
            let location = format_location(settings, name, &vhost);
            match result {
                Err(reason) => {
                    let remedy = "see that it runs, and that the setting server has the right \
                                 address, user and password; the manager tries again by itself";
                    findings.push(Finding::error(BROKER, format!("{reason}{location}"), remedy));
                }
                Ok(probe) => {
                    check_probe(section, &probe, &location, is_running, findings);
                    // The checks of a running manager report its queues.
                    if !(has_manager && is_running) {
                        findings.extend(check_consumers(&queues, &probe.queues, &location));
                    }
                }
            }
        }
    }
}

/// Returns the queues that the workflows have on a bus, by virtual host. The empty text stands for
/// the virtual host of the bus's address. If there are no queues, that is the only one in the map.
pub(super) fn queues_on_bus(
    installation: &Installation,
    bus: &str,
) -> BTreeMap<String, BTreeSet<Arc<str>>> {
    let default_bus = installation.settings.default_bus();
    let mut queues: BTreeMap<String, BTreeSet<Arc<str>>> = BTreeMap::new();
    for definition in &installation.definitions {
        if definition.bus.as_deref().unwrap_or(default_bus) == bus {
            queues.entry(definition.vhost.clone()).or_default();
        }
    }
    for (definition, step) in installation.steps_on_bus(bus) {
        queues.entry(definition.vhost.clone()).or_default().insert(step.queue.clone());
    }
    if queues.is_empty() {
        queues.insert(String::new(), BTreeSet::new());
    }
    queues
}

/// Describes the bus and the virtual host of a finding, as text to append. The text is empty for
/// the default bus and the virtual host of its address.
pub(super) fn format_location(settings: &Settings, bus: &str, vhost: &str) -> String {
    let bus = (bus != settings.default_bus()).then(|| format!("bus {}", quote(bus)));
    let vhost = (!vhost.is_empty()).then(|| format!("virtual host {}", quote(vhost)));
    let parts: Vec<String> = bus.into_iter().chain(vhost).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// Adds findings about a broker that can be reached. `is_running` is whether a manager is connected
/// to it, as far as that is known.
fn check_probe(
    section: &AmqpSection,
    probe: &BrokerProbe,
    location: &str,
    is_running: bool,
    findings: &mut Vec<Finding>,
) {
    let node_findings = probe.nodes.iter().map(|(node, result)| match result {
        Ok(()) => Finding::ok(BROKER, format!("{node} answers{location}")),
        Err(reason) => Finding::warning(
            BROKER,
            format!("{node} does not answer{location}: {reason}"),
            "the manager uses another address; see that this node runs, and that its entry in the \
             setting server is right",
        ),
    });
    findings.extend(node_findings);
    findings.push(match &probe.permissions {
        Ok(()) => Finding::ok(BROKER, format!("a message went through it{location}")),
        Err(reason) => {
            let remedy = "give the user configure, write and read on the queues of the steps, the \
                         reply queue and the default exchange: rabbitmqctl set_permissions";
            Finding::error(BROKER, format!("{reason}{location}"), remedy)
        }
    });
    findings.push(check_reply_queue(section, &probe.reply_queue, location, is_running));
    if let Some(Ok(policy)) = &probe.policy
        && !policy.reply_drop_rules.is_empty()
    {
        let text = format!(
            "the reply queue {}{location} drops replies that wait, or vanishes with them: {}",
            quote(&section.reply_queue),
            policy.reply_drop_rules.join("; ")
        );
        let remedy = "take the reply queue out of that policy, by its pattern; what was declared \
                     so has to be deleted while it is empty and no manager runs: each reply that \
                     is dropped leaves its step running until its timeout";
        findings.push(Finding::warning(REPLIES, text, remedy));
    }
    findings.push(check_policy(probe.policy.as_ref(), location));
}

/// Checks that one manager, and no other program, consumes the reply queue.
fn check_reply_queue(
    section: &AmqpSection,
    queue: &QueueStatus,
    location: &str,
    is_running: bool,
) -> Finding {
    let name = format!("the reply queue {}{location}", quote(&section.reply_queue));
    match queue {
        QueueStatus::Missing if is_running => Finding::error(
            REPLIES,
            format!("{name} is missing, although a manager runs"),
            "see the manager's log: it declares the queue when it connects",
        ),
        QueueStatus::Missing => {
            Finding::ok(REPLIES, format!("{name} is not there yet: a start declares it"))
        }
        QueueStatus::Unknown(reason) => Finding::error(
            REPLIES,
            format!("nothing is known of {name}: {reason}"),
            "an exclusive queue of this name belongs to another program: stop that, or choose \
             another amqp.reply_queue",
        ),
        // Never the case, since a queue of a broker is not a web service.
        QueueStatus::Endpoint { .. } => Finding::ok(REPLIES, format!("{name} is a web service")),
        QueueStatus::Exists { consumers, messages, .. } => {
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

/// Checks that rejected messages return to the manager as dead letters. `policy` is `None` without
/// the management API.
fn check_policy(policy: Option<&Result<PolicyStatus, String>>, location: &str) -> Finding {
    match policy {
        None => Finding::warning(
            POLICY,
            format!("whether dead letters come back cannot be told{location}"),
            "set amqp.management, then the manager sets the policy itself; or set it by hand as in \
             docs/how-to/dead-letters-and-lost-messages.md. Without it a rejected message is lost",
        ),
        Some(Err(reason)) => Finding::error(
            POLICY,
            format!("the management API does not answer as it should{location}: {reason}"),
            "see that amqp.management has the right address, and a user with the tag policymaker",
        ),
        Some(Ok(PolicyStatus { is_set: false, .. })) => Finding::warning(
            POLICY,
            format!("the dead-letter policy is not set{location}"),
            "a manager sets it at its start; if one runs, its log says why it could not",
        ),
        Some(Ok(PolicyStatus { overridden_queues, .. })) if overridden_queues.is_empty() => {
            Finding::ok(POLICY, format!("dead letters come to the reply queue{location}"))
        }
        Some(Ok(PolicyStatus { overridden_queues, .. })) => Finding::warning(
            POLICY,
            format!(
                "other policies send the dead letters of {} elsewhere{location}",
                overridden_queues.join(", ")
            ),
            "give those policies the dead-letter-routing-key of the reply queue, or a lower \
             priority than -1",
        ),
    }
}

/// Returns a warning if steps on a bus may take longer than RabbitMQ waits for the acknowledgement
/// of their messages. What the broker is configured with is not known.
fn check_timeouts(installation: &Installation, bus: &str) -> Option<Finding> {
    let long_steps: BTreeSet<String> = installation
        .steps_on_bus(bus)
        .filter(|(_, step)| step.timeout.is_some_and(|timeout| timeout > CONSUMER_TIMEOUT_DEFAULT))
        .map(|(definition, step)| format!("{} of {}", quote(&step.name), quote(&definition.name)))
        .collect();
    let (last, others) = (long_steps.last()?, long_steps.len() - 1);
    let more = if others == 0 { String::new() } else { format!(" and {others} more") };
    Some(Finding::warning(
        TIMEOUTS,
        format!(
            "the \"timeout\" of step {last}{more} is longer than {CONSUMER_TIMEOUT_DEFAULT}: \
             that is the default of RabbitMQ's consumer_timeout{}, and no API of RabbitMQ tells \
             what it is set to",
            format_location(&installation.settings, bus, "")
        ),
        "set consumer_timeout in rabbitmq.conf higher than each timeout: behind it the broker \
         gives a message to another worker too, and two may work on it",
    ))
}

/// Returns a warning for each queue without a consumer. `statuses` are those of `queues`, in the
/// same order.
fn check_consumers(queues: &[Arc<str>], statuses: &[QueueStatus], location: &str) -> Vec<Finding> {
    let unattended_queues =
        queues.iter().zip(statuses).filter_map(|(queue, status)| match status {
            QueueStatus::Exists { consumers: 0, messages, .. } => Some((queue, *messages)),
            QueueStatus::Missing => Some((queue, 0)),
            QueueStatus::Exists { .. } | QueueStatus::Unknown(_) | QueueStatus::Endpoint { .. } => {
                None
            }
        });
    let findings: Vec<Finding> = unattended_queues
        .map(|(queue, messages)| {
            Finding::warning(
                QUEUES,
                format!("{}{location} has no worker, and {messages} messages wait", quote(queue)),
                "start a worker that takes from it",
            )
        })
        .collect();
    if findings.is_empty() && !queues.is_empty() {
        return vec![Finding::ok(QUEUES, format!("each has a worker{location}"))];
    }
    findings
}
