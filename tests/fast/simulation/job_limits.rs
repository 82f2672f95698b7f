//! Limits of jobs in the simulation: the workflows of some seeds share one. No more jobs than it
//! has places hold it at any commit, and who gives way does so for a newer job, as its workflow
//! says. That no place is leaked shows in that everything comes to its end.

use fastrand::Rng;
use std::collections::BTreeSet;
use std::sync::Arc;
use workflow_manager::engine::{
    ClaimState, Definition, Job, JobId, JobLimit, JobState, LimitDefinition, Millis, Then,
};
use workflow_manager::journal::JobNumber;

const NAME: &str = "jobs";

/// Gives the workflows of one seed in three a limit of their jobs, which they share.
pub(super) fn add_job_limits(seed: u64, definitions: &mut [Arc<Definition>]) {
    // Other workflows are what they would be without this.
    let mut rng = Rng::with_seed(seed ^ 0x6a6f_6273);
    if rng.u32(0..3) > 0 {
        return;
    }
    let limit = LimitDefinition {
        name: NAME.into(),
        rate: None,
        concurrency: Some(rng.u32(1..=2)),
        key: None,
        fair: None,
    };
    for definition in definitions {
        let then = [Then::Wait, Then::Replace, Then::Latest][rng.usize(0..3)];
        let is_delayed = then == Then::Latest && rng.bool();
        let delay = is_delayed.then(|| Millis(rng.u64(1..=2_000)));
        let mut limits = definition.limits.clone();
        limits.push(limit.clone());
        let limit = Some(JobLimit { name: NAME.into(), then, delay, wait_at_most: None });
        *definition = Arc::new(Definition { limits, limit, ..(**definition).clone() });
    }
}

/// What is known of the limit from what is committed.
#[derive(Default)]
pub(super) struct JobLimitWatch {
    holders: BTreeSet<JobNumber>,
}

impl JobLimitWatch {
    /// Takes what a job is after a commit.
    ///
    /// # Errors
    ///
    /// Says that the limit is exceeded.
    pub(super) fn take(&mut self, number: JobNumber, job: &Job) -> Result<(), String> {
        let holds = job.claim().is_some_and(|claim| claim.state == ClaimState::Holding);
        if holds && !job.state().is_ended() {
            self.holders.insert(number);
        } else {
            self.holders.remove(&number);
        }
        let limit = job.definition().find_limit(NAME);
        let max = limit.and_then(|limit| limit.concurrency).unwrap_or(u32::MAX);
        if self.holders.len() > max as usize {
            return Err(format!("jobs {:?} hold a limit of {max} places", self.holders));
        }
        Ok(())
    }
}

/// Returns the id of the newer job that a job was cancelled for; `None`: it was not.
pub(super) fn newer_job(job: &Job) -> Option<String> {
    let reason = job.reason().filter(|_| job.state() == JobState::Cancelled)?;
    let verb = match job.definition().limit.as_ref()?.then {
        Then::Replace => "replaced",
        Then::Latest => "superseded",
        Then::Wait | Then::Refuse => return None,
    };
    let (id, _) = reason.strip_prefix(verb)?.strip_prefix(" by the newer job ")?.split_once(',')?;
    Some(id.to_owned())
}

/// Returns why a job had not to give way to a newer one. `was_begun_anew`: whether a job was
/// retried or rerun, with which it claims its place anew.
pub(super) fn find_wrong_displacement(
    job: &Job,
    newer: &Job,
    was_begun_anew: impl Fn(JobId) -> bool,
) -> Option<&'static str> {
    let then = job.definition().limit.as_ref().map(|limit| limit.then);
    let has_begun = || job.steps().any(|(_, run)| run.dispatch > 0) && !was_begun_anew(job.id());
    let is_older = newer.origin().created < job.origin().created;
    if newer.definition().name != job.definition().name {
        Some("it is of another workflow")
    } else if is_older && !was_begun_anew(newer.id()) {
        Some("it is older")
    } else if then == Some(Then::Latest) && has_begun() {
        Some("the other one had begun")
    } else {
        None
    }
}
