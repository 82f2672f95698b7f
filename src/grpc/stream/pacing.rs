//! The pacing of a stream's replies: under load they are taken in bursts, because each burst wakes
//! the threads behind it once, whatever its size. A reply of few waits for nothing.

use std::time::Duration;
use tokio::time::Instant;

/// How long a stream under load waits for the next burst.
const BURST_PAUSE: Duration = Duration::from_millis(2);

/// The time over which replies are counted.
const COUNT_PERIOD: Duration = Duration::from_millis(10);

/// A stream is under load from this number of replies in `BURST_PAUSE`.
const BURST_REPLIES_MIN: usize = 2;

/// A stream waits only if its worker has this many times the messages in hand that it replies to
/// meanwhile, so that it never waits for messages in turn.
const IN_HAND_FACTOR: usize = 2;

/// Decides whether a stream waits before it takes more replies.
pub(super) struct ReplyPacer {
    /// When the count began.
    since: Instant,
    /// The replies since then.
    count: usize,
    /// How many replies came in `BURST_PAUSE`, by the last count.
    per_pause: usize,
}

impl ReplyPacer {
    pub(super) fn new(now: Instant) -> ReplyPacer {
        ReplyPacer { since: now, count: 0, per_pause: 0 }
    }

    /// Counts the replies of a burst. `in_hand` is how many messages the worker still has. Returns
    /// when the next burst is taken; `None`: whatever comes is taken at once.
    pub(super) fn end_burst(
        &mut self,
        replies: usize,
        in_hand: usize,
        now: Instant,
    ) -> Option<Instant> {
        self.count += replies;
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed >= COUNT_PERIOD {
            let periods = elapsed.as_secs_f64() / BURST_PAUSE.as_secs_f64();
            self.per_pause = (self.count as f64 / periods) as usize;
            (self.since, self.count) = (now, 0);
        }
        let is_under_load = self.per_pause >= BURST_REPLIES_MIN;
        (is_under_load && in_hand >= IN_HAND_FACTOR * self.per_pause).then(|| now + BURST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock;

    /// The pauses, in ms, of a worker that replies so many times every ms for half a second.
    fn pauses(replies_per_ms: f64, in_hand: usize) -> Vec<u128> {
        let start = clock::timer_now();
        let mut pacer = ReplyPacer::new(start);
        let (mut now, mut replied, mut pauses) = (start, 0, Vec::new());
        while now < start + Duration::from_millis(500) {
            now += Duration::from_micros(100);
            let all = (replies_per_ms * (now - start).as_secs_f64() * 1e3) as usize;
            if all > replied {
                if let Some(until) = pacer.end_burst(all - replied, in_hand, now) {
                    pauses.push((until - now).as_millis());
                    now = until;
                }
                replied = all;
            }
        }
        pauses
    }

    #[test]
    fn replies_under_load_are_taken_in_bursts() {
        let pauses = pauses(3.0, 64);
        assert!((200..=250).contains(&pauses.len()), "{}", pauses.len());
        assert!(pauses.iter().all(|pause| *pause == BURST_PAUSE.as_millis()));
    }

    #[test]
    fn few_replies_wait_for_nothing() {
        assert!(pauses(0.8, 64).is_empty());
    }

    #[test]
    fn a_worker_with_little_in_hand_is_never_made_to_wait() {
        assert!(pauses(1.5, 1).is_empty());
        assert!(pauses(10.0, 20).is_empty());
    }

    #[test]
    fn the_first_reply_after_a_rest_waits_for_nothing() {
        let start = clock::timer_now();
        let mut pacer = ReplyPacer::new(start);
        let busy = start + COUNT_PERIOD;
        assert!(pacer.end_burst(100, 64, busy).is_some());
        assert!(pacer.end_burst(1, 64, busy + Duration::from_secs(1)).is_none());
    }
}
