//! The broker that has the exchange for events.

use super::events::EventSettings;
use super::root::Settings;
use amqp::AmqpSection;
use bus::BusKind;
use engine::text::{enumerate_quoted, quote};

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
