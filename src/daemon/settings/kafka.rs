//! Looks up and checks the Kafka buses of the settings.

use super::buses::BusSettings;
use super::root::Settings;
use bus::{BusKind, KafkaSection};
use engine::text::quote;
use std::collections::BTreeMap;

impl Settings {
    /// Returns the settings of a Kafka bus; `None` if there is no Kafka bus of this name.
    pub fn kafka_bus(&self, name: &str) -> Option<&KafkaSection> {
        match self.buses.get(name) {
            Some(BusSettings::Kafka(section)) => Some(section),
            Some(BusSettings::Amqp(_) | BusSettings::Push(_)) => None,
            None if name == BusKind::Kafka.name() && !self.kafka.servers.0.is_empty() => {
                Some(&self.kafka)
            }
            None => None,
        }
    }

    /// Returns the settings of all Kafka buses, each with the prefix of the settings' names:
    /// `kafka`, or `buses.a` for the bus `a`. Includes section `kafka` even if it has no servers.
    pub(super) fn kafka_sections(&self) -> impl Iterator<Item = (String, &KafkaSection)> {
        let named = self.buses.iter().filter_map(|(name, bus)| match bus {
            BusSettings::Kafka(section) => Some((format!("buses.{name}"), &**section)),
            BusSettings::Amqp(_) | BusSettings::Push(_) => None,
        });
        std::iter::once(("kafka".to_owned(), &self.kafka)).chain(named)
    }

    /// Checks the settings of the Kafka buses, that this program was built with Kafka if there are
    /// any, and that no two of them share a reply topic.
    pub(super) fn check_kafka(&self) -> Result<(), String> {
        // The bus of each reply topic, by the sorted servers and the name of the topic.
        let mut owners: BTreeMap<(Vec<String>, &str), String> = BTreeMap::new();
        for (prefix, section) in self.kafka_sections() {
            section.check(&prefix)?;
            if section.servers.0.is_empty() {
                if prefix == "kafka" {
                    continue;
                }
                return Err(format!(
                    "{prefix}.servers is missing, expected brokers such as [ \"kafka-1:9092\" ]"
                ));
            }
            if !cfg!(feature = "kafka") {
                return Err(format!(
                    "{prefix} is a bus over Kafka, and this build has no Kafka: take one that has, \
                     or build it with cargo build --release --features kafka (it needs make, \
                     a C compiler and libssl-dev)"
                ));
            }
            let mut servers = section.servers.0.clone();
            servers.sort_unstable();
            let reply_topic = (servers, section.reply_topic.as_str());
            if let Some(first) = owners.insert(reply_topic, prefix.clone()) {
                return Err(format!(
                    "{first} and {prefix} have the same servers and the same reply_topic, {}: give \
                     one of them another reply_topic",
                    quote(&section.reply_topic)
                ));
            }
        }
        Ok(())
    }
}
