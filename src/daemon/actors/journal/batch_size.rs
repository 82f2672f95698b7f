//! The adaptive batch size of deletions: a batch must not block the journal's thread for long.

use std::time::Duration;

/// The target duration of a batch. Other inputs wait for at most one batch.
const BATCH_DURATION: Duration = Duration::from_millis(40);

/// The size of the first batch, in rows. It measures how fast the disk is.
const FIRST_BATCH_ROWS: u32 = 500;

/// The smallest batch, in rows. In a smaller one, the commit would cost more than the deletion of
/// the rows.
const ROWS_MIN: u32 = 50;

/// The largest batch, in rows.
const ROWS_MAX: u32 = 50_000;

/// The shortest pause after a batch.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// The longest pause after a batch.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Adapts the size of the next batch to the duration of the last one.
pub(super) struct BatchSizer {
    /// The size of the next batch.
    rows: u32,
    /// The pause before the next batch.
    pause: Duration,
}

impl BatchSizer {
    pub(super) fn new() -> BatchSizer {
        BatchSizer { rows: FIRST_BATCH_ROWS, pause: PAUSE_MIN }
    }

    /// Returns the size of the next batch, in rows.
    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// Returns the pause before the next batch. It is as long as the last batch, so that other
    /// inputs get half of the time.
    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    /// Records that a batch deleted `rows` rows in `duration`. The size of the next batch shrinks
    /// at once if the batch was slow, and at most doubles if it was fast.
    pub(super) fn record(&mut self, rows: usize, duration: Duration) {
        // The lower bound of a microsecond only avoids a division by zero.
        let ideal_rows =
            f64::from(self.rows) * BATCH_DURATION.as_secs_f64() / duration.as_secs_f64().max(1e-6);
        // A batch that was not full does not show that a larger one would be fast.
        let is_full = rows >= self.rows as usize;
        let limit = if is_full { self.rows.saturating_mul(2) } else { self.rows };
        self.rows = (ideal_rows as u32).min(limit).clamp(ROWS_MIN, ROWS_MAX);
        self.pause = duration.clamp(PAUSE_MIN, PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_shrink_at_once_and_at_most_double_and_the_pause_is_as_long_as_the_last_batch() {
        let mut sizer = BatchSizer::new();
        sizer.record(500, BATCH_DURATION * 5);
        assert_eq!((sizer.rows(), sizer.pause()), (100, BATCH_DURATION * 5));
        sizer.record(100, BATCH_DURATION / 100);
        assert_eq!(sizer.rows(), 200, "the size at most doubles");
        sizer.record(3, BATCH_DURATION / 100);
        assert_eq!(sizer.rows(), 200, "a fast batch that is not full does not grow the next one");
        sizer.record(1, BATCH_DURATION * 2);
        assert_eq!(sizer.rows(), 100, "a slow batch that is not full shrinks the next one");
        for _ in 0..99 {
            sizer.record(sizer.rows() as usize, Duration::ZERO);
        }
        assert_eq!(sizer.rows(), ROWS_MAX);
        sizer.record(1, Duration::from_secs(99));
        assert_eq!((sizer.rows(), sizer.pause()), (ROWS_MIN, PAUSE_MAX));
    }
}
