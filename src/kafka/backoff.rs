//! The backoff between tries to reach the brokers, or to start a producer.

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bus::KafkaSection;
use std::time::Duration;

/// Exponential delays with jitter, from the setting `reconnect_min` to `reconnect_max`.
pub(super) struct BrokerBackoff {
    delays: ExponentialBackoff,
    max: Duration,
}

impl BrokerBackoff {
    pub(super) fn from_section(section: &KafkaSection) -> BrokerBackoff {
        let (min, max) = (section.reconnect_min.0, section.reconnect_max.0);
        let builder = ExponentialBuilder::new()
            .with_min_delay(min)
            .with_max_delay((max / 2).max(min))
            .with_jitter()
            .without_max_times();
        BrokerBackoff { delays: builder.build(), max }
    }

    /// Returns the next delay, and advances the backoff.
    pub(super) fn next_delay(&mut self) -> Duration {
        self.delays.next().map_or(self.max, |delay| delay.min(self.max))
    }
}
