//! Inputs for every job, so many at a time. The next ones are sent once all is committed that the
//! ones before have decided, so that whatever else comes meanwhile waits for one part at most.

use super::Router;
use crate::actors::completion_latch::CompletionLatch;
use crate::actors::inputs::{JobInput, RouterInput};
use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use base::faults;
use bus::Address;
use engine::Definition;
use std::sync::Arc;
use tokio::sync::oneshot;

/// How many jobs are notified at once.
const JOBS_AT_ONCE: usize = 1_000;

impl Router {
    /// Sends an input to all jobs that take input now, in the order of their creation, and then to
    /// the passivated ones whose definition has the queue, which are activated for it; `then` runs
    /// once all have dropped the latch that they were given.
    pub(super) fn broadcast(
        &self,
        queue: &Address,
        make_input: impl Fn(Arc<CompletionLatch>) -> JobInput + 'static,
        then: impl FnOnce(&Router) + 'static,
        ctx: &mut Context<Router>,
    ) {
        let env = self.env.clone();
        let uses = |definition: &Definition| {
            let mut steps = definition.sending_steps();
            steps.any(|step| env.buses.address(definition, step) == *queue)
        };
        let mut all = env.routes.ids_by_creation();
        all.extend(self.passivated_ids(|jobs| uses(&jobs.definition)));
        let sending = async move {
            for chunk in all.chunks(JOBS_AT_ONCE) {
                faults::hit("router::part");
                let (answer, completed) = oneshot::channel();
                let done = CompletionLatch::new(answer);
                // Through the router: some may be passivated by now.
                for id in chunk {
                    let input = Box::new(make_input(done.clone()));
                    env.router.send(RouterInput::ForwardToJob(*id, input));
                }
                drop(done);
                // It is answered when the last of them is dropped, whatever becomes of their
                // actors.
                let _ = completed.await;
            }
        };
        ctx.spawn(sending.into_actor(self).map(move |(), router, _| then(router)));
    }
}
