//! What every job is told: so many at a time. The next ones are told once all is committed that the
//! ones before have decided, so that whatever else is asked meanwhile waits for one part at most.

use super::Router;
use crate::actors::answer_on_drop::AnswerOnDrop;
use crate::actors::mail::{JobInput, RouterInput};
use crate::bus::Address;
use crate::engine::Definition;
use crate::faults;
use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use std::sync::Arc;
use tokio::sync::oneshot;

/// How many jobs are told at once.
const JOBS_AT_ONCE: usize = 1_000;

impl Router {
    /// Tells all jobs that take input now, in the order of their creation, and then those at rest
    /// whose definition has the queue, which are brought back for it; `then` is done once all have
    /// dropped what they were given with it.
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
                // By the router: some may rest by now.
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
