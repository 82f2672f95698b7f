//! The memory of jobs under way: how much they hold in total, and how much they may. Each job actor
//! has a [`MemoryShare`].
//!
//! The bound stops creations, calls from outside, operations that reopen an ended job, and further
//! child jobs of a fan-out. A job that is alone is always admitted, and so is one child job of each
//! step: so nothing waits for room that never comes. Replies always pass.

use base::budget::memory;
use engine::{Job, Message, Origin, StepRun, own_bytes};
use prometheus::IntGauge;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Without a setting, jobs may hold one part in so many of the memory of the process. The rest is
/// for what passes through: bodies, messages on their way, reads, the cache of the journal.
const DEFAULT_MEMORY_DIVISOR: u64 = 4;

/// The least that jobs may hold without a setting, in bytes: a few of the largest messages.
const DEFAULT_BYTES_MIN: u64 = 64 << 20;

/// What jobs may hold, in bytes, if the memory of the process is unknown.
const FALLBACK_BYTES_MAX: u64 = 512 << 20;

/// What an actor takes besides its job's values, in bytes.
const ACTOR_BYTES: usize = 2 << 10;

/// Memory is short above this fraction of the bound: five eighths, so that there is room for new
/// jobs.
const SHORT_ABOVE: (usize, usize) = (5, 8);

/// Memory is no longer short at or below this fraction of the bound.
const ENOUGH_BELOW: (usize, usize) = (4, 8);

/// A larger job counts as this fraction of the bound when it is to be admitted: so it does not wait
/// for a job that holds little and never ends.
const ADMISSION_MAX: (usize, usize) = (7, 8);

/// The memory that all jobs under way hold.
pub struct JobMemory {
    used: AtomicUsize,
    max: usize,
    /// How many bytes the last job that found no room would have taken, until a job is admitted.
    rejected_bytes: AtomicUsize,
    /// Whether memory is short and the jobs have been notified.
    is_notified: AtomicBool,
    /// How many jobs are passivated.
    passivated: AtomicUsize,
    /// How many job trees of them wait for room.
    pending: AtomicUsize,
    gauges: MemoryGauges,
}

/// The metrics of the memory of jobs.
#[derive(Clone)]
pub struct MemoryGauges {
    /// The bytes that jobs hold.
    pub used: IntGauge,
    /// The bytes that jobs may hold.
    pub max: IntGauge,
    /// How many jobs are passivated.
    pub passivated: IntGauge,
    /// How many job trees of them wait for room.
    pub pending: IntGauge,
}

impl JobMemory {
    /// Creates the account for the setting `limits.jobs_bytes_max`; 0 means a fraction of the
    /// memory of the process.
    pub fn new(setting: usize, gauges: MemoryGauges) -> Arc<JobMemory> {
        let max = if setting > 0 { setting } else { default_bytes_max() };
        set_gauge(&gauges.max, max);
        Arc::new(JobMemory {
            used: AtomicUsize::new(0),
            max,
            rejected_bytes: AtomicUsize::new(0),
            is_notified: AtomicBool::new(false),
            passivated: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            gauges,
        })
    }

    /// Returns how many bytes jobs may hold.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Returns how many bytes jobs hold.
    pub fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns whether a job of so many bytes may be admitted. Passivated jobs that wait for room
    /// come first.
    pub fn can_admit(&self, bytes: usize) -> bool {
        self.pending.load(Ordering::Relaxed) == 0 && self.fits(bytes)
    }

    /// Returns whether so many bytes more fit. If nothing is held, any number fits.
    pub fn fits(&self, bytes: usize) -> bool {
        let (used, bytes) = (self.used_bytes(), bytes.min(self.fraction(ADMISSION_MAX)));
        used == 0 || used.saturating_add(bytes) <= self.max
    }

    /// Notes that a job of so many bytes found no room. Jobs that only wait make room for it.
    pub fn note_rejected(&self, bytes: usize) {
        let was_short = self.is_short();
        self.rejected_bytes.store(bytes, Ordering::Relaxed);
        if !was_short {
            self.is_notified.store(false, Ordering::Relaxed);
        }
    }

    /// Notes that a job was admitted.
    pub fn note_admitted(&self) {
        self.rejected_bytes.store(0, Ordering::Relaxed);
    }

    /// Returns whether memory is short: then jobs that only wait are passivated.
    pub fn is_short(&self) -> bool {
        self.used_bytes() > self.fraction(SHORT_ABOVE)
            || !self.fits(self.rejected_bytes.load(Ordering::Relaxed))
    }

    /// Returns whether memory is short and the jobs have not been notified.
    pub fn is_short_unnotified(&self) -> bool {
        self.is_short() && !self.is_notified.load(Ordering::Relaxed)
    }

    /// Returns true once when memory has become short: the caller notifies the jobs.
    pub fn take_became_short(&self) -> bool {
        self.is_short() && !self.is_notified.swap(true, Ordering::Relaxed)
    }

    /// Records how many jobs are passivated, and how many of their trees wait for room.
    pub fn set_passivated(&self, jobs: usize, pending: usize) {
        self.passivated.store(jobs, Ordering::Relaxed);
        self.pending.store(pending, Ordering::Relaxed);
        set_gauge(&self.gauges.passivated, jobs);
        set_gauge(&self.gauges.pending, pending);
    }

    fn fraction(&self, (parts, of): (usize, usize)) -> usize {
        self.max / of * parts
    }

    /// Returns whether jobs hold more than they may.
    pub fn is_exceeded(&self) -> bool {
        self.used_bytes() > self.max
    }

    /// Returns the share of a job of so many bytes. It is granted even where there is no room.
    pub fn share(self: &Arc<Self>, bytes: usize) -> MemoryShare {
        let mut share = MemoryShare { memory: self.clone(), bytes: 0 };
        share.set(bytes);
        share
    }

    /// Renders a sentence about the memory, for readiness.
    pub fn render_summary(&self) -> String {
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        let mut sentence = format!("jobs hold {} of {} MiB", mib(self.used_bytes()), mib(self.max));
        let (passivated, pending) =
            (self.passivated.load(Ordering::Relaxed), self.pending.load(Ordering::Relaxed));
        if passivated > 0 {
            // Writing to a string cannot fail.
            let _ = write!(sentence, "; {passivated} are in the journal until something comes");
        }
        if pending > 0 {
            let _ = write!(sentence, "; {pending} are still to be taken up, as room comes");
        }
        sentence
    }
}

/// The bytes that one job holds; they are released when it is dropped.
pub struct MemoryShare {
    memory: Arc<JobMemory>,
    bytes: usize,
}

impl MemoryShare {
    /// Sets how many bytes the job holds now.
    pub fn set(&mut self, bytes: usize) {
        let counter = &self.memory.used;
        if bytes > self.bytes {
            counter.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            counter.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        let used = self.memory.used_bytes();
        set_gauge(&self.memory.gauges.used, used);
        if used <= self.memory.fraction(ENOUGH_BELOW) {
            self.memory.is_notified.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Returns how many bytes a job takes in memory.
pub fn job_bytes(job: &Job) -> usize {
    overhead_bytes(job.origin()) + job.value_bytes()
}

/// Returns how many bytes a new job will take.
pub fn new_job_bytes(origin: &Origin, message: &Message) -> usize {
    overhead_bytes(origin) + own_bytes(origin, message)
}

/// Returns how many bytes a job takes without its values.
fn overhead_bytes(origin: &Origin) -> usize {
    let steps = origin.definition.graphs[usize::from(origin.graph)].steps.len();
    ACTOR_BYTES + size_of::<Job>() + steps * size_of::<StepRun>()
}

fn set_gauge(gauge: &IntGauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}

fn default_bytes_max() -> usize {
    let max = match memory::process_limit() {
        Some((bytes, _)) => (bytes / DEFAULT_MEMORY_DIVISOR).max(DEFAULT_BYTES_MIN),
        None => FALLBACK_BYTES_MAX,
    };
    usize::try_from(max).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(max: usize) -> Arc<JobMemory> {
        let gauge = || IntGauge::new("a", "a").expect("a gauge");
        let (used, max_gauge) = (gauge(), gauge());
        let gauges = MemoryGauges { used, max: max_gauge, passivated: gauge(), pending: gauge() };
        JobMemory::new(max, gauges)
    }

    #[test]
    fn shares_are_counted_and_released_and_a_job_that_is_alone_is_always_admitted() {
        let memory = memory(100);
        assert!(memory.can_admit(1_000), "alone");
        let mut first = memory.share(60);
        assert!(memory.can_admit(40) && !memory.can_admit(41) && !memory.can_admit(1_000));
        first.set(130);
        assert!(memory.is_exceeded() && !memory.can_admit(0));
        assert_eq!(memory.gauges.used.get(), 130);
        first.set(10);
        let second = memory.share(90);
        assert_eq!((memory.used_bytes(), memory.is_exceeded()), (100, false));
        drop((first, second));
        assert_eq!((memory.used_bytes(), memory.gauges.used.get()), (0, 0));
    }

    #[test]
    fn a_shortage_of_memory_is_notified_once_until_there_is_enough() {
        let memory = memory(800);
        let mut share = memory.share(500);
        assert!(!memory.is_short() && !memory.take_became_short());
        share.set(501);
        assert!(memory.take_became_short() && !memory.take_became_short());
        share.set(401);
        share.set(501);
        assert!(!memory.take_became_short(), "it was never enough");
        share.set(400);
        share.set(501);
        assert!(memory.take_became_short());
        share.set(350);
        memory.note_rejected(450);
        assert!(!memory.is_short(), "it fits by now");
        memory.note_rejected(1_000);
        assert!(memory.take_became_short() && !memory.take_became_short(), "somebody wants room");
        share.set(100);
        assert!(!memory.is_short() && memory.can_admit(1_000), "little is held");
        memory.set_passivated(3, 1);
        share.set(0);
        assert!(memory.fits(1) && !memory.can_admit(1), "those at rest come first");
        let summary = memory.render_summary();
        assert!(
            summary.contains("3 are in the journal") && summary.contains("1 are still"),
            "{summary}"
        );
    }

    #[test]
    fn without_a_setting_it_follows_from_the_memory_of_the_process() {
        let (of_process, _) = base::budget::memory::process_limit().expect("Linux tells");
        let expected = (of_process / DEFAULT_MEMORY_DIVISOR).max(DEFAULT_BYTES_MIN);
        assert_eq!(memory(0).max() as u64, expected);
    }
}
