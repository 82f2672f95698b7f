//! Bounds the bytes of unsettled calls in memory, for each workflow's queue.
//!
//! The broker bounds only their number, and calls may wait long: for other jobs to end, or for
//! memory. So the prefetch follows their size. A queue whose calls are too large together is
//! consumed anew with a smaller prefetch, and the other calls wait in the broker. Once no call is
//! unsettled, the queue is consumed with the whole prefetch again.

use base::budget::{Permit, ResourceBudget};

/// The budget of one workflow queue's calls.
pub(super) struct CallBudget {
    budget: ResourceBudget,
    bytes_max: usize,
    prefetch_max: u16,
    prefetch: u16,
    largest: usize,
}

/// Whether a delivered call is admitted.
#[derive(Debug)]
pub(super) enum CallAdmission {
    /// There is room for it, or it is the only one.
    Admitted(Option<Permit>),
    /// It is requeued with the others, for the prefetch is too large for them.
    PrefetchTooLarge,
}

impl CallBudget {
    pub(super) fn new(bytes_max: usize, prefetch_max: u16) -> CallBudget {
        let prefetch_max = prefetch_max.max(1);
        CallBudget {
            budget: ResourceBudget::for_bytes(bytes_max),
            bytes_max,
            prefetch_max,
            prefetch: prefetch_max,
            largest: 1,
        }
    }

    /// Returns the prefetch to consume the queue with.
    pub(super) fn prefetch(&self) -> u16 {
        self.prefetch
    }

    /// Returns whether the prefetch is reduced.
    pub(super) fn is_reduced(&self) -> bool {
        self.prefetch < self.prefetch_max
    }

    /// Restores the whole prefetch. Call it when no call is unsettled.
    pub(super) fn restore_prefetch(&mut self) {
        self.prefetch = self.prefetch_max;
        self.largest = 1;
    }

    /// Admits a call that was delivered. With `is_alone`, no other call is unsettled.
    pub(super) fn admit(&mut self, bytes: usize, is_alone: bool) -> CallAdmission {
        self.largest = self.largest.max(bytes);
        match self.budget.try_acquire(bytes) {
            None if !is_alone => {
                let that_fit = self.bytes_max / self.largest;
                let fitting = u16::try_from(that_fit).unwrap_or(u16::MAX);
                // The prefetch at least halves each time, for earlier calls may still use the
                // budget.
                self.prefetch = fitting.min(self.prefetch / 2).max(1);
                CallAdmission::PrefetchTooLarge
            }
            permit => CallAdmission::Admitted(permit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_large_calls_reduce_the_prefetch_to_what_fits() {
        let mut calls = CallBudget::new(100 << 10, 2_000);
        let first = calls.admit(40 << 10, true);
        let second = calls.admit(40 << 10, false);
        assert!(matches!(
            (&first, &second),
            (CallAdmission::Admitted(Some(_)), CallAdmission::Admitted(Some(_)))
        ));
        assert!(matches!(calls.admit(40 << 10, false), CallAdmission::PrefetchTooLarge));
        assert!(calls.is_reduced());
        assert_eq!(calls.prefetch(), 2);
        drop((first, second));
        let alone = calls.admit(200 << 10, true);
        assert!(matches!(alone, CallAdmission::Admitted(Some(_))), "alone");
        assert!(matches!(calls.admit(200 << 10, false), CallAdmission::PrefetchTooLarge));
        assert_eq!(calls.prefetch(), 1);
        drop(alone);
        let whole = calls.admit(100 << 10, true);
        assert!(
            matches!(calls.admit(1, true), CallAdmission::Admitted(None)),
            "alone, whoever has the room"
        );
        drop(whole);
        calls.restore_prefetch();
        assert_eq!((calls.prefetch(), calls.is_reduced()), (2_000, false));
    }
}
