//! The timer of an actor for what is due next.

use actix::{Actor, AsyncContext, Context, SpawnHandle};
use engine::Timestamp;

/// The active timer, with the time that it was set for; `None`: no timer is active. It can fire
/// earlier, and is then set again.
#[derive(Default)]
pub(super) struct DueTimer(Option<(Timestamp, SpawnHandle)>);

impl DueTimer {
    /// Cancels the active timer unless it was set for `due`. Returns the time for which the caller
    /// must start a timer, if any.
    pub(super) fn adjust<A: Actor<Context = Context<A>>>(
        &mut self,
        due: Option<Timestamp>,
        ctx: &mut Context<A>,
    ) -> Option<Timestamp> {
        if due == self.0.as_ref().map(|(set_for, _)| *set_for) {
            return None;
        }
        if let Some((_, handle)) = self.0.take() {
            ctx.cancel_future(handle);
        }
        due
    }

    /// Stores the timer that was started for this time.
    pub(super) fn set(&mut self, due: Timestamp, handle: SpawnHandle) {
        self.0 = Some((due, handle));
    }

    /// Records that the timer has fired.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}
