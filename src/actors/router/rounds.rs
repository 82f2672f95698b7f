//! What every job is told: so many at a time. The next ones are told once all is committed that the
//! ones before have decided, so that whatever else is asked meanwhile waits for one part at most.

use super::Router;
use crate::actors::answer_on_drop::AnswerOnDrop;
use crate::actors::mail::JobInput;
use crate::faults;
use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use std::sync::Arc;
use tokio::sync::oneshot;

/// How many jobs are told at once.
const JOBS_AT_ONCE: usize = 1_000;

impl Router {
    /// Tells all jobs that take input now, in the order of their creation; `then` is done once all
    /// have dropped what they were given with it.
    pub(super) fn tell_all(
        &self,
        tell: impl Fn(Arc<AnswerOnDrop>) -> JobInput + 'static,
        then: impl FnOnce(&Router) + 'static,
        ctx: &mut Context<Router>,
    ) {
        let all = self.ways.routes.all_live();
        let round = async move {
            for some in all.chunks(JOBS_AT_ONCE) {
                faults::hit("router::part");
                let (answer, heard) = oneshot::channel();
                let done = AnswerOnDrop::new(answer);
                some.iter().for_each(|mailbox| mailbox.post(tell(done.clone())));
                drop(done);
                // It is answered when the last of them is dropped, whatever becomes of their
                // actors.
                let _ = heard.await;
            }
        };
        ctx.spawn(round.into_actor(self).map(move |(), router, _| then(router)));
    }
}
