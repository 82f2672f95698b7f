//! Sends what follows from a commit: first the requests to the router, then what the gate is told,
//! then the effects.

use super::partial_commit::WaitingRecord;
use super::{JournalActor, exit_on_panic};
use crate::actors::inputs::{Append, JobDemands, Outgoing, RouterInput, StopRequest};
use crate::actors::outbox::PublicationBatch;
use journal::JobNumber;
use std::collections::BTreeSet;

impl JournalActor {
    /// Sends the effects of committed records, in order. The publications are batched by bus.
    pub(super) fn send_effects(
        &self,
        committed: Vec<WaitingRecord>,
        deleted: &BTreeSet<JobNumber>,
    ) {
        let mut publications = PublicationBatch::default();
        for WaitingRecord { append, since } in committed {
            self.env.metrics.journal_queue.observe(since.elapsed().as_secs_f64());
            let Append { id, job: number, mut outgoing, .. } = append;
            if deleted.contains(&number) {
                // Another job may have the id of the deleted job by now.
                let route = self.env.routes.find(id);
                let is_replaced = route.is_some_and(|job| job.number() != number);
                outgoing = outgoing
                    .into_iter()
                    .filter_map(|effect| effect.after_deletion(is_replaced))
                    .collect();
            }
            for effect in outgoing {
                // If this panics, the process ends at once. Otherwise the remaining effects would
                // be dropped, and their clients would be told that the request failed, although
                // the journal has it.
                exit_on_panic(|| {
                    if let Outgoing::Publish(publication) = effect {
                        return publications.add(publication);
                    }
                    // The collected publications are sent first: a latch promises that they are
                    // sent, and a withdrawal may concern one of them.
                    if let Outgoing::ReleaseLatch(_) | Outgoing::Withdraw(..) = effect {
                        std::mem::take(&mut publications).send(&self.env.outbox);
                    }
                    effect.send(&self.env.outbox);
                });
            }
        }
        exit_on_panic(|| publications.send(&self.env.outbox));
    }

    /// Tells the gate what the decisions of committed jobs want, before the effects of the commit
    /// are sent: whoever is answered finds that the gate knows it. A deleted job wants nothing.
    pub(super) fn tell_gate(&self, committed: &mut [WaitingRecord], deleted: &BTreeSet<JobNumber>) {
        let all = committed.iter_mut().filter_map(|WaitingRecord { append, .. }| {
            append.demands.take().filter(|_| !deleted.contains(&append.job))
        });
        let all: Vec<JobDemands> = all.map(|demands| *demands).collect();
        if !all.is_empty() {
            self.env.router.send(RouterInput::Demands(all));
        }
    }

    /// Forwards to the router the requests of committed jobs to be passivated or stopped, before
    /// the effects of the commit are sent. Deleted jobs are stopped in any case.
    pub(super) fn forward_router_requests(
        &self,
        committed: &mut [WaitingRecord],
        deleted: &BTreeSet<JobNumber>,
    ) {
        let stop_request = |WaitingRecord { append, .. }: &WaitingRecord| {
            let (id, number) = (append.id, append.job);
            if deleted.contains(&number) {
                return Some(StopRequest { id, number, inputs_handled: None });
            }
            append.stop_after.map(|inputs_handled| StopRequest {
                id,
                number,
                inputs_handled: Some(inputs_handled),
            })
        };
        let stop_requests: Vec<StopRequest> = committed.iter().filter_map(stop_request).collect();
        for WaitingRecord { append, .. } in committed.iter_mut() {
            let is_deleted = deleted.contains(&append.job);
            if let Some(request) = append.passivate.take().filter(|_| !is_deleted) {
                self.env.router.send(RouterInput::Passivate(request));
            }
        }
        if !stop_requests.is_empty() {
            self.env.router.send(RouterInput::StopJobs(stop_requests));
        }
    }
}
