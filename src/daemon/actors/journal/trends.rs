//! Stores the buckets of trends.

use super::JournalActor;
use crate::actors::inputs::TrendWrite;

impl JournalActor {
    /// Stores buckets of trends, and answers once they are stored. Jobs come first: while the
    /// journal has to wait, buckets are dropped, and the next minute counts what was in them.
    pub(super) fn store_trends(&mut self, write: TrendWrite) {
        let TrendWrite { trends, forgotten, stored } = write;
        if self.commit_schedule.is_blocked() || self.detect_loss() {
            return;
        }
        match self.store.store_trends(&trends, &forgotten) {
            // An error means that the receiver was dropped.
            Ok(()) => drop(stored.send(())),
            Err(error) if error.remedy().is_retryable() => {
                tracing::debug!(%error, "trends cannot be stored now");
            }
            Err(error) if error.is_fenced() => self.handle_fatal(&error),
            // No job depends on trends. Whether the journal can be trusted, the next commit says.
            Err(error) => tracing::warn!(%error, "trends cannot be stored"),
        }
    }
}
