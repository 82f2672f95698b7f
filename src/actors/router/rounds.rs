//! Inputs for every job, so many at a time. The next ones are sent once all is committed that the
//! ones before have decided, so that whatever else comes meanwhile waits for one part at most.

use super::Router;
use crate::actors::answer_on_drop::AnswerOnDrop;
use crate::actors::mail::{JobInput, RouterInput};
use crate::bus::Address;
use crate::engine::Definition;
use crate::faults;
use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use std::sync::Arc;
use tokio::sync::oneshot;

/// How many jobs are notified at once.
const JOBS_AT_ONCE: usize = 1_000;

impl Router {
    /// Sends an input to all jobs that take input now, in the order of their creation, and then to
    /// the passivated ones whose definition has the queue, which are activated for it; `then` runs
    /// once all have dropped the latch that they were given.
    pub(super) fn tell_all(
        &self,
        queue: &Address,
        tell: impl Fn(Arc<AnswerOnDrop>) -> JobInput + 'static,
        then: impl FnOnce(&Router) + 'static,
        ctx: &mut Context<Router>,
    ) {
        let ways = self.ways.clone();
        let uses = |definition: &Definition| {
            let mut steps = definition.sending_steps();
            steps.any(|step| ways.buses.address(definition, step) == *queue)
        };
        let mut all = ways.routes.all_live();
        all.extend(self.at_rest(|jobs| uses(&jobs.definition)));
        let round = async move {
            for some in all.chunks(JOBS_AT_ONCE) {
                faults::hit("router::part");
                let (answer, heard) = oneshot::channel();
                let done = AnswerOnDrop::new(answer);
                // Through the router: some may be passivated by now.
                for id in some {
                    let told = Box::new(tell(done.clone()));
                    ways.mailboxes().router.post(RouterInput::ForJob(*id, told));
                }
                drop(done);
                // It is answered when the last of them is dropped, whatever becomes of their
                // actors.
                let _ = heard.await;
            }
        };
        ctx.spawn(round.into_actor(self).map(move |(), router, _| then(router)));
    }
}
