//! What all queues of the loaded workflows hold. One look serves all who ask within a while, so
//! that many pages cost the broker no more than one.

use super::bulk::Wait;
use crate::bus::{Address, BusKey, QueueLook};
use crate::engine::Timestamp;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long a look is taken for new, at least.
const FRESH_FOR: Duration = Duration::from_secs(5);

/// The same as a multiple of the time that it took to ask the jobs: however many there are, they
/// spend little of their time on this.
const FRESH_FACTOR: u32 = 20;

/// A look at all queues.
pub struct Looked {
    /// When it was taken.
    pub at: Timestamp,
    /// The same by a monotonic clock.
    pub ticks: Instant,
    /// What was found, by bus and queue.
    pub found: BTreeMap<(BusKey, Arc<str>), QueueLook>,
    /// The step of each queue that waits longest.
    pub oldest: HashMap<Address, Wait>,
    /// How long it took to ask the jobs for these.
    pub asked_for: Duration,
}

/// The last look.
#[derive(Default)]
pub struct QueueLooks(Mutex<Option<Arc<Looked>>>);

impl QueueLooks {
    /// The last look, or a new one if that is old. Who comes while one is taken waits for it.
    pub async fn last_or(&self, look: impl Future<Output = Looked>) -> Arc<Looked> {
        let mut last = self.0.lock().await;
        if let Some(looked) = &*last
            && looked.ticks.elapsed() < FRESH_FOR.max(FRESH_FACTOR * looked.asked_for)
        {
            return looked.clone();
        }
        let looked = Arc::new(look.await);
        *last = Some(looked.clone());
        looked
    }
}
