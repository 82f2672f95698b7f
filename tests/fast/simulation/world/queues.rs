//! Queues that were missing and are declared anew.

use super::World;
use std::sync::Arc;
use workflow_manager::engine::StepIndex;
use workflow_manager::journal::JobRecords;

impl World {
    /// A queue that was missing is there again, and empty: the journal has no message in it as
    /// confirmed.
    pub(super) fn check_declared(&mut self, queue: &Arc<str>) {
        let running = self.journal.reader.load_running_jobs(0, 1_000).unwrap_or_default();
        let mut missed = Vec::new();
        for (_, id) in running {
            let Some(found) = self.find_committed(id) else { continue };
            let of_queue = |step: &StepIndex| {
                let step = found.job.graph().step(*step);
                step.bus.is_none() && step.queue == *queue
            };
            missed.extend(found.job.confirmed_steps().find(of_queue).map(|step| (id, step)));
        }
        for (id, step) in missed {
            self.violate(format!(
                "queue {queue} is declared anew, and the journal has a message of {id} in it as \
                 confirmed, of step {}",
                step.0
            ));
        }
    }
}
