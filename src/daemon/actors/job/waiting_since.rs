//! Records when the steps of a job were first seen waiting for replies. The detection of lost
//! messages needs that: it only counts steps that have waited for its whole observation time.

use base::clock;
use std::time::Duration;
use tokio::time::Instant;

/// When each dispatch was first seen waiting by a scan. A dispatch is identified by the number of
/// its entry.
#[derive(Default)]
pub(super) struct WaitingSince(Vec<(u64, Instant)>);

impl WaitingSince {
    /// Records that exactly these dispatches are waiting now, and forgets all others.
    pub(super) fn record_waiting(&mut self, dispatches: impl Iterator<Item = u64>) {
        let now = clock::timer_now();
        self.0 =
            dispatches.map(|dispatch| (dispatch, self.find(dispatch).unwrap_or(now))).collect();
    }

    /// Returns whether a dispatch has been seen waiting for at least `min_wait`.
    pub(super) fn has_waited(&self, dispatch: u64, min_wait: Duration) -> bool {
        let now = clock::timer_now();
        self.find(dispatch).is_some_and(|since| now.saturating_duration_since(since) >= min_wait)
    }

    /// Restores the times that were recorded before the job was passivated.
    pub(super) fn restore(&mut self, waiting_since: Vec<(u64, Instant)>) {
        self.0 = waiting_since;
    }

    /// Finds when a dispatch was first seen waiting.
    pub(super) fn find(&self, dispatch: u64) -> Option<Instant> {
        self.0.iter().find(|(number, _)| *number == dispatch).map(|(_, since)| *since)
    }
}
