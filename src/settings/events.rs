//! Sections `events` and `events.webhook`: who is told what happens.

use super::{Secret, ServerAddress, Span};
use serde::{Deserialize, Serialize};

/// Section `events`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct EventSettings {
    pub source: String,
    pub exchange: String,
    pub exchange_buffer_max: usize,
    pub webhook: WebhookSettings,
}

/// Section `events.webhook`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct WebhookSettings {
    pub url: ServerAddress,
    pub secret: Secret,
    pub timeout: Span,
    pub concurrency: usize,
    pub backoff_min: Span,
    pub backoff_max: Span,
    pub age_max: Span,
}

impl WebhookSettings {
    /// Whether there is one.
    pub fn is_on(&self) -> bool {
        !self.url.0.is_empty()
    }
}

/// The longest name of an exchange that AMQP can carry.
const EXCHANGE_BYTES_MAX: usize = 255;

impl EventSettings {
    /// `has_broker`: the settings have a broker for the exchange.
    pub(super) fn validate(&self, has_broker: bool) -> Result<(), String> {
        if !self.exchange.is_empty() && !has_broker {
            return Err(
                "events.exchange needs a broker: set amqp.server, or leave events.exchange empty"
                    .to_owned(),
            );
        }
        if self.exchange.len() > EXCHANGE_BYTES_MAX {
            return Err(format!("events.exchange must have at most {EXCHANGE_BYTES_MAX} bytes"));
        }
        if self.source.is_empty() {
            return Err(
                "events.source is empty, expected a URI or a path such as /workflow-manager"
                    .to_owned(),
            );
        }
        if self.webhook.is_on()
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
