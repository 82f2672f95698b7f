//! What a decision wants of the gate, for all its steps.

use super::JobActor;
use crate::actors::inputs::{JobDemands, TakenPlaces};
use engine::StepDemands;

impl JobActor {
    /// Returns what tells the gate the demands of a decision, and which spare places it has taken;
    /// `None`: there is nothing to tell.
    pub(super) fn job_demands(
        &self,
        demands: StepDemands,
        taken: TakenPlaces,
    ) -> Option<Box<JobDemands>> {
        let job = self.job().filter(|_| !demands.is_empty() || !taken.is_empty())?;
        Some(Box::new(JobDemands {
            id: self.id,
            number: self.number,
            definition: job.definition().clone(),
            graph: job.origin().graph,
            demands,
            taken,
        }))
    }
}
