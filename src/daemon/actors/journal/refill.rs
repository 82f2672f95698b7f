//! Sets cells that were computed anew from the records of their jobs.

use super::JournalActor;
use crate::actors::inputs::CellRefillWrite;

impl JournalActor {
    /// Sets the cells, and answers once they are set. Decisions that wait for their commit come
    /// after this, and with them newer cells.
    pub(super) fn refill_cells(&mut self, write: CellRefillWrite) {
        let CellRefillWrite { definition, refills, answer } = write;
        let result = if self.commit_schedule.is_blocked() || self.detect_loss() {
            Err("the journal cannot be written".to_owned())
        } else {
            let result = self.store.refill_cells(&definition, &refills);
            result.map_err(|error| {
                let text = error.to_string();
                if !error.remedy().is_retryable() {
                    self.handle_fatal(&error);
                }
                text
            })
        };
        // An error means that the receiver was dropped.
        let _ = answer.send(result);
    }
}
