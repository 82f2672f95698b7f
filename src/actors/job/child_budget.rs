//! The budget of child jobs: all fan-outs of the process share `fanout.children_max` of them.

use super::JobActor;
use crate::engine::{Job, Limits};
use std::sync::atomic::Ordering;

/// Each fan-out step may always have this many child jobs under way, so that none stops when others
/// have used up the budget.
const CHILDREN_MIN: u32 = 16;

impl JobActor {
    /// Returns the limits for the next decision. Its fan-outs start no more child jobs than the
    /// budget of the process has left.
    pub(super) fn limits(&self) -> Limits {
        let common = &self.ways.common;
        let (most, now) =
            (common.settings.fanout.children_max, common.children.load(Ordering::Relaxed));
        let left = self.children.saturating_add(most.saturating_sub(now));
        let window = common.limits.window.min(left.max(CHILDREN_MIN));
        // While memory is exceeded, each step goes on with one child job at a time.
        let window_bytes = if common.memory.is_over() { 0 } else { common.limits.window_bytes };
        Limits { window, window_bytes, ..common.limits }
    }

    /// Takes a permit of the budget for each child job under way, and releases the permits of those
    /// that have ended.
    pub(super) fn draw_on_budget(&mut self) {
        let Some(now) = self.job().map(Job::child_count) else { return };
        if now != self.children {
            let taken = &self.ways.common.children;
            taken.fetch_add(now.wrapping_sub(self.children), Ordering::Relaxed);
            self.children = now;
        }
    }
}

impl Drop for JobActor {
    fn drop(&mut self) {
        self.ways.common.children.fetch_sub(self.children, Ordering::Relaxed);
    }
}
