//! The rate limiter of the log.

use base::clock;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Limits each kind of log line to one a minute (docs/operations.md).
#[derive(Default)]
pub struct KeyedRateLimiter(Mutex<BTreeMap<&'static str, tokio::time::Instant>>);

/// The shortest time between two lines of a kind.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

impl KeyedRateLimiter {
    /// Returns whether a line of this kind may be logged now. If so, it counts as logged.
    pub fn may_log(&self, kind: &'static str) -> bool {
        // A monotonic clock: if the wall clock were set back, nothing would be logged until it has
        // caught up.
        let now = clock::timer_now();
        let mut logged_at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = logged_at
            .get(kind)
            .is_none_or(|last| now.saturating_duration_since(*last) >= LOG_INTERVAL);
        if is_due {
            logged_at.insert(kind, now);
        }
        is_due
    }
}
