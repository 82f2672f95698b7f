//! Child jobs: started by their parents, and told what their parents want.

use super::{Errand, Router};
use crate::actors::clock;
use crate::actors::job::{self, ANY_ROUND, JobInput, Spawn, Start};
use crate::actors::outbox::{NewChild, Outgoing, ToChild};
use crate::engine::{Cause, ChildEnd, ChildOutcome, Input, Instruction, JobId, Parent};
use std::sync::Arc;

/// Why a child job cannot run.
pub(super) const TAKEN: &str = "its id belongs to another job by now";

impl Router {
    pub(super) fn start_child(&self, child: NewChild) {
        let mut origin = child.origin;
        let id = origin.id;
        if let Some(parent) = self.shared.routes.find(id).map(|found| found.parent()) {
            // Recovery may ask for a child that lives already.
            if parent != Some(child.parent)
                && let Some(place) = origin.parent
            {
                self.cannot_start(place, id, ANY_ROUND, TAKEN);
            }
            return;
        }
        origin.created = clock::now();
        let number = self.shared.take_number();
        let start = Start::New {
            origin: Arc::new(origin),
            message: child.message,
            caller: None,
            release: Vec::new(),
        };
        job::spawn(
            &self.shared,
            Spawn { id, number, root: child.root, parent: Some(child.parent), start },
        );
    }

    /// What a parent tells its child job: to the actor, behind the journal if that brings it back,
    /// or to nobody if it has ended.
    pub(super) fn tell_child(&mut self, told: ToChild) {
        let ToChild { id, place, parent, .. } = told;
        if let Some(child) =
            self.shared.routes.find(id).filter(|found| found.parent() == Some(parent))
        {
            return child.post(JobInput::Take { input: Input::Order(told.order), ack: None });
        }
        // What comes while it is being rebuilt is of a commit before that.
        if told.order.what != Instruction::Retry || self.reviving_children.contains(&(parent, id)) {
            return;
        }
        match self.shared.reader.child(parent, id) {
            Ok(Some(number)) => {
                self.reviving_children.insert((parent, id));
                self.revive(number, Errand::Order(told));
            }
            Ok(None) => {
                if let Some(job) = self.shared.routes.find(place.job) {
                    job.post(JobInput::Take {
                        input: Input::ChildMissing { step: place.step, index: place.index },
                        ack: None,
                    });
                }
            }
            Err(error) => {
                tracing::error!(job = %id, %error, "a child job that is to be retried cannot be read");
                self.cannot_start(
                    place,
                    id,
                    told.order.round,
                    "it cannot be read from the journal",
                );
            }
        }
    }

    /// A child job that cannot run fails, once more if it had before.
    pub(super) fn cannot_start(&self, place: Parent, child: JobId, round: u32, reason: &str) {
        let outcome = ChildOutcome::Failed(Cause::of_job(reason));
        Outgoing::ToParent(place, ChildEnd { child, round, outcome }).release(&self.shared);
    }
}
