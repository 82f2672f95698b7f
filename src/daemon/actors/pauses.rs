//! The queues and workflows that are paused now. The router changes them, and each decision of a
//! job reads them.

use engine::Pauses;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The pauses in force, which all jobs share.
#[derive(Default)]
pub struct CurrentPauses {
    /// Whether there are any. While nothing is paused, a decision reads nothing else.
    is_any: AtomicBool,
    current: RwLock<Arc<Pauses>>,
}

impl CurrentPauses {
    /// Returns what is paused; `None`: nothing is.
    pub(super) fn current(&self) -> Option<Arc<Pauses>> {
        self.is_any
            .load(Ordering::Acquire)
            .then(|| self.current.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Replaces what is paused.
    pub(super) fn replace(&self, pauses: Pauses) {
        let is_any = !pauses.is_empty();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(pauses);
        self.is_any.store(is_any, Ordering::Release);
    }
}
