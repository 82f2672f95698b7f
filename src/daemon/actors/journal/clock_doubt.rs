//! Detects at a start that the wall clock may be wrong: it is far from the time of the newest
//! record. Retention then waits, because with a wrong clock it would delete jobs too early.

use base::clock;
use engine::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// Nanoseconds in a second.
const SECOND_NS: i64 = 1_000_000_000;

/// The clock is in doubt if it is behind the newest record by at least this, in nanoseconds. A
/// smaller difference can be an ordinary correction of the clock.
const BEHIND_MIN_NS: i64 = 120 * SECOND_NS;

/// The clock is in doubt if it is ahead of the newest record by at least this, in nanoseconds. Then
/// either the clock is wrong, or the manager was stopped. A smaller difference needs no doubt: a
/// wrong clock would delete jobs at most an hour early.
const AHEAD_MIN_NS: i64 = 3_600 * SECOND_NS;

/// A doubt whether the wall clock is right. Retention waits until it is over.
pub(super) struct ClockDoubt {
    /// When the newest record was written.
    newest_record: Timestamp,
    /// How far the clock was ahead of the newest record at the start, in nanoseconds. If negative,
    /// the clock was behind.
    ahead_ns: i64,
    /// When the doubt began: at the start of the process.
    since: Instant,
    is_reported: bool,
}

impl ClockDoubt {
    /// Compares the clock with the newest record; `None`: the clock is not in doubt.
    pub(super) fn detect(newest_record: Timestamp, now: Timestamp) -> Option<ClockDoubt> {
        let ahead_ns = now.0.saturating_sub(newest_record.0);
        let is_in_doubt = ahead_ns >= AHEAD_MIN_NS || ahead_ns <= -BEHIND_MIN_NS;
        is_in_doubt.then(|| ClockDoubt {
            newest_record,
            ahead_ns,
            since: clock::timer_now(),
            is_reported: false,
        })
    }

    /// Returns whether the doubt has lasted for `settle_time`, or a clock that was behind has
    /// passed the newest record.
    pub(super) fn is_over(&self, now: Timestamp, settle_time: Duration) -> bool {
        let has_caught_up = self.ahead_ns < 0 && now >= self.newest_record;
        has_caught_up || self.since.elapsed() >= settle_time
    }

    /// Marks the doubt as reported. Returns whether it was reported before.
    pub(super) fn mark_reported(&mut self) -> bool {
        std::mem::replace(&mut self.is_reported, true)
    }

    /// Logs the doubt. `jobs` is how many jobs retention would delete; `None`: it is unknown.
    pub(super) fn report(&self, jobs: Option<u64>) {
        let ahead_s = self.ahead_ns / SECOND_NS;
        match jobs {
            _ if ahead_s < 0 => tracing::warn!(
                behind_s = -ahead_s,
                "the clock is behind the newest record of the journal: is it wrong? Retention \
                 waits until the clock has passed the time of that record, for an hour at most"
            ),
            // Retention would delete no job, so it does not matter whether the clock is right.
            Some(0) => {}
            jobs => tracing::warn!(
                jobs,
                ahead_s,
                "the newest record of the journal is old: was the manager stopped for long, or is \
                 the clock wrong? Retention would delete this many jobs now, and waits for an hour"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_far_from_the_newest_record_is_in_doubt() {
        const MINUTE_NS: i64 = 60 * SECOND_NS;
        let newest_record = Timestamp(1_000_000 * MINUTE_NS);
        let after = |minutes: i64| Timestamp(newest_record.0 + minutes * MINUTE_NS);
        for (minutes, is_in_doubt) in
            [(0, false), (59, false), (60, true), (14_400, true), (-1, false), (-2, true)]
        {
            assert_eq!(
                ClockDoubt::detect(newest_record, after(minutes)).is_some(),
                is_in_doubt,
                "{minutes}"
            );
        }
        let hour = Duration::from_secs(3_600);
        let behind = ClockDoubt::detect(newest_record, after(-10)).expect("the clock is in doubt");
        assert!(!behind.is_over(after(-1), hour) && behind.is_over(after(0), hour));
        let ahead = ClockDoubt::detect(newest_record, after(100)).expect("the clock is in doubt");
        assert!(!ahead.is_over(after(101), hour));
        assert!(ahead.is_over(after(101), Duration::ZERO), "the settle time is over");
    }
}
