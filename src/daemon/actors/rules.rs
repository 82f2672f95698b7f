//! The rules by which job actors decide. They are the engine's, except in tests, which can replace
//! them as they can replace the buses.

use engine::{Context, Decision, Input, Job, Rejected};
use journal::RecoveredJob;

/// The rules that decide for the jobs of a manager.
pub trait Rules: Send + Sync {
    /// Decides what follows from an input, and applies the decision to the job.
    ///
    /// # Errors
    ///
    /// Returns an error if the input changes nothing.
    fn handle_input(
        &self,
        job: &mut Job,
        input: Input,
        ctx: &Context<'_>,
    ) -> Result<Decision, Rejected>;

    /// Adjusts a job from the journal before it continues: after a start, after it is reopened or
    /// activated, or after a panic.
    fn adjust_recovered(&self, recovered: RecoveredJob) -> RecoveredJob;
}

/// The rules of the engine.
pub struct Engine;

impl Rules for Engine {
    fn handle_input(
        &self,
        job: &mut Job,
        input: Input,
        ctx: &Context<'_>,
    ) -> Result<Decision, Rejected> {
        job.handle_input(input, ctx)
    }

    fn adjust_recovered(&self, recovered: RecoveredJob) -> RecoveredJob {
        recovered
    }
}
