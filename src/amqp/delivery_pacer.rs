//! Paces deliveries: they are taken at once while they are few, and in bursts under load. A burst
//! wakes each thread that handles it once; single deliveries wake it each time.

use base::clock;
use std::time::Duration;
use tokio::time::Instant;

/// How long deliveries are counted before the load is judged.
const MEASURE_INTERVAL: Duration = Duration::from_millis(10);

/// More than one delivery in this time counts as load.
const LOAD_INTERVAL: Duration = Duration::from_millis(1);

pub(super) struct DeliveryPacer {
    linger: Duration,
    since: Instant,
    count: u32,
    is_loaded: bool,
    next: Option<Instant>,
}

impl DeliveryPacer {
    /// Creates a pacer. Under load each burst waits for `linger` after the one before.
    pub(super) fn new(linger: Duration) -> DeliveryPacer {
        DeliveryPacer { linger, since: clock::timer_now(), count: 0, is_loaded: false, next: None }
    }

    /// Records that `count` deliveries were taken. With `is_all`, no more were there; otherwise
    /// there may be more, which need not wait.
    pub(super) fn record(&mut self, count: u32, is_last: bool) {
        let now = clock::timer_now();
        self.count = self.count.saturating_add(count);
        let span = now - self.since;
        if span >= MEASURE_INTERVAL {
            self.is_loaded = LOAD_INTERVAL * self.count >= span;
            (self.since, self.count) = (now, 0);
        }
        self.next = (self.is_loaded && is_last).then(|| now + self.linger);
    }

    /// Waits until deliveries may be taken.
    pub(super) async fn wait(&self) {
        if let Some(next) = self.next {
            tokio::time::sleep_until(next).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::Future;

    const LINGER: Duration = Duration::from_millis(5);

    fn paused(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true);
        runtime.build().expect("a runtime").block_on(test);
    }

    #[test]
    fn few_deliveries_are_read_immediately() {
        paused(async {
            let mut pace = DeliveryPacer::new(LINGER);
            for _ in 0..100 {
                tokio::time::advance(2 * LOAD_INTERVAL).await;
                pace.record(1, true);
                assert!(pace.wait().now_or_never().is_some());
            }
        });
    }

    #[test]
    fn many_deliveries_are_read_in_bursts_until_there_are_few_again() {
        paused(async {
            let mut pace = DeliveryPacer::new(LINGER);
            tokio::time::advance(MEASURE_INTERVAL).await;
            pace.record(64, false);
            assert!(pace.wait().now_or_never().is_some(), "more may be there");
            pace.record(3, true);
            assert!(pace.wait().now_or_never().is_none());
            tokio::time::advance(LINGER).await;
            assert!(pace.wait().now_or_never().is_some());
            tokio::time::advance(MEASURE_INTERVAL).await;
            pace.record(1, true);
            assert!(pace.wait().now_or_never().is_some(), "few again");
        });
    }
}
