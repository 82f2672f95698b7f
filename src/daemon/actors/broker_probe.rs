//! Tells whether this process reaches the brokers of its AMQP buses, by a connection to each that
//! is closed again. The active process and its standbys ask the same question, so that a step-down
//! for a broker leads to a process that reaches it.

use super::bus_starter::StartError;
use crate::settings::{BusKind, Settings};
use amqp::{AmqpSettings, Connector};
use bus::ServedQueues;

/// The connections that are tried.
pub struct BrokerProbe(Vec<Connector>);

impl BrokerProbe {
    /// Creates the probe of all AMQP buses in the settings.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings of one are invalid.
    pub fn from_settings(settings: &Settings) -> Result<BrokerProbe, StartError> {
        let kinds = settings.bus_kinds();
        let names = kinds.iter().filter(|(_, kind)| **kind == BusKind::Amqp).map(|(name, _)| name);
        let connector = |name: &&str| {
            let section = settings.amqp_bus(name)?;
            let amqp = AmqpSettings::from_section(section, "", ServedQueues::default(), true);
            let authorities = settings.authorities().map_err(StartError::Bus);
            let to_error = |error| StartError::Bus(format!("the bus \"{name}\": {error}"));
            Some(authorities.and_then(|authorities| {
                Connector::new(amqp.with_authorities(authorities)).map_err(to_error)
            }))
        };
        Ok(BrokerProbe(names.filter_map(connector).collect::<Result<_, _>>()?))
    }

    /// Returns whether there is no broker to reach.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Connects to each broker.
    ///
    /// # Errors
    ///
    /// Returns the reason, as a sentence for the user, if one of them cannot be reached.
    pub async fn probe(&self) -> Result<(), String> {
        for connector in &self.0 {
            connector.probe().await?;
        }
        Ok(())
    }
}
