//! The buses of the settings: what kinds there are, which names, and section `buses`.

use super::text::SettingsText;
use super::{AmqpSection, KafkaSection, PushBus, Settings};
use crate::engine::words::{enumerated, nearest, quoted};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The reply queue of the embedded bus: whatever goes there is a reply.
pub const EMBEDDED_REPLIES: &str = "workflow-manager";

/// What kind of bus it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusKind {
    /// Queues in this process.
    Embedded,
    /// A broker that speaks AMQP 0-9-1.
    Amqp,
    /// Web services that are called.
    Push,
    /// Brokers that speak Kafka's protocol.
    Kafka,
}

/// What buses of a kind can do. It is for those who explain: what loads and checks files, `why`,
/// and the documents. The engine never looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// A broker keeps the messages, and confirms that. A web service confirms only what it takes
    /// over for later; the embedded bus nothing.
    pub has_broker: bool,
    /// A workflow takes calls there, on the queue `workflow.<name>`.
    pub takes_calls: bool,
    /// Which messages are taken back when their attempts are over.
    pub withdraws: Withdraws,
    /// It has virtual hosts.
    pub vhosts: bool,
    /// It gives messages of a higher priority to workers first, if the queue honours that.
    pub priorities: bool,
    /// Nobody notices when a message was given up: a step needs a `timeout`.
    pub needs_timeouts: bool,
}

/// Which messages a bus takes back when their attempts are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdraws {
    /// Those that it has not sent: what a broker has is the broker's.
    Unsent,
    /// Those of attempts that ended without a reply. Before it lends one that has waited it looks
    /// by itself whether that was answered.
    Abandoned,
    /// Those that were answered in another way too.
    All,
}

impl BusKind {
    /// All of them.
    pub const ALL: [BusKind; 4] = [BusKind::Embedded, BusKind::Amqp, BusKind::Push, BusKind::Kafka];

    /// What buses of this kind can do.
    pub const fn traits(self) -> Kind {
        match self {
            BusKind::Embedded => Kind {
                has_broker: false,
                takes_calls: true,
                withdraws: Withdraws::Abandoned,
                vhosts: true,
                priorities: true,
                needs_timeouts: false,
            },
            BusKind::Amqp => Kind {
                has_broker: true,
                takes_calls: true,
                withdraws: Withdraws::Unsent,
                vhosts: true,
                priorities: true,
                needs_timeouts: false,
            },
            BusKind::Push => Kind {
                has_broker: false,
                takes_calls: false,
                withdraws: Withdraws::All,
                vhosts: false,
                priorities: true,
                needs_timeouts: true,
            },
            BusKind::Kafka => Kind {
                has_broker: true,
                takes_calls: false,
                withdraws: Withdraws::Unsent,
                vhosts: false,
                priorities: false,
                needs_timeouts: true,
            },
        }
    }

    /// Its name in messages, and the name of the bus of its kind that has a section of its own.
    pub const fn name(self) -> &'static str {
        match self {
            BusKind::Embedded => "embedded",
            BusKind::Amqp => "amqp",
            BusKind::Push => "push",
            BusKind::Kafka => "kafka",
        }
    }
}

/// A bus of section `buses`. What it does not set has the value that `config/default.yaml` gives in
/// the section of its kind.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum BusSettings {
    /// A broker that speaks AMQP 0-9-1.
    Amqp(Box<AmqpSection>),
    /// Web services that are called.
    Push(PushBus),
    /// Brokers that speak Kafka's protocol.
    Kafka(Box<KafkaSection>),
}

impl BusSettings {
    /// Its kind.
    pub fn kind(&self) -> BusKind {
        match self {
            BusSettings::Amqp(_) => BusKind::Amqp,
            BusSettings::Push(_) => BusKind::Push,
            BusSettings::Kafka(_) => BusKind::Kafka,
        }
    }
}

type Table = BTreeMap<String, config::Value>;

impl<'de> Deserialize<'de> for BusSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut given = Table::deserialize(deserializer)?;
        let kind = given
            .remove("kind")
            .ok_or_else(|| D::Error::custom("a bus has a kind, such as `kind: amqp`"))?;
        match kind.to_string().as_str() {
            "amqp" => with_defaults("amqp", given).map(BusSettings::Amqp).map_err(D::Error::custom),
            "kafka" => {
                with_defaults("kafka", given).map(BusSettings::Kafka).map_err(D::Error::custom)
            }
            "push" => {
                let given: config::Map<String, config::Value> = given.into_iter().collect();
                let bus = config::Value::from(given).try_deserialize();
                bus.map(BusSettings::Push).map_err(D::Error::custom)
            }
            other => Err(D::Error::custom(format!(
                "a bus is of the kind {}, expected amqp, push or kafka; the bus \"embedded\" is \
                 always there",
                quoted(other)
            ))),
        }
    }
}

/// What is `given`, and all else as `config/default.yaml` has it in this section.
fn with_defaults<T: serde::de::DeserializeOwned>(
    section: &str,
    given: Table,
) -> Result<T, config::ConfigError> {
    let defaults = config::Config::builder()
        .add_source(SettingsText::defaults())
        .build()?
        .get_table(section)?;
    let mut table: config::Map<String, config::Value> = defaults;
    table.extend(given);
    config::Value::from(table).try_deserialize()
}

impl Settings {
    /// The bus of workflows that name none: the one of the setting `bus`, else the broker of
    /// section `amqp` if that has an address, else the embedded one.
    pub fn default_bus(&self) -> &str {
        match self.bus.as_str() {
            "" if self.amqp.has_server() => BusKind::Amqp.name(),
            "" => BusKind::Embedded.name(),
            named => named,
        }
    }

    /// The kind of the bus with this name, if there is one.
    pub fn bus_kind(&self, name: &str) -> Option<BusKind> {
        self.bus_kinds().get(name).copied()
    }

    /// The names of all buses, with their kinds.
    pub fn bus_kinds(&self) -> BTreeMap<&str, BusKind> {
        let is_there = |kind: &BusKind| match kind {
            BusKind::Embedded | BusKind::Push => true,
            BusKind::Amqp => self.amqp.has_server(),
            BusKind::Kafka => !self.kafka.servers.0.is_empty(),
        };
        let own = BusKind::ALL.into_iter().filter(is_there).map(|kind| (kind.name(), kind));
        own.chain(self.buses.iter().map(|(name, bus)| (name.as_str(), bus.kind()))).collect()
    }

    /// The settings of a bus over AMQP; none: no such bus is over AMQP.
    pub fn amqp_bus(&self, name: &str) -> Option<&AmqpSection> {
        match self.buses.get(name) {
            Some(BusSettings::Amqp(section)) => Some(section),
            Some(BusSettings::Push(_) | BusSettings::Kafka(_)) => None,
            None if name == BusKind::Amqp.name() && self.amqp.has_server() => Some(&self.amqp),
            None => None,
        }
    }

    /// The settings of all buses over AMQP, by the places at which they stand. That of section
    /// `amqp` is among them, whether it has an address or not.
    pub(super) fn amqp_sections(&self) -> impl Iterator<Item = (String, &AmqpSection)> {
        let named = self.buses.iter().filter_map(|(name, bus)| match bus {
            BusSettings::Amqp(section) => Some((format!("buses.{name}"), &**section)),
            BusSettings::Push(_) | BusSettings::Kafka(_) => None,
        });
        std::iter::once(("amqp".to_owned(), &self.amqp)).chain(named)
    }

    /// The queue at which the steps of this manager wait for the replies that come over a bus.
    pub fn reply_queue(&self, bus: &str) -> Option<&str> {
        if bus == BusKind::Embedded.name() {
            Some(EMBEDDED_REPLIES)
        } else if bus == BusKind::Amqp.name() {
            // Of the section, whether it has an address or not.
            Some(&self.amqp.reply_queue)
        } else if let Some(section) = self.kafka_bus(bus) {
            Some(&section.reply_topic)
        } else {
            self.amqp_bus(bus).map(|section| section.reply_queue.as_str())
        }
    }

    /// How long a step whose timeout has passed waits for a reply once its bus is connected again.
    /// A bus over Kafka tells by itself when it has read what lay there.
    pub fn replies_first(&self, bus: &str) -> Duration {
        if self.bus_kind(bus) == Some(BusKind::Kafka) {
            return Duration::ZERO;
        }
        self.amqp_bus(bus).unwrap_or(&self.amqp).replies_first.0
    }

    /// The setting that names the reply queue of a bus.
    pub fn reply_queue_setting(&self, bus: &str) -> String {
        match self.buses.get(bus) {
            Some(BusSettings::Kafka(_)) => format!("setting buses.{bus}.reply_topic"),
            Some(_) => format!("setting buses.{bus}.reply_queue"),
            None if bus == BusKind::Kafka.name() => "setting kafka.reply_topic".to_owned(),
            None if bus == BusKind::Embedded.name() => "of the embedded bus".to_owned(),
            None => "setting amqp.reply_queue".to_owned(),
        }
    }

    /// Says that the settings have no bus of this name, if that is so: which was meant, or which
    /// there are.
    pub fn unknown_bus(&self, name: &str) -> Option<String> {
        let known = self.bus_kinds();
        if known.contains_key(name) {
            return None;
        }
        let hint = match nearest(name, known.keys().copied()) {
            Some(meant) => format!("did you mean {}?", quoted(meant)),
            None => format!("they have {}", enumerated(known.keys().copied(), "and")),
        };
        Some(format!("{}, and the settings have no such bus; {hint}", quoted(name)))
    }

    /// What is wrong with the names of the buses.
    pub(super) fn validate_buses(&self) -> Result<(), String> {
        for (name, bus) in &self.buses {
            if !is_bus_name(name) {
                return Err(format!(
                    "buses: the name {} is none for a bus, expected lower-case letters, digits and \
                     _, with a letter first",
                    quoted(name)
                ));
            }
            if BusKind::ALL.iter().any(|kind| kind.name() == name) {
                return Err(format!(
                    "buses: {} is the bus of the section {name}: set it there, or choose another \
                     name",
                    quoted(name)
                ));
            }
            match bus {
                BusSettings::Amqp(section) if !section.has_server() => {
                    return Err(format!(
                        "buses.{name}.server is missing, expected \
                         amqp://user:password@host:port/vhost"
                    ));
                }
                BusSettings::Amqp(_) | BusSettings::Push(_) | BusSettings::Kafka(_) => {}
            }
        }
        self.refuse_shared_replies()?;
        match self.unknown_bus(&self.bus) {
            Some(objection) if !self.bus.is_empty() => Err(format!("bus is {objection}")),
            Some(_) | None => Ok(()),
        }
    }

    /// A reply queue has one consumer.
    fn refuse_shared_replies(&self) -> Result<(), String> {
        let mut taken: BTreeMap<(&str, &str), String> = BTreeMap::new();
        for (place, section) in self.amqp_sections() {
            if !section.has_server() {
                continue;
            }
            let queue = (section.server.0.as_str(), section.reply_queue.as_str());
            if let Some(first) = taken.insert(queue, place.clone()) {
                return Err(format!(
                    "{first} and {place} have the same server and the same reply_queue, \
                     {}: give one of them another reply_queue",
                    quoted(queue.1)
                ));
            }
        }
        Ok(())
    }
}

/// Whether a bus may have this name. It fits into the name of an environment variable.
pub fn is_bus_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}
