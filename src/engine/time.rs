//! Times and spans, as plain numbers: the engine reads no clock.

use core::time::Duration;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A time, in nanoseconds since 1970-01-01 UTC.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Returns the time after a span from this one, if there is a span.
    pub fn after(self, span: Option<Millis>) -> Option<Timestamp> {
        Some(self.plus(span?))
    }

    /// Returns the time after a span from this one.
    pub fn plus(self, span: Millis) -> Timestamp {
        let span_ns = i64::try_from(u128::from(span.0) * 1_000_000).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_add(span_ns))
    }

    /// Returns how long it is until a time; zero if that has passed.
    pub fn duration_until(self, then: Timestamp) -> Duration {
        Duration::from_nanos(u64::try_from(then.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// Returns the time a span before this one.
    pub fn before(self, span: Millis) -> Timestamp {
        let span_ns = i64::try_from(u128::from(span.0) * 1_000_000).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_sub(span_ns))
    }
}

/// A span of time, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// The units, the largest first, in milliseconds. Months and years are missing: they differ in
    /// length.
    pub const UNITS: [(&str, u64); 5] =
        [("d", 24 * 3_600_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

    /// Returns the whole milliseconds of a duration.
    pub fn from_duration(span: Duration) -> Millis {
        Millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns the milliseconds of a duration; `None`: it has a fraction of a millisecond.
    pub fn from_whole_millis(span: Duration) -> Option<Millis> {
        span.subsec_nanos().is_multiple_of(1_000_000).then(|| Millis::from_duration(span))
    }
}

/// Renders the span as a workflow file writes it: `1h30m`.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0;
        for (unit, millis) in Millis::UNITS {
            if left >= millis {
                write!(f, "{}{unit}", left / millis)?;
                left %= millis;
            }
        }
        if self.0 == 0 { f.write_str("0s") } else { Ok(()) }
    }
}
