//! The memory of jobs under way: how much they hold in total, and how much they may. Each job actor
//! has a [`MemoryShare`].
//!
//! The bound stops creations, calls from outside, operations that reopen an ended job, and further
//! child jobs of a fan-out. A job that is alone is always admitted, and so is one child job of each
//! step: so nothing waits for room that never comes. Replies always pass.

use crate::engine::{Job, Message, Origin, StepRun, own_bytes};
use crate::room::memory;
use prometheus::IntGauge;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Without a setting, jobs may hold one part in so many of the memory of the process. The rest is
/// for what passes through: bodies, messages on their way, reads, the cache of the journal.
const PART_OF_MEMORY: u64 = 4;

/// The least that jobs may hold without a setting, in bytes: a few of the largest messages.
const BYTES_MAX_LEAST: u64 = 64 << 20;

/// What jobs may hold, in bytes, if the memory of the process is unknown.
const BYTES_MAX_UNKNOWN: u64 = 512 << 20;

/// What an actor takes besides its job's values, in bytes.
const ACTOR_BYTES: usize = 2 << 10;

/// Memory is short above this fraction of the bound: five eighths, so that there is room for new
/// jobs.
const SHORT_FROM: (usize, usize) = (5, 8);

/// Memory is no longer short at or below this fraction of the bound.
const ENOUGH_FROM: (usize, usize) = (4, 8);

/// A larger job counts as this fraction of the bound when it is to be admitted: so it does not wait
/// for a job that holds little and never ends.
const LARGEST: (usize, usize) = (7, 8);

/// The memory that all jobs under way hold.
pub struct JobMemory {
    held: AtomicUsize,
    max: usize,
    /// How many bytes the last job that found no room would have taken, until a job is admitted.
    wanted: AtomicUsize,
    /// Whether memory is short and the jobs have been notified.
    is_told: AtomicBool,
    /// How many jobs are passivated.
    at_rest: AtomicUsize,
    /// How many job trees of them wait for room.
    pending: AtomicUsize,
    gauges: Gauges,
}

/// The metrics of the memory of jobs.
#[derive(Clone)]
pub struct Gauges {
    /// The bytes that jobs hold.
    pub held: IntGauge,
    /// The bytes that jobs may hold.
    pub max: IntGauge,
    /// How many jobs are passivated.
    pub at_rest: IntGauge,
    /// How many job trees of them wait for room.
    pub pending: IntGauge,
}

impl JobMemory {
    /// Creates the account for the setting `limits.jobs_bytes_max`; 0 means a fraction of the
    /// memory of the process.
    pub fn new(setting: usize, gauges: Gauges) -> Arc<JobMemory> {
        let max = if setting > 0 { setting } else { default_max() };
        show(&gauges.max, max);
        Arc::new(JobMemory {
            held: AtomicUsize::new(0),
            max,
            wanted: AtomicUsize::new(0),
            is_told: AtomicBool::new(false),
            at_rest: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            gauges,
        })
    }

    /// Returns how many bytes jobs may hold.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Returns how many bytes jobs hold.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns whether a job of so many bytes may be admitted. Passivated jobs that wait for room
    /// come first.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.pending.load(Ordering::Relaxed) == 0 && self.fits(bytes)
    }

    /// Returns whether so many bytes more fit. If nothing is held, any number fits.
    pub fn fits(&self, bytes: usize) -> bool {
        let (held, bytes) = (self.held(), bytes.min(self.part(LARGEST)));
        held == 0 || held.saturating_add(bytes) <= self.max
    }

    /// Notes that a job of so many bytes found no room. Jobs that only wait make room for it.
    pub fn want(&self, bytes: usize) {
        let was_short = self.is_short();
        self.wanted.store(bytes, Ordering::Relaxed);
        if !was_short {
            self.is_told.store(false, Ordering::Relaxed);
        }
    }

    /// Notes that a job was admitted.
    pub fn let_in(&self) {
        self.wanted.store(0, Ordering::Relaxed);
    }

    /// Returns whether memory is short: then jobs that only wait are passivated.
    pub fn is_short(&self) -> bool {
        self.held() > self.part(SHORT_FROM) || !self.fits(self.wanted.load(Ordering::Relaxed))
    }

    /// Returns whether memory is short and the jobs have not been notified.
    pub fn is_short_unheard(&self) -> bool {
        self.is_short() && !self.is_told.load(Ordering::Relaxed)
    }

    /// Returns true once when memory has become short: the caller notifies the jobs.
    pub fn has_become_short(&self) -> bool {
        self.is_short() && !self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Records how many jobs are passivated, and how many of their trees wait for room.
    pub fn show_at_rest(&self, jobs: usize, pending: usize) {
        self.at_rest.store(jobs, Ordering::Relaxed);
        self.pending.store(pending, Ordering::Relaxed);
        show(&self.gauges.at_rest, jobs);
        show(&self.gauges.pending, pending);
    }

    fn part(&self, (parts, of): (usize, usize)) -> usize {
        self.max / of * parts
    }

    /// Returns whether jobs hold more than they may.
    pub fn is_over(&self) -> bool {
        self.held() > self.max
    }

    /// Returns the share of a job of so many bytes. It is granted even where there is no room.
    pub fn share(self: &Arc<Self>, bytes: usize) -> Share {
        let mut share = Share { memory: self.clone(), bytes: 0 };
        share.set(bytes);
        share
    }

    /// Renders a sentence about the memory, for readiness.
    pub fn sentence(&self) -> String {
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        let mut sentence = format!("jobs hold {} of {} MiB", mib(self.held()), mib(self.max));
        let (at_rest, pending) =
            (self.at_rest.load(Ordering::Relaxed), self.pending.load(Ordering::Relaxed));
        if at_rest > 0 {
            // Writing to a string cannot fail.
            let _ = write!(sentence, "; {at_rest} are in the journal until something comes");
        }
        if pending > 0 {
            let _ = write!(sentence, "; {pending} are still to be taken up, as room comes");
        }
        sentence
    }
}

/// The bytes that one job holds; they are released when it is dropped.
pub struct Share {
    memory: Arc<JobMemory>,
    bytes: usize,
}

impl Share {
    /// Sets how many bytes the job holds now.
    pub fn set(&mut self, bytes: usize) {
        let held = &self.memory.held;
        if bytes > self.bytes {
            held.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            held.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        let held = self.memory.held();
        show(&self.memory.gauges.held, held);
        if held <= self.memory.part(ENOUGH_FROM) {
            self.memory.is_told.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Returns how many bytes a job takes in memory.
pub fn bytes_of(job: &Job) -> usize {
    frame_bytes(job.origin()) + job.held_bytes()
}

/// Returns how many bytes a new job will take.
pub fn bytes_of_new(origin: &Origin, message: &Message) -> usize {
    frame_bytes(origin) + own_bytes(origin, message)
}

/// Returns how many bytes a job takes without its values.
fn frame_bytes(origin: &Origin) -> usize {
    let steps = origin.definition.graphs[usize::from(origin.graph)].steps.len();
    ACTOR_BYTES + size_of::<Job>() + steps * size_of::<StepRun>()
}

fn show(gauge: &IntGauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}

fn default_max() -> usize {
    let max = match memory::of_process() {
        Some((bytes, _)) => (bytes / PART_OF_MEMORY).max(BYTES_MAX_LEAST),
        None => BYTES_MAX_UNKNOWN,
    };
    usize::try_from(max).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(max: usize) -> Arc<JobMemory> {
        let gauge = || IntGauge::new("a", "a").expect("a gauge");
        let (held, max_gauge) = (gauge(), gauge());
        let gauges = Gauges { held, max: max_gauge, at_rest: gauge(), pending: gauge() };
        JobMemory::new(max, gauges)
    }

    #[test]
    fn shares_are_counted_and_given_back_and_one_that_is_alone_has_room() {
        let memory = memory(100);
        assert!(memory.has_room(1_000), "alone");
        let mut first = memory.share(60);
        assert!(memory.has_room(40) && !memory.has_room(41) && !memory.has_room(1_000));
        first.set(130);
        assert!(memory.is_over() && !memory.has_room(0));
        assert_eq!(memory.gauges.held.get(), 130);
        first.set(10);
        let second = memory.share(90);
        assert_eq!((memory.held(), memory.is_over()), (100, false));
        drop((first, second));
        assert_eq!((memory.held(), memory.gauges.held.get()), (0, 0));
    }

    #[test]
    fn memory_is_told_to_be_short_once_until_there_is_enough() {
        let memory = memory(800);
        let mut share = memory.share(500);
        assert!(!memory.is_short() && !memory.has_become_short());
        share.set(501);
        assert!(memory.has_become_short() && !memory.has_become_short());
        share.set(401);
        share.set(501);
        assert!(!memory.has_become_short(), "it was never enough");
        share.set(400);
        share.set(501);
        assert!(memory.has_become_short());
        share.set(350);
        memory.want(450);
        assert!(!memory.is_short(), "it fits by now");
        memory.want(1_000);
        assert!(memory.has_become_short() && !memory.has_become_short(), "somebody wants room");
        share.set(100);
        assert!(!memory.is_short() && memory.has_room(1_000), "little is held");
        memory.show_at_rest(3, 1);
        share.set(0);
        assert!(memory.fits(1) && !memory.has_room(1), "those at rest come first");
        let told = memory.sentence();
        assert!(told.contains("3 are in the journal") && told.contains("1 are still"), "{told}");
    }

    #[test]
    fn without_a_setting_it_follows_from_the_memory_of_the_process() {
        let (of_process, _) = crate::room::memory::of_process().expect("Linux tells");
        let expected = (of_process / PART_OF_MEMORY).max(BYTES_MAX_LEAST);
        assert_eq!(memory(0).max() as u64, expected);
    }
}
