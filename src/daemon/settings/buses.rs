//! Section `buses`: deserializes buses of different kinds, and defines which names they may have.

use super::text::SettingsFile;
use amqp::AmqpSection;
use bus::push::PushBusSection;
use bus::{BusKind, KafkaSection};
use engine::text::quote;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// A bus of section `buses`. Settings that an AMQP or Kafka bus does not have default to those of
/// section `amqp` or `kafka` in `config/default.yaml`.
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

/// The settings of one bus, by their names.
type ValueTable = BTreeMap<String, config::Value>;

impl<'de> Deserialize<'de> for BusSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = ValueTable::deserialize(deserializer)?;
        let kind = table
            .remove("kind")
            .ok_or_else(|| D::Error::custom("a bus has a kind, such as `kind: amqp`"))?;
        match kind.to_string().as_str() {
            "amqp" => deserialize_with_defaults("amqp", table)
                .map(BusSettings::Amqp)
                .map_err(D::Error::custom),
            "kafka" => deserialize_with_defaults("kafka", table)
                .map(BusSettings::Kafka)
                .map_err(D::Error::custom),
            "push" => {
                let table: config::Map<String, config::Value> = table.into_iter().collect();
                let bus = config::Value::from(table).try_deserialize();
                bus.map(BusSettings::Push).map_err(D::Error::custom)
            }
            unknown_kind => Err(D::Error::custom(format!(
                "a bus is of the kind {}, expected amqp, push or kafka; the bus \"embedded\" is \
                 always there",
                quote(unknown_kind)
            ))),
        }
    }
}

/// Deserializes the settings of a bus. Those that are missing default to those of this section of
/// `config/default.yaml`.
fn deserialize_with_defaults<T: serde::de::DeserializeOwned>(
    section: &str,
    table: ValueTable,
) -> Result<T, config::ConfigError> {
    let defaults = config::Config::builder()
        .add_source(SettingsFile::defaults())
        .build()?
        .get_table(section)?;
    let mut merged: config::Map<String, config::Value> = defaults;
    merged.extend(table);
    config::Value::from(merged).try_deserialize()
}

/// Returns whether a bus may have this name. The characters are restricted because the name is part
/// of the names of environment variables.
pub fn is_bus_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}
