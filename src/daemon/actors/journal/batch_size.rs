//! How much is deleted in one batch, so that nobody waits long for the thread meanwhile.

use std::time::Duration;

/// How long one batch should take: a request that waits for the thread waits for one batch at most.
const BATCH_TIME: Duration = Duration::from_millis(40);

/// The rows of the first batch, which shows how fast the disk is.
const ROWS_FIRST: u32 = 500;

/// The fewest rows of a batch: with fewer the commit costs more than the rows do.
const ROWS_MIN: u32 = 50;

/// The most rows of a batch.
const ROWS_MAX: u32 = 50_000;

/// The shortest pause after a batch.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// The longest pause after a batch.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Sets how many rows a batch has, by how long the last one took.
pub(super) struct BatchSizer {
    rows: u32,
    pause: Duration,
}

impl BatchSizer {
    /// Creates the sizer before the first batch.
    pub(super) fn new() -> BatchSizer {
        BatchSizer { rows: ROWS_FIRST, pause: PAUSE_MIN }
    }

    /// Returns the rows of the next batch.
    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// Returns how long the thread is left to others before the next batch: half of the time is
    /// theirs.
    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    /// Records that a batch of so many rows took so long.
    pub(super) fn record(&mut self, rows: usize, span: Duration) {
        let fitting =
            f64::from(self.rows) * BATCH_TIME.as_secs_f64() / span.as_secs_f64().max(1e-6);
        // A batch that had fewer rows does not show how long more would take.
        let is_full = rows >= self.rows as usize;
        let most = if is_full { self.rows.saturating_mul(2) } else { self.rows };
        self.rows = (fitting as u32).min(most).clamp(ROWS_MIN, ROWS_MAX);
        self.pause = span.clamp(PAUSE_MIN, PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_shrinks_at_once_grows_step_by_step_and_is_followed_by_as_long_a_rest() {
        let mut pace = BatchSizer::new();
        pace.record(500, BATCH_TIME * 5);
        assert_eq!((pace.rows(), pace.pause()), (100, BATCH_TIME * 5));
        pace.record(100, BATCH_TIME / 100);
        assert_eq!(pace.rows(), 200, "at most twice as many");
        pace.record(3, BATCH_TIME / 100);
        assert_eq!(pace.rows(), 200, "a small part tells nothing");
        pace.record(1, BATCH_TIME * 2);
        assert_eq!(pace.rows(), 100, "but that it was slow");
        for _ in 0..99 {
            pace.record(pace.rows() as usize, Duration::ZERO);
        }
        assert_eq!(pace.rows(), ROWS_MAX);
        pace.record(1, Duration::from_secs(99));
        assert_eq!((pace.rows(), pace.pause()), (ROWS_MIN, PAUSE_MAX));
    }
}
