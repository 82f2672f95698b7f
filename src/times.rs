//! Times as others read them: RFC 3339 in UTC, and whole seconds.

use crate::engine::Timestamp;
use serde::{Serialize, Serializer};
use std::time::{Duration, SystemTime};

/// A time that is serialised as RFC 3339, with nanoseconds.
pub struct Time(pub Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_nanos(system(self.0)))
    }
}

/// RFC 3339 with milliseconds: sorted as text it is sorted by time.
pub fn rfc3339(at: Timestamp) -> String {
    humantime::format_rfc3339_millis(system(at)).to_string()
}

/// Whole seconds since 1970.
pub fn seconds(at: Timestamp) -> u64 {
    u64::try_from(at.0 / 1_000_000_000).unwrap_or_default()
}

fn system(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(at.0).unwrap_or_default())
}
