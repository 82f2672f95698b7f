//! Sections `events` and `events.webhook`: who receives events.

use super::{AmqpSection, BusKind, DurationSetting, Secret, ServerAddress, Settings};
use engine::text::{enumerate_quoted, quote};
use serde::{Deserialize, Serialize};

/// The settings of section `events`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct EventSettings {
    pub source: String,
    pub exchange: String,
    pub bus: String,
    pub exchange_buffer_max: usize,
    pub webhook: WebhookSettings,
}

/// The settings of section `events.webhook`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct WebhookSettings {
    pub url: ServerAddress,
    pub secret: Secret,
    pub timeout: DurationSetting,
    pub concurrency: usize,
    pub backoff_min: DurationSetting,
    pub backoff_max: DurationSetting,
    pub age_max: DurationSetting,
}

impl WebhookSettings {
    /// Returns whether a webhook is configured.
    pub fn is_enabled(&self) -> bool {
        !self.url.0.is_empty()
    }
}

/// The longest name of an exchange that AMQP allows, in bytes.
const EXCHANGE_BYTES_MAX: usize = 255;

impl EventSettings {
    /// Returns whether all events are published to a topic exchange.
    pub fn has_exchange(&self) -> bool {
        !self.exchange.is_empty()
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        if self.exchange.len() > EXCHANGE_BYTES_MAX {
            return Err(format!("events.exchange must have at most {EXCHANGE_BYTES_MAX} bytes"));
        }
        if self.source.is_empty() {
            return Err(
                "events.source is empty, expected a URI or a path such as /workflow-manager"
                    .to_owned(),
            );
        }
        if self.webhook.is_enabled()
            && !["http://", "https://"].iter().any(|scheme| self.webhook.url.0.starts_with(scheme))
        {
            return Err(format!(
                "events.webhook.url is {}, expected http://… or https://…",
                self.webhook.url
            ));
        }
        for (name, value) in [
            ("exchange_buffer_max", self.exchange_buffer_max),
            ("webhook.concurrency", self.webhook.concurrency),
        ] {
            if value == 0 {
                return Err(format!("events.{name} is 0, expected at least 1"));
            }
        }
        Ok(())
    }
}

impl Settings {
    /// Returns the name and settings of the bus whose broker has the exchange for events, if there
    /// is to be one.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings have no such AMQP bus, even if the bus is named without an
    /// exchange.
    pub fn exchange_bus(&self) -> Result<Option<(&str, &AmqpSection)>, String> {
        let EventSettings { bus, .. } = &self.events;
        let name = if bus.is_empty() { BusKind::Amqp.name() } else { bus.as_str() };
        match self.amqp_bus(name) {
            Some(section) => Ok(self.events.has_exchange().then_some((name, section))),
            None if bus.is_empty() && !self.events.has_exchange() => Ok(None),
            None => Err(self.missing_exchange_bus()),
        }
    }

    /// Explains why there is no broker for the exchange, and what to do.
    fn missing_exchange_bus(&self) -> String {
        let EventSettings { bus, .. } = &self.events;
        let kinds = self.bus_kinds();
        let over_amqp: Vec<&str> = kinds
            .iter()
            .filter(|(_, kind)| **kind == BusKind::Amqp)
            .map(|(name, _)| *name)
            .collect();
        let to_do = match over_amqp.as_slice() {
            [] => "add a bus of the kind amqp to buses and name it in events.bus, or set \
                   amqp.server and leave events.bus empty"
                .to_owned(),
            [only] => format!("set events.bus to {}, the bus of the kind amqp", quote(only)),
            several => format!(
                "set events.bus to a bus of the kind amqp, {}",
                enumerate_quoted(several.iter().copied(), "or")
            ),
        };
        if bus.is_empty() {
            return format!(
                "events.exchange needs a broker, and amqp.server is empty: {to_do}, or leave \
                 events.exchange empty"
            );
        }
        let what = match self.bus_kind(bus) {
            None => "and the settings have no such bus".to_owned(),
            Some(kind) => {
                format!("a bus of the kind {}, expected one of the kind amqp", kind.name())
            }
        };
        format!("events.bus is {}, {what}: {to_do}", quote(bus))
    }
}
