//! When the active process beat last.

use base::clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When the active process of the name beat last, as far as this process knows, by the monotonic
/// clock of this process.
pub(super) struct LastBeat {
    created: Instant,
    /// The beat, in milliseconds after `created`; [`u64::MAX`]: none was seen yet.
    beat_millis: AtomicU64,
}

impl LastBeat {
    pub(super) fn new() -> LastBeat {
        LastBeat { created: clock::instant(), beat_millis: AtomicU64::new(u64::MAX) }
    }

    /// Records that the active process beats now.
    pub(super) fn touch(&self) {
        let millis = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.beat_millis.store(millis, Ordering::Relaxed);
    }

    /// Returns how long ago the active process beat; `None` if no beat was seen yet.
    pub(super) fn age(&self) -> Option<Duration> {
        let beat_millis = self.beat_millis.load(Ordering::Relaxed);
        let beat = Some(beat_millis).filter(|millis| *millis != u64::MAX)?;
        Some(self.created.elapsed().saturating_sub(Duration::from_millis(beat)))
    }
}
