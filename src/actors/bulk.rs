//! Requests to every job: to send the messages of its steps on a queue again, to count its waiting
//! steps, and to report which of them waits longest.

use crate::bus::{Address, BusKey};
use crate::engine::{JobId, Timestamp};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How many jobs are asked at once.
pub(super) const JOBS_AT_ONCE: usize = 10_000;

/// A request to dispatch all steps that wait on a queue again, and its counters.
pub struct Bulk {
    pub(super) queue: Address,
    /// If set, only steps that have been seen waiting for this long.
    pub(super) waiting_for: Option<Duration>,
    pub(super) is_dry_run: bool,
    /// The reason, for the record of each job.
    pub(super) reason: Option<Arc<str>>,
    /// The principal who asks: the name of a token.
    pub(super) by: Option<Arc<str>>,
    pub(super) steps: AtomicUsize,
    pub(super) jobs: AtomicUsize,
}

impl Bulk {
    /// Creates a request for all steps on a queue.
    pub fn new(queue: Address) -> Bulk {
        Bulk {
            queue,
            waiting_for: None,
            is_dry_run: false,
            reason: None,
            by: None,
            steps: AtomicUsize::new(0),
            jobs: AtomicUsize::new(0),
        }
    }

    /// Limits it to steps that have waited for this span.
    pub fn of_those_waiting(self, span: Duration) -> Bulk {
        Bulk { waiting_for: Some(span), ..self }
    }

    /// Makes it only count the steps, if `is_dry_run`.
    pub fn dry_run(self, is_dry_run: bool) -> Bulk {
        Bulk { is_dry_run, ..self }
    }

    /// Adds the reason and the principal, which the record of each affected job shows.
    pub fn asked(self, reason: Option<Arc<str>>, by: Option<Arc<str>>) -> Bulk {
        Bulk { reason, by, ..self }
    }

    /// Returns how many steps were found so far, in how many jobs and child jobs.
    pub fn found(&self) -> (usize, usize) {
        (self.steps.load(Ordering::Relaxed), self.jobs.load(Ordering::Relaxed))
    }
}

/// Counts the steps that have waited for a span, by queue. The result is sent once the last job has
/// answered.
pub struct Census {
    pub(super) bus: BusKey,
    pub(super) span: Duration,
    counts: Mutex<HashMap<Arc<str>, u64>>,
    answer: Option<oneshot::Sender<HashMap<Arc<str>, u64>>>,
}

impl Census {
    /// Creates a scan of the steps whose messages go over this bus; the result is sent to `answer`.
    pub fn new(
        bus: BusKey,
        span: Duration,
        answer: oneshot::Sender<HashMap<Arc<str>, u64>>,
    ) -> Census {
        Census { bus, span, counts: Mutex::default(), answer: Some(answer) }
    }

    /// Counts one step on each of these queues.
    pub(super) fn add<'q>(&self, queues: impl Iterator<Item = &'q Arc<str>>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        queues.for_each(|queue| *counts.entry(queue.clone()).or_default() += 1);
    }
}

impl Drop for Census {
    fn drop(&mut self) {
        let counts =
            std::mem::take(&mut *self.counts.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(answer) = self.answer.take() {
            // The receiver may have gone.
            let _ = answer.send(counts);
        }
    }
}

/// A step that waits for a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// When its attempt began.
    pub since: Timestamp,
    /// The job or child job.
    pub job: JobId,
    /// The step's name.
    pub step: Arc<str>,
}

/// The step that waits longest on each queue, of those reported so far.
#[derive(Default)]
pub struct Waits(Mutex<HashMap<Address, Wait>>);

impl Waits {
    /// Records a step that waits on this queue.
    pub(super) fn hear(&self, queue: Address, wait: Wait) {
        let mut waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match waits.get_mut(&queue) {
            Some(oldest) if oldest.since <= wait.since => {}
            Some(oldest) => *oldest = wait,
            None => drop(waits.insert(queue, wait)),
        }
    }

    /// Takes what was recorded, by queue.
    pub fn take(&self) -> HashMap<Address, Wait> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
