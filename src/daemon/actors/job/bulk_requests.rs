//! Handles bulk requests for one job: dispatches again the steps that wait on a queue, counts
//! waiting steps, and reports since when they wait.

use super::JobActor;
use crate::actors::bulk_requests::{BulkRedispatch, OldestWaits, QueueScan, WaitingStep};
use crate::actors::completion_latch::CompletionLatch;
use crate::actors::inputs::Outgoing;
use engine::{Definition, Input, Operation, OperationRequest, StepIndex};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl JobActor {
    /// Records which steps wait for a reply, and counts those on the bus of the scan that have
    /// waited long enough. Steps that call a workflow are not counted: the message of a call is
    /// acknowledged when its job is created, long before the reply.
    pub(super) fn count_waiting(&mut self, scan: &QueueScan) {
        let Some(job) = self.lifecycle.job() else { return };
        // The steps on all buses are recorded, not only those on the bus of the scan, because
        // `record_waiting` forgets every step that it is not given.
        self.waiting_since
            .record_waiting(job.confirmed_steps().map(|step| job.step(step).dispatch));
        let has_waited = |step: &StepIndex| {
            self.waiting_since.has_waited(job.step(*step).dispatch, scan.min_wait)
        };
        let queues = self
            .confirmed_steps_on_bus(&scan.bus)
            .filter(has_waited)
            .map(|step| &job.graph().step(step).queue)
            .filter(|queue| !Definition::is_workflow_queue(queue));
        scan.add_steps(queues);
    }

    /// Adds the steps that wait for replies to the report, each with the start of its attempt.
    pub(super) fn report_waits(&self, waits: &OldestWaits) {
        let Some(job) = self.job() else { return };
        for index in job.steps_awaiting_replies() {
            let (step, run) = (job.graph().step(index), job.step(index));
            let Some(since) = run.attempt_started else { continue };
            let wait = WaitingStep { since, job: self.id, step: step.name.clone() };
            waits.record(self.env.buses.address(job.definition(), step), wait);
        }
    }

    /// Dispatches again the steps that wait on a queue, unless it is a dry run. Each operation
    /// holds a clone of `latch` until its commit.
    pub(super) fn redispatch(&mut self, bulk: &BulkRedispatch, latch: &Arc<CompletionLatch>) {
        let Some(job) = self.job() else { return };
        let is_selected = |dispatch: u64| {
            bulk.min_wait.is_none_or(|min_wait| self.waiting_since.has_waited(dispatch, min_wait))
        };
        let selected_steps = self
            .confirmed_steps_in_queue(&bulk.queue)
            .filter(|step| is_selected(job.step(*step).dispatch));
        let names: Vec<String> =
            selected_steps.map(|step| job.graph().step(step).name.to_string()).collect();
        bulk.step_count.fetch_add(names.len(), Ordering::Relaxed);
        bulk.job_count.fetch_add(usize::from(!names.is_empty()), Ordering::Relaxed);
        if bulk.is_dry_run {
            return;
        }
        for step in names {
            let request = OperationRequest {
                operation: Operation::Redispatch { step },
                reason: bulk.reason.clone(),
                principal: bulk.principal.clone(),
            };
            self.handle_engine_input(
                Input::from_request(request),
                vec![Outgoing::ReleaseLatch(latch.clone())],
            );
        }
    }
}
