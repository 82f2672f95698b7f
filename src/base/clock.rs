//! The only place where the wall clock and random ids are read. The wall clock is also compared
//! with a monotonic one: if they diverge by minutes, somebody has set the wall clock.

use crate::faults;
use engine::{JobId, Timestamp};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The smallest divergence, in nanoseconds, from which the wall clock counts as set. Less is a
/// correction, which every reading follows.
const ADJUSTMENT_MIN_NS: i64 = 120_000_000_000;

/// The longest reading of both clocks from which their divergence is computed. After a longer one
/// the process was stopped in between.
const READING_TIME_MAX: Duration = Duration::from_secs(1);

/// The first reading of both clocks in this process.
static FIRST_READING: OnceLock<(Instant, i64)> = OnceLock::new();

/// By how much the wall clock was set since then in total, in nanoseconds.
static TOTAL_ADJUSTMENT: AtomicI64 = AtomicI64::new(0);

/// When the wall clock was last set, in nanoseconds after the first reading; 0: never.
static ADJUSTED_AT: AtomicI64 = AtomicI64::new(0);

/// Returns the time of the wall clock.
pub fn now() -> Timestamp {
    Timestamp(read_clocks().0)
}

/// Returns the time of the wall clock, and by how much it was set until then, in nanoseconds.
fn read_clocks() -> (i64, i64) {
    if let Some(at) = faults::now() {
        return (at, 0);
    }
    let before = instant();
    let wall = wall_nanoseconds();
    let read_in = before.elapsed();
    let (began, first) = *FIRST_READING.get_or_init(|| (before, wall));
    let elapsed = to_nanoseconds(before.saturating_duration_since(began));
    loop {
        let set_by = TOTAL_ADJUSTMENT.load(Ordering::Acquire);
        let drift = wall.saturating_sub(first).saturating_sub(elapsed).saturating_sub(set_by);
        if drift.abs() < ADJUSTMENT_MIN_NS || read_in > READING_TIME_MAX {
            return (wall, set_by);
        }
        let adjusted = set_by.saturating_add(drift);
        if TOTAL_ADJUSTMENT
            .compare_exchange(set_by, adjusted, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            ADJUSTED_AT.store(elapsed.max(1), Ordering::Release);
            tracing::warn!(
                by_s = drift / 1_000_000_000,
                "the clock was set: jobs under way go on by the time that has passed, and \
                 retention waits until the clock has been steady for an hour"
            );
            return (wall, adjusted);
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the one place")]
fn wall_nanoseconds() -> i64 {
    let skew_s: i64 = faults::hit("clock::now").and_then(|skew| skew.parse().ok()).unwrap_or(0);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    to_nanoseconds(since).saturating_add(skew_s * 1_000_000_000)
}

fn to_nanoseconds(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns by how much the wall clock was set since the process began in total, in seconds.
pub fn total_adjustment_s() -> i64 {
    let nanoseconds = TOTAL_ADJUSTMENT.load(Ordering::Acquire);
    // Rounded, because the two clocks are read one after the other.
    (nanoseconds + 500_000_000 * nanoseconds.signum()) / 1_000_000_000
}

/// Returns how long ago the wall clock was last set; `None` if never since the process began.
pub fn since_adjustment() -> Option<Duration> {
    let (began, _) = FIRST_READING.get()?;
    let at = u64::try_from(ADJUSTED_AT.load(Ordering::Acquire)).ok().filter(|at| *at > 0)?;
    Some(began.elapsed().saturating_sub(Duration::from_nanos(at)))
}

/// A wall clock that is not affected when the wall clock is set later: it continues by the time
/// that passes. What began when this was made is measured by it.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    set_by: i64,
}

impl SteadyClock {
    /// Starts with the present time of the wall clock.
    pub fn start() -> SteadyClock {
        SteadyClock {
            set_by: if faults::now().is_some() {
                0
            } else {
                TOTAL_ADJUSTMENT.load(Ordering::Acquire)
            },
        }
    }

    /// Returns the time of this clock.
    pub fn now(self) -> Timestamp {
        let (wall, set_by) = read_clocks();
        self.adjust(wall, set_by)
    }

    /// Converts a time of the wall clock, as that is set now, to this clock.
    pub fn convert(self, at: Timestamp) -> Timestamp {
        let (_, set_by) = read_clocks();
        self.adjust(at.0, set_by)
    }

    fn adjust(self, wall: i64, set_by: i64) -> Timestamp {
        Timestamp(wall.saturating_sub(set_by.saturating_sub(self.set_by)))
    }
}

/// Returns the present instant of the monotonic clock, for durations.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn instant() -> Instant {
    Instant::now()
}

/// Returns the present instant of the clock that timers use.
pub fn timer_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Returns a new random id.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn new_id() -> JobId {
    JobId(uuid::Uuid::new_v4())
}
