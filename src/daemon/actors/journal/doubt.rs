//! Whether the clock may be wrong when the manager starts. The one other time that is known then is
//! that of the newest record.

use base::clock;
use engine::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// From here on the newest record is too far ahead of the clock for a correction, in nanoseconds.
const BEHIND_BY_MIN_NS: i64 = 120_000_000_000;

/// From here on the newest record is so old that the clock may be wrong as well as the manager may
/// have stood still, in nanoseconds. Retention waits for as long: so a clock that is wrong at a
/// start deletes nothing that would be kept for an hour longer.
const AHEAD_BY_MIN_NS: i64 = 3_600_000_000_000;

/// The clock may be wrong.
pub(super) struct Doubt {
    /// When the newest record was written.
    newest: Timestamp,
    /// How much later the clock was at the start, in nanoseconds; negative: it was behind.
    ahead_by: i64,
    began: Instant,
    is_reported: bool,
}

impl Doubt {
    /// If there is one, at a start.
    pub(super) fn detect(newest: Timestamp, now: Timestamp) -> Option<Doubt> {
        let ahead_by = now.0.saturating_sub(newest.0);
        let is_in_doubt = ahead_by >= AHEAD_BY_MIN_NS || ahead_by <= -BEHIND_BY_MIN_NS;
        is_in_doubt.then(|| Doubt {
            newest,
            ahead_by,
            began: clock::timer_now(),
            is_reported: false,
        })
    }

    /// Whether the clock has run for so long since, or has passed the newest record.
    pub(super) fn is_over(&self, now: Timestamp, steady_for: Duration) -> bool {
        let has_passed = self.ahead_by < 0 && now >= self.newest;
        has_passed || self.began.elapsed() >= steady_for
    }

    /// Whether it was told before. It is told once.
    pub(super) fn mark_reported(&mut self) -> bool {
        std::mem::replace(&mut self.is_reported, true)
    }

    /// Tells of it. `jobs`: how many retention would delete, if that is known.
    pub(super) fn report(&self, jobs: Option<u64>) {
        let by_s = self.ahead_by / 1_000_000_000;
        match jobs {
            _ if by_s < 0 => tracing::warn!(
                by_s = -by_s,
                "the clock is behind the newest record of the journal: is it wrong? Retention \
                 waits until it has passed that, for an hour at most"
            ),
            // Nothing depends on it.
            Some(0) => {}
            jobs => tracing::warn!(
                jobs,
                by_s,
                "the newest record of the journal is old: has the manager stood still, or is the \
                 clock wrong? Retention would delete so many jobs now, and waits for an hour"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_doubts_a_clock_that_is_far_from_the_newest_record() {
        const MINUTE: i64 = 60_000_000_000;
        let newest = Timestamp(1_000_000 * MINUTE);
        let after = |minutes: i64| Timestamp(newest.0 + minutes * MINUTE);
        for (minutes, is_in_doubt) in
            [(0, false), (59, false), (60, true), (14_400, true), (-1, false), (-2, true)]
        {
            assert_eq!(Doubt::detect(newest, after(minutes)).is_some(), is_in_doubt, "{minutes}");
        }
        let hour = Duration::from_secs(3_600);
        let behind = Doubt::detect(newest, after(-10)).expect("a doubt");
        assert!(!behind.is_over(after(-1), hour) && behind.is_over(after(0), hour));
        let ahead = Doubt::detect(newest, after(100)).expect("a doubt");
        assert!(!ahead.is_over(after(101), hour));
        assert!(ahead.is_over(after(101), Duration::ZERO), "it has been steady for long enough");
    }
}
