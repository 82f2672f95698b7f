//! The report on the queues of the loaded workflows. It is cached, so that many open pages load the
//! broker no more than a single one.

use super::bulk_requests::WaitingStep;
use bus::{Address, BusKey, QueueStatus};
use engine::Timestamp;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The shortest time for which a report is cached.
const TTL_MIN: Duration = Duration::from_secs(5);

/// A report is also cached for at least this many times as long as the jobs took to report their
/// waiting steps. So jobs spend at most about 5 % of their time on reports.
const TTL_FACTOR: u32 = 20;

/// A report on all queues of the loaded workflows and of active jobs.
pub struct QueueReport {
    /// When the queues were inspected, by the wall clock.
    pub at: Timestamp,
    /// When the queues were inspected, by the monotonic clock.
    pub instant: Instant,
    /// The statuses that the buses reported, by bus and queue.
    pub queues: BTreeMap<(BusKey, Arc<str>), QueueStatus>,
    /// The step that waits longest on each queue.
    pub oldest: HashMap<Address, WaitingStep>,
    /// How long the jobs took to report their waiting steps.
    pub collected_in: Duration,
}

/// The cache of the last report.
#[derive(Default)]
pub struct QueueReports(Mutex<Option<Arc<QueueReport>>>);

impl QueueReports {
    /// Returns the cached report, or a new one if the cached one is too old. Concurrent requests
    /// wait for the same report.
    pub async fn cached_or_inspect(
        &self,
        inspect: impl Future<Output = QueueReport>,
    ) -> Arc<QueueReport> {
        let mut cached = self.0.lock().await;
        if let Some(report) = &*cached
            && report.instant.elapsed() < TTL_MIN.max(TTL_FACTOR * report.collected_in)
        {
            return report.clone();
        }
        let report = Arc::new(inspect.await);
        *cached = Some(report.clone());
        report
    }
}
