//! The lifecycle of job actors: a route is added when an actor starts, and removed when it stops.
//!
//! A job with nothing left to do asks to be stopped. The router stops it if it has handled every
//! input that was sent to it: then its mailbox is empty, and remains empty without a route.
//! Otherwise the job handles the remaining inputs, and then asks again or continues.

use super::Router;
use crate::actors::inputs::{ChildOrder, JobInput, PassivateRequest, RouterInput, StopRequest};
use crate::actors::job::{JobActor, JobStart, SpawnRequest};
use crate::actors::listed_state::{ListedState, SharedListedState};
use crate::actors::mailbox::new_mailbox;
use crate::actors::routes::Route;
use actix::Context;
use engine::{Effect, Input};
use journal::{RecoveredJob, spread_key};

impl Router {
    /// Starts a job actor on one of the arbiters, and adds its route. The child jobs of a parent
    /// share an arbiter, so that their first dispatches reach the journal and the queue in the
    /// order of the items.
    pub(super) fn spawn(&self, request: SpawnRequest) {
        let env = &self.env;
        let arbiters = &env.arbiters;
        let SpawnRequest { id, number, parent, .. } = request;
        let parent_item = request.start.parent_item();
        let definition = request.start.definition().clone();
        // If there are several arbiters, the child jobs of a root job do not run on its arbiter,
        // which is busy with their results.
        let arbiter_key =
            parent.map_or(spread_key(number), |parent| spread_key(parent).wrapping_add(1));
        let arbiter = &arbiters[usize::try_from(arbiter_key).unwrap_or_default() % arbiters.len()];
        let (job_env, listed_state) = (env.job_env.clone(), SharedListedState::default());
        let state_of_job = listed_state.clone();
        if let JobStart::Recovered { job, .. } = &request.start {
            // It is committed. Lists show it before the actor has run.
            listed_state.set(ListedState::from_job(job));
        }
        let memory_share = env.memory.acquire_share(request.start.bytes());
        self.route_table.insert(id, || {
            // The mailbox has no capacity limit, because the causes of a job's inputs bound their
            // number (see `mailbox`).
            let (mailbox, inbox) =
                new_mailbox::<JobActor>(usize::MAX, env.job_mailbox_metrics.clone());
            inbox.start_in(arbiter, move || {
                JobActor::new(job_env, request, state_of_job, memory_share)
            });
            Route { number, parent, parent_item, definition, mailbox, listed_state }
        });
    }

    /// Starts a job from the journal. The notifications of its parent and the orders that it has
    /// missed are sent through the router's mailbox, so that all other jobs have started before.
    pub(super) fn start_recovered(&self, recovered: RecoveredJob) {
        let RecoveredJob { number, root, parent, job, effects, missed_orders } = recovered;
        let (parent_notifications, effects): (Vec<Effect>, Vec<Effect>) =
            effects.into_iter().partition(|effect| matches!(effect, Effect::NotifyParent(..)));
        let (id, parent_item) = (job.id(), job.origin().parent);
        let start = JobStart::Recovered { job: Box::new(job), effects };
        self.spawn(SpawnRequest { id, number, root, parent, start });
        let router = &self.env.router;
        for effect in parent_notifications {
            if let Effect::NotifyParent(item, ended) = effect {
                let input = Input::ChildEnded { step: item.step, index: item.index, ended };
                router.send(RouterInput::InputForJob(item.job, input));
            }
        }
        if let (Some(parent_item), Some(parent)) = (parent_item, parent) {
            for order in missed_orders {
                router.send(RouterInput::OrderChild(ChildOrder { id, parent_item, parent, order }));
            }
        }
    }

    /// Starts the actor of an ended job, so that it takes input again.
    pub(super) fn reopen(&self, recovered: RecoveredJob) {
        let RecoveredJob { number, root, parent, job, .. } = recovered;
        let (id, job) = (job.id(), Box::new(job));
        let start = JobStart::Recovered { job, effects: Vec::new() };
        self.spawn(SpawnRequest { id, number, root, parent, start });
    }

    /// Stops a job, if it has handled every input that was sent to it. A deleted job is stopped in
    /// any case.
    pub(super) fn stop_if_idle(&mut self, request: StopRequest, ctx: &mut Context<Self>) {
        let StopRequest { id, number, inputs_handled } = request;
        if inputs_handled.is_none() {
            self.forget_at_gate(number, ctx);
        }
        match self.route_table.remove_if_idle(id, number, inputs_handled) {
            Some(mailbox) => mailbox.send(JobInput::Close),
            None if inputs_handled.is_none() => self.remove_deleted(request, ctx),
            None => {}
        }
    }

    /// Passivates a job that only waits, if it has handled every input that was sent to it.
    pub(super) fn passivate(&mut self, request: PassivateRequest, ctx: &mut Context<Self>) {
        let PassivateRequest { inputs_handled, tree } = request;
        let Some(root) = tree.members.first() else { return };
        // The passivated route is added before the other route is removed, so that the job can
        // always be found.
        self.route_table.add_passivated(&tree);
        match self.route_table.remove_if_idle(root.id, root.number, Some(inputs_handled)) {
            Some(mailbox) => {
                mailbox.send(JobInput::Close);
                self.store_passivated(tree);
                self.activate_due(ctx);
            }
            None => self.route_table.remove_passivated(&tree),
        }
    }
}
