//! Broadcasts: inputs for every job, in batches. The next batch is sent after the commit of all
//! that the jobs of the last one have decided. So other inputs wait behind one batch at most.

use super::Router;
use crate::actors::completion_latch::CompletionLatch;
use crate::actors::inputs::{JobInput, RouterInput};
use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use base::faults;
use bus::Address;
use engine::Definition;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The number of jobs in a batch.
const JOBS_PER_BATCH: usize = 1_000;

impl Router {
    /// Sends an input to all jobs that take input now, in the order of their creation, and then to
    /// the passivated jobs whose definition uses the queue, which are activated for it. Runs
    /// `on_completion` once all jobs have dropped the latch in their input.
    pub(super) fn broadcast(
        &self,
        queue: &Address,
        make_input: impl Fn(Arc<CompletionLatch>) -> JobInput + 'static,
        on_completion: impl FnOnce(&Router) + 'static,
        ctx: &mut Context<Router>,
    ) {
        let env = self.env.clone();
        let uses_queue = |definition: &Definition| {
            let mut steps = definition.sending_steps();
            steps.any(|step| env.buses.address(definition, step) == *queue)
        };
        let mut ids = env.routes.ids_by_creation();
        ids.extend(self.passivated_ids(|tree| uses_queue(&tree.definition)));
        let send_batches = async move {
            for batch in ids.chunks(JOBS_PER_BATCH) {
                faults::hit("router::part");
                let (sender, completion) = oneshot::channel();
                let done = CompletionLatch::new(sender);
                // The inputs are sent through the router, because jobs can be passivated meanwhile.
                for id in batch {
                    let input = Box::new(make_input(done.clone()));
                    env.router.send(RouterInput::ForwardToJob(*id, input));
                }
                drop(done);
                // The latch completes when its last clone is dropped, even if an actor panics.
                let _ = completion.await;
            }
        };
        let send_batches = send_batches.into_actor(self);
        ctx.spawn(send_batches.map(move |(), router, _| on_completion(router)));
    }
}
