//! When a job takes input: its route is added when its actor starts, and removed when the actor
//! stops. A job with nothing left to do asks to stop. It is stopped if it has handled every input
//! that was sent to it: then its mailbox is empty and nothing more can come. Otherwise it stays and
//! handles the rest, and then asks again or goes on.

use super::Router;
use crate::actors::inputs::{ChildOrder, JobInput, PassivateRequest, RouterInput, StopRequest};
use crate::actors::job::{JobActor, JobStart, SpawnRequest};
use crate::actors::mailbox::new_mailbox;
use crate::actors::routes::Route;
use crate::actors::steps_done::StepsDone;
use actix::Context;
use engine::{Effect, Input};
use journal::RecoveredJob;

impl Router {
    /// Starts a job actor on one of the arbiters and makes it reachable. The child jobs of a parent
    /// share an arbiter, so that their first dispatches reach the journal and the queue in the
    /// order of the list.
    pub(super) fn spawn(&self, spawn: SpawnRequest) {
        let env = &self.env;
        let arbiters = &env.arbiters;
        let SpawnRequest { id, number, parent, .. } = spawn;
        let (child_of, definition) = (spawn.start.parent_item(), spawn.start.definition().clone());
        // Where there are several arbiters, this is seldom the parent's own, which gathers the
        // results.
        let spread_by = parent.map_or(number, |parent| parent.wrapping_add(1));
        let arbiter = &arbiters[usize::try_from(spread_by).unwrap_or_default() % arbiters.len()];
        let (job_env, steps_done) = (env.job.clone(), StepsDone::default());
        let shared_steps_done = steps_done.clone();
        let share = env.memory.share(spawn.start.bytes());
        self.route_table.insert(id, || {
            // The number of a job's inputs is bounded by their cause (see `mailbox`): it is never
            // sent one by `try_send`.
            let (mailbox, inbox) =
                new_mailbox::<JobActor>(usize::MAX, env.job_mailbox_metrics.clone());
            inbox
                .start_in(arbiter, move || JobActor::new(job_env, spawn, shared_steps_done, share));
            Route { number, parent, parent_item: child_of, definition, mailbox, steps_done }
        });
    }

    /// Starts a job from the journal. What it sends to other jobs goes through the router's
    /// mailbox, because those must have started first.
    pub(super) fn start_recovered(&self, recovered: RecoveredJob) {
        let RecoveredJob { number, root, parent, job, effects, missed_orders } = recovered;
        let (to_parent, effects): (Vec<Effect>, Vec<Effect>) =
            effects.into_iter().partition(|effect| matches!(effect, Effect::NotifyParent(..)));
        let (id, parent_item) = (job.id(), job.origin().parent);
        let start = JobStart::Recovered { job: Box::new(job), effects };
        self.spawn(SpawnRequest { id, number, root, parent, start });
        let router = &self.env.router;
        for effect in to_parent {
            if let Effect::NotifyParent(parent, ended) = effect {
                // Parents were started before their children.
                router.send(RouterInput::InputForJob(
                    parent.job,
                    Input::ChildEnded { step: parent.step, index: parent.index, ended },
                ));
            }
        }
        for (order, (parent_item, parent)) in
            missed_orders.into_iter().filter_map(|order| Some((order, parent_item.zip(parent)?)))
        {
            router.send(RouterInput::OrderChild(ChildOrder { id, parent_item, parent, order }));
        }
    }

    /// Starts the actor of an ended job, so that it takes input again.
    pub(super) fn reopen(&self, recovered: RecoveredJob) {
        let RecoveredJob { number, root, parent, job, .. } = recovered;
        let (id, job) = (job.id(), Box::new(job));
        let start = JobStart::Recovered { job, effects: Vec::new() };
        self.spawn(SpawnRequest { id, number, root, parent, start });
    }

    /// Stops a job, if it has handled every input that was sent to it.
    pub(super) fn stop_if_idle(&mut self, request: StopRequest, ctx: &mut Context<Self>) {
        let StopRequest { id, number, inputs_handled } = request;
        match self.route_table.remove_if_idle(id, number, inputs_handled) {
            Some(mailbox) => mailbox.send(JobInput::Close),
            None if inputs_handled.is_none() => self.remove_deleted(request, ctx),
            None => {}
        }
    }

    /// Passivates a job that only waits, if it has handled every input that was sent to it.
    pub(super) fn passivate(&mut self, request: PassivateRequest, ctx: &mut Context<Self>) {
        let PassivateRequest { inputs_handled, tree } = request;
        let Some((id, number)) = tree.members.first().map(|first| (first.id, first.number)) else {
            return;
        };
        // The job is in one of the two tables at any time.
        self.route_table.passivate(&tree);
        match self.route_table.remove_if_idle(id, number, Some(inputs_handled)) {
            Some(mailbox) => {
                mailbox.send(JobInput::Close);
                self.store_passivated(tree);
                self.set_due_timer(ctx);
            }
            None => self.route_table.activate(&tree),
        }
    }
}
