//! The backlog of calls: they wait while the manager accepts no jobs.

use crate::actors::call::Call;
use std::collections::VecDeque;

/// The calls that wait, in order of arrival.
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

    /// Marks the retry as scheduled if calls wait. Returns whether the caller must schedule it:
    /// calls wait, and it was not scheduled before.
    pub(super) fn mark_retry_scheduled(&mut self) -> bool {
        !self.calls.is_empty() && !std::mem::replace(&mut self.is_retry_scheduled, true)
    }

    /// Takes all calls for the scheduled retry, which begins now.
    pub(super) fn take_for_retry(&mut self) -> VecDeque<Call> {
        self.is_retry_scheduled = false;
        std::mem::take(&mut self.calls)
    }
}
