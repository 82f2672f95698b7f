//! Sends many frames in one write.
//!
//! The library writes what it has as soon as it is woken: the first frame of a burst alone, then a
//! few more, each time with a wake-up and a write. So its thread waits while a burst is handed
//! over, and then finds all of it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Blocks the library's writes while a burst is handed over.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    is_active: Mutex<bool>,
    released: Condvar,
}

/// Blocks writing until it is dropped. Hold it only briefly: the whole connection stands still,
/// reading included.
#[must_use]
pub(crate) struct BurstGuard<'a>(&'a Burst);

impl Burst {
    /// Begins a burst, which ends when the guard is dropped.
    pub(crate) fn hold(&self) -> BurstGuard<'_> {
        *self.lock() = true;
        BurstGuard(self)
    }

    /// Waits for the end of a burst. Called on the library's own thread, which serves one
    /// connection.
    pub(super) fn wait_for_end(&self) {
        let mut is_active = self.lock();
        while *is_active {
            is_active = self.released.wait(is_active).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BurstGuard<'_> {
    fn drop(&mut self) {
        *self.0.lock() = false;
        self.0.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_writer_waits_for_the_end_of_a_burst_and_for_nothing_else() {
        let burst = Arc::new(Burst::default());
        burst.wait_for_end();
        let (guard, is_over) = (burst.hold(), Arc::new(AtomicBool::new(false)));
        let (other, seen) = (burst.clone(), is_over.clone());
        let writer = std::thread::spawn(move || {
            other.wait_for_end();
            seen.load(Ordering::SeqCst)
        });
        is_over.store(true, Ordering::SeqCst);
        drop(guard);
        assert!(writer.join().expect("no panic"), "it wrote while the burst was held");
    }
}
