//! Limits of jobs: a job claims its place with its creation, is refused one, or makes others give
//! way. A claim is at the gate at once, so that of two creations exactly one has the last place.
//! Nobody is cancelled for a job that is not committed.

use super::Router;
use super::job_claims::{PlaceKey, place_key};
use crate::actors::inputs::JobInput;
use actix::Context;
use engine::{
    ClaimState, ClaimedPlace, Definition, Demand, Input, JobId, Message, Operation,
    OperationRequest, Origin, StepClaim, StepIndex, Then,
};
use journal::JobNumber;
use std::sync::Arc;

/// Why a job is not created.
pub(super) enum ClaimRefusal {
    /// A key has no value, for this reason.
    Key(String),
    /// Others have the places of a limit that refuses whoever has to wait.
    Held {
        /// The jobs before it that may not be committed yet.
        pending: Vec<JobId>,
        /// The reason, for the client.
        reason: String,
    },
}

impl Router {
    /// Returns the place that a new job claims; `None`: its workflow has no limit, or it begins
    /// later and claims it then.
    pub(super) fn check_claim(
        &mut self,
        origin: &Origin,
        message: &Message,
    ) -> Result<Option<ClaimedPlace>, ClaimRefusal> {
        let definition = &origin.definition;
        let place = definition.claim_job_place(message).map_err(ClaimRefusal::Key)?;
        let Some(place) = place.filter(|_| !origin.begins_later()) else { return Ok(None) };
        let refuses = definition.limit.as_ref().is_some_and(|limit| limit.then == Then::Refuse);
        match refuses.then(|| self.find_refusal(definition, &place)).flatten() {
            Some(refusal) => Err(refusal),
            None => Ok(Some(place)),
        }
    }

    /// Returns the refusal of a job for which there is no place; `None`: there is one.
    fn find_refusal(
        &mut self,
        definition: &Arc<Definition>,
        place: &ClaimedPlace,
    ) -> Option<ClaimRefusal> {
        self.load_limits();
        self.gate.configure(definition, false);
        let key = place_key(definition, place);
        let gate = self.gate.gate();
        if !gate.has_room_for_key(&key.0, &key.1) {
            let reason = format!(
                "limit {} has no room for \"{}\": as many other keys are in use as the setting \
                 limits.keys_max allows, and workflow \"{}\" refuses a job that would have to wait",
                key.0,
                key.1,
                definition.full_name()
            );
            return Some(ClaimRefusal::Held { pending: Vec::new(), reason });
        }
        let max = gate.setting(&key.0)?.concurrency?;
        let holds = |number: JobNumber| gate.holds(number, StepIndex::JOB);
        let held = gate.held(&key.0, &key.1);
        let waiting = self.job_claims.of_place(&key).filter(|(number, _)| !holds(*number)).count();
        if held.saturating_add(u32::try_from(waiting).unwrap_or(u32::MAX)) < max {
            return None;
        }
        let first = self.job_claims.of_place(&key).next();
        let before =
            self.job_claims.of_place(&key).take(usize::try_from(max).unwrap_or(usize::MAX));
        let pending = before.filter(|(_, claim)| !claim.is_committed);
        let pending = pending.map(|(_, claim)| claim.id).collect();
        let holder = first.map(|(_, claim)| claim.id).or_else(|| gate.find_holder(&key.0, &key.1));
        let who = holder.map_or_else(|| "others".to_owned(), |id| format!("job {id}"));
        let of_key = if key.1.is_empty() { String::new() } else { format!(" for \"{}\"", key.1) };
        let reason = format!(
            "limit {}{of_key} has no place: {who} has it, and workflow \"{}\" refuses a job that \
             would have to wait",
            key.0,
            definition.full_name()
        );
        Some(ClaimRefusal::Held { pending, reason })
    }

    /// Claims the place of a job that is being created.
    pub(super) fn reserve(
        &mut self,
        number: JobNumber,
        origin: &Origin,
        place: ClaimedPlace,
        ctx: &mut Context<Self>,
    ) {
        let is_delayed = origin.delayed_until().is_some();
        let claim = StepClaim {
            ticket: StepClaim::TICKET_OF_NEW_JOB,
            since: origin.created,
            places: [place].into(),
            state: if is_delayed { ClaimState::Delayed } else { ClaimState::Waiting },
        };
        let demand = Demand { claim, made: origin.created, priority: 0 };
        self.take_job_demand((number, origin.id), &origin.definition, &demand, false);
        self.advance_gate(ctx);
    }

    /// Takes what a job wants, after the commit.
    pub(super) fn handle_job_demand(
        &mut self,
        (number, id): (JobNumber, JobId),
        definition: &Arc<Definition>,
        demand: Option<&Demand>,
    ) {
        let place = match demand {
            None => {
                self.job_claims.remove(number);
                let full_name = |limit: &Arc<str>| definition.full_limit_name(limit);
                self.gate.gate.demand((number, id, StepIndex::JOB), None, full_name);
                None
            }
            // What a new job claims is at the gate since its creation.
            Some(demand) if demand.claim.ticket == StepClaim::TICKET_OF_NEW_JOB => {
                match self.job_claims.commit(number) {
                    Some(place) => Some(place),
                    None => self.take_job_demand((number, id), definition, demand, true),
                }
            }
            Some(demand) => self.take_job_demand((number, id), definition, demand, true),
        };
        if let Some(place) = place {
            self.displace(&place);
        }
    }

    /// Adds a claim of a job, which is at the gate unless the job begins later.
    pub(super) fn take_job_demand(
        &mut self,
        (number, id): (JobNumber, JobId),
        definition: &Arc<Definition>,
        demand: &Demand,
        is_committed: bool,
    ) -> Option<PlaceKey> {
        if demand.claim.state != ClaimState::Delayed {
            self.gate.demand((number, id, StepIndex::JOB), definition, None, Some(demand));
        }
        self.job_claims.add((number, id), definition, demand, is_committed)
    }

    /// Cancels the jobs that give way to newer ones, at all places.
    pub(super) fn displace_everywhere(&mut self) {
        for place in self.job_claims.places() {
            self.displace(&place);
        }
    }

    /// Cancels the jobs that give way to newer ones at a place.
    fn displace(&mut self, place: &PlaceKey) {
        let gate = self.gate.gate();
        let concurrency = gate.setting(&place.0).and_then(|setting| setting.concurrency);
        let holds = |number: JobNumber| gate.holds(number, StepIndex::JOB);
        for displaced in self.job_claims.displace(place, concurrency, holds) {
            let reason = displaced.reason(&place.0).into();
            let cancel = OperationRequest::from(Operation::Cancel { reason });
            let input = Input::Operate(cancel);
            self.send_to_job(displaced.job, JobInput::Engine { input, ack: None });
        }
    }
}
