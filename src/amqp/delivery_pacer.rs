//! Paces deliveries: they are handled immediately while they are few, and in bursts under load. A
//! burst wakes each thread that handles it once, instead of once for each delivery.

use base::clock;
use std::time::Duration;
use tokio::time::Instant;

/// How long deliveries are counted before the load is determined.
const MEASURE_INTERVAL: Duration = Duration::from_millis(10);

/// An average of one delivery or more in this interval counts as load.
const LOAD_INTERVAL: Duration = Duration::from_millis(1);

/// Decides when the next burst of deliveries is handled.
pub(super) struct DeliveryPacer {
    /// The delay between two bursts under load.
    linger: Duration,
    /// When the current measurement started.
    measured_since: Instant,
    /// The number of deliveries since then.
    count: u32,
    /// Whether the last measurement showed load.
    is_loaded: bool,
    /// When the next delivery may be handled; `None` for immediately.
    next_at: Option<Instant>,
}

impl DeliveryPacer {
    /// Creates a pacer. Under load, each burst is delayed by `linger` after the previous one.
    pub(super) fn new(linger: Duration) -> DeliveryPacer {
        DeliveryPacer {
            linger,
            measured_since: clock::timer_now(),
            count: 0,
            is_loaded: false,
            next_at: None,
        }
    }

    /// Records that `count` deliveries were handled. Unless no further delivery was ready
    /// (`is_drained`), the next ones are handled immediately.
    pub(super) fn record(&mut self, count: u32, is_drained: bool) {
        let now = clock::timer_now();
        self.count = self.count.saturating_add(count);
        let elapsed = now - self.measured_since;
        if elapsed >= MEASURE_INTERVAL {
            self.is_loaded = LOAD_INTERVAL * self.count >= elapsed;
            (self.measured_since, self.count) = (now, 0);
        }
        self.next_at = (self.is_loaded && is_drained).then(|| now + self.linger);
    }

    /// Waits until the next delivery may be handled.
    pub(super) async fn wait(&self) {
        if let Some(next_at) = self.next_at {
            tokio::time::sleep_until(next_at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::Future;

    const LINGER: Duration = Duration::from_millis(5);

    fn run_with_paused_clock(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true);
        runtime.build().expect("a runtime").block_on(test);
    }

    #[test]
    fn few_deliveries_are_handled_immediately() {
        run_with_paused_clock(async {
            let mut pacer = DeliveryPacer::new(LINGER);
            for _ in 0..100 {
                tokio::time::advance(2 * LOAD_INTERVAL).await;
                pacer.record(1, true);
                assert!(pacer.wait().now_or_never().is_some());
            }
        });
    }

    #[test]
    fn deliveries_are_handled_in_bursts_only_under_load() {
        run_with_paused_clock(async {
            let mut pacer = DeliveryPacer::new(LINGER);
            tokio::time::advance(MEASURE_INTERVAL).await;
            pacer.record(64, false);
            assert!(pacer.wait().now_or_never().is_some(), "more may be ready");
            pacer.record(3, true);
            assert!(pacer.wait().now_or_never().is_none());
            tokio::time::advance(LINGER).await;
            assert!(pacer.wait().now_or_never().is_some());
            tokio::time::advance(MEASURE_INTERVAL).await;
            pacer.record(1, true);
            assert!(pacer.wait().now_or_never().is_some(), "the load has ended");
        });
    }
}
