//! Sections `events` and `events.webhook`: where events are sent to.

use base::values::{DurationSetting, Secret, ServerAddress, check_at_least_one};
use base::web_address::is_url;
use reqwest::Url;
use serde::{Deserialize, Serialize};

/// The longest name of an exchange that AMQP allows, in bytes.
const EXCHANGE_BYTES_MAX: usize = 255;

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

    /// Checks the settings. All but the address must be valid even without a webhook.
    fn check(&self) -> Result<(), String> {
        if self.is_enabled() {
            if !is_url(&self.url.0) {
                return Err(format!(
                    "events.webhook.url is {}, expected http://… or https://…",
                    self.url
                ));
            }
            // Unlike the address of a worker, it may have a user and a password.
            Url::parse(&self.url.0).map_err(|error| {
                format!(
                    "events.webhook.url: {error}, expected an address such as \
                     https://example.org/hook"
                )
            })?;
        }
        let durations = [
            ("timeout", self.timeout),
            ("backoff_min", self.backoff_min),
            ("age_max", self.age_max),
        ];
        if let Some((name, _)) = durations.iter().find(|(_, duration)| duration.0.is_zero()) {
            return Err(format!("events.webhook.{name} is 0s, expected more"));
        }
        if self.backoff_max.0 < self.backoff_min.0 {
            return Err(format!(
                "events.webhook.backoff_max is {}, expected at least events.webhook.backoff_min, \
                 which is {}",
                self.backoff_max, self.backoff_min
            ));
        }
        Ok(())
    }
}

impl EventSettings {
    /// Returns whether all events are published to a topic exchange.
    pub fn has_exchange(&self) -> bool {
        !self.exchange.is_empty()
    }

    /// Checks the settings of both sections.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.exchange.len() > EXCHANGE_BYTES_MAX {
            return Err(format!("events.exchange must have at most {EXCHANGE_BYTES_MAX} bytes"));
        }
        if self.source.is_empty() {
            return Err(
                "events.source is empty, expected a URI or a path such as /workflow-manager"
                    .to_owned(),
            );
        }
        let numbers = [
            ("exchange_buffer_max", self.exchange_buffer_max),
            ("webhook.concurrency", self.webhook.concurrency),
        ];
        check_at_least_one("events.", &numbers)?;
        self.webhook.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use std::time::Duration;

    fn check(change: impl FnOnce(&mut EventSettings)) -> Result<(), String> {
        let mut events = Settings::defaults().expect("defaults").events;
        change(&mut events);
        events.check()
    }

    #[test]
    fn addresses_that_can_be_called_are_accepted() {
        for url in ["", "http://127.0.0.1:8080/hook", "HTTPS://user:sesame@example.org/a?b=c"] {
            assert_eq!(check(|events| events.webhook.url = ServerAddress(url.into())), Ok(()));
        }
    }

    #[test]
    fn impossible_values_are_rejected() {
        for url in ["ftp://h/", "h:80", "http://", "http://h:99999/", "https://u:sesame@[::1/"] {
            let error = check(|events| events.webhook.url = ServerAddress(url.into()))
                .expect_err("no address of a receiver");
            assert!(error.starts_with("events.webhook.url"), "{error}");
            assert!(error.contains("expected") && !error.contains("sesame"), "{error}");
        }
        let assert_rejected = |change: fn(&mut EventSettings), name: &str| {
            let error = check(change).expect_err(name);
            assert!(error.starts_with(&format!("events.{name} ")), "{error}");
        };
        assert_rejected(|events| events.source = String::new(), "source");
        assert_rejected(|events| events.exchange = "x".repeat(256), "exchange");
        assert_rejected(|events| events.exchange_buffer_max = 0, "exchange_buffer_max");
        assert_rejected(|events| events.webhook.concurrency = 0, "webhook.concurrency");
        assert_rejected(|events| events.webhook.timeout.0 = Duration::ZERO, "webhook.timeout");
        assert_rejected(
            |events| events.webhook.backoff_min.0 = Duration::ZERO,
            "webhook.backoff_min",
        );
        assert_rejected(
            |events| events.webhook.backoff_max.0 = Duration::from_millis(1),
            "webhook.backoff_max",
        );
        assert_rejected(|events| events.webhook.age_max.0 = Duration::ZERO, "webhook.age_max");
    }
}
