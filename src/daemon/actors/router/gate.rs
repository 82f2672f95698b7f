//! The router's gate: it owns the limits, takes what steps want of them, and sends admissions to
//! the jobs. The rules are those of [`engine::gate`].

use super::Router;
use crate::actors::inputs::{ControlChange, JobDemands, JobInput};
use crate::actors::passivation::PassivatedTree;
use actix::{AsyncContext, Context};
use engine::{Admission, Input, StepIndex};
use journal::{JobNumber, RecoveredJob};
use std::sync::Arc;
use std::time::Duration;

/// The longest delay of the timer. For what is due later, the timer is set again when it fires.
const TIMER_DELAY_MAX: Duration = Duration::from_secs(3600);

impl Router {
    /// Tells the gate what all jobs want that were rebuilt at the start.
    pub(super) fn restore_gate(&mut self, jobs: &[RecoveredJob], passivated: &[PassivatedTree]) {
        self.load_limits();
        let now = self.gate.clock.now();
        let recovered_definitions = jobs.iter().map(|recovered| recovered.job.definition());
        let passivated_definitions = passivated.iter().map(|tree| &tree.definition);
        for definition in recovered_definitions.chain(passivated_definitions) {
            self.gate.configure(definition, false);
        }
        for mark in std::mem::take(&mut self.gate.marks) {
            self.gate.gate.restore_rate(&mark, now);
        }
        for RecoveredJob { number, job, .. } in jobs {
            for (step, demand) in job.demands_at_start() {
                let definition = job.definition();
                if step == StepIndex::JOB {
                    self.take_job_demand((*number, job.id()), definition, &demand, true);
                    continue;
                }
                let demand =
                    self.env.buses.restored_demand(definition, job.graph().step(step), demand);
                let address = self.env.buses.find_address(definition, job.graph().step(step));
                self.gate.demand((*number, job.id(), step), definition, address, Some(&demand));
            }
        }
        for tree in passivated {
            for member in &tree.members {
                let graph = &tree.definition.graphs[usize::from(member.graph)];
                for (step, demand) in &member.demands {
                    if *step == StepIndex::JOB {
                        let job = (member.number, member.id);
                        self.take_job_demand(job, &tree.definition, demand, true);
                        continue;
                    }
                    let definition = graph.step(*step);
                    let demand = demand.clone();
                    let demand =
                        self.env.buses.restored_demand(&tree.definition, definition, demand);
                    let address = self.env.buses.find_address(&tree.definition, definition);
                    let job = (member.number, member.id, *step);
                    self.gate.demand(job, &tree.definition, address, Some(&demand));
                }
            }
        }
    }

    /// Takes what decisions of jobs want, in their order.
    pub(super) fn handle_demands(&mut self, all: Vec<JobDemands>, ctx: &mut Context<Self>) {
        self.load_limits();
        all.into_iter().for_each(|demands| self.take_demands_of_job(demands, ctx));
        self.advance_gate(ctx);
    }

    fn take_demands_of_job(&mut self, demands: JobDemands, ctx: &mut Context<Self>) {
        let JobDemands { id, number, definition, graph, demands, taken } = demands;
        self.gate.configure_of_job(&definition);
        // Nobody is admitted to what was taken before the demands of it are told.
        taken.into_iter().for_each(|place| self.gate.gate.settle(&place.settle()));
        for (step, demand) in demands {
            if step == StepIndex::JOB {
                // A newer job displaces those that wait, but none for whom there is room by now.
                self.advance_gate(ctx);
                self.handle_job_demand((number, id), &definition, demand.as_ref());
            } else {
                let (step, place) = ((number, id, step), (&definition, graph));
                self.gate.demand_of_job(step, place, demand.as_ref(), &self.env.buses);
            }
        }
    }

    /// Takes that nothing follows from the taking of a spare place.
    pub(super) fn settle_unused(&mut self, limit: &str, ctx: &mut Context<Self>) {
        self.gate.gate.settle(limit);
        self.advance_gate(ctx);
    }

    /// Puts a control in force, or ends it. A pause is answered once all jobs have sent what they
    /// had decided to send before.
    pub(super) fn change_control(&mut self, change: ControlChange, ctx: &mut Context<Self>) {
        let ControlChange { key, control, answer } = change;
        let is_pause = control.is_some() && key.kind.is_pause();
        self.gate.set_control(&key, control);
        self.env.pauses.replace(self.gate.pauses(&self.env.buses));
        self.advance_gate(ctx);
        // An error means that the receiver was dropped.
        let on_completion = move |_: &Router| drop(answer.send(Ok(())));
        let ids = if is_pause { self.env.routes.ids_by_creation() } else { Vec::new() };
        self.broadcast_to(ids, JobInput::AwaitCommit, on_completion, ctx);
    }

    /// Forgets a job that was deleted.
    pub(super) fn forget_at_gate(&mut self, number: JobNumber, ctx: &mut Context<Self>) {
        self.job_claims.remove(number);
        if !self.gate.gate.is_empty() {
            self.gate.gate.forget(number);
            self.advance_gate(ctx);
        }
    }

    /// Applies the limits of definitions that were loaded.
    pub(super) fn reload_limits(&mut self, ctx: &mut Context<Self>) {
        self.load_limits();
        self.advance_gate(ctx);
    }

    pub(super) fn load_limits(&mut self) {
        let current = self.env.definitions.current();
        if self.gate.definitions.as_ref().is_some_and(|known| Arc::ptr_eq(known, &current)) {
            return;
        }
        for definition in current.values() {
            self.gate.configure(definition, true);
        }
        self.gate.definitions = Some(current);
    }

    /// Admits whom the limits allow, and sets the timer for the next time.
    pub(super) fn advance_gate(&mut self, ctx: &mut Context<Self>) {
        let now = self.gate.clock.now();
        let over = self.gate.end_controls(now);
        if !over.is_empty() {
            self.env.pauses.replace(self.gate.pauses(&self.env.buses));
        }
        for control in over {
            tracing::info!(
                kind = control.key.kind.as_str(),
                subject = %control.key,
                "what an operator had changed has ended by itself"
            );
        }
        for Admission { id, step, ticket, marks, .. } in self.gate.gate.advance(now) {
            let input = Input::Admitted { step, ticket, marks };
            self.send_to_job(id, JobInput::Engine { input, ack: None });
        }
        let next_due = self.gate.next_due();
        let Some(due) = self.gate.timer.adjust(next_due, ctx) else { return };
        let delay = now.duration_until(due).min(TIMER_DELAY_MAX);
        let handle = ctx.run_later(delay, |router, ctx| {
            router.gate.timer.clear();
            router.advance_gate(ctx);
        });
        self.gate.timer.set(due, handle);
    }
}
