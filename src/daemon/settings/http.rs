//! Section `http`: the HTTP API with its tokens, its TLS and its limits.

use super::tokens::{MAIN_TOKEN, TokenSettings, check_token_length, check_tokens, is_token_name};
use base::values::{DurationSetting, Names, Secret, check_at_least_one};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// The settings of section `http`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct HttpSettings {
    #[serde(deserialize_with = "super::spelling::deserialize_listen_address")]
    pub listen: SocketAddr,
    pub token: Secret,
    pub tokens: BTreeMap<String, TokenSettings>,
    pub tokens_file: String,
    /// The tokens of the tokens file, as they were when the settings were loaded.
    #[serde(skip)]
    pub file_tokens: BTreeMap<String, TokenSettings>,
    pub failed_logins_max: u32,
    pub tls: TlsSettings,
    pub workers: BTreeMap<String, WorkerToken>,
    pub insecure: bool,
    pub hosts: Vec<String>,
    pub public_url: String,
    pub page: bool,
    pub body_bytes_max: usize,
    pub bodies_bytes_max: usize,
    pub body_timeout: DurationSetting,
    pub reads_max: usize,
    pub reads_bytes_max: usize,
    pub reads_wait: DurationSetting,
    pub answer_timeout: DurationSetting,
    pub connections_max: usize,
    pub address_connections_max: usize,
    pub header_timeout: DurationSetting,
    pub keep_alive: DurationSetting,
    pub event_streams_max: usize,
    pub waiters_max: usize,
    pub event_heartbeat: DurationSetting,
}

/// The settings of section `http.tls`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct TlsSettings {
    pub certificate: String,
    pub key: String,
    pub client_authorities: String,
}

impl TlsSettings {
    /// Returns whether the API uses TLS.
    pub fn is_enabled(&self) -> bool {
        !self.certificate.is_empty()
    }
}

/// A worker's token, which only allows receiving and settling the messages of its queues.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct WorkerToken {
    pub token: Secret,
    pub queues: Names,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vhost: String,
}

impl HttpSettings {
    /// Returns whether calls need a token, because at least one is configured. Tokens in `workers`
    /// do not count.
    pub(crate) fn requires_token(&self) -> bool {
        !self.token.0.is_empty() || !self.tokens.is_empty() || !self.tokens_file.is_empty()
    }

    /// Checks that no two tokens share a name, because logs and records show only the name.
    ///
    /// # Errors
    ///
    /// Returns an error if a name is used twice, or is that of the main token.
    pub(crate) fn check_token_names(
        &self,
        file_tokens: &BTreeMap<String, TokenSettings>,
    ) -> Result<(), String> {
        let mut distinct_names = BTreeSet::from([MAIN_TOKEN]);
        let names = self.tokens.keys().chain(self.workers.keys()).chain(file_tokens.keys());
        match names.map(String::as_str).find(|name| !distinct_names.insert(name)) {
            Some(MAIN_TOKEN) => Err(format!(
                "a token is called {MAIN_TOKEN:?}, which is the name of the one in that setting"
            )),
            Some(name) => Err(format!(
                "two tokens are called {name:?}, in http.tokens, http.tokens_file and \
                 http.workers: logs and records could not tell them apart"
            )),
            None => Ok(()),
        }
    }

    /// Checks the tokens in the settings themselves. [`TokenSettings::read_file`] checks those of
    /// the tokens file.
    pub(super) fn check_all_tokens(&self) -> Result<(), String> {
        check_token_length("http.token", &self.token.0)?;
        check_tokens("http.tokens", &self.tokens)?;
        for (name, worker) in &self.workers {
            if !is_token_name(name) {
                return Err(format!(
                    "http.workers.{name}: a name has letters, digits, \"-\", \"_\" and \".\", at \
                     most 64"
                ));
            }
            if !self.requires_token() {
                return Err(format!(
                    "http.workers has the worker {name:?}, but there is no other token (http.token \
                     is empty), so that every call is open to all: set http.token, http.tokens or \
                     http.tokens_file"
                ));
            }
            if worker.token.0.is_empty() || worker.token.0 == self.token.0 {
                return Err(format!(
                    "http.workers.{name}.token is empty or that of http.token, expected another \
                     one: it is for the worker's queues alone"
                ));
            }
            check_token_length(&format!("http.workers.{name}.token"), &worker.token.0)?;
            if worker.queues.is_empty() {
                return Err(format!(
                    "http.workers.{name}.queues is empty, expected the queues of the worker"
                ));
            }
        }
        Ok(())
    }

    /// Returns how much of `bodies_bytes_max` large bodies may use together: three quarters, so
    /// that they cannot starve small ones.
    pub(crate) fn large_bodies_bytes_max(&self) -> usize {
        self.bodies_bytes_max - self.bodies_bytes_max / 4
    }

    /// Checks the settings, on their own and against each other.
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(host) = self.hosts.iter().find(|host| !is_host(host)) {
            return Err(format!(
                "http.hosts has {host:?}, expected names or addresses such as manager.example or \
                 manager.example:8088"
            ));
        }
        self.check_all_tokens()?;
        let TlsSettings { certificate, key, client_authorities } = &self.tls;
        if certificate.is_empty() != key.is_empty() {
            return Err("http.tls has a certificate or a key, expected both or none".to_owned());
        }
        if certificate.is_empty() && !client_authorities.is_empty() {
            return Err(
                "http.tls.client_authorities needs TLS: set http.tls.certificate and http.tls.key"
                    .to_owned(),
            );
        }
        let large_max = self.large_bodies_bytes_max();
        if self.body_bytes_max > large_max {
            return Err(format!(
                "http.body_bytes_max is {}, but of the {} bytes of http.bodies_bytes_max only \
                 {large_max} are for large bodies: raise http.bodies_bytes_max, or lower \
                 http.body_bytes_max",
                self.body_bytes_max, self.bodies_bytes_max
            ));
        }
        let numbers = [
            ("reads_max", self.reads_max),
            ("reads_bytes_max", self.reads_bytes_max),
            ("bodies_bytes_max", self.bodies_bytes_max),
            ("connections_max", self.connections_max),
        ];
        let durations = [
            ("body_timeout", self.body_timeout),
            ("answer_timeout", self.answer_timeout),
            ("header_timeout", self.header_timeout),
        ];
        check_at_least_one("http.", &numbers)?;
        match durations.iter().find(|(_, duration)| duration.0.is_zero()) {
            Some((name, _)) => Err(format!("http.{name} is 0s, expected some time, such as 30s")),
            None => Ok(()),
        }
    }
}

/// Returns whether a text is a valid `Host` header: a name or an address, optionally with a port.
fn is_host(text: &str) -> bool {
    text.parse::<ureq::http::uri::Authority>()
        .is_ok_and(|authority| !authority.host().is_empty() && !text.contains(['@', '*']))
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn defaults() -> HttpSettings {
        Settings::defaults().expect("defaults").http
    }

    #[test]
    fn hosts_are_names_or_addresses() {
        let mut http = defaults();
        http.hosts = ["manager", "manager.example:8088", "10.0.0.1", "[fe80::1]:80"]
            .map(str::to_owned)
            .into();
        assert_eq!(http.check(), Ok(()));
        for invalid in ["", "http://manager", "manager/", "me@manager", "a b", "*"] {
            http.hosts = vec![invalid.to_owned()];
            assert!(http.check().is_err(), "{invalid:?} was accepted");
        }
    }

    #[test]
    fn one_body_fits_the_budget_and_limits_are_above_zero() {
        let validation_error = |change: fn(&mut HttpSettings)| {
            let mut http = defaults();
            change(&mut http);
            http.check().expect_err("the settings are invalid")
        };
        let error = validation_error(|http| http.body_bytes_max = http.bodies_bytes_max);
        assert!(
            error.contains("http.body_bytes_max") && error.contains("http.bodies_bytes_max"),
            "{error}"
        );
        assert!(validation_error(|http| http.reads_max = 0).contains("http.reads_max"));
        assert!(
            validation_error(|http| http.body_timeout = DurationSetting(std::time::Duration::ZERO))
                .contains("http.body_timeout")
        );
    }
}
