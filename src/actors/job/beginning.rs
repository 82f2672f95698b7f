//! How a job actor starts: with a new job, with one from the journal, or anew after a panic.

use super::JobActor;
use super::life::Life;
use super::start::Start;
use crate::actors::call_check::{CallRefusal, RefusedCall};
use crate::actors::mail::{ANY_ROUND, JobInput, Leave, Outgoing, RouterInput};
use crate::engine::{
    Caller, Cause, ChildEnd, ChildOutcome, Context, Effect, Input, Job, Origin, StepIndex,
};
use crate::journal::{NewJob, Recovered};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl JobActor {
    pub(super) fn begin(&mut self, start: Start) {
        let now = self.clock.now();
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

    /// Handles a panic before the job was journaled. A client gets no response; a parent or caller
    /// is notified.
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
                RefusedCall {
                    definition: origin.definition.clone(),
                    id: self.id,
                    caller: caller.clone(),
                    ack,
                }
                .tell(&refusal, &self.ways);
            }
        }
    }

    /// Goes on with the job as it was rebuilt after a panic, and handles what was stashed
    /// meanwhile.
    pub(super) fn rebuilt(
        &mut self,
        mut recovered: Recovered,
        abandon: Option<Arc<str>>,
        set_aside: Vec<JobInput>,
    ) {
        let place = recovered.job.origin().parent.filter(|_| recovered.job.state().is_ended());
        let confirmed = confirmed_among(&set_aside, &recovered.job);
        recovered.effects.retain(|effect| match effect {
            Effect::Dispatch { step, .. } => !confirmed.contains(step),
            Effect::StartChild { .. }
            | Effect::TellChild { .. }
            | Effect::TellParent(..)
            | Effect::AnswerCaller { .. } => true,
        });
        self.resume(recovered.job, recovered.effects);
        match abandon {
            Some(reason) => {
                // The job panics at the order from its parent: so the parent must be notified that
                // it failed.
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

    /// Goes on with a job from the journal. Its effects may leave at once: their entries are
    /// committed.
    fn resume(&mut self, job: Job, effects: Vec<Effect>) {
        self.life = Life::Live(job);
        self.count();
        self.draw_on_budget();
        self.count_bytes();
        self.steps_now().into_iter().for_each(|outgoing| outgoing.release(&self.ways));
        let (ways, now) = (self.ways.clone(), self.clock.now());
        effects
            .into_iter()
            .filter_map(|effect| self.outgoing(effect, now))
            .for_each(|outgoing| outgoing.release(&ways));
    }
}

/// Returns the steps of the job whose last message the broker has confirmed meanwhile. These
/// messages are not sent again.
fn confirmed_among(set_aside: &[JobInput], job: &Job) -> Vec<StepIndex> {
    let confirmed = |input: &JobInput| {
        let JobInput::OfMessage { created, input } = input else { return None };
        let Input::Confirmed { step, dispatch, .. } = input else { return None };
        let is_last =
            *created == job.origin().created && *dispatch == Some(job.step(*step).dispatch);
        is_last.then_some(*step)
    };
    set_aside.iter().filter_map(confirmed).collect()
}
