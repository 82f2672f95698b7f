//! Handles what parents send to their child jobs: their start, and orders.

use super::Router;
use super::pending_requests::RequestOutcome;
use crate::actors::inputs::{ChildOrder, JobInput, NewChild, Outgoing, RouterInput};
use crate::actors::job::{JobStart, SpawnRequest};
use base::clock;
use engine::{Cause, ChildEnd, ChildOutcome, Input, JobId, JobState, ParentItem};
use journal::RecoveredJob;
use std::sync::Arc;

/// The reason why a child job cannot run if another job has its id.
const ID_CONFLICT: &str = "its id belongs to another job by now: retry when that job has ended";

impl Router {
    /// Starts a child job, unless it runs already. If another job has its id, the parent is
    /// notified.
    pub(super) fn start_child(&mut self, child: Box<NewChild>) {
        let id = child.origin.id;
        let Some(RouterInput::StartChild(child)) =
            self.stash_if_passivated(id, RouterInput::StartChild(child))
        else {
            return;
        };
        let mut origin = child.origin;
        let Some(parent_item) = origin.parent else { return };
        let is_same_child =
            self.env.routes.find(id).map(|route| route.is_child_of(child.parent, parent_item));
        match is_same_child {
            None => {}
            // After a start, a parent can ask for a child job that was recovered already.
            Some(true) => return,
            Some(false) => {
                let (step, index) = (parent_item.step, parent_item.index);
                let input = Input::IdConflict { step, index, id };
                return self.send_to_job(parent_item.job, JobInput::Engine { input, ack: None });
            }
        }
        origin.created = clock::now();
        let number = self.take_job_number();
        let start = JobStart::New {
            origin: Arc::new(origin),
            message: child.message,
            caller: None,
            outgoing: Vec::new(),
        };
        self.spawn(SpawnRequest {
            id,
            number,
            root: child.root,
            parent: Some(child.parent),
            start,
        });
    }

    /// Reopens an ended child job that is to be retried, and sends it the orders of its parent that
    /// it has missed. If the journal has no such child job, or it cannot be reopened, the parent is
    /// notified.
    pub(super) fn order_ended_child(
        &mut self,
        child_order: ChildOrder,
        recovered: Option<Box<RecoveredJob>>,
    ) -> RequestOutcome {
        let ChildOrder { id, parent_item, order, .. } = child_order;
        let round = order.round;
        // The lookup can return a child job of another step of the same parent.
        let child =
            recovered.filter(|recovered| recovered.job.origin().parent == Some(parent_item));
        let Some(mut child) = child else {
            let input = Input::ChildMissing { step: parent_item.step, index: parent_item.index };
            self.send_to_job(parent_item.job, JobInput::Engine { input, ack: None });
            return RequestOutcome::DropResult;
        };
        let orders = if child.job.state() == JobState::Completed {
            // The child job was retried already. The order makes it report its end again.
            vec![order]
        } else {
            // Empty if the order is late, because the parent has decided otherwise since.
            std::mem::take(&mut child.missed_orders)
        };
        if orders.is_empty() {
            return RequestOutcome::DropResult;
        }
        if self.check_reopen(&child).is_some() {
            self.report_child_failed(parent_item, id, round, ID_CONFLICT);
            return RequestOutcome::DropResult;
        }
        self.reopen(*child);
        if let Some(job) = self.env.routes.find(id) {
            for order in orders {
                job.send(JobInput::Engine { input: Input::Order(order), ack: None });
            }
        }
        RequestOutcome::DropResult
    }

    /// Reports to the parent that a child job cannot run. It counts as failed, even if it has
    /// failed before.
    pub(super) fn report_child_failed(
        &self,
        parent_item: ParentItem,
        child: JobId,
        round: u32,
        reason: &str,
    ) {
        let outcome = ChildOutcome::Failed(Cause::from_job(reason));
        Outgoing::NotifyParent(parent_item, ChildEnd { child, round, outcome })
            .send(&self.env.outbox);
    }
}
