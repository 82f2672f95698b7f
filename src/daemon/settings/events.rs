//! Sections `events` and `events.webhook`: where events are sent to.

use base::values::{DurationSetting, Secret, ServerAddress, check_at_least_one};
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
        if self.webhook.is_enabled()
            && !["http://", "https://"].iter().any(|scheme| self.webhook.url.0.starts_with(scheme))
        {
            return Err(format!(
                "events.webhook.url is {}, expected http://… or https://…",
                self.webhook.url
            ));
        }
        let numbers = [
            ("exchange_buffer_max", self.exchange_buffer_max),
            ("webhook.concurrency", self.webhook.concurrency),
        ];
        check_at_least_one("events.", &numbers)
    }
}
