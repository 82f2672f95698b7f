//! How far a copy is, and whether it is to stop.

use crate::error::{JournalError, Remedy};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far a copy is, for the thread that reports it. That thread can also stop the copy.
#[derive(Default)]
pub struct CopyProgress {
    total: AtomicU64,
    copied: AtomicU64,
    checked: AtomicU64,
    is_stopped: AtomicBool,
}

/// The numbers of jobs and child jobs that a copy has dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyCounts {
    /// The jobs of the original; 0 until they are counted.
    pub total: u64,
    /// The jobs that are copied.
    pub copied: u64,
    /// The jobs of the copy that are compared with their originals, after all are copied.
    pub checked: u64,
}

impl CopyProgress {
    /// Stops the copy at the next row.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Returns how far the copy is.
    pub fn counts(&self) -> CopyCounts {
        CopyCounts {
            total: self.total.load(Ordering::Relaxed),
            copied: self.copied.load(Ordering::Relaxed),
            checked: self.checked.load(Ordering::Relaxed),
        }
    }

    pub(super) fn set_total(&self, jobs: u64) {
        self.total.store(jobs, Ordering::Relaxed);
    }

    pub(super) fn add_copied(&self) {
        self.copied.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_checked(&self) {
        self.checked.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns an error if the copy is to stop. `journal` is the original.
    pub(super) fn check_stopped(&self, journal: &str) -> Result<(), JournalError> {
        if self.is_stopped.load(Ordering::Relaxed) {
            let problem = "its copy was stopped, and nothing of it is kept";
            return Err(JournalError::Failed {
                file: journal.to_owned(),
                problem: problem.to_owned(),
                remedy: Remedy::Exit,
            });
        }
        Ok(())
    }
}
