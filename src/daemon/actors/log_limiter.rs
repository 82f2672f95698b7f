//! Keeps lines of one kind from flooding the log.

use base::clock;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Lets each kind of line into the log once a minute (docs/operations.md).
#[derive(Default)]
pub struct KeyedRateLimiter(Mutex<BTreeMap<&'static str, tokio::time::Instant>>);

/// How often a kind of line may be logged.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

impl KeyedRateLimiter {
    /// Returns whether a line of this kind may be logged now; if so, the next may follow after a
    /// minute.
    pub fn may_log(&self, kind: &'static str) -> bool {
        // Not the wall clock: if it were set back, nothing would be logged for that long.
        let now = clock::timer_now();
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due =
            logged.get(kind).is_none_or(|at| now.saturating_duration_since(*at) >= LOG_INTERVAL);
        if due {
            logged.insert(kind, now);
        }
        due
    }
}
