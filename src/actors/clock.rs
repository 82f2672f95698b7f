//! Time and chance enter here and nowhere else.

use crate::engine::{JobId, Timestamp};
use std::time::{Instant, SystemTime};

/// The wall clock.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// A point on the monotonic clock, for durations.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn instant() -> Instant {
    Instant::now()
}

/// A new id by chance.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn new_id() -> JobId {
    JobId(uuid::Uuid::new_v4())
}
