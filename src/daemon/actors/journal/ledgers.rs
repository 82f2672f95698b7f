//! Stores the ledgers of schedules.

use super::JournalActor;
use crate::actors::inputs::JournalInput;
use actix::{AsyncContext, Context};
use journal::StoredLedger;
use tokio::sync::oneshot;

impl JournalActor {
    /// Stores or deletes ledgers, and answers once they are stored. While the disk is full, that is
    /// tried again.
    pub(super) fn store_ledgers(
        &mut self,
        ledgers: Vec<StoredLedger>,
        response: oneshot::Sender<()>,
        ctx: &mut Context<Self>,
    ) {
        match self.store.store_ledgers(&ledgers) {
            // An error means that the receiver was dropped.
            Ok(()) => drop(response.send(())),
            Err(error) if error.remedy().is_retryable() => {
                ctx.run_later(self.env.settings.full_retry.0, move |actor, ctx| {
                    actor.handle_input(JournalInput::StoreLedgers(ledgers, response), ctx)
                });
            }
            Err(error) => self.handle_fatal(&error),
        }
    }
}
