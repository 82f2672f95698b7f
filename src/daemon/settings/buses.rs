//! The buses of the settings: their kinds and names, and section `buses`.

use super::text::SettingsFile;
use super::{AmqpSection, BusKind, KafkaSection, PushBusSection, Settings};
use bus::EMBEDDED_REPLY_QUEUE;
use engine::text::{enumerate_quoted, find_nearest, quote};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A bus of section `buses`. Settings that it lacks have the values that `config/default.yaml` has
/// in the section of its kind.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum BusSettings {
    /// A broker that speaks AMQP 0-9-1.
    Amqp(Box<AmqpSection>),
    /// Web services, to which messages are pushed.
    Push(PushBusSection),
    /// Brokers that speak Kafka's protocol.
    Kafka(Box<KafkaSection>),
}

impl BusSettings {
    /// Returns the kind of the bus.
    pub fn kind(&self) -> BusKind {
        match self {
            BusSettings::Amqp(_) => BusKind::Amqp,
            BusSettings::Push(_) => BusKind::Push,
            BusSettings::Kafka(_) => BusKind::Kafka,
        }
    }
}

type ValueTable = BTreeMap<String, config::Value>;

impl<'de> Deserialize<'de> for BusSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut given = ValueTable::deserialize(deserializer)?;
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
                quote(other)
            ))),
        }
    }
}

/// Deserializes `given`, with the defaults of this section of `config/default.yaml` for the rest.
fn with_defaults<T: serde::de::DeserializeOwned>(
    section: &str,
    given: ValueTable,
) -> Result<T, config::ConfigError> {
    let defaults = config::Config::builder()
        .add_source(SettingsFile::defaults())
        .build()?
        .get_table(section)?;
    let mut table: config::Map<String, config::Value> = defaults;
    table.extend(given);
    config::Value::from(table).try_deserialize()
}

impl Settings {
    /// Returns the bus of workflows that name none: the one of the setting `bus`, else the broker
    /// of section `amqp` if it has an address, else the embedded one.
    pub fn default_bus(&self) -> &str {
        match self.bus.as_str() {
            "" if self.amqp.has_server() => BusKind::Amqp.name(),
            "" => BusKind::Embedded.name(),
            named => named,
        }
    }

    /// Returns the kind of the bus with this name, if it exists.
    pub fn bus_kind(&self, name: &str) -> Option<BusKind> {
        self.bus_kinds().get(name).copied()
    }

    /// Returns the names of all buses, with their kinds.
    pub fn bus_kinds(&self) -> BTreeMap<&str, BusKind> {
        let exists = |kind: &BusKind| match kind {
            BusKind::Embedded | BusKind::Push => true,
            BusKind::Amqp => self.amqp.has_server(),
            BusKind::Kafka => !self.kafka.servers.0.is_empty(),
        };
        let own = BusKind::ALL.into_iter().filter(exists).map(|kind| (kind.name(), kind));
        own.chain(self.buses.iter().map(|(name, bus)| (name.as_str(), bus.kind()))).collect()
    }

    /// Returns the settings of an AMQP bus; `None` if there is no AMQP bus of this name.
    pub fn amqp_bus(&self, name: &str) -> Option<&AmqpSection> {
        match self.buses.get(name) {
            Some(BusSettings::Amqp(section)) => Some(section),
            Some(BusSettings::Push(_) | BusSettings::Kafka(_)) => None,
            None if name == BusKind::Amqp.name() && self.amqp.has_server() => Some(&self.amqp),
            None => None,
        }
    }

    /// Returns the settings of all AMQP buses, each with its place in the settings. Section `amqp`
    /// is included even without an address.
    pub(super) fn amqp_sections(&self) -> impl Iterator<Item = (String, &AmqpSection)> {
        let named = self.buses.iter().filter_map(|(name, bus)| match bus {
            BusSettings::Amqp(section) => Some((format!("buses.{name}"), &**section)),
            BusSettings::Push(_) | BusSettings::Kafka(_) => None,
        });
        std::iter::once(("amqp".to_owned(), &self.amqp)).chain(named)
    }

    /// Returns the queue on which this manager receives the replies of a bus.
    pub fn reply_queue(&self, bus: &str) -> Option<&str> {
        if bus == BusKind::Embedded.name() {
            Some(EMBEDDED_REPLY_QUEUE)
        } else if bus == BusKind::Amqp.name() {
            // The section counts even without an address.
            Some(&self.amqp.reply_queue)
        } else if let Some(section) = self.kafka_bus(bus) {
            Some(&section.reply_topic)
        } else {
            self.amqp_bus(bus).map(|section| section.reply_queue.as_str())
        }
    }

    /// Returns how long a step whose timeout has passed waits for a reply once its bus is connected
    /// again. A Kafka bus reports itself when it has read all waiting replies.
    pub fn replies_first(&self, bus: &str) -> Duration {
        if self.bus_kind(bus) == Some(BusKind::Kafka) {
            return Duration::ZERO;
        }
        self.amqp_bus(bus).unwrap_or(&self.amqp).replies_first.0
    }

    /// Returns the name of the setting for the reply queue of a bus.
    pub fn reply_queue_setting(&self, bus: &str) -> String {
        match self.buses.get(bus) {
            Some(BusSettings::Kafka(_)) => format!("setting buses.{bus}.reply_topic"),
            Some(_) => format!("setting buses.{bus}.reply_queue"),
            None if bus == BusKind::Kafka.name() => "setting kafka.reply_topic".to_owned(),
            None if bus == BusKind::Embedded.name() => "of the embedded bus".to_owned(),
            None => "setting amqp.reply_queue".to_owned(),
        }
    }

    /// Returns an error if the settings have no bus of this name, with the most similar name or all
    /// names.
    pub fn unknown_bus_error(&self, name: &str) -> Option<String> {
        let known = self.bus_kinds();
        if known.contains_key(name) {
            return None;
        }
        let hint = match find_nearest(name, known.keys().copied()) {
            Some(meant) => format!("did you mean {}?", quote(meant)),
            None => format!("they have {}", enumerate_quoted(known.keys().copied(), "and")),
        };
        Some(format!("{}, and the settings have no such bus; {hint}", quote(name)))
    }

    /// Checks the names of the buses.
    pub(super) fn validate_buses(&self) -> Result<(), String> {
        for (name, bus) in &self.buses {
            if !is_bus_name(name) {
                return Err(format!(
                    "buses: the name {} is none for a bus, expected lower-case letters, digits and \
                     _, with a letter first",
                    quote(name)
                ));
            }
            if BusKind::ALL.iter().any(|kind| kind.name() == name) {
                return Err(format!(
                    "buses: {} is the bus of the section {name}: set it there, or choose another \
                     name",
                    quote(name)
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
        self.check_reply_queues()?;
        match self.unknown_bus_error(&self.bus) {
            Some(objection) if !self.bus.is_empty() => Err(format!("bus is {objection}")),
            Some(_) | None => Ok(()),
        }
    }

    /// Checks that no two buses share a reply queue, which has one consumer.
    fn check_reply_queues(&self) -> Result<(), String> {
        let mut owners: BTreeMap<(&str, &str), String> = BTreeMap::new();
        for (place, section) in self.amqp_sections() {
            if !section.has_server() {
                continue;
            }
            let queue = (section.server.0.as_str(), section.reply_queue.as_str());
            if let Some(first) = owners.insert(queue, place.clone()) {
                return Err(format!(
                    "{first} and {place} have the same server and the same reply_queue, \
                     {}: give one of them another reply_queue",
                    quote(queue.1)
                ));
            }
        }
        Ok(())
    }
}

/// Returns whether a bus may have this name. It must fit into the name of an environment variable.
pub fn is_bus_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}
