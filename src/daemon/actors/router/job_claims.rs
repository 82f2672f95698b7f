//! The claims of jobs on places of limits, by their places: who was first, and who gives way to
//! whom. The gate admits them; what it does not know is the limit of a workflow.

use engine::{ClaimedPlace, Definition, Demand, JobId, Then, Timestamp};
use journal::JobNumber;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The full name of a limit, with a key of it; empty: it has none.
pub(super) type PlaceKey = (Arc<str>, Arc<str>);

/// The order of claims: who claimed first. The number tells jobs of the same time apart.
type Turn = (Timestamp, JobNumber);

/// The claim of a job.
pub(super) struct JobClaim {
    pub(super) id: JobId,
    workflow: Arc<str>,
    then: Then,
    /// Whether it is committed.
    pub(super) is_committed: bool,
    /// Whether the job was told to give way.
    is_giving_way: bool,
}

/// A job that gives way to a newer one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Displaced {
    pub(super) job: JobId,
    pub(super) newer: JobId,
    pub(super) then: Then,
}

/// The claims of all jobs.
#[derive(Default)]
pub(super) struct JobClaims {
    places: HashMap<PlaceKey, BTreeMap<Turn, JobClaim>>,
    jobs: HashMap<JobNumber, (PlaceKey, Turn)>,
}

/// Returns the place with the full name of its limit.
pub(super) fn place_key(definition: &Definition, place: &ClaimedPlace) -> PlaceKey {
    (definition.full_limit_name(&place.limit), place.key.clone().unwrap_or_default())
}

impl JobClaims {
    /// Adds the claim of a job, or replaces it. Returns its place; `None`: the demand has none.
    pub(super) fn add(
        &mut self,
        (number, id): (JobNumber, JobId),
        definition: &Definition,
        demand: &Demand,
        is_committed: bool,
    ) -> Option<PlaceKey> {
        let place = place_key(definition, demand.claim.places.first()?);
        self.remove(number);
        let turn = (demand.made, number);
        let claim = JobClaim {
            id,
            workflow: definition.full_name().into(),
            then: definition.limit.as_ref().map_or(Then::Wait, |limit| limit.then),
            is_committed,
            is_giving_way: false,
        };
        self.places.entry(place.clone()).or_default().insert(turn, claim);
        self.jobs.insert(number, (place.clone(), turn));
        Some(place)
    }

    /// Marks the claim of a job as committed. Returns its place if it was not; `None`: it was, or
    /// there is none.
    pub(super) fn commit(&mut self, number: JobNumber) -> Option<PlaceKey> {
        let (place, turn) = self.jobs.get(&number)?;
        let claim = self.places.get_mut(place)?.get_mut(turn)?;
        (!std::mem::replace(&mut claim.is_committed, true)).then(|| place.clone())
    }

    /// Removes the claim of a job, if it has one.
    pub(super) fn remove(&mut self, number: JobNumber) {
        let Some((place, turn)) = self.jobs.remove(&number) else { return };
        let Some(claims) = self.places.get_mut(&place) else { return };
        claims.remove(&turn);
        if claims.is_empty() {
            self.places.remove(&place);
        }
    }

    /// Returns the jobs that claim a place, the first one first.
    pub(super) fn of_place(
        &self,
        place: &PlaceKey,
    ) -> impl Iterator<Item = (JobNumber, &JobClaim)> {
        let claims = self.places.get(place).into_iter().flatten();
        claims.map(|((_, number), claim)| (*number, claim))
    }

    /// Returns all places.
    pub(super) fn places(&self) -> Vec<PlaceKey> {
        self.places.keys().cloned().collect()
    }

    /// Returns the jobs that give way at a place to newer ones of their workflow, and marks them.
    /// `concurrency`: how many may hold it; `None`: any number. `holds`: whether a job does.
    pub(super) fn displace(
        &mut self,
        place: &PlaceKey,
        concurrency: Option<u32>,
        holds: impl Fn(JobNumber) -> bool,
    ) -> Vec<Displaced> {
        let Some(claims) = self.places.get_mut(place) else { return Vec::new() };
        let max = concurrency.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
        // By workflow: the newest job that makes others give way, and how many claims follow.
        let mut newest: HashMap<Arc<str>, (JobId, Then)> = HashMap::new();
        let mut counts: HashMap<Arc<str>, usize> = HashMap::new();
        let mut displaced = Vec::new();
        for ((_, number), claim) in claims.iter_mut().rev() {
            // A claim that is not committed may be lost.
            if claim.is_giving_way || !claim.is_committed {
                continue;
            }
            let count = counts.entry(claim.workflow.clone()).or_default();
            *count += 1;
            let gives_way = match newest.get(&claim.workflow) {
                Some((_, Then::Replace)) => *count > max,
                Some((_, Then::Latest)) => !holds(*number),
                Some((_, Then::Wait | Then::Refuse)) | None => false,
            };
            if let Some((newer, then)) = newest.get(&claim.workflow).filter(|_| gives_way) {
                claim.is_giving_way = true;
                displaced.push(Displaced { job: claim.id, newer: *newer, then: *then });
            }
            if !gives_way {
                newest.entry(claim.workflow.clone()).or_insert((claim.id, claim.then));
            }
        }
        displaced
    }
}

impl Displaced {
    /// Returns the reason for which the job is cancelled.
    pub(super) fn reason(&self, limit: &str) -> String {
        let newer = self.newer;
        match self.then {
            Then::Latest => format!("superseded by the newer job {newer}, at limit {limit}"),
            Then::Wait | Then::Refuse | Then::Replace => {
                format!("replaced by the newer job {newer}, at limit {limit}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{ClaimState, JobLimit, StepClaim};

    const HOLDER: JobNumber = 1;

    fn id(number: JobNumber) -> JobId {
        JobId::from_call(&[&number.to_be_bytes()])
    }

    /// Adds the claim of a job of a workflow that uses the limit so. It was made at the time of its
    /// number, and waits since then.
    fn add(claims: &mut JobClaims, number: JobNumber, workflow: (&str, Then), is_committed: bool) {
        add_since(claims, number, workflow, number, is_committed);
    }

    /// As [`add`]; it waits since `since`.
    fn add_since(
        claims: &mut JobClaims,
        number: JobNumber,
        (name, then): (&str, Then),
        since: i64,
        is_committed: bool,
    ) {
        let limit = JobLimit { name: "l".into(), then, delay: None, wait_at_most: None };
        let definition = Definition { limit: Some(limit), ..Definition::new(name, Vec::new()) };
        let place = ClaimedPlace { limit: "l".into(), key: None, fair: None };
        let (since, state) = (Timestamp(since), ClaimState::Waiting);
        let claim = StepClaim { ticket: 2, since, places: [place].into(), state };
        let demand = Demand { claim, made: Timestamp(number), priority: 0 };
        claims.add((number, id(number)), &definition, &demand, is_committed);
    }

    fn displace(claims: &mut JobClaims) -> Vec<(JobId, JobId)> {
        let place = ("l".into(), "".into());
        let displaced = claims.displace(&place, Some(1), |number| number == HOLDER);
        displaced.into_iter().map(|displaced| (displaced.job, displaced.newer)).collect()
    }

    #[test]
    fn who_is_replaced_is_the_oldest_of_the_workflow_and_only_for_a_committed_one() {
        let mut claims = JobClaims::default();
        let replace = ("w", Then::Replace);
        add(&mut claims, HOLDER, replace, true);
        add(&mut claims, 2, ("other", Then::Wait), true);
        assert!(displace(&mut claims).is_empty(), "there is room");
        add(&mut claims, 3, replace, false);
        assert!(displace(&mut claims).is_empty(), "it may be lost");
        assert!(claims.commit(3).is_some() && claims.commit(3).is_none());
        assert_eq!(displace(&mut claims), [(id(HOLDER), id(3))]);
        assert!(displace(&mut claims).is_empty(), "it is told once");
        add(&mut claims, 4, replace, true);
        assert_eq!(displace(&mut claims), [(id(3), id(4))]);
        for number in [HOLDER, 3, 4, 2] {
            claims.remove(number);
        }
        assert!(claims.places().is_empty());
    }

    #[test]
    fn a_claim_that_may_be_lost_counts_for_nobody() {
        let mut claims = JobClaims::default();
        let replace = ("w", Then::Replace);
        add(&mut claims, HOLDER, replace, true);
        add(&mut claims, 2, replace, true);
        add(&mut claims, 3, replace, false);
        let place = ("l".into(), "".into());
        assert!(claims.displace(&place, Some(2), |_| true).is_empty());
        claims.commit(3);
        let displaced = claims.displace(&place, Some(2), |_| true);
        assert_eq!(displaced.len(), 1);
        assert_eq!((displaced[0].job, displaced[0].newer), (id(HOLDER), id(3)));
    }

    #[test]
    fn who_is_superseded_waits_and_is_older() {
        let mut claims = JobClaims::default();
        let latest = ("w", Then::Latest);
        for number in [HOLDER, 2, 3] {
            add(&mut claims, number, latest, true);
        }
        add(&mut claims, 4, ("w", Then::Wait), true);
        add(&mut claims, 5, ("w", Then::Refuse), true);
        assert!(displace(&mut claims).is_empty(), "the newest asks for nothing");
        claims.remove(4);
        claims.remove(5);
        assert_eq!(displace(&mut claims), [(id(2), id(3))], "the holder goes on");
    }

    #[test]
    fn the_end_of_a_delay_makes_no_job_newer() {
        let mut claims = JobClaims::default();
        for number in [2, 3] {
            add(&mut claims, number, ("w", Then::Latest), true);
        }
        add_since(&mut claims, 2, ("w", Then::Latest), 9, true);
        assert_eq!(displace(&mut claims), [(id(2), id(3))]);
    }
}
