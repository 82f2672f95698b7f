//! The rules that decide for jobs, as their actors call them. They are the engine's, unless a
//! manager is started with others: like the bus, they are a replaceable part.

use engine::{Context, Decision, Input, Job, Rejected};
use journal::RecoveredJob;

/// What decides for the jobs of a manager.
pub trait Rules: Send + Sync {
    /// Decides what follows from an input, and applies it to the job.
    ///
    /// # Errors
    ///
    /// The input changes nothing.
    fn handle_input(
        &self,
        job: &mut Job,
        input: Input,
        ctx: &Context<'_>,
    ) -> Result<Decision, Rejected>;

    /// Adjusts a job from the journal before it goes on: after a start, after its end, or after a
    /// panic.
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
