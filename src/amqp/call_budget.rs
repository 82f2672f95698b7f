//! Bounds the bytes of unsettled calls in memory, for each workflow queue.
//!
//! The broker bounds only the number of unsettled calls. A call may stay unsettled for a long time,
//! until other jobs end or memory is free. So the prefetch adapts to the size of calls. If they
//! exceed the budget, the queue is consumed again with a smaller prefetch, and the other calls wait
//! in the broker. Once no call is unsettled, the full prefetch is restored.

use base::budget::{Permit, ResourceBudget};

/// The budget of the calls of one workflow queue.
pub(super) struct CallBudget {
    budget: ResourceBudget,
    /// The size of the budget.
    bytes_max: usize,
    /// The full prefetch.
    prefetch_max: u16,
    /// The current prefetch.
    prefetch: u16,
    /// The size of the largest call since the prefetch was restored, in bytes, at least 1.
    largest_bytes: usize,
}

/// The result of admitting a delivered call.
#[derive(Debug)]
pub(super) enum CallAdmission {
    /// It is admitted; without a permit if the budget is exhausted.
    Admitted(Option<Permit>),
    /// The unsettled calls exceed the budget, so the prefetch was reduced. All are requeued.
    PrefetchTooLarge,
}

impl CallBudget {
    /// Creates a budget of `bytes_max` bytes, with the full prefetch.
    pub(super) fn new(bytes_max: usize, prefetch_max: u16) -> CallBudget {
        let prefetch_max = prefetch_max.max(1);
        CallBudget {
            budget: ResourceBudget::for_bytes(bytes_max),
            bytes_max,
            prefetch_max,
            prefetch: prefetch_max,
            largest_bytes: 1,
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

    /// Restores the full prefetch. Must be called only while no call is unsettled.
    pub(super) fn restore_prefetch(&mut self) {
        self.prefetch = self.prefetch_max;
        self.largest_bytes = 1;
    }

    /// Admits a delivered call of `bytes`, or reduces the prefetch. `is_alone` says that no other
    /// call is unsettled. Such a call is admitted even if the budget is exhausted.
    pub(super) fn admit(&mut self, bytes: usize, is_alone: bool) -> CallAdmission {
        self.largest_bytes = self.largest_bytes.max(bytes);
        match self.budget.try_acquire(bytes) {
            None if !is_alone => {
                let fitting_calls = self.bytes_max / self.largest_bytes;
                let fitting_prefetch = u16::try_from(fitting_calls).unwrap_or(u16::MAX);
                // The prefetch is at least halved, because earlier calls may still use the budget.
                self.prefetch = fitting_prefetch.min(self.prefetch / 2).max(1);
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
    fn large_calls_reduce_the_prefetch_to_what_fits_the_budget() {
        let mut budget = CallBudget::new(100 << 10, 2_000);
        let first_call = budget.admit(40 << 10, true);
        let second_call = budget.admit(40 << 10, false);
        assert!(matches!(
            (&first_call, &second_call),
            (CallAdmission::Admitted(Some(_)), CallAdmission::Admitted(Some(_)))
        ));
        assert!(matches!(budget.admit(40 << 10, false), CallAdmission::PrefetchTooLarge));
        assert!(budget.is_reduced());
        assert_eq!(budget.prefetch(), 2);
        drop((first_call, second_call));
        let large_call = budget.admit(200 << 10, true);
        assert!(matches!(large_call, CallAdmission::Admitted(Some(_))), "a single call");
        assert!(matches!(budget.admit(200 << 10, false), CallAdmission::PrefetchTooLarge));
        assert_eq!(budget.prefetch(), 1);
        drop(large_call);
        let call_of_budget_size = budget.admit(100 << 10, true);
        assert!(
            matches!(budget.admit(1, true), CallAdmission::Admitted(None)),
            "a single call is admitted even if the budget is exhausted"
        );
        drop(call_of_budget_size);
        budget.restore_prefetch();
        assert_eq!((budget.prefetch(), budget.is_reduced()), (2_000, false));
    }
}
