//! What every job is asked: to send the messages of a queue again, to count the steps that wait,
//! and since when they do.

use super::JobActor;
use crate::actors::bulk::{Bulk, Census, Oldest, Wait};
use crate::actors::mail::{Done, Outgoing};
use crate::clock;
use crate::engine::{Definition, Input, Operation, Request};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Since when each dispatch has been seen waiting, by the number of its entry.
type Seen = Vec<(u64, Instant)>;

fn has_waited(seen: &Seen, dispatch: u64, span: Duration) -> bool {
    let now = clock::ticks();
    seen.iter().any(|(of, since)| *of == dispatch && now.saturating_duration_since(*since) >= span)
}

impl JobActor {
    /// Counts the steps that wait for a reply, and notes since when it has seen each. Steps that
    /// call a workflow do not count: their message is acknowledged when the job is created, long
    /// before its end.
    pub(super) fn count_waiting(&mut self, census: &Census) {
        let Some(job) = self.job() else { return };
        let now = clock::ticks();
        let since = |dispatch: u64| {
            self.seen.iter().find(|(of, _)| *of == dispatch).map_or(now, |(_, since)| *since)
        };
        // Of all buses: each asks by itself.
        let seen: Seen = job
            .waiting_for_replies()
            .map(|step| job.step(step).dispatch)
            .map(|dispatch| (dispatch, since(dispatch)))
            .collect();
        let has_waited = |dispatch: u64| has_waited(&seen, dispatch, census.span);
        let old = self.waiting_on(&census.bus).filter(|step| has_waited(job.step(*step).dispatch));
        let queues = old
            .map(|step| &job.graph().step(step).queue)
            .filter(|queue| !queue.starts_with(Definition::CALL_QUEUE_PREFIX));
        let mut counts = census.counts.lock().unwrap_or_else(PoisonError::into_inner);
        queues.for_each(|queue| *counts.entry(queue.clone()).or_default() += 1);
        drop(counts);
        self.seen = seen;
    }

    /// Tells which of its steps wait for replies, and since when.
    pub(super) fn tell_waits(&self, oldest: &Oldest) {
        let Some(job) = self.job() else { return };
        for index in job.awaiting_replies() {
            let (step, run) = (job.graph().step(index), job.step(index));
            let Some(since) = run.attempt_started else { continue };
            let wait = Wait { since, job: self.id, step: step.name.clone() };
            oldest.hear(self.ways.buses.address(job.definition(), step), wait);
        }
    }

    /// Sends the messages of its steps that wait on a queue again; `done` is dropped after the
    /// commit.
    pub(super) fn redispatch(&mut self, bulk: &Bulk, done: &Arc<Done>) {
        let Some(job) = self.job() else { return };
        let is_meant = |dispatch: u64| {
            bulk.waiting_for.is_none_or(|span| has_waited(&self.seen, dispatch, span))
        };
        let meant = self.waiting_at(&bulk.queue).filter(|step| is_meant(job.step(*step).dispatch));
        let names: Vec<String> =
            meant.map(|step| job.graph().step(step).name.to_string()).collect();
        bulk.steps.fetch_add(names.len(), Ordering::Relaxed);
        bulk.jobs.fetch_add(usize::from(!names.is_empty()), Ordering::Relaxed);
        if bulk.is_dry_run {
            return;
        }
        for step in names {
            let (reason, by) = (bulk.reason.clone(), bulk.by.clone());
            let request = Request { operation: Operation::Redispatch { step }, reason, by };
            self.take(Input::operate(request), vec![Outgoing::Hold(done.clone())]);
        }
    }
}
