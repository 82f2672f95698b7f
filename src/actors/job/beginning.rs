//! How a job actor begins: with a new job, with one from the journal, or anew after a panic.

use super::JobActor;
use super::life::Life;
use super::start::Start;
use crate::actors::callers::{CallRefusal, Refused};
use crate::actors::mail::{ANY_ROUND, JobInput, Leave, Outgoing, RouterInput};
use crate::clock;
use crate::engine::{
    Caller, Cause, ChildEnd, ChildOutcome, Context, Effect, Input, Job, Origin, StepIndex,
    Timestamp,
};
use crate::journal::{NewJob, Recovered};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl JobActor {
    pub(super) fn begin(&mut self, start: Start) {
        let now = clock::now();
        match start {
            Start::New { origin, message, caller, release } => {
                let context = Context { now, limits: &self.limits() };
                let (owned, waits) = ((*origin).clone(), caller.clone());
                let Ok((job, decision)) = catch_unwind(AssertUnwindSafe(|| {
                    Job::create_for(owned, message, waits, &context)
                })) else {
                    return self.never_began(&origin, caller, release);
                };
                self.life = Life::Live(job);
                let created = NewJob { origin, root: self.root, parent: self.parent };
                self.append(decision, Some(created), release);
            }
            Start::Recovered { job, effects } => self.resume(*job, effects),
        }
    }

    /// Handles a panic before the job was journaled. A client gets no answer; a parent or caller is
    /// told.
    fn never_began(&self, origin: &Origin, caller: Option<Caller>, release: Vec<Outgoing>) {
        tracing::error!(job = %self.id, "the creation of the job panicked");
        let leave = Leave { id: self.id, number: self.number, heard: None };
        self.ways.mailboxes().router.post(RouterInput::Leave(vec![leave]));
        if let Some(parent) = origin.parent {
            let outcome =
                ChildOutcome::Failed(Cause::of_job("the creation of the child job panicked"));
            Outgoing::ToParent(parent, ChildEnd { child: self.id, round: ANY_ROUND, outcome })
                .release(&self.ways);
        }
        for outgoing in release {
            if let Outgoing::Ack(ack) = outgoing {
                let refusal = CallRefusal {
                    kind: "creation_panicked",
                    reason: "the creation of the job panicked".to_owned(),
                };
                Refused {
                    definition: origin.definition.clone(),
                    id: self.id,
                    caller: caller.clone(),
                    ack,
                }
                .tell(&refusal, &self.ways);
            }
        }
    }

    /// Goes on with the job as it was rebuilt after a panic, and hears what was set aside
    /// meanwhile.
    pub(super) fn rebuilt(
        &mut self,
        mut recovered: Recovered,
        abandon: Option<Arc<str>>,
        set_aside: Vec<JobInput>,
    ) {
        let place = recovered.job.origin().parent.filter(|_| recovered.job.state().is_ended());
        let confirmed = confirmed_among(&set_aside, recovered.job.origin().created);
        recovered.effects.retain(|effect| match effect {
            Effect::Dispatch { step, attempt, .. } => !confirmed.contains(&(*step, *attempt)),
            Effect::StartChild { .. }
            | Effect::TellChild { .. }
            | Effect::TellParent(..)
            | Effect::AnswerCaller { .. } => true,
        });
        self.resume(recovered.job, recovered.effects);
        match abandon {
            Some(reason) => {
                // The job panics at an order from its parent, so the parent hears that it failed.
                if let (Some(place), false) = (place, recovered.orders.is_empty()) {
                    let ended = ChildEnd {
                        child: self.id,
                        round: ANY_ROUND,
                        outcome: ChildOutcome::Failed(Cause::of_job(&reason)),
                    };
                    Outgoing::ToParent(place, ended).release(&self.ways);
                }
                self.take(Input::Abandon(reason), Vec::new());
            }
            None => {
                for order in recovered.orders {
                    self.hear_or_set_aside(JobInput::Take {
                        input: Input::Order(order),
                        ack: None,
                    });
                }
            }
        }
        set_aside.into_iter().for_each(|input| self.hear_or_set_aside(input));
    }

    /// Goes on with a job from the journal. The entries behind its effects are committed.
    fn resume(&mut self, job: Job, effects: Vec<Effect>) {
        self.life = Life::Live(job);
        self.count();
        self.take_places();
        self.steps_now().into_iter().for_each(|told| told.release(&self.ways));
        let (ways, now) = (self.ways.clone(), clock::now());
        effects
            .into_iter()
            .filter_map(|effect| self.outgoing(effect, now))
            .for_each(|outgoing| outgoing.release(&ways));
    }
}

/// The messages of the job that was created then which the broker has confirmed meanwhile: they are
/// not sent again.
fn confirmed_among(set_aside: &[JobInput], created: Timestamp) -> Vec<(StepIndex, u32)> {
    let confirmed = |input: &JobInput| {
        let JobInput::OfMessage { created: of, input } = input else { return None };
        let Input::Confirmed { step, attempt } = input else { return None };
        (*of == created).then_some((*step, *attempt))
    };
    set_aside.iter().filter_map(confirmed).collect()
}
