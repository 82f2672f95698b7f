//! Looks up the AMQP bus whose broker has the exchange for events.

use super::events::EventSettings;
use super::root::Settings;
use amqp::AmqpSection;
use bus::BusKind;
use engine::text::{enumerate_quoted, quote};

impl Settings {
    /// Returns the name and settings of the bus whose broker has the exchange for events; `None` if
    /// no exchange is configured.
    ///
    /// # Errors
    ///
    /// Returns an error if `events.bus` is not the name of an AMQP bus, or if it is empty, an
    /// exchange is configured and there is no bus `amqp`.
    pub fn exchange_bus(&self) -> Result<Option<(&str, &AmqpSection)>, String> {
        let EventSettings { bus, .. } = &self.events;
        let name = if bus.is_empty() { BusKind::Amqp.name() } else { bus.as_str() };
        match self.amqp_bus(name) {
            Some(section) => Ok(self.events.has_exchange().then_some((name, section))),
            None if bus.is_empty() && !self.events.has_exchange() => Ok(None),
            None => Err(self.exchange_bus_error()),
        }
    }

    /// Returns the error of [`Settings::exchange_bus`], which suggests a remedy.
    fn exchange_bus_error(&self) -> String {
        let EventSettings { bus, .. } = &self.events;
        let kinds = self.bus_kinds();
        let amqp_buses: Vec<&str> = kinds
            .iter()
            .filter(|(_, kind)| **kind == BusKind::Amqp)
            .map(|(name, _)| *name)
            .collect();
        let remedy = match amqp_buses.as_slice() {
            [] => "add a bus of the kind amqp to buses and name it in events.bus, or set \
                   amqp.server and leave events.bus empty"
                .to_owned(),
            [name] => format!("set events.bus to {}, the bus of the kind amqp", quote(name)),
            names => format!(
                "set events.bus to a bus of the kind amqp, {}",
                enumerate_quoted(names.iter().copied(), "or")
            ),
        };
        if bus.is_empty() {
            return format!(
                "events.exchange needs a broker, and amqp.server is empty: {remedy}, or leave \
                 events.exchange empty"
            );
        }
        let reason = match self.bus_kind(bus) {
            None => "and the settings have no such bus".to_owned(),
            Some(kind) => {
                format!("a bus of the kind {}, expected one of the kind amqp", kind.name())
            }
        };
        format!("events.bus is {}, {reason}: {remedy}", quote(bus))
    }
}
