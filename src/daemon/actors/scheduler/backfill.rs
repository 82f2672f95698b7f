//! Starts the jobs of slots that have passed, because a client asks for it.

use super::{Cause, Scheduler, SchedulerEnv, receive_created, to_stored};
use crate::actors::client_response::RequestError;
use crate::actors::schedule_requests::{Backfill, BackfilledSlot};
use actix::{AsyncContext, Context};
use base::clock;
use engine::{Definition, Schedule, Timestamp};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How many jobs are being created at once.
const CREATIONS_AT_ONCE: usize = 100;

/// How long a request waits while a change of its schedule is under way.
const BUSY_DELAY: Duration = Duration::from_millis(20);

/// What a backfill is answered with.
type Response = oneshot::Sender<Result<Vec<BackfilledSlot>, RequestError>>;

impl SchedulerEnv {
    /// Starts the jobs of these slots, unless they exist.
    async fn start_slots(
        &self,
        (schedule, definition): (Arc<Schedule>, Arc<Definition>),
        slots: &[Timestamp],
    ) -> Result<Vec<BackfilledSlot>, RequestError> {
        let mut done = Vec::with_capacity(slots.len());
        for part in slots.chunks(CREATIONS_AT_ONCE) {
            let request = |slot: &Timestamp| {
                let job = schedule.job_id(*slot);
                (*slot, job, self.request_job(&schedule, definition.clone(), job, *slot))
            };
            let requests: Vec<_> = part.iter().map(request).collect();
            for (slot, job, created) in requests {
                done.push(BackfilledSlot { slot, job, existed: receive_created(created).await? });
            }
        }
        Ok(done)
    }
}

impl Scheduler {
    /// Starts the jobs of slots that have passed. They do not count as earlier jobs of the slots to
    /// come.
    pub(super) fn backfill(
        &mut self,
        name: &str,
        backfill: Backfill,
        response: Response,
        ctx: &mut Context<Self>,
    ) {
        let name: Arc<str> = name.into();
        let Some(entry) = self.entries.get(&name) else {
            // An error means that the receiver was dropped.
            let _ = response.send(Err(RequestError::NotFound));
            return;
        };
        if entry.is_busy {
            ctx.run_later(BUSY_DELAY, move |actor, ctx| {
                actor.backfill(&name, backfill, response, ctx)
            });
            return;
        }
        let env = self.env.clone();
        let parts = (entry.schedule.clone(), entry.definition.clone());
        let Backfill { slots, reason, by } = backfill;
        let ledger =
            entry.ledger.with_backfill(&slots, clock::now(), by.as_deref(), reason.as_deref());
        let stored = to_stored(&name, &ledger);
        let work = async move {
            match env.start_slots(parts, &slots).await {
                Ok(done) => {
                    env.store(vec![stored]).await?;
                    // An error means that the receiver was dropped.
                    let _ = response.send(Ok(done));
                    Ok(())
                }
                Err(error) => {
                    let problem = format!("a backfill has stopped: {error:?}");
                    let _ = response.send(Err(error));
                    Err(RequestError::Failed(problem))
                }
            }
        };
        self.change(&name, ledger, work, Cause::Backfill, ctx);
    }
}
