//! Looks up the buses of the settings by name, and checks their names and reply queues.

use super::buses::{BusSettings, is_bus_name};
use super::root::Settings;
use amqp::AmqpSection;
use bus::{BusKind, EMBEDDED_REPLY_QUEUE};
use engine::text::{enumerate_quoted, find_nearest, quote};
use std::collections::BTreeMap;
use std::time::Duration;

impl Settings {
    /// Returns the name of the bus for workflows that name none: the setting `bus`. If that is
    /// empty, it is `amqp` if that section has an address, and otherwise the embedded bus.
    pub fn default_bus(&self) -> &str {
        match self.bus.as_str() {
            "" if self.amqp.has_server() => BusKind::Amqp.name(),
            "" => BusKind::Embedded.name(),
            name => name,
        }
    }

    /// Returns the kind of the bus with this name; `None` if there is no such bus.
    pub fn bus_kind(&self, name: &str) -> Option<BusKind> {
        self.bus_kinds().get(name).copied()
    }

    /// Returns the names of all buses, with their kinds.
    pub fn bus_kinds(&self) -> BTreeMap<&str, BusKind> {
        let is_configured = |kind: &BusKind| match kind {
            BusKind::Embedded | BusKind::Push => true,
            BusKind::Amqp => self.amqp.has_server(),
            BusKind::Kafka => !self.kafka.servers.0.is_empty(),
        };
        let predefined =
            BusKind::ALL.into_iter().filter(is_configured).map(|kind| (kind.name(), kind));
        predefined.chain(self.buses.iter().map(|(name, bus)| (name.as_str(), bus.kind()))).collect()
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

    /// Returns the settings of all AMQP buses, each with the prefix of the settings' names: `amqp`,
    /// or `buses.a` for the bus `a`. Includes section `amqp` even if it has no address.
    pub(super) fn amqp_sections(&self) -> impl Iterator<Item = (String, &AmqpSection)> {
        let named = self.buses.iter().filter_map(|(name, bus)| match bus {
            BusSettings::Amqp(section) => Some((format!("buses.{name}"), &**section)),
            BusSettings::Push(_) | BusSettings::Kafka(_) => None,
        });
        std::iter::once(("amqp".to_owned(), &self.amqp)).chain(named)
    }

    /// Returns the queue or topic on which this manager receives the replies of a bus; `None` for a
    /// push bus, whose replies are HTTP responses or calls of the API, and for an unknown bus.
    pub fn reply_queue(&self, bus: &str) -> Option<&str> {
        if bus == BusKind::Embedded.name() {
            Some(EMBEDDED_REPLY_QUEUE)
        } else if bus == BusKind::Amqp.name() {
            // Returned even if the section has no address: the name is reserved all the same.
            Some(&self.amqp.reply_queue)
        } else if let Some(section) = self.kafka_bus(bus) {
            Some(&section.reply_topic)
        } else {
            self.amqp_bus(bus).map(|section| section.reply_queue.as_str())
        }
    }

    /// Returns how long timeouts are deferred after a bus has connected again, so that replies that
    /// waited at the broker are handled first. It is 0 for Kafka, whose bus reports when it has
    /// read them. For buses without the setting, it is that of section `amqp`.
    pub fn replies_first(&self, bus: &str) -> Duration {
        if self.bus_kind(bus) == Some(BusKind::Kafka) {
            return Duration::ZERO;
        }
        self.amqp_bus(bus).unwrap_or(&self.amqp).replies_first.0
    }

    /// Describes for messages where the reply queue of a bus is set: "setting amqp.reply_queue".
    pub(crate) fn reply_queue_setting(&self, bus: &str) -> String {
        match self.buses.get(bus) {
            Some(BusSettings::Kafka(_)) => format!("setting buses.{bus}.reply_topic"),
            Some(_) => format!("setting buses.{bus}.reply_queue"),
            None if bus == BusKind::Kafka.name() => "setting kafka.reply_topic".to_owned(),
            None if bus == BusKind::Embedded.name() => "of the embedded bus".to_owned(),
            None => "setting amqp.reply_queue".to_owned(),
        }
    }

    /// Returns an error that suggests the most similar name, or lists all names, if the settings
    /// have no bus of this name; `None` if they have it.
    pub(crate) fn unknown_bus_error(&self, name: &str) -> Option<String> {
        let kinds = self.bus_kinds();
        if kinds.contains_key(name) {
            return None;
        }
        let hint = match find_nearest(name, kinds.keys().copied()) {
            Some(suggestion) => format!("did you mean {}?", quote(suggestion)),
            None => format!("they have {}", enumerate_quoted(kinds.keys().copied(), "and")),
        };
        Some(format!("{}, and the settings have no such bus; {hint}", quote(name)))
    }

    /// Checks the names of the buses, their reply queues, and the setting `bus`.
    pub(super) fn check_buses(&self) -> Result<(), String> {
        for (name, bus) in &self.buses {
            if !is_bus_name(name) {
                return Err(format!(
                    "buses: {} is not a valid name of a bus, expected lower-case letters, digits \
                     and _, with a letter first",
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
            Some(error) if !self.bus.is_empty() => Err(format!("bus is {error}")),
            Some(_) | None => Ok(()),
        }
    }

    /// Checks that no two AMQP buses share a reply queue, because each reply queue must have a
    /// single consumer. Two that have one address in common have the same broker.
    fn check_reply_queues(&self) -> Result<(), String> {
        // The bus of each reply queue, by the server and the name of the queue.
        let mut owners: BTreeMap<(&str, &str), String> = BTreeMap::new();
        for (prefix, section) in self.amqp_sections() {
            if !section.has_server() {
                continue;
            }
            let reply_queue = section.reply_queue.as_str();
            for server in &section.server.0 {
                let owner = owners.insert((server.0.as_str(), reply_queue), prefix.clone());
                if let Some(first) = owner.filter(|first| *first != prefix) {
                    return Err(format!(
                        "{first} and {prefix} have the same server and the same reply_queue, \
                         {}: give one of them another reply_queue",
                        quote(reply_queue)
                    ));
                }
            }
        }
        Ok(())
    }
}
