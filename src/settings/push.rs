//! Settings of buses that call web services.

use super::networks::{Network, Networks};
use super::{BusKind, BusSettings, DurationSetting, Names, Secret, ServerAddress, Settings};
use crate::engine::text::{enumerate_quoted, find_nearest, quote};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use url::Url;

/// Headers that every call has, or that belong to the connection.
const RESERVED_CALL_HEADERS: [&str; 19] = [
    "connection",
    "content-length",
    "content-type",
    "correlation-id",
    "delivery",
    "host",
    "idempotency-key",
    "job",
    "attempt",
    "message-id",
    "priority",
    "reply-to",
    "te",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "workflow",
    "x-signature-256",
    "x-signature-timestamp",
];

/// Section `push`: the settings of all calls of web services.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct PushSection {
    pub concurrency: usize,
    pub calls_max: usize,
    pub timeout: DurationSetting,
    pub connect_timeout: DurationSetting,
    pub retry_min: DurationSetting,
    pub retry_max: DurationSetting,
    pub retry_after_max: DurationSetting,
    pub networks: NetworkSettings,
}

/// The settings of section `push.networks`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct NetworkSettings {
    pub allow: Names,
    pub deny: Names,
}

/// A bus of kind push: named web services.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushBus {
    /// The services, by the names of their queues.
    pub endpoints: BTreeMap<String, EndpointSettings>,
}

/// A web service. Settings that it lacks have the values of section `push`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointSettings {
    /// The address to which each message is posted.
    pub url: ServerAddress,
    /// The most concurrent calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<usize>,
    /// How long one call may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationSetting>,
    /// Additional headers of each call.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// The key of the signature; empty: calls are not signed.
    #[serde(default)]
    pub secret: Secret,
}

impl PushSection {
    /// Returns the networks in which web services may be.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting is not a network.
    pub fn networks(&self) -> Result<Networks, String> {
        let all = |key: &str, names: &Names| -> Result<Vec<Network>, String> {
            let networks = names.0.iter().map(|text| text.parse());
            networks.collect::<Result<_, _>>().map_err(|why| format!("push.networks.{key}: {why}"))
        };
        let NetworkSettings { allow, deny } = &self.networks;
        Ok(Networks { allow: all("allow", allow)?, deny: all("deny", deny)? })
    }

    fn validate(&self) -> Result<(), String> {
        self.networks()?;
        if self.calls_max == 0 {
            return Err("push.calls_max is 0, expected at least 1".to_owned());
        }
        let spans = [
            ("connect_timeout", self.connect_timeout),
            ("retry_min", self.retry_min),
            ("retry_after_max", self.retry_after_max),
        ];
        if let Some((name, _)) = spans.iter().find(|(_, span)| span.0.is_zero()) {
            return Err(format!("push.{name} is 0s, expected some time, such as 1s"));
        }
        if self.retry_max.0 < self.retry_min.0 {
            return Err(format!(
                "push.retry_max is {}, less than push.retry_min, {}",
                self.retry_max, self.retry_min
            ));
        }
        self.validate_call("push", self.concurrency, self.timeout)
    }

    fn validate_call(
        &self,
        place: &str,
        concurrency: usize,
        timeout: DurationSetting,
    ) -> Result<(), String> {
        if concurrency == 0 {
            return Err(format!("{place}.concurrency is 0, expected at least 1"));
        }
        if timeout.0 <= self.connect_timeout.0 {
            return Err(format!(
                "{place}.timeout is {timeout}, expected more than push.connect_timeout, {}: a call \
                 that has not connected by then was not delivered",
                self.connect_timeout
            ));
        }
        Ok(())
    }
}

impl Settings {
    /// Returns the web services of a push bus; `None` if there is no push bus of this name.
    pub fn push_bus(&self, name: &str) -> Option<&BTreeMap<String, EndpointSettings>> {
        static NONE: BTreeMap<String, EndpointSettings> = BTreeMap::new();
        match self.buses.get(name) {
            Some(BusSettings::Push(bus)) => Some(&bus.endpoints),
            Some(BusSettings::Amqp(_) | BusSettings::Kafka(_)) => None,
            None => (name == BusKind::Push.name()).then_some(&NONE),
        }
    }

    /// Returns an error if a bus has no web service for a queue, with the most similar name or all
    /// names.
    pub fn unknown_endpoint_error(&self, bus: &str, queue: &str) -> Option<String> {
        let endpoints = self.push_bus(bus)?;
        if endpoints.contains_key(queue) || (bus == BusKind::Push.name() && is_url(queue)) {
            return None;
        }
        let names = || endpoints.keys().map(String::as_str);
        let hint = if bus == BusKind::Push.name() {
            "write the address of the web service, https://…, or give it a name in the endpoints \
             of a bus of kind push (setting buses)"
                .to_owned()
        } else if let Some(meant) = find_nearest(queue, names()) {
            format!("did you mean {}?", quote(meant))
        } else {
            format!("buses.{bus}.endpoints has {}", enumerate_quoted(names(), "and"))
        };
        Some(format!("the bus {} calls no web service {}; {hint}", quote(bus), quote(queue)))
    }

    /// Checks section `push`, and the web services of the buses.
    pub(super) fn validate_push(&self) -> Result<(), String> {
        self.push.validate()?;
        if !self.http.public_url.is_empty() {
            let url = parse_web_address(&self.http.public_url);
            url.map_err(|why| format!("http.public_url: {why}"))?;
        }
        let networks = self.push.networks()?;
        for (name, bus) in &self.buses {
            let BusSettings::Push(bus) = bus else { continue };
            let place = format!("buses.{name}.endpoints");
            if bus.endpoints.is_empty() {
                return Err(format!(
                    "{place} is empty, expected web services such as {{ price: {{ url: \
                     https://price.example/step }} }}"
                ));
            }
            for (queue, endpoint) in &bus.endpoints {
                let place = format!("{place}.{queue}");
                endpoint.validate(&place, &self.push, &networks)?;
            }
        }
        Ok(())
    }
}

impl EndpointSettings {
    /// Returns the settings of a web service that a step names by its address.
    pub fn from_url(url: &str) -> EndpointSettings {
        EndpointSettings {
            url: ServerAddress(url.to_owned()),
            concurrency: None,
            timeout: None,
            headers: BTreeMap::new(),
            secret: Secret::default(),
        }
    }

    /// Returns the most concurrent calls.
    pub fn concurrency(&self, push: &PushSection) -> usize {
        self.concurrency.unwrap_or(push.concurrency)
    }

    /// Returns how long one call may take.
    pub fn timeout(&self, push: &PushSection) -> Duration {
        self.timeout.unwrap_or(push.timeout).0
    }

    fn validate(&self, place: &str, push: &PushSection, networks: &Networks) -> Result<(), String> {
        let url = parse_web_address(&self.url.0).map_err(|why| format!("{place}.url: {why}"))?;
        if let Some(why) = ip_address(&url).and_then(|address| networks.refusal(address)) {
            return Err(format!("{place}.url: {why}"));
        }
        push.validate_call(place, self.concurrency(push), self.timeout.unwrap_or(push.timeout))?;
        for (name, value) in &self.headers {
            let is_token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_token) {
                return Err(format!(
                    "{place}.headers: {} is no name of a header, expected one such as \
                     Authorization",
                    quote(name)
                ));
            }
            if RESERVED_CALL_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
                return Err(format!(
                    "{place}.headers: the manager itself sets {name}, leave it out"
                ));
            }
            if !value.0.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
                return Err(format!(
                    "{place}.headers.{name} has a character that cannot stand in a header"
                ));
            }
        }
        Ok(())
    }
}

/// Returns whether a queue is the address of a web service.
pub fn is_url(queue: &str) -> bool {
    let has = |scheme: &str| {
        queue.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    has("http://") || has("https://")
}

/// Parses the address of a web service.
///
/// # Errors
///
/// Returns what is wrong with it.
pub fn parse_web_address(text: &str) -> Result<Url, String> {
    if text.contains(['{', '}']) {
        // The text is not shown: a secret may be meant to replace the placeholder.
        return Err("an address is written out, nothing is put in its place: data never chooses \
                    where a message goes; leave out { and }"
            .to_owned());
    }
    let expected = "expected an address such as https://price.example/step";
    if !is_url(text) {
        return Err(format!("it does not start with https:// or http://, {expected}"));
    }
    let url = Url::parse(text).map_err(|error| format!("{error}, {expected}"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("an address has no user and no password: set a header Authorization for the \
                    endpoint of a bus of kind push (setting buses)"
            .to_owned());
    }
    if url.fragment().is_some() {
        return Err(format!("a part behind # is never sent, leave it out; {expected}"));
    }
    Ok(url)
}

/// Returns the IP address in a URL, if its host is no name and needs no lookup.
pub fn ip_address(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        url::Host::Domain(_) => None,
        url::Host::Ipv4(address) => Some(address.into()),
        url::Host::Ipv6(address) => Some(address.into()),
    }
}

/// Returns whether data sent to this address can be read on the way: without TLS, to another
/// machine.
pub fn is_cleartext(url: &Url) -> bool {
    let is_here = match ip_address(url) {
        Some(address) => address.is_loopback(),
        None => url.host_str() == Some("localhost"),
    };
    url.scheme() == "http" && !is_here
}
