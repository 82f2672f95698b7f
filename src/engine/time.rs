//! Points in time and durations, as plain numbers: the engine reads no clock.

use core::time::Duration;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A point in time, in nanoseconds since 1970-01-01 00:00 UTC. Calculations saturate at the limits
/// of the type.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Returns the time `duration` after this one; `None` if `duration` is.
    pub fn after(self, duration: Option<Millis>) -> Option<Timestamp> {
        Some(self.plus(duration?))
    }

    /// Returns the time `duration` after this one.
    pub fn plus(self, duration: Millis) -> Timestamp {
        Timestamp(self.0.saturating_add(duration.to_nanoseconds()))
    }

    /// Returns the duration from this time until `later`; zero if `later` is earlier.
    pub fn duration_until(self, later: Timestamp) -> Duration {
        Duration::from_nanos(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// Formats the time as RFC 3339 in UTC, with milliseconds. The texts sort in the order of the
    /// times.
    pub fn to_rfc3339(self) -> String {
        // The addition cannot overflow: the library's range is far wider than an i64 of
        // nanoseconds.
        let since_epoch = jiff::SignedDuration::from_nanos(self.0.max(0));
        format!("{:.3}", jiff::Timestamp::UNIX_EPOCH + since_epoch)
    }

    /// Returns the time `duration` before this one.
    pub fn before(self, duration: Millis) -> Timestamp {
        Timestamp(self.0.saturating_sub(duration.to_nanoseconds()))
    }
}

/// The number of nanoseconds in a millisecond.
const NANOS_PER_MILLI: u32 = 1_000_000;

/// A duration, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// The units of durations in workflow files with their lengths in milliseconds, the largest
    /// first. There are no months and years, whose lengths vary.
    pub const UNITS: [(&str, u64); 5] =
        [("d", 24 * 3_600_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

    /// Converts a duration, rounded down to whole milliseconds.
    pub fn from_duration(duration: Duration) -> Millis {
        Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    /// Converts a duration of whole milliseconds; `None`: it has a fraction of a millisecond.
    pub fn from_whole_millis(duration: Duration) -> Option<Millis> {
        duration
            .subsec_nanos()
            .is_multiple_of(NANOS_PER_MILLI)
            .then(|| Millis::from_duration(duration))
    }

    fn to_nanoseconds(self) -> i64 {
        i64::try_from(u128::from(self.0) * u128::from(NANOS_PER_MILLI)).unwrap_or(i64::MAX)
    }
}

/// Formats the duration as in workflow files: `1h30m`.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut remaining = self.0;
        for (unit, millis) in Millis::UNITS {
            if remaining >= millis {
                write!(f, "{}{unit}", remaining / millis)?;
                remaining %= millis;
            }
        }
        if self.0 == 0 { f.write_str("0s") } else { Ok(()) }
    }
}
