//! The wall clock and random ids are read here and nowhere else.

use crate::engine::{JobId, Timestamp};
use crate::faults;
use std::time::{Instant, SystemTime};

/// The wall clock.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn now() -> Timestamp {
    if let Some(at) = faults::now() {
        return Timestamp(at);
    }
    let skew_s: i64 =
        faults::hit("clock::now").and_then(|skew| skew.parse().ok()).unwrap_or_default();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX).saturating_add(skew_s * 1_000_000_000),
    )
}

/// A point on the monotonic clock, for durations.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn instant() -> Instant {
    Instant::now()
}

/// A point on the clock by which timers wait.
pub fn ticks() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// A new random id.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn new_id() -> JobId {
    JobId(uuid::Uuid::new_v4())
}
