//! Sets cells that were computed anew from the records of their jobs.

use super::ManagerHandle;
use crate::actors::inputs::{CellRefillWrite, JournalInput};
use engine::Definition;
use journal::{CellRefill, JobNumber};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::oneshot;

impl ManagerHandle {
    /// Sets cells of jobs of a workflow that were computed anew. Returns the jobs that went on
    /// meanwhile, or do not exist any more, and are left as they are.
    ///
    /// # Errors
    ///
    /// Returns the reason if the journal cannot be written now.
    pub async fn refill_cells(
        &self,
        definition: Arc<Definition>,
        refills: Vec<CellRefill>,
    ) -> Result<BTreeSet<JobNumber>, String> {
        let (answer, receiver) = oneshot::channel();
        let write = CellRefillWrite { definition, refills, answer };
        self.0.journal.send(JournalInput::RefillCells(Box::new(write)));
        receiver.await.unwrap_or_else(|_| Err("the manager is stopping".to_owned()))
    }
}
