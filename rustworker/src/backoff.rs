//! The growing pause between two attempts.

use std::time::Duration;

const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Pauses of 1 s, 2 s, 4 s and so on, up to 30 s.
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff(PAUSE_MIN)
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE_MAX);
        pause
    }

    pub(crate) fn reset(&mut self) {
        self.0 = PAUSE_MIN;
    }
}
