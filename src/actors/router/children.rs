//! Child jobs: their parents start them and give them orders.

use super::Router;
use super::asks::Handled;
use crate::actors::job::{Spawn, Start};
use crate::actors::mail::{JobInput, NewChild, Outgoing, RouterInput, ToChild};
use crate::clock;
use crate::engine::{Cause, ChildEnd, ChildOutcome, Input, JobId, JobState, Parent};
use crate::journal::Recovered;
use std::sync::Arc;

/// The reason why a child job cannot run whose id is taken.
const TAKEN: &str = "its id belongs to another job by now: retry when that job has ended";

impl Router {
    pub(super) fn start_child(&mut self, child: Box<NewChild>) {
        let id = child.origin.id;
        let Some(RouterInput::StartChild(child)) =
            self.unless_at_rest(id, RouterInput::StartChild(child))
        else {
            return;
        };
        let mut origin = child.origin;
        let Some(place) = origin.parent else { return };
        let is_there =
            self.ways.routes.find(id).map(|found| found.is_child_of(child.parent, place));
        match is_there {
            None => {}
            // Recovery may ask for a child job that runs already.
            Some(true) => return,
            Some(false) => {
                let (step, index) = (place.step, place.index);
                let input = Input::IdTaken { step, index, id };
                return self.tell(place.job, JobInput::Take { input, ack: None });
            }
        }
        origin.created = clock::now();
        let number = self.ways.common.take_number();
        let start = Start::New {
            origin: Arc::new(origin),
            message: child.message,
            caller: None,
            release: Vec::new(),
        };
        self.spawn(Spawn { id, number, root: child.root, parent: Some(child.parent), start });
    }

    /// Reopens an ended child job that is to be retried, and gives it the latest orders of its
    /// parent.
    pub(super) fn tell_ended_child(
        &mut self,
        to_child: ToChild,
        found: Option<Box<Recovered>>,
    ) -> Handled {
        let ToChild { id, place, order, .. } = to_child;
        let round = order.round;
        // Another step of the parent may have had a child job with this id.
        let found = found.filter(|found| found.job.origin().parent == Some(place));
        let Some(mut found) = found else {
            let input = Input::ChildMissing { step: place.step, index: place.index };
            self.tell(place.job, JobInput::Take { input, ack: None });
            return Handled::DropFinding;
        };
        let orders = if found.job.state() == JobState::Completed {
            // It has been retried already, and reports its end again.
            vec![order]
        } else {
            // None: the order came late, and the parent has decided otherwise since.
            std::mem::take(&mut found.orders)
        };
        if orders.is_empty() {
            return Handled::DropFinding;
        }
        if self.refusal_to_revive(&found).is_some() {
            self.cannot_start(place, id, round, TAKEN);
            return Handled::DropFinding;
        }
        self.revive(*found);
        if let Some(job) = self.ways.routes.find(id) {
            for order in orders {
                job.post(JobInput::Take { input: Input::Order(order), ack: None });
            }
        }
        Handled::DropFinding
    }

    /// Reports to the parent that a child job cannot run: it counts as failed, even if it had
    /// failed before.
    pub(super) fn cannot_start(&self, place: Parent, child: JobId, round: u32, reason: &str) {
        let outcome = ChildOutcome::Failed(Cause::of_job(reason));
        Outgoing::ToParent(place, ChildEnd { child, round, outcome }).release(&self.ways);
    }
}
