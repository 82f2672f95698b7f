//! What a job wants of the gate: the places of limits that it and its steps claim and hold. It
//! follows from the state of the job alone, so a restart counts waiters and holders from the jobs.

use super::conditions::JobScope;
use super::entry::{Entry, JobEntry, StepEntry};
use super::expression::{DecisionBudget, Expression};
use super::failure::fail_job;
use super::id::StepIndex;
use super::input::{Context, Rejected};
use super::job::Job;
use super::limit::{ClaimState, ClaimedPlace, Demand, StepClaim, StepDemands};
use super::state::JobState;
use smallvec::SmallVec;
use std::sync::Arc;

impl Job {
    /// Returns what the job ([`StepIndex::JOB`]) and its steps want of the gate. A job that has
    /// not waited at it, and none of whose steps has, wants nothing, and costs nothing here.
    pub fn demands(&self) -> Vec<(StepIndex, Demand)> {
        self.wanted_claims().map(|(step, claim)| (step, self.demand(step, claim))).collect()
    }

    /// Returns the tickets of the claims that the job and its steps have at the gate. With each
    /// change of a claim its ticket changes.
    pub(super) fn wanted_tickets(&self) -> SmallVec<[(StepIndex, u64); 2]> {
        self.wanted_claims().map(|(step, claim)| (step, claim.ticket)).collect()
    }

    fn demand(&self, step: StepIndex, claim: &StepClaim) -> Demand {
        let (made, priority) = match step {
            StepIndex::JOB => (self.claim.as_deref().map(|job_claim| job_claim.made), None),
            step => (None, self.graph().step(step).priority),
        };
        let made = made.unwrap_or(claim.since);
        Demand { claim: claim.clone(), made, priority: priority.unwrap_or(0) }
    }

    /// Returns the claims that the job and its steps have at the gate.
    fn wanted_claims(&self) -> impl Iterator<Item = (StepIndex, &StepClaim)> {
        let all = std::iter::once(StepIndex::JOB).chain(self.claimants.iter().copied());
        all.filter_map(|step| Some((step, self.wanted_claim(step)?)))
    }

    /// Returns the claim that a step has at the gate, or the job itself: that of its place, until
    /// it ends.
    fn wanted_claim(&self, step: StepIndex) -> Option<&StepClaim> {
        if step == StepIndex::JOB {
            let is_running = self.state == JobState::Running;
            let claim = self.claim()?;
            return (claim.state != ClaimState::Waiting || is_running).then_some(claim);
        }
        let claim = self.step(step).claim.as_deref()?;
        let is_wanted = match claim.state {
            ClaimState::Delayed => false,
            ClaimState::Waiting => self.is_under_way(),
            ClaimState::Holding | ClaimState::Resending => {
                self.accepts_replies() && self.is_awaited(step)
            }
        };
        is_wanted.then_some(claim)
    }

    /// Returns what the job and its steps want of the gate after a restart. A message that no
    /// broker has confirmed is sent once more, which the gate must admit, unless the bus of the
    /// step is part of this process ([`Demand::without_resending`]).
    pub fn demands_at_start(&self) -> Vec<(StepIndex, Demand)> {
        let mut demands = self.demands();
        for (step, demand) in &mut demands {
            if *step != StepIndex::JOB
                && demand.claim.state == ClaimState::Holding
                && !self.step(*step).confirmed
            {
                demand.claim.state = ClaimState::Resending;
            }
        }
        demands
    }

    /// Returns the steps that want something else of the gate than when they had the tickets in
    /// `previous`.
    pub(super) fn changed_demands(&self, previous: &[(StepIndex, u64)]) -> StepDemands {
        let steps = previous.iter().map(|(step, _)| *step);
        let ended = steps.filter(|step| self.wanted_claim(*step).is_none());
        let changed = self
            .wanted_claims()
            .filter(|(step, claim)| !previous.contains(&(*step, claim.ticket)))
            .map(|(step, claim)| (step, Some(self.demand(step, claim))));
        ended.map(|step| (step, None)).chain(changed).collect()
    }

    /// Evaluates which places of its limits the next attempt of a step claims.
    ///
    /// # Errors
    ///
    /// Returns in one sentence why a key has no value.
    pub(super) fn claim_places(&self, step: StepIndex) -> Result<Arc<[ClaimedPlace]>, String> {
        let definition = &self.origin.definition;
        let limits = &self.graph().step(step).limits;
        let is_keyless = |name: &Arc<str>| {
            definition
                .find_limit(name)
                .is_some_and(|limit| limit.key.is_none() && limit.fair.is_none())
        };
        if limits.iter().all(is_keyless) {
            return Ok(self.graph().keyless_places(step).clone());
        }
        let mut budget = DecisionBudget::default();
        let mut evaluate = |limit: &str, key: &str, expression: &Option<Expression>| {
            let Some(expression) = expression else { return Ok(None) };
            let scope = JobScope { job: self, step };
            expression.evaluate_key(&scope, &mut budget).map(Some).map_err(|reason| {
                format!(
                    "`{key}: {}` of its limit \"{limit}\" cannot be evaluated: {reason}",
                    expression.text()
                )
            })
        };
        let mut places = Vec::new();
        for name in limits {
            let Some(limit) = definition.find_limit(name) else { continue };
            let key: Option<Arc<str>> = evaluate(name, "key", &limit.key)?;
            let fair = evaluate(name, "fair", &limit.fair)?;
            places.push(ClaimedPlace { limit: name.clone(), key, fair });
        }
        Ok(places.into())
    }

    /// Returns the entry with which the confirmed message of a step is sent again: at once, or as
    /// soon as its limits allow.
    pub(super) fn resend_entry(&self, step: StepIndex) -> StepEntry {
        match self.step(step).claim {
            Some(_) => StepEntry::ResendClaimed,
            None => StepEntry::Unconfirmed,
        }
    }

    /// Decides that what a step has claimed is sent, or that the job begins.
    ///
    /// # Errors
    ///
    /// Returns an error if it is not wanted any more.
    pub(super) fn decide_admitted(
        &self,
        step: StepIndex,
        ticket: u64,
        ctx: &Context<'_>,
    ) -> Result<Vec<Entry>, Rejected> {
        if step == StepIndex::JOB {
            return self.decide_job_admitted(ticket);
        }
        let run = self.steps.get(step.as_usize()).ok_or(Rejected::UnknownStep)?;
        let claim = run.claim.as_ref().filter(|claim| claim.ticket == ticket);
        match claim.ok_or(Rejected::Void)?.state {
            ClaimState::Waiting if self.is_under_way() => Ok(self.begin_attempt(step, ctx)),
            ClaimState::Holding | ClaimState::Resending
                if self.accepts_replies() && self.is_awaited(step) && !run.confirmed =>
            {
                Ok(vec![Entry::Step(step, StepEntry::Unconfirmed)])
            }
            ClaimState::Delayed
            | ClaimState::Waiting
            | ClaimState::Holding
            | ClaimState::Resending => Err(Rejected::Void),
        }
    }

    fn decide_job_admitted(&self, ticket: u64) -> Result<Vec<Entry>, Rejected> {
        let is_current = |claim: &StepClaim| claim.ticket == ticket;
        let is_wanted =
            self.state == JobState::Running && self.waiting_claim().is_some_and(is_current);
        if is_wanted { Ok(vec![Entry::Job(JobEntry::Admitted)]) } else { Err(Rejected::Void) }
    }

    /// Returns the entry with which the job claims the place of its workflow's limit, or fails
    /// because a key has no value; `None`: it has no limit. A child job belongs to its root job.
    pub(super) fn claim_job_place(&self) -> Option<Entry> {
        if self.origin.parent.is_some() {
            return None;
        }
        match self.origin.definition.claim_job_place(&self.message) {
            Ok(place) => place.map(|place| Entry::Job(JobEntry::Claimed { place })),
            Err(reason) => Some(fail_job(reason.into(), None)),
        }
    }
}
