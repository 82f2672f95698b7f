//! The settings of push buses.

use base::networks::{Network, Networks};
use base::values::{DurationSetting, Names, Secret, ServerAddress, check_at_least_one};
use base::web_address::{ip_address, parse_web_address};
use engine::text::quote;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The headers that the manager itself sets in calls, or that belong to the connection, in lower
/// case. Settings cannot set them.
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
pub struct PushBusSection {
    /// The services, by the names of their queues.
    pub endpoints: BTreeMap<String, EndpointSettings>,
}

/// The settings of a web service. Those that are absent have the values of section `push`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointSettings {
    /// The URL to which each message is posted.
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
    /// Parses the networks in which web services are allowed and denied.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting is not a network.
    pub fn networks(&self) -> Result<Networks, String> {
        let parse = |key: &str, names: &Names| -> Result<Vec<Network>, String> {
            let networks = names.0.iter().map(|text| text.parse());
            networks
                .collect::<Result<_, _>>()
                .map_err(|error| format!("push.networks.{key}: {error}"))
        };
        let NetworkSettings { allow, deny } = &self.networks;
        Ok(Networks { allow: parse("allow", allow)?, deny: parse("deny", deny)? })
    }

    /// Checks the section.
    ///
    /// # Errors
    ///
    /// Returns an error that says which setting is wrong, and what was expected.
    pub fn check(&self) -> Result<(), String> {
        self.networks()?;
        check_at_least_one("push.", &[("calls_max", self.calls_max)])?;
        let durations = [
            ("connect_timeout", self.connect_timeout),
            ("retry_min", self.retry_min),
            ("retry_after_max", self.retry_after_max),
        ];
        if let Some((name, _)) = durations.iter().find(|(_, duration)| duration.0.is_zero()) {
            return Err(format!("push.{name} is 0s, expected some time, such as 1s"));
        }
        if self.retry_max.0 < self.retry_min.0 {
            return Err(format!(
                "push.retry_max is {}, less than push.retry_min, {}",
                self.retry_max, self.retry_min
            ));
        }
        self.check_call("push", self.concurrency, self.timeout)
    }

    /// Checks the limits of calls, which are at `path` in the settings file.
    fn check_call(
        &self,
        path: &str,
        concurrency: usize,
        timeout: DurationSetting,
    ) -> Result<(), String> {
        check_at_least_one(path, &[(".concurrency", concurrency)])?;
        if timeout.0 <= self.connect_timeout.0 {
            return Err(format!(
                "{path}.timeout is {timeout}, expected more than push.connect_timeout, {}: a call \
                 that has not connected by then was not delivered",
                self.connect_timeout
            ));
        }
        Ok(())
    }
}

impl EndpointSettings {
    /// Creates the settings of a web service that a step names by its URL.
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

    /// Checks the settings, which are at `path` in the settings file.
    ///
    /// # Errors
    ///
    /// Returns an error that says which setting is wrong, and what was expected.
    pub fn check(&self, path: &str, push: &PushSection, networks: &Networks) -> Result<(), String> {
        let url = parse_web_address(&self.url.0).map_err(|error| format!("{path}.url: {error}"))?;
        if let Some(reason) = ip_address(&url).and_then(|address| networks.refusal(address)) {
            return Err(format!("{path}.url: {reason}"));
        }
        push.check_call(path, self.concurrency(push), self.timeout.unwrap_or(push.timeout))?;
        for (name, value) in &self.headers {
            let is_token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_token) {
                return Err(format!(
                    "{path}.headers: {} is not a name of a header, expected one such as \
                     Authorization",
                    quote(name)
                ));
            }
            if RESERVED_CALL_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
                return Err(format!(
                    "{path}.headers: the manager itself sets {name}, leave it out"
                ));
            }
            if !value.0.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
                return Err(format!(
                    "{path}.headers.{name} has a character that cannot stand in a header"
                ));
            }
        }
        Ok(())
    }
}
