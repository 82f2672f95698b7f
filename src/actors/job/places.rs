//! Places for child jobs: all fan-outs of the process share `fanout.children_max` of them.

use super::JobActor;
use crate::engine::{Job, Limits};
use std::sync::atomic::Ordering;

/// Child jobs that a fan-out step may always have under way, however many others there are: none
/// stands still.
const CHILDREN_MIN: u32 = 16;

impl JobActor {
    /// The limits for the next decision. Its fan-outs start no more child jobs than there are
    /// places left in the process.
    pub(super) fn limits(&self) -> Limits {
        let common = &self.ways.common;
        let (most, now) =
            (common.settings.fanout.children_max, common.children.load(Ordering::Relaxed));
        let places = self.children.saturating_add(most.saturating_sub(now));
        let window = common.limits.window.min(places.max(CHILDREN_MIN));
        Limits { window, ..common.limits }
    }

    /// Takes the places of the child jobs that are under way, and gives back those of others.
    pub(super) fn take_places(&mut self) {
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
