//! Calls that wait until the manager takes jobs again.

use crate::actors::call::Call;
use std::collections::VecDeque;

/// Calls that wait until the manager takes jobs again, in order.
#[derive(Default)]
pub(super) struct CallBacklog {
    calls: VecDeque<Call>,
    is_retry_scheduled: bool,
}

impl CallBacklog {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn push(&mut self, call: Call) {
        self.calls.push_back(call);
    }

    /// Returns whether a retry must be scheduled now: calls wait, and none is scheduled yet. It
    /// counts as scheduled from now on.
    pub(super) fn must_schedule_retry(&mut self) -> bool {
        !self.calls.is_empty() && !std::mem::replace(&mut self.is_retry_scheduled, true)
    }

    /// Takes the calls for the retry that was scheduled.
    pub(super) fn take_for_retry(&mut self) -> VecDeque<Call> {
        self.is_retry_scheduled = false;
        std::mem::take(&mut self.calls)
    }
}
