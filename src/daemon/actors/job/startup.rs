//! Starts the job of an actor: a new one, or one from the journal. After a panic, resumes the job
//! that was rebuilt.

use super::JobActor;
use super::lifecycle::Lifecycle;
use super::spawn::JobStart;
use crate::actors::call_check::{CallRefusal, RefusedCall};
use crate::actors::inputs::{ANY_ROUND, JobInput, Outgoing, RouterInput, StopRequest, TakenPlaces};
use crate::actors::spare_places::DecisionSpare;
use engine::{
    Caller, Cause, ChildEnd, ChildOutcome, Context, Effect, Input, Job, Origin, StepDemands,
    StepIndex,
};
use journal::{NewJob, RecoveredJob};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl JobActor {
    /// Starts the job of the actor.
    pub(super) fn start_job(&mut self, start: JobStart) {
        let now = self.clock.now();
        match start {
            JobStart::New { origin, message, caller, outgoing } => {
                let (limits, pauses) = (self.limits(), self.env.pauses.current());
                let env = self.env.clone();
                let spare = DecisionSpare::new(&env.spare_places, &env.router);
                let context = Context {
                    now,
                    limits: &limits,
                    pauses: pauses.as_deref(),
                    spare: Some(&spare),
                };
                let (job_origin, job_caller) = ((*origin).clone(), caller.clone());
                let Ok((job, decision)) = catch_unwind(AssertUnwindSafe(|| {
                    Job::create_for_caller(job_origin, message, job_caller, &context)
                })) else {
                    return self.handle_creation_panic(&origin, caller, outgoing);
                };
                self.lifecycle = Lifecycle::Running(job);
                let new_job = NewJob { origin, root: self.root, parent: self.parent };
                let taken = spare.into_taken();
                self.append(decision, Some(new_job), outgoing, (Vec::new(), taken));
            }
            JobStart::Recovered { job, effects } => self.resume(*job, effects),
        }
    }

    /// Handles a panic during the creation of the job, which is not in the journal. The parent or
    /// the sender of the call is notified. The sender of the response to a client is dropped, and
    /// the client gets an error.
    fn handle_creation_panic(
        &self,
        origin: &Origin,
        caller: Option<Caller>,
        outgoing: Vec<Outgoing>,
    ) {
        tracing::error!(job = %self.id, "the creation of the job panicked");
        let request = StopRequest { id: self.id, number: self.number, inputs_handled: None };
        self.env.router.send(RouterInput::StopJobs(vec![request]));
        if let Some(parent) = origin.parent {
            let outcome =
                ChildOutcome::Failed(Cause::from_job("the creation of the child job panicked"));
            Outgoing::NotifyParent(parent, ChildEnd { child: self.id, round: ANY_ROUND, outcome })
                .send(&self.env.outbox);
        }
        for effect in outgoing {
            if let Outgoing::Ack(ack) = effect {
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
                .send_refusal(&refusal, &self.env.call_env);
            }
        }
    }

    /// Resumes the job after it was rebuilt, and handles the inputs that were stashed meanwhile. If
    /// `abandon` has a reason, the job fails first.
    pub(super) fn handle_rebuilt(
        &mut self,
        mut recovered: RecoveredJob,
        abandon: Option<Arc<str>>,
        stash: Vec<JobInput>,
    ) {
        let ended_child_of =
            recovered.job.origin().parent.filter(|_| recovered.job.state().is_ended());
        let confirmed_steps = confirmed_in_stash(&stash, &recovered.job);
        recovered.effects.retain(|effect| match effect {
            Effect::Dispatch { step, .. } => !confirmed_steps.contains(step),
            Effect::StartChild { .. }
            | Effect::OrderChild { .. }
            | Effect::NotifyParent(..)
            | Effect::AnswerCaller { .. } => true,
        });
        // The gate may have admitted what the job has missed by its panic.
        let (job, buses) = (&recovered.job, &self.env.buses);
        let demands: StepDemands = job
            .demands_at_start()
            .into_iter()
            .map(|(step, demand)| {
                if step == StepIndex::JOB {
                    return (step, Some(demand));
                }
                let definition = job.graph().step(step);
                (step, Some(buses.restored_demand(job.definition(), definition, demand)))
            })
            .collect();
        self.resume(recovered.job, recovered.effects);
        if let Some(demands) = self.job_demands(demands, TakenPlaces::new()) {
            self.env.router.send(RouterInput::Demands(vec![*demands]));
        }
        match abandon {
            Some(reason) => {
                // The missed orders of the parent are not handled, because one of them may cause
                // the panics. The parent is notified that the child job failed.
                if let Some(parent_item) = ended_child_of
                    && !recovered.missed_orders.is_empty()
                {
                    let end = ChildEnd {
                        child: self.id,
                        round: ANY_ROUND,
                        outcome: ChildOutcome::Failed(Cause::from_job(&reason)),
                    };
                    Outgoing::NotifyParent(parent_item, end).send(&self.env.outbox);
                }
                self.handle_engine_input(Input::Abandon(reason), Vec::new());
            }
            None => {
                for order in recovered.missed_orders {
                    self.handle_or_stash(JobInput::Engine {
                        input: Input::Order(order),
                        ack: None,
                    });
                }
            }
        }
        stash.into_iter().for_each(|input| self.handle_or_stash(input));
    }

    /// Resumes a job from the journal. Its effects are sent at once, because their entries are
    /// already committed.
    fn resume(&mut self, job: Job, effects: Vec<Effect>) {
        self.lifecycle = Lifecycle::Running(job);
        self.update_state_gauge();
        self.update_child_permits();
        self.update_memory_share();
        self.listed_state_update().into_iter().for_each(|outgoing| outgoing.send(&self.env.outbox));
        let (env, now) = (self.env.clone(), self.clock.now());
        effects
            .into_iter()
            .filter(|effect| !self.must_pass_gate(effect))
            .filter_map(|effect| self.to_outgoing(effect, now))
            .for_each(|outgoing| outgoing.send(&env.outbox));
    }
}

impl JobActor {
    /// Returns whether an effect sends a message once more that the gate must admit first.
    fn must_pass_gate(&self, effect: &Effect) -> bool {
        let (Some(job), Effect::Dispatch { step, .. }) = (self.job(), effect) else { return false };
        let definition = job.graph().step(*step);
        job.step(*step).claim().is_some()
            && !self.env.buses.keeps_messages(job.definition(), definition)
    }
}

/// Returns the steps of the job whose latest message is confirmed by a stashed input. These
/// messages are not sent again.
fn confirmed_in_stash(stash: &[JobInput], job: &Job) -> Vec<StepIndex> {
    let confirmed_step = |input: &JobInput| {
        let JobInput::MessageUpdate { job_created, input } = input else { return None };
        let Input::Confirmed { step, dispatch, .. } = input else { return None };
        let is_latest =
            *job_created == job.origin().created && *dispatch == Some(job.step(*step).dispatch);
        is_latest.then_some(*step)
    };
    stash.iter().filter_map(confirmed_step).collect()
}
