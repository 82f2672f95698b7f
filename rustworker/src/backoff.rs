//! Exponential backoff between two tries to reach the server.

use std::time::Duration;

const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Pauses of 1 s, 2 s, 4 s and so on, up to 30 s.
pub(crate) struct Backoff {
    next_pause: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff { next_pause: PAUSE_MIN }
    }

    /// Returns the next pause. The one after it is twice as long.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next_pause;
        self.next_pause = (pause * 2).min(PAUSE_MAX);
        pause
    }

    /// Begins again with the shortest pause, after a success.
    pub(crate) fn reset(&mut self) {
        self.next_pause = PAUSE_MIN;
    }
}
