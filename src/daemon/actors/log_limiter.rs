//! The rate limiter of log lines that outside events cause.

use base::clock;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Limits each kind of log line to one a minute (docs/reference/metrics.md).
#[derive(Default)]
pub struct KeyedRateLimiter(Mutex<BTreeMap<&'static str, tokio::time::Instant>>);

/// The shortest time between two lines of the same kind.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

impl KeyedRateLimiter {
    /// Returns whether a line of this kind may be logged now. If so, the caller must log it: the
    /// next one may be logged only after the interval.
    pub fn may_log(&self, kind: &'static str) -> bool {
        // The monotonic clock is used, because nothing would be logged for long if the wall clock
        // were set back.
        let now = clock::timer_now();
        let mut last_logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last_logged
            .get(kind)
            .is_none_or(|last| now.saturating_duration_since(*last) >= LOG_INTERVAL);
        if is_due {
            last_logged.insert(kind, now);
        }
        is_due
    }
}
