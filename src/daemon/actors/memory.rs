//! The memory limit of active jobs: how many bytes they hold in total, and how many they may hold.
//! Each job actor has a [`MemoryShare`].
//!
//! At the limit, the manager refuses creations and operations that reopen an ended job, calls from
//! outside wait, and fan-outs start no further child jobs. A job is always admitted while no other
//! is active, and so is one child job of each fan-out. So no job waits for memory that is never
//! released. Replies are never refused.

use base::budget::memory;
use engine::{Job, Message, Origin, StepRun, own_bytes};
use prometheus::IntGauge;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The default limit is the memory of the process divided by this number. The rest is for bodies,
/// messages in flight, reads, and the cache of the journal.
const DEFAULT_MEMORY_DIVISOR: u64 = 4;

/// The default limit is never below this, in bytes: jobs may always hold a few of the largest
/// messages.
const DEFAULT_LIMIT_BYTES_MIN: u64 = 64 << 20;

/// The default limit if the memory of the process is unknown, in bytes.
const FALLBACK_LIMIT_BYTES: u64 = 512 << 20;

/// How many bytes an actor takes in addition to its job's values.
const ACTOR_BYTES: usize = 2 << 10;

/// How many parts the limit is divided into for the fractions below.
const LIMIT_PARTS: usize = 8;

/// The high watermark, in parts of the limit: above it, memory is short. The memory between the
/// watermark and the limit is kept for new jobs.
const HIGH_WATERMARK_PARTS: usize = 5;

/// The low watermark, in parts of the limit: at or below it, memory is no longer short, and the
/// next shortage is notified again.
const LOW_WATERMARK_PARTS: usize = 4;

/// For admission, a job counts as at most this many parts of the limit. Otherwise a very large job
/// would have to wait until every small one has ended.
const ADMISSION_PARTS_MAX: usize = 7;

/// The memory that all active jobs hold.
pub struct JobMemory {
    /// The bytes that jobs hold: the sum of all shares.
    used: AtomicUsize,
    limit_bytes: usize,
    /// The size of the last job that was refused; 0 after a job was admitted.
    rejected_bytes: AtomicUsize,
    /// Whether memory is short and the jobs have been notified.
    is_notified: AtomicBool,
    /// How many jobs are passivated.
    passivated: AtomicUsize,
    /// How many of the passivated job trees are activated as soon as memory is free.
    pending: AtomicUsize,
    gauges: MemoryGauges,
}

/// The metrics of the memory of jobs.
#[derive(Clone)]
pub struct MemoryGauges {
    /// The bytes that jobs hold.
    pub used: IntGauge,
    /// The limit, in bytes.
    pub max: IntGauge,
    /// How many jobs are passivated.
    pub passivated: IntGauge,
    /// How many of the passivated job trees wait for memory.
    pub pending: IntGauge,
}

impl JobMemory {
    /// Creates the limit of the setting `limits.jobs_bytes_max`, in bytes; 0 means a fraction of
    /// the memory of the process.
    pub fn new(setting: usize, gauges: MemoryGauges) -> Arc<JobMemory> {
        let limit_bytes = if setting > 0 { setting } else { default_limit_bytes() };
        set_gauge(&gauges.max, limit_bytes);
        Arc::new(JobMemory {
            used: AtomicUsize::new(0),
            limit_bytes,
            rejected_bytes: AtomicUsize::new(0),
            is_notified: AtomicBool::new(false),
            passivated: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            gauges,
        })
    }

    /// Returns how many bytes jobs may hold.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Returns how many bytes jobs hold.
    pub fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns whether a new job of `bytes` bytes may be admitted. Passivated jobs that wait for
    /// memory have priority.
    pub fn can_admit(&self, bytes: usize) -> bool {
        self.pending.load(Ordering::Relaxed) == 0 && self.fits(bytes)
    }

    /// Returns whether `bytes` more bytes are within the limit. If no job is in memory, any number
    /// of bytes is.
    pub fn fits(&self, bytes: usize) -> bool {
        let used_bytes = self.used_bytes();
        let counted_bytes = bytes.min(self.limit_parts(ADMISSION_PARTS_MAX));
        used_bytes == 0 || used_bytes.saturating_add(counted_bytes) <= self.limit_bytes
    }

    /// Records that a job of `bytes` bytes was refused. Until it would fit or another job is
    /// admitted, memory is short, and jobs that only wait are passivated.
    pub fn note_rejected(&self, bytes: usize) {
        let was_short = self.is_short();
        self.rejected_bytes.store(bytes, Ordering::Relaxed);
        if !was_short {
            self.is_notified.store(false, Ordering::Relaxed);
        }
    }

    /// Records that a job was admitted.
    pub fn note_admitted(&self) {
        self.rejected_bytes.store(0, Ordering::Relaxed);
    }

    /// Returns whether memory is short, so that jobs that only wait are passivated.
    pub fn is_short(&self) -> bool {
        self.used_bytes() > self.limit_parts(HIGH_WATERMARK_PARTS)
            || !self.fits(self.rejected_bytes.load(Ordering::Relaxed))
    }

    /// Returns whether memory is short and the jobs have not been notified.
    pub fn needs_notification(&self) -> bool {
        self.is_short() && !self.is_notified.load(Ordering::Relaxed)
    }

    /// Returns whether the caller must notify the jobs that memory is short. The jobs count as
    /// notified from then on.
    pub fn take_notification(&self) -> bool {
        self.is_short() && !self.is_notified.swap(true, Ordering::Relaxed)
    }

    /// Records how many jobs are passivated, and how many of their trees wait for memory.
    pub fn set_passivated(&self, jobs: usize, pending: usize) {
        self.passivated.store(jobs, Ordering::Relaxed);
        self.pending.store(pending, Ordering::Relaxed);
        set_gauge(&self.gauges.passivated, jobs);
        set_gauge(&self.gauges.pending, pending);
    }

    /// Returns a fraction of the limit, in bytes.
    fn limit_parts(&self, parts: usize) -> usize {
        self.limit_bytes / LIMIT_PARTS * parts
    }

    /// Returns whether jobs hold more bytes than the limit.
    pub fn is_exceeded(&self) -> bool {
        self.used_bytes() > self.limit_bytes
    }

    /// Acquires the share of a job of `bytes` bytes, even beyond the limit.
    pub fn acquire_share(self: &Arc<Self>, bytes: usize) -> MemoryShare {
        let mut share = MemoryShare { memory: self.clone(), bytes: 0 };
        share.set(bytes);
        share
    }

    /// Renders a summary for readiness.
    pub fn render_summary(&self) -> String {
        let to_mib = |bytes: usize| bytes.div_ceil(1 << 20);
        let mut summary =
            format!("jobs hold {} of {} MiB", to_mib(self.used_bytes()), to_mib(self.limit_bytes));
        let (passivated, pending) =
            (self.passivated.load(Ordering::Relaxed), self.pending.load(Ordering::Relaxed));
        if passivated > 0 {
            // Writing to a string cannot fail.
            let _ = write!(summary, "; {passivated} are in the journal until something comes");
        }
        if pending > 0 {
            let _ = write!(summary, "; {pending} are still to be taken up, as room comes");
        }
        summary
    }
}

/// The bytes that one job holds. They are released when the share is dropped.
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
        let used_bytes = self.memory.used_bytes();
        set_gauge(&self.memory.gauges.used, used_bytes);
        if used_bytes <= self.memory.limit_parts(LOW_WATERMARK_PARTS) {
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

/// Returns how many bytes a job takes in addition to its values.
fn overhead_bytes(origin: &Origin) -> usize {
    let steps = origin.definition.graphs[usize::from(origin.graph)].steps.len();
    ACTOR_BYTES + size_of::<Job>() + steps * size_of::<StepRun>()
}

fn set_gauge(gauge: &IntGauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}

/// Returns the limit that applies without a setting.
fn default_limit_bytes() -> usize {
    let limit_bytes = match memory::process_limit() {
        Some((bytes, _)) => (bytes / DEFAULT_MEMORY_DIVISOR).max(DEFAULT_LIMIT_BYTES_MIN),
        None => FALLBACK_LIMIT_BYTES,
    };
    usize::try_from(limit_bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(limit_bytes: usize) -> Arc<JobMemory> {
        let gauge = || IntGauge::new("a", "a").expect("the gauge is valid");
        let gauges =
            MemoryGauges { used: gauge(), max: gauge(), passivated: gauge(), pending: gauge() };
        JobMemory::new(limit_bytes, gauges)
    }

    #[test]
    fn shares_are_counted_and_released_and_the_only_job_is_always_admitted() {
        let memory = memory(100);
        assert!(memory.can_admit(1_000), "no other job is in memory");
        let mut first = memory.acquire_share(60);
        assert!(memory.can_admit(40) && !memory.can_admit(41) && !memory.can_admit(1_000));
        first.set(130);
        assert!(memory.is_exceeded() && !memory.can_admit(0));
        assert_eq!(memory.gauges.used.get(), 130);
        first.set(10);
        let second = memory.acquire_share(90);
        assert_eq!((memory.used_bytes(), memory.is_exceeded()), (100, false));
        drop((first, second));
        assert_eq!((memory.used_bytes(), memory.gauges.used.get()), (0, 0));
    }

    #[test]
    fn a_shortage_of_memory_is_notified_once_until_the_low_watermark_is_reached() {
        let memory = memory(800);
        let mut share = memory.acquire_share(500);
        assert!(!memory.is_short() && !memory.take_notification());
        share.set(501);
        assert!(memory.take_notification() && !memory.take_notification());
        share.set(401);
        share.set(501);
        assert!(!memory.take_notification(), "memory stayed above the low watermark");
        share.set(400);
        share.set(501);
        assert!(memory.take_notification());
        share.set(350);
        memory.note_rejected(450);
        assert!(!memory.is_short(), "the refused job fits now");
        memory.note_rejected(1_000);
        assert!(
            memory.take_notification() && !memory.take_notification(),
            "the refused job does not fit"
        );
        share.set(100);
        assert!(!memory.is_short() && memory.can_admit(1_000), "the refused job fits now");
        memory.set_passivated(3, 1);
        share.set(0);
        assert!(memory.fits(1) && !memory.can_admit(1), "passivated jobs have priority");
        let summary = memory.render_summary();
        assert!(
            summary.contains("3 are in the journal") && summary.contains("1 are still"),
            "{summary}"
        );
    }

    #[test]
    fn the_default_limit_is_a_fraction_of_the_memory_of_the_process() {
        let (process_bytes, _) =
            base::budget::memory::process_limit().expect("Linux reports the limit");
        let expected = (process_bytes / DEFAULT_MEMORY_DIVISOR).max(DEFAULT_LIMIT_BYTES_MIN);
        assert_eq!(memory(0).limit_bytes() as u64, expected);
    }
}
