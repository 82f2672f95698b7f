//! The only source of wall-clock times, monotonic instants and random ids. Each reading of the wall
//! clock is compared with the monotonic clock: if the two have diverged by minutes, the wall clock
//! was set.

use crate::faults;
use engine::{JobId, Timestamp};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Nanoseconds in a second.
const NS_PER_SECOND: i64 = 1_000_000_000;

/// The divergence of the two clocks, in nanoseconds, from which the wall clock counts as set. A
/// smaller one is drift or a correction by NTP.
const ADJUSTMENT_MIN_NS: i64 = 120 * NS_PER_SECOND;

/// The longest time that reading both clocks may take. If it takes longer, their divergence is
/// ignored: the process may have been suspended between the two readings.
const READING_TIME_MAX: Duration = Duration::from_secs(1);

/// The first reading of both clocks in this process: the monotonic one, and the wall clock in
/// nanoseconds since 1970.
static FIRST_READING: OnceLock<(Instant, i64)> = OnceLock::new();

/// The sum of all adjustments of the wall clock since the first reading, in nanoseconds.
static TOTAL_ADJUSTMENT_NS: AtomicI64 = AtomicI64::new(0);

/// When it was last noticed that the wall clock was set, in nanoseconds after the first reading; 0:
/// never.
static LAST_ADJUSTMENT_NS: AtomicI64 = AtomicI64::new(0);

/// Returns the time of the wall clock.
pub fn now() -> Timestamp {
    Timestamp(read_clocks().0)
}

/// Returns the time of the wall clock in nanoseconds since 1970, and the sum of its adjustments in
/// nanoseconds. Records an adjustment that this reading reveals.
fn read_clocks() -> (i64, i64) {
    if let Some(test_time_ns) = faults::now() {
        return (test_time_ns, 0);
    }
    let monotonic_now = instant();
    let wall_ns = read_wall_clock_ns();
    let reading_time = monotonic_now.elapsed();
    let (first_instant, first_wall_ns) = *FIRST_READING.get_or_init(|| (monotonic_now, wall_ns));
    let elapsed_ns = to_nanoseconds(monotonic_now.saturating_duration_since(first_instant));
    let wall_elapsed_ns = wall_ns.saturating_sub(first_wall_ns);
    loop {
        let recorded_ns = TOTAL_ADJUSTMENT_NS.load(Ordering::Acquire);
        let new_adjustment_ns =
            wall_elapsed_ns.saturating_sub(elapsed_ns).saturating_sub(recorded_ns);
        if new_adjustment_ns.abs() < ADJUSTMENT_MIN_NS || reading_time > READING_TIME_MAX {
            return (wall_ns, recorded_ns);
        }
        let total_ns = recorded_ns.saturating_add(new_adjustment_ns);
        if TOTAL_ADJUSTMENT_NS
            .compare_exchange(recorded_ns, total_ns, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            LAST_ADJUSTMENT_NS.store(elapsed_ns.max(1), Ordering::Release);
            tracing::warn!(
                adjustment_s = new_adjustment_ns / NS_PER_SECOND,
                "the clock was set: running jobs continue by the time that has passed, and \
                 retention waits until the clock has been steady for an hour"
            );
            return (wall_ns, total_ns);
        }
    }
}

/// Returns the time of the wall clock, in nanoseconds since 1970.
#[allow(clippy::disallowed_methods, reason = "the only place that reads the wall clock")]
fn read_wall_clock_ns() -> i64 {
    let skew_s: i64 = faults::hit("clock::now").and_then(|skew| skew.parse().ok()).unwrap_or(0);
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    to_nanoseconds(since_epoch).saturating_add(skew_s * NS_PER_SECOND)
}

/// Returns the nanoseconds of a duration, at most `i64::MAX`.
fn to_nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the sum of all adjustments of the wall clock since the process started, in seconds.
pub fn total_adjustment_s() -> i64 {
    let total_ns = TOTAL_ADJUSTMENT_NS.load(Ordering::Acquire);
    // Rounded to the nearest second, because the two clocks are not read at the same instant.
    (total_ns + NS_PER_SECOND / 2 * total_ns.signum()) / NS_PER_SECOND
}

/// Returns how long ago it was last noticed that the wall clock was set; `None` if never since the
/// process started.
pub fn since_adjustment() -> Option<Duration> {
    let (first_instant, _) = FIRST_READING.get()?;
    let noticed_ns = LAST_ADJUSTMENT_NS.load(Ordering::Acquire);
    let noticed_ns = u64::try_from(noticed_ns).ok().filter(|noticed_ns| *noticed_ns > 0)?;
    Some(first_instant.elapsed().saturating_sub(Duration::from_nanos(noticed_ns)))
}

/// A clock that starts at the wall clock's time, and ignores later adjustments of the wall clock.
/// It measures the timeouts and deadlines of what began while it was running.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    /// The sum of the wall clock's adjustments when this clock started, in nanoseconds.
    initial_adjustment_ns: i64,
}

impl SteadyClock {
    /// Starts a clock at the present time of the wall clock.
    pub fn start() -> SteadyClock {
        SteadyClock {
            initial_adjustment_ns: if faults::now().is_some() {
                0
            } else {
                TOTAL_ADJUSTMENT_NS.load(Ordering::Acquire)
            },
        }
    }

    /// Returns the time of this clock.
    pub fn now(self) -> Timestamp {
        let (wall_ns, total_adjustment_ns) = read_clocks();
        self.adjust(wall_ns, total_adjustment_ns)
    }

    /// Converts a time of the wall clock, as it is set now, to a time of this clock.
    pub fn convert(self, wall_time: Timestamp) -> Timestamp {
        let (_, total_adjustment_ns) = read_clocks();
        self.adjust(wall_time.0, total_adjustment_ns)
    }

    /// Subtracts the adjustments of the wall clock since this clock started.
    fn adjust(self, wall_ns: i64, total_adjustment_ns: i64) -> Timestamp {
        let later_adjustment_ns = total_adjustment_ns.saturating_sub(self.initial_adjustment_ns);
        Timestamp(wall_ns.saturating_sub(later_adjustment_ns))
    }
}

/// Returns the present instant of the monotonic clock, to measure durations.
#[allow(clippy::disallowed_methods, reason = "the only place that reads the monotonic clock")]
pub fn instant() -> Instant {
    Instant::now()
}

/// Returns the present instant of tokio's clock, which tests can pause.
pub fn timer_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Returns a new random id.
#[allow(clippy::disallowed_methods, reason = "the only place that creates random ids")]
pub fn new_id() -> JobId {
    JobId(uuid::Uuid::new_v4())
}
