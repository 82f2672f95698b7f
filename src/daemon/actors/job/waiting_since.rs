//! Since when the steps of a job have been seen waiting for replies. Each scan that counts them
//! records it: only what has waited for a while may be lost.

use base::clock;
use std::time::Duration;
use tokio::time::Instant;

/// Since when each dispatch has been seen waiting, by the number of its entry.
#[derive(Default)]
pub(super) struct WaitingSince(Vec<(u64, Instant)>);

impl WaitingSince {
    /// Records that these dispatches were seen waiting now, and forgets all others.
    pub(super) fn record_waiting(&mut self, waiting: impl Iterator<Item = u64>) {
        let now = clock::timer_now();
        let since = |dispatch: u64| self.since(dispatch).unwrap_or(now);
        self.0 = waiting.map(|dispatch| (dispatch, since(dispatch))).collect();
    }

    /// Returns whether a dispatch has been seen waiting for this long.
    pub(super) fn has_waited(&self, dispatch: u64, span: Duration) -> bool {
        let now = clock::timer_now();
        self.since(dispatch).is_some_and(|since| now.saturating_duration_since(since) >= span)
    }

    /// Goes on with what was seen before the job rested.
    pub(super) fn restore(&mut self, seen: Vec<(u64, Instant)>) {
        self.0 = seen;
    }

    pub(super) fn since(&self, dispatch: u64) -> Option<Instant> {
        self.0.iter().find(|(of, _)| *of == dispatch).map(|(_, since)| *since)
    }
}
