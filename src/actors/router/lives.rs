//! When a job takes input: its route is added when its actor starts, and removed when the actor
//! stops. A job with nothing left to do asks to stop. It is stopped if it has handled every input
//! that was sent to it: then its mailbox is empty and nothing more can come. Otherwise it stays and
//! handles the rest, and then asks again or goes on.

use super::Router;
use crate::actors::job::{JobActor, Spawn, Start};
use crate::actors::mail::{JobInput, Leave, Rest, RouterInput, ToChild};
use crate::actors::mailbox::Mailbox;
use crate::actors::routes::Live;
use crate::actors::steps_done::StepsDone;
use crate::engine::{Effect, Input};
use crate::journal::Recovered;
use actix::{Actor, Context};

impl Router {
    /// Starts a job actor on one of the arbiters and makes it reachable. The child jobs of a parent
    /// share an arbiter, so that their first dispatches reach the journal and the queue in the
    /// order of the list.
    pub(super) fn spawn(&self, spawn: Spawn) {
        let ways = &self.ways;
        let arbiters = &ways.mailboxes().arbiters;
        let Spawn { id, number, parent, .. } = spawn;
        let (child_of, definition) = (spawn.start.place(), spawn.start.definition().clone());
        // Where there are several arbiters, this is seldom the parent's own, which gathers the
        // results.
        let spread_by = parent.map_or(number, |parent| parent.wrapping_add(1));
        let arbiter = &arbiters[usize::try_from(spread_by).unwrap_or_default() % arbiters.len()];
        let (owned, steps_done) = (ways.clone(), StepsDone::default());
        let tells = steps_done.clone();
        let share = ways.common.memory.share(spawn.start.bytes());
        self.table.insert(id, || {
            let address = JobActor::start_in_arbiter(arbiter, move |_| {
                JobActor::new(owned, spawn, tells, share)
            });
            // The number of a job's inputs is bounded by their cause (see `mailbox`): it is never
            // sent one by `try_send`.
            let mailbox = Mailbox::new(address, usize::MAX, ways.common.job_kind.clone());
            Live { number, parent, place: child_of, definition, mailbox, steps_done }
        });
    }

    /// Starts a job from the journal. What it sends to other jobs goes through the router's
    /// mailbox, because those must have started first.
    pub(super) fn go_on(&self, recovered: Recovered) {
        let Recovered { number, root, parent, job, effects, orders } = recovered;
        let (to_parent, effects): (Vec<Effect>, Vec<Effect>) =
            effects.into_iter().partition(|effect| matches!(effect, Effect::TellParent(..)));
        let (id, place) = (job.id(), job.origin().parent);
        let start = Start::Recovered { job: Box::new(job), effects };
        self.spawn(Spawn { id, number, root, parent, start });
        let router = &self.ways.mailboxes().router;
        for effect in to_parent {
            if let Effect::TellParent(parent, ended) = effect {
                // Parents were started before their children.
                router.post(RouterInput::ToJob(
                    parent.job,
                    Input::ChildEnded { step: parent.step, index: parent.index, ended },
                ));
            }
        }
        for (order, (place, parent)) in
            orders.into_iter().filter_map(|order| Some((order, place.zip(parent)?)))
        {
            router.post(RouterInput::ToChild(ToChild { id, place, parent, order }));
        }
    }

    /// Starts the actor of an ended job, so that it takes input again.
    pub(super) fn revive(&self, recovered: Recovered) {
        let Recovered { number, root, parent, job, .. } = recovered;
        let (id, job) = (job.id(), Box::new(job));
        let start = Start::Recovered { job, effects: Vec::new() };
        self.spawn(Spawn { id, number, root, parent, start });
    }

    /// Stops a job, if it has handled every input that was sent to it.
    pub(super) fn let_go(&mut self, leave: Leave, ctx: &mut Context<Self>) {
        let Leave { id, number, heard } = leave;
        match self.table.take_out(id, number, heard) {
            Some(mailbox) => mailbox.post(JobInput::Close),
            None if heard.is_none() => self.delete_at_rest(leave, ctx),
            None => {}
        }
    }

    /// Passivates a job that only waits, if it has handled every input that was sent to it.
    pub(super) fn rest(&mut self, rest: Rest, ctx: &mut Context<Self>) {
        let Rest { heard, at_rest } = rest;
        let Some((id, number)) = at_rest.members.first().map(|first| (first.id, first.number))
        else {
            return;
        };
        // The job is in one of the two tables at any time.
        self.table.lay_down(&at_rest);
        match self.table.take_out(id, number, Some(heard)) {
            Some(mailbox) => {
                mailbox.post(JobInput::Close);
                self.keep_at_rest(at_rest);
                self.set_due_timer(ctx);
            }
            None => self.table.wake(&at_rest),
        }
    }
}
