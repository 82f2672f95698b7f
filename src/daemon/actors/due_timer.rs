//! The timer of an actor for what is due next.

use actix::{Actor, AsyncContext, Context, SpawnHandle};
use engine::Timestamp;

/// The timer that runs, if one does, and the time that it is for.
#[derive(Default)]
pub(super) struct DueTimer(Option<(Timestamp, SpawnHandle)>);

impl DueTimer {
    /// Cancels the timer if it is for another time. Returns the time for which one must be started.
    pub(super) fn adjust<A: Actor<Context = Context<A>>>(
        &mut self,
        due: Option<Timestamp>,
        ctx: &mut Context<A>,
    ) -> Option<Timestamp> {
        if due == self.0.as_ref().map(|(due, _)| *due) {
            return None;
        }
        if let Some((_, timer)) = self.0.take() {
            ctx.cancel_future(timer);
        }
        due
    }

    /// Keeps a timer that was started for this time.
    pub(super) fn set(&mut self, due: Timestamp, timer: SpawnHandle) {
        self.0 = Some((due, timer));
    }

    /// Notes that the timer has fired.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}
