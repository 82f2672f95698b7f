//! The last instant at which something happened, which one thread publishes and others read.

use base::clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is stored while it has not happened yet.
const NEVER: u64 = u64::MAX;

/// When something happened last, by the monotonic clock of this process.
pub(crate) struct LastInstant {
    created: Instant,
    /// In milliseconds after `created`; [`NEVER`]: it has not happened yet.
    millis: AtomicU64,
}

impl LastInstant {
    /// Creates one of what has not happened yet.
    pub(crate) fn never() -> LastInstant {
        LastInstant { created: clock::instant(), millis: AtomicU64::new(NEVER) }
    }

    /// Publishes that it happened at this time.
    pub(crate) fn set(&self, instant: Instant) {
        let elapsed = instant.saturating_duration_since(self.created);
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(NEVER - 1);
        self.millis.store(millis, Ordering::Relaxed);
    }

    /// Publishes that it happens now.
    pub(crate) fn touch(&self) {
        self.set(clock::instant());
    }

    /// Returns how long ago it happened; `None` if it has not happened yet.
    pub(crate) fn age(&self) -> Option<Duration> {
        let millis = Some(self.millis.load(Ordering::Relaxed)).filter(|millis| *millis != NEVER)?;
        Some(self.created.elapsed().saturating_sub(Duration::from_millis(millis)))
    }

    /// As if it had been created so long ago, when it happened.
    #[cfg(test)]
    pub(crate) fn ago(age: Duration) -> LastInstant {
        let created = clock::instant().checked_sub(age).unwrap();
        LastInstant { created, millis: AtomicU64::new(0) }
    }
}
