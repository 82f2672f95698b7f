//! The budget of child jobs: all fan-outs of the process share `fanout.children_max` of them.

use super::JobActor;
use engine::{Job, Limits};
use std::sync::atomic::Ordering;

/// Each fan-out step may always have this many child jobs under way, so that none stops when others
/// have used up the budget.
const CHILDREN_MIN: u32 = 16;

impl JobActor {
    /// Returns the limits for the next decision. Its fan-outs start no more child jobs than the
    /// budget of the process has left.
    pub(super) fn limits(&self) -> Limits {
        let common = &self.handles.common;
        let (most, now) =
            (common.settings.fanout.children_max, common.child_count.load(Ordering::Relaxed));
        let left = self.child_permits.saturating_add(most.saturating_sub(now));
        let window = common.limits.window.min(left.max(CHILDREN_MIN));
        // While memory is exceeded, each step goes on with one child job at a time.
        let window_bytes = if common.memory.is_exceeded() { 0 } else { common.limits.window_bytes };
        Limits { window, window_bytes, ..common.limits }
    }

    /// Takes a permit of the budget for each child job under way, and releases the permits of those
    /// that have ended.
    pub(super) fn update_child_permits(&mut self) {
        let Some(now) = self.job().map(Job::child_count) else { return };
        if now != self.child_permits {
            let permits = &self.handles.common.child_count;
            permits.fetch_add(now.wrapping_sub(self.child_permits), Ordering::Relaxed);
            self.child_permits = now;
        }
    }
}

impl Drop for JobActor {
    fn drop(&mut self) {
        self.handles.common.child_count.fetch_sub(self.child_permits, Ordering::Relaxed);
    }
}
