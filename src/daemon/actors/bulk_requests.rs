//! Requests to every job: to send the messages of its steps on a queue again, to count its waiting
//! steps, and to report which of them waits longest.

use bus::{Address, BusKey};
use engine::{JobId, Timestamp};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How many jobs are asked at once.
pub(super) const JOBS_AT_ONCE: usize = 10_000;

/// A request to dispatch all steps that wait on a queue again, and its counters.
pub struct BulkRedispatch {
    pub(super) queue: Address,
    /// If set, only steps that have been seen waiting for this long.
    pub(super) min_wait: Option<Duration>,
    pub(super) is_dry_run: bool,
    /// The reason, for the record of each job.
    pub(super) reason: Option<Arc<str>>,
    /// The principal who asks: the name of a token.
    pub(super) principal: Option<Arc<str>>,
    pub(super) step_count: AtomicUsize,
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

    /// Limits it to steps that have waited for this span.
    pub fn with_min_wait(self, span: Duration) -> BulkRedispatch {
        BulkRedispatch { min_wait: Some(span), ..self }
    }

    /// Makes it only count the steps, if `is_dry_run`.
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

    /// Returns how many steps were found so far, in how many jobs and child jobs.
    pub fn counts(&self) -> (usize, usize) {
        (self.step_count.load(Ordering::Relaxed), self.job_count.load(Ordering::Relaxed))
    }
}

/// Counts the steps that have waited for a span, by queue. The result is sent once the last job has
/// answered.
pub struct QueueScan {
    pub(super) bus: BusKey,
    pub(super) min_wait: Duration,
    counts: Mutex<HashMap<Arc<str>, u64>>,
    result_sender: Option<oneshot::Sender<HashMap<Arc<str>, u64>>>,
}

impl QueueScan {
    /// Creates a scan of the steps whose messages go over this bus; the result is sent to `answer`.
    pub fn new(
        bus: BusKey,
        span: Duration,
        answer: oneshot::Sender<HashMap<Arc<str>, u64>>,
    ) -> QueueScan {
        QueueScan { bus, min_wait: span, counts: Mutex::default(), result_sender: Some(answer) }
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
        if let Some(answer) = self.result_sender.take() {
            // The receiver may have gone.
            let _ = answer.send(counts);
        }
    }
}

/// A step that waits for a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingStep {
    /// When its attempt began.
    pub since: Timestamp,
    /// The job or child job.
    pub job: JobId,
    /// The step's name.
    pub step: Arc<str>,
}

/// The step that waits longest on each queue, of those reported so far.
#[derive(Default)]
pub struct OldestWaits(Mutex<HashMap<Address, WaitingStep>>);

impl OldestWaits {
    /// Records a step that waits on this queue.
    pub(super) fn record(&self, queue: Address, wait: WaitingStep) {
        let mut waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match waits.get_mut(&queue) {
            Some(oldest) if oldest.since <= wait.since => {}
            Some(oldest) => *oldest = wait,
            None => drop(waits.insert(queue, wait)),
        }
    }

    /// Takes what was recorded, by queue.
    pub fn take(&self) -> HashMap<Address, WaitingStep> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
