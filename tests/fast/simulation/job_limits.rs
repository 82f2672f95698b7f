//! Limits of jobs in the simulation: the workflows of some seeds share one. No more jobs than it
//! has places hold it at any commit, who gives way does so for a newer job, as its workflow says,
//! and who is refused is so because others have the places. That no place is leaked shows in that
//! everything comes to its end.

use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use workflow_manager::engine::{
    ClaimState, Definition, Job, JobId, JobLimit, JobState, LimitDefinition, Millis, Then,
};
use workflow_manager::journal::JobNumber;

const NAME: &str = "jobs";

/// For so long the manager may not know yet that a job has ended.
const END_LAG_NS: i64 = 1_000_000_000;

/// Gives the workflows of one seed in three a limit of their jobs, which they share.
pub(super) fn add_job_limits(seed: u64, definitions: &mut [Arc<Definition>]) {
    // Other workflows are what they would be without this.
    let mut rng = Rng::with_seed(seed ^ 0x6a6f_6273);
    let mut refusals = Rng::with_seed(seed ^ 0x7265_6675);
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
        let refuses = refusals.bool();
        let then = if refuses { Then::Refuse } else { then };
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
    /// The jobs that claim a place or have claimed one.
    claimants: BTreeMap<JobNumber, Claimant>,
}

/// A job that claims a place, or has claimed one.
struct Claimant {
    holds: bool,
    /// When it was seen to claim none any more; `None`: it does.
    left_ns: Option<i64>,
}

impl JobLimitWatch {
    /// Takes what a job is after a commit.
    ///
    /// # Errors
    ///
    /// Says that the limit is exceeded.
    pub(super) fn take(&mut self, number: JobNumber, job: &Job, now_ns: i64) -> Result<(), String> {
        match job.claim().filter(|_| !job.state().is_ended()) {
            Some(claim) => {
                let holds = claim.state == ClaimState::Holding;
                self.claimants.insert(number, Claimant { holds, left_ns: None });
            }
            None => {
                if let Some(claimant) = self.claimants.get_mut(&number) {
                    claimant.holds = false;
                    claimant.left_ns.get_or_insert(now_ns);
                }
            }
        }
        let holders = self.claimants.iter().filter(|(_, claimant)| claimant.holds);
        let holders: Vec<&JobNumber> = holders.map(|(number, _)| number).collect();
        let max = places(job.definition());
        if holders.len() > max {
            return Err(format!("jobs {holders:?} hold a limit of {max} places"));
        }
        Ok(())
    }

    /// Returns why a job of this workflow should not have been refused; `None`: rightly.
    pub(super) fn find_wrong_refusal(
        &self,
        definition: &Definition,
        now_ns: i64,
    ) -> Option<&'static str> {
        let then = definition.limit.as_ref().map(|limit| limit.then);
        let is_known = |claimant: &&Claimant| {
            claimant.left_ns.is_none_or(|left_ns| now_ns < left_ns.saturating_add(END_LAG_NS))
        };
        let claimants = self.claimants.values().filter(is_known).count();
        if then != Some(Then::Refuse) {
            Some("its workflow refuses none")
        } else if claimants < places(definition) {
            Some("there was a place")
        } else {
            None
        }
    }
}

/// Returns how many places the limit has.
fn places(definition: &Definition) -> usize {
    let limit = definition.find_limit(NAME);
    limit.and_then(|limit| limit.concurrency).map_or(usize::MAX, |max| max as usize)
}

/// Returns whether a workflow refuses jobs for which there is no place.
pub(super) fn refuses(definition: &Definition) -> bool {
    definition.limit.as_ref().is_some_and(|limit| limit.then == Then::Refuse)
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
