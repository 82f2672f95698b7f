//! Broadcasts: inputs for every job, in batches. Each batch is sent only after the commit of what
//! the jobs of the last batch have decided. So other inputs wait behind at most one batch.

use super::Router;
use crate::actors::completion_latch::CompletionLatch;
use crate::actors::inputs::{JobInput, RouterInput};
use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use base::faults;
use bus::Address;
use engine::{Definition, JobId};
use std::sync::Arc;
use tokio::sync::oneshot;

/// The number of jobs in a batch.
const JOBS_PER_BATCH: usize = 1_000;

impl Router {
    /// Sends an input to all jobs that take input now, in the order of their creation. Passivated
    /// jobs whose definition uses the queue follow, and are activated for the input. Calls
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
        self.broadcast_to(ids, make_input, on_completion, ctx);
    }

    /// Sends an input to jobs that take input now, and calls `on_completion` as
    /// [`broadcast`](Self::broadcast) does.
    pub(super) fn broadcast_to(
        &self,
        ids: Vec<JobId>,
        make_input: impl Fn(Arc<CompletionLatch>) -> JobInput + 'static,
        on_completion: impl FnOnce(&Router) + 'static,
        ctx: &mut Context<Router>,
    ) {
        let env = self.env.clone();
        let send_batches = async move {
            for batch in ids.chunks(JOBS_PER_BATCH) {
                faults::hit("router::part");
                let (sender, completion) = oneshot::channel();
                let latch = CompletionLatch::new(sender);
                // The inputs are sent through the router, because jobs can be passivated meanwhile.
                for id in batch {
                    let input = Box::new(make_input(latch.clone()));
                    env.router.send(RouterInput::ForwardToJob(*id, input));
                }
                drop(latch);
                // The latch completes when its last clone is dropped, even if an actor panics.
                let _ = completion.await;
            }
        };
        let send_batches = send_batches.into_actor(self);
        ctx.spawn(send_batches.map(move |(), router, _| on_completion(router)));
    }
}
