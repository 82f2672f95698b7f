//! The growing pause between two attempts.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// Pauses of 1 s, 2 s, 4 s and so on, up to 30 s.
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff(FIRST)
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST);
        pause
    }

    pub(crate) fn reset(&mut self) {
        self.0 = FIRST;
    }
}
