//! What all queues of the loaded workflows hold. One inspection serves all who ask within a while,
//! so that many pages cost the broker no more than one.

use super::bulk_requests::WaitingStep;
use bus::{Address, BusKey, QueueStatus};
use engine::Timestamp;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// A report counts as new for at least this long.
const FRESH_FOR: Duration = Duration::from_secs(5);

/// A report also counts as new for this many times as long as the jobs took to answer: so they
/// spend little time on reports, however many jobs there are.
const FRESH_FACTOR: u32 = 20;

/// A report on all queues.
pub struct QueueReport {
    /// When the queues were inspected.
    pub at: Timestamp,
    /// The same by a monotonic clock.
    pub ticks: Instant,
    /// What the buses reported, by bus and queue.
    pub queues: BTreeMap<(BusKey, Arc<str>), QueueStatus>,
    /// The step of each queue that waits longest.
    pub oldest: HashMap<Address, WaitingStep>,
    /// How long the jobs took to report these.
    pub collected_in: Duration,
}

/// The last report.
#[derive(Default)]
pub struct QueueReports(Mutex<Option<Arc<QueueReport>>>);

impl QueueReports {
    /// Returns the last report, or a new one if that is old. Whoever asks meanwhile waits for the
    /// new one.
    pub async fn last_or_inspect(
        &self,
        inspect: impl Future<Output = QueueReport>,
    ) -> Arc<QueueReport> {
        let mut last = self.0.lock().await;
        if let Some(report) = &*last
            && report.ticks.elapsed() < FRESH_FOR.max(FRESH_FACTOR * report.collected_in)
        {
            return report.clone();
        }
        let report = Arc::new(inspect.await);
        *last = Some(report.clone());
        report
    }
}
