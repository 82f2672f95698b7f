//! Looks up and checks the push buses of the settings, which call web services.

use super::buses::BusSettings;
use super::root::Settings;
use base::web_address::{is_url, parse_web_address};
use bus::BusKind;
use bus::push::EndpointSettings;
use engine::text::{enumerate_quoted, find_nearest, quote};
use std::collections::BTreeMap;

impl Settings {
    /// Returns the web services of a push bus, by the names of their queues; `None` if there is no
    /// push bus of this name. The predefined bus `push` has none: its steps contain the addresses.
    pub fn push_bus(&self, name: &str) -> Option<&BTreeMap<String, EndpointSettings>> {
        static NO_ENDPOINTS: BTreeMap<String, EndpointSettings> = BTreeMap::new();
        match self.buses.get(name) {
            Some(BusSettings::Push(bus)) => Some(&bus.endpoints),
            Some(BusSettings::Amqp(_) | BusSettings::Kafka(_)) => None,
            None => (name == BusKind::Push.name()).then_some(&NO_ENDPOINTS),
        }
    }

    /// Checks that a push bus has a web service for a queue. A bus that is not a push bus has
    /// nothing to check.
    ///
    /// # Errors
    ///
    /// Returns an error that suggests a remedy if the bus has no such web service.
    pub(crate) fn check_endpoint(&self, bus: &str, queue: &str) -> Result<(), String> {
        let Some(endpoints) = self.push_bus(bus) else { return Ok(()) };
        if endpoints.contains_key(queue) || (bus == BusKind::Push.name() && is_url(queue)) {
            return Ok(());
        }
        let names = || endpoints.keys().map(String::as_str);
        let hint = if bus == BusKind::Push.name() {
            "write the address of the web service, https://…, or give it a name in the endpoints \
             of a bus of kind push (setting buses)"
                .to_owned()
        } else if let Some(suggestion) = find_nearest(queue, names()) {
            format!("did you mean {}?", quote(suggestion))
        } else {
            format!("buses.{bus}.endpoints has {}", enumerate_quoted(names(), "and"))
        };
        Err(format!("the bus {} has no web service {}; {hint}", quote(bus), quote(queue)))
    }

    /// Checks section `push`, `http.public_url`, and the web services of the push buses.
    pub(super) fn check_push(&self) -> Result<(), String> {
        self.push.check()?;
        if !self.http.public_url.is_empty() {
            let url = parse_web_address(&self.http.public_url);
            url.map_err(|reason| format!("http.public_url: {reason}"))?;
        }
        let networks = self.push.networks()?;
        for (name, bus) in &self.buses {
            let BusSettings::Push(bus) = bus else { continue };
            let endpoints_path = format!("buses.{name}.endpoints");
            if bus.endpoints.is_empty() {
                return Err(format!(
                    "{endpoints_path} is empty, expected web services such as {{ price: {{ url: \
                     https://price.example/step }} }}"
                ));
            }
            for (queue, endpoint) in &bus.endpoints {
                let path = format!("{endpoints_path}.{queue}");
                endpoint.check(&path, &self.push, &networks)?;
            }
        }
        Ok(())
    }
}
