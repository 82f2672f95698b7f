//! The backoff between tries to reach the brokers, or to start a producer.

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bus::KafkaSection;
use std::time::Duration;

/// An exponential backoff with jitter, from the setting `reconnect_min` to `reconnect_max`.
pub(super) struct BrokerBackoff {
    delays: ExponentialBackoff,
    max: Duration,
}

impl BrokerBackoff {
    pub(super) fn from_section(section: &KafkaSection) -> BrokerBackoff {
        let (min, max) = (section.reconnect_min.0, section.reconnect_max.0);
        // The jitter adds up to the delay itself, so half of the maximum is the limit before it.
        let builder = ExponentialBuilder::new()
            .with_min_delay(min)
            .with_max_delay((max / 2).max(min))
            .with_jitter()
            .without_max_times();
        BrokerBackoff { delays: builder.build(), max }
    }

    /// Returns the next delay, and advances the backoff.
    pub(super) fn next_delay(&mut self) -> Duration {
        // The builder sets no limit of tries, so there always is a delay.
        self.delays.next().map_or(self.max, |delay| delay.min(self.max))
    }
}
