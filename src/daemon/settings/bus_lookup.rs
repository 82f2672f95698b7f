//! Which buses the settings have, and what is set of each.

use super::buses::{BusSettings, is_bus_name};
use super::root::Settings;
use amqp::AmqpSection;
use bus::{BusKind, EMBEDDED_REPLY_QUEUE};
use engine::text::{enumerate_quoted, find_nearest, quote};
use std::collections::BTreeMap;
use std::time::Duration;

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
    pub(crate) fn reply_queue_setting(&self, bus: &str) -> String {
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
    pub(crate) fn unknown_bus_error(&self, name: &str) -> Option<String> {
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
