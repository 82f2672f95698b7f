//! Requests to every job: to send the messages of a queue again, to count the steps that wait, and
//! to report since when they do.

use super::JobActor;
use crate::actors::answer_on_drop::AnswerOnDrop;
use crate::actors::bulk::{Bulk, Census, Wait, Waits};
use crate::actors::mail::Outgoing;
use crate::engine::{Definition, Input, Operation, Request, StepIndex};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl JobActor {
    /// Counts the steps that wait for a reply, and records since when each has been seen waiting.
    /// Steps that call a workflow do not count: their message is acknowledged when the job is
    /// created, long before its end.
    pub(super) fn count_waiting(&mut self, census: &Census) {
        let Some(job) = self.life.job() else { return };
        // Steps on all buses are recorded, although one bus asks: `record_waiting` forgets the
        // steps that it is not given.
        self.waiting_since.note(job.confirmed_steps().map(|step| job.step(step).dispatch));
        let has_waited =
            |step: &StepIndex| self.waiting_since.has_waited(job.step(*step).dispatch, census.span);
        let old = self.confirmed_on(&census.bus).filter(has_waited);
        let queues = old
            .map(|step| &job.graph().step(step).queue)
            .filter(|queue| !queue.starts_with(Definition::CALL_QUEUE_PREFIX));
        census.add(queues);
    }

    /// Reports which of its steps wait for replies, and since when.
    pub(super) fn tell_waits(&self, waits: &Waits) {
        let Some(job) = self.job() else { return };
        for index in job.awaiting_replies() {
            let (step, run) = (job.graph().step(index), job.step(index));
            let Some(since) = run.attempt_started else { continue };
            let wait = Wait { since, job: self.id, step: step.name.clone() };
            waits.hear(self.ways.buses.address(job.definition(), step), wait);
        }
    }

    /// Sends the messages of its steps that wait on a queue again; `done` is dropped after the
    /// commit.
    pub(super) fn redispatch(&mut self, bulk: &Bulk, done: &Arc<AnswerOnDrop>) {
        let Some(job) = self.job() else { return };
        let is_meant = |dispatch: u64| {
            bulk.waiting_for.is_none_or(|span| self.waiting_since.has_waited(dispatch, span))
        };
        let meant =
            self.confirmed_in(&bulk.queue).filter(|step| is_meant(job.step(*step).dispatch));
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
