//! Sends many frames in one write.
//!
//! lapin's thread writes whatever is queued as soon as it wakes up: first one frame, then a few
//! more, each time with a wake-up and a system call. So the thread waits while a burst is being
//! queued, in `FilteredStream::poll_flush`, and then writes all of it at once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Blocks lapin's writes while a burst of frames is being queued.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    /// Whether a burst is being queued. A flag suffices, because there is at most one guard at a
    /// time.
    is_active: Mutex<bool>,
    /// Notified when `is_active` becomes false.
    ended: Condvar,
}

/// Blocks writing until it is dropped. Hold it only briefly: it stalls the whole connection,
/// including reads.
#[must_use]
pub(crate) struct BurstGuard<'a>(&'a Burst);

impl Burst {
    /// Starts a burst, which ends when the guard is dropped. The previous guard must have been
    /// dropped: the first drop ends the burst, whichever guard it is.
    pub(crate) fn hold(&self) -> BurstGuard<'_> {
        *self.lock() = true;
        BurstGuard(self)
    }

    /// Blocks until no burst is active. Called on lapin's own thread, which serves one connection.
    pub(super) fn wait_for_end(&self) {
        let mut is_active = self.lock();
        while *is_active {
            is_active = self.ended.wait(is_active).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BurstGuard<'_> {
    fn drop(&mut self) {
        *self.0.lock() = false;
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_writer_waits_only_while_a_burst_is_active() {
        let burst = Arc::new(Burst::default());
        burst.wait_for_end();
        let guard = burst.hold();
        let has_ended = Arc::new(AtomicBool::new(false));
        let (writer_burst, writer_has_ended) = (burst.clone(), has_ended.clone());
        let writer = std::thread::spawn(move || {
            writer_burst.wait_for_end();
            writer_has_ended.load(Ordering::SeqCst)
        });
        has_ended.store(true, Ordering::SeqCst);
        drop(guard);
        assert!(writer.join().expect("no panic"), "it waits while the burst is active");
    }
}
