//! Bulk requests, which are sent to every job. They dispatch again the steps that wait on a queue,
//! count waiting steps, or find the steps that wait longest.

use bus::{Address, BusKey};
use engine::{JobId, Timestamp};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How many jobs a scan sends its request to before it waits for their results.
pub(super) const JOBS_AT_ONCE: usize = 10_000;

/// A request to dispatch again all steps that wait on a queue, with the counters of its result.
pub struct BulkRedispatch {
    pub(super) queue: Address,
    /// If set, only steps that have been seen waiting for at least this long are dispatched again.
    pub(super) min_wait: Option<Duration>,
    /// Whether the steps are only counted.
    pub(super) is_dry_run: bool,
    /// The reason, for the record of each job.
    pub(super) reason: Option<Arc<str>>,
    /// The principal who asks: the name of a token.
    pub(super) principal: Option<Arc<str>>,
    /// How many selected steps the jobs have reported so far.
    pub(super) step_count: AtomicUsize,
    /// How many jobs have one of these steps.
    pub(super) job_count: AtomicUsize,
}

impl BulkRedispatch {
    /// Creates a request for all steps on a queue.
    pub fn new(queue: Address) -> BulkRedispatch {
        BulkRedispatch {
            queue,
            min_wait: None,
            is_dry_run: false,
            reason: None,
            principal: None,
            step_count: AtomicUsize::new(0),
            job_count: AtomicUsize::new(0),
        }
    }

    /// Limits the request to steps that have waited for at least `min_wait`.
    pub fn with_min_wait(self, min_wait: Duration) -> BulkRedispatch {
        BulkRedispatch { min_wait: Some(min_wait), ..self }
    }

    /// Sets whether the steps are only counted, and not dispatched again.
    pub fn with_dry_run(self, is_dry_run: bool) -> BulkRedispatch {
        BulkRedispatch { is_dry_run, ..self }
    }

    /// Adds the reason and the principal, which the record of each affected job shows.
    pub fn with_reason(
        self,
        reason: Option<Arc<str>>,
        principal: Option<Arc<str>>,
    ) -> BulkRedispatch {
        BulkRedispatch { reason, principal, ..self }
    }

    /// Returns the number of selected steps that the jobs have reported so far, and the number of
    /// these jobs.
    pub fn counts(&self) -> (usize, usize) {
        (self.step_count.load(Ordering::Relaxed), self.job_count.load(Ordering::Relaxed))
    }
}

/// A scan that counts the steps that have waited for at least `min_wait`, by queue. Jobs share it
/// in an [`Arc`]. The result is sent when it is dropped.
pub struct QueueScan {
    pub(super) bus: BusKey,
    pub(super) min_wait: Duration,
    counts: Mutex<HashMap<Arc<str>, u64>>,
    result_sender: Option<oneshot::Sender<HashMap<Arc<str>, u64>>>,
}

impl QueueScan {
    /// Creates a scan of the steps whose messages are sent over this bus.
    pub fn new(
        bus: BusKey,
        min_wait: Duration,
        result_sender: oneshot::Sender<HashMap<Arc<str>, u64>>,
    ) -> QueueScan {
        QueueScan { bus, min_wait, counts: Mutex::default(), result_sender: Some(result_sender) }
    }

    /// Counts one step on each of these queues.
    pub(super) fn add_steps<'q>(&self, queues: impl Iterator<Item = &'q Arc<str>>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        queues.for_each(|queue| *counts.entry(queue.clone()).or_default() += 1);
    }
}

impl Drop for QueueScan {
    fn drop(&mut self) {
        let counts =
            std::mem::take(&mut *self.counts.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(result_sender) = self.result_sender.take() {
            // An error means that the receiver was dropped.
            let _ = result_sender.send(counts);
        }
    }
}

/// A step that waits for a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingStep {
    /// When the step's attempt began.
    pub since: Timestamp,
    /// The id of the job or child job.
    pub job: JobId,
    /// The step's name.
    pub step: Arc<str>,
}

/// The step that waits longest on each queue, among the steps reported so far.
#[derive(Default)]
pub struct OldestWaits(Mutex<HashMap<Address, WaitingStep>>);

impl OldestWaits {
    /// Records a step that waits on this queue, if none that was recorded waits longer.
    pub(super) fn record(&self, queue: Address, wait: WaitingStep) {
        let mut waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match waits.get_mut(&queue) {
            Some(oldest) if oldest.since <= wait.since => {}
            Some(oldest) => *oldest = wait,
            None => drop(waits.insert(queue, wait)),
        }
    }

    /// Takes the recorded steps, by queue.
    pub fn take(&self) -> HashMap<Address, WaitingStep> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
