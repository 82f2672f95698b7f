//! The backoff while brokers do not answer, or refuse.

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bus::KafkaSection;
use std::time::Duration;

/// Delays from the setting `reconnect_min`, doubled each time, up to `reconnect_max`.
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

    pub(super) fn next_delay(&mut self) -> Duration {
        self.delays.next().map_or(self.max, |pause| pause.min(self.max))
    }
}
