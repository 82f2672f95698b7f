//! Evaluates the conditions of a job's steps, within the cost budgets of one decision.
//!
//! A `when` is evaluated when its step is about to start. A `cancelWhen` is evaluated again only
//! after something that it reads has changed: its result depends on nothing else.

use super::definition::Dependency;
use super::entry::{AffectedSteps, Entry};
use super::expression::{DecisionBudget, Expression, Scope, ScopeStep};
use super::id::StepIndex;
use super::job::Job;
use super::json::Message;
use super::state::StepState;
use std::collections::BTreeSet;

/// The pending evaluations of one decision, and the cost budgets for them. `when` and `cancelWhen`
/// have separate budgets: a costly `cancelWhen` must not make a `when` fail.
#[derive(Default)]
pub(super) struct PendingConditions {
    when_budget: DecisionBudget,
    cancel_when_budget: DecisionBudget,
    /// The steps whose `cancelWhen` reads something that has changed since its last evaluation.
    stale: BTreeSet<StepIndex>,
}

impl Job {
    /// Marks the steps as stale whose `cancelWhen` reads something that `entries` have changed.
    pub(super) fn mark_stale(&self, entries: &[Entry], pending: &mut PendingConditions) {
        let has_cancel_when = |step: &StepIndex| self.graph().step(*step).cancel_when.is_some();
        for entry in entries {
            match entry.affected_steps() {
                AffectedSteps::None => {}
                AffectedSteps::All => {
                    pending.stale.extend(self.graph().indices().filter(has_cancel_when))
                }
                AffectedSteps::One(changed_step) => {
                    let reads_it = |step: &StepIndex| self.reads_step(*step, changed_step);
                    pending.stale.extend(self.graph().indices().filter(reads_it));
                }
            }
        }
    }

    /// Returns whether the `cancelWhen` of `step` reads `other`: by its name, or in the input if
    /// `step` depends on it.
    fn reads_step(&self, step: StepIndex, other: StepIndex) -> bool {
        let definition = self.graph().step(step);
        definition.cancel_when.as_ref().is_some_and(|condition| {
            let is_dependency = || definition.depends.contains(&Dependency::Step(other));
            condition.reads_step(&self.graph().step(other).name)
                || (condition.reads_input() && is_dependency())
        })
    }

    /// Takes stale steps until it finds one to cancel: a step that waits or runs, and whose
    /// `cancelWhen` is true. Returns `None` when no step is stale any more.
    pub(super) fn take_step_to_cancel(&self, pending: &mut PendingConditions) -> Option<StepIndex> {
        while let Some(step) = pending.stale.pop_first() {
            if !matches!(self.step(step).state, StepState::Waiting | StepState::Running) {
                continue;
            }
            let Some(condition) = &self.graph().step(step).cancel_when else { continue };
            let later_count = pending.stale.len();
            let budget = &mut pending.cancel_when_budget;
            let result = self.evaluate(condition, step, budget, later_count);
            // A `cancelWhen` that cannot be evaluated, often because data is still missing, counts
            // as false.
            if result == Ok(true) {
                return Some(step);
            }
        }
        None
    }

    /// Evaluates the `when` of a step that is about to start; `None`: it has no `when`.
    ///
    /// # Errors
    ///
    /// Returns in one sentence why there is no result.
    pub(super) fn evaluate_when(
        &self,
        step: StepIndex,
        pending: &mut PendingConditions,
    ) -> Option<Result<bool, String>> {
        let condition = self.graph().step(step).when.as_ref()?;
        let may_be_evaluated_later = |other: &StepIndex| {
            *other != step
                && self.steps[other.as_usize()].state == StepState::Waiting
                && self.graph().step(*other).when.is_some()
        };
        let later_count = self.graph().indices().filter(may_be_evaluated_later).count();
        let result = self.evaluate(condition, step, &mut pending.when_budget, later_count);
        Some(result.map_err(|reason| {
            format!("its condition `when: {}` cannot be evaluated: {reason}", condition.text())
        }))
    }

    /// Evaluates a condition of `step`. `later_count`: how many other evaluations with this budget
    /// may follow in the same decision.
    fn evaluate(
        &self,
        condition: &Expression,
        step: StepIndex,
        budget: &mut DecisionBudget,
        later_count: usize,
    ) -> Result<bool, String> {
        condition.evaluate(&JobScope { job: self, step }, budget, later_count)
    }
}

/// The variables of a step's conditions, read from its job.
pub(super) struct JobScope<'a> {
    pub(super) job: &'a Job,
    pub(super) step: StepIndex,
}

/// Returns a step of a job as an expression reads it.
pub(super) fn to_scope_step(job: &Job, index: StepIndex) -> ScopeStep<'_> {
    ScopeStep {
        name: &job.graph().step(index).name,
        state: job.step_state(index).as_str(),
        status: job.status(index),
        output: job.step(index).output.as_ref(),
    }
}

impl Scope for JobScope<'_> {
    fn input(&self) -> Message {
        self.job.step_input(self.step)
    }

    fn job(&self) -> &Message {
        self.job.message()
    }

    fn step(&self, name: &str) -> Option<ScopeStep<'_>> {
        self.job.graph().find_index(name).map(|index| to_scope_step(self.job, index))
    }

    fn steps(&self) -> Vec<ScopeStep<'_>> {
        self.job.graph().indices().map(|index| to_scope_step(self.job, index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Context, Decision, Definition, Graph, Input, JobId, Limits, Origin, Reply, Sender, Step,
        Timestamp,
    };
    use std::sync::Arc;

    const LIMITS: Limits = Limits {
        step_message_bytes_max: 1 << 20,
        reply_bytes_max: 1 << 20,
        depth_max: 3,
        window: 3,
        window_bytes: 1 << 26,
    };

    /// A condition that costs more than the budget of a decision, with the list of [`message`].
    const COSTLY: &str = "input.l.all(x, input.l.all(y, x + y < 9))";

    fn context() -> Context<'static> {
        Context { now: Timestamp(1), limits: &LIMITS, pauses: None, spare: None }
    }

    /// Returns a message of 2 kB: a list of 1,001 numbers.
    fn message() -> Message {
        Message::parse(format!("{{\"l\":[{}1]}}", "1,".repeat(1_000)).as_bytes())
            .expect("a message")
    }

    fn step(name: &str, when: Option<&str>, cancel_when: Option<&str>) -> Step {
        let condition = |text: &str| Expression::parse(text).expect(text);
        Step {
            when: when.map(condition),
            cancel_when: cancel_when.map(condition),
            ..Step::with_name(name)
        }
    }

    fn create_job(steps: Vec<Step>) -> (Job, Decision) {
        let definition = Definition::new("w", vec![Graph::new("w".to_owned(), None, steps)]);
        let id = JobId::from_call(&[]);
        let origin = Origin::for_root_job(id, Arc::new(definition), Timestamp(0));
        Job::create(origin, message(), &context())
    }

    fn reply(job: &mut Job, step: &str, body: &'static str) {
        let reply = Reply::Result(body.into());
        job.handle_input(
            Input::Reply { step: step.to_owned(), attempt: None, reply, from: Sender::Unknown },
            &context(),
        )
        .expect("the reply is accepted");
    }

    fn state(job: &Job, name: &str) -> StepState {
        job.step(job.graph().find_index(name).expect(name)).state
    }

    fn reason(job: &Job, name: &str) -> String {
        let run = job.step(job.graph().find_index(name).expect(name));
        run.failure.as_ref().map_or_else(String::new, |failure| failure.reason.to_string())
    }

    #[test]
    fn costly_conditions_leave_enough_of_the_shared_budget_for_cheap_ones() {
        let mut steps: Vec<Step> =
            (0..10).map(|n| step(&format!("costly{n}"), None, Some(COSTLY))).collect();
        steps.push(step(
            "cheap",
            Some("size(input.l) == 1001"),
            Some("steps.costly0.state == 'completed'"),
        ));
        steps.push(step("last", None, Some("steps.costly1.state == 'completed'")));
        let (mut job, _) = create_job(steps);
        assert_eq!(
            (state(&job, "costly9"), state(&job, "cheap")),
            (StepState::Running, StepState::Running)
        );
        reply(&mut job, "costly0", "{}");
        assert_eq!(
            (state(&job, "cheap"), state(&job, "last")),
            (StepState::Cancelled, StepState::Running)
        );
        reply(&mut job, "costly1", "{}");
        assert_eq!(state(&job, "last"), StepState::Cancelled);
    }

    #[test]
    fn a_step_whose_condition_exceeds_the_budget_fails_with_that_reason() {
        let continues = |step: Step| Step { on_failure: crate::OnFailure::Continue, ..step };
        let steps = (0..3)
            .map(|n| continues(step(&format!("costly{n}"), Some(COSTLY), None)))
            .chain([step("cheap", Some("true"), None)]);
        let (job, _) = create_job(steps.collect());
        assert!(
            reason(&job, "costly0")
                .ends_with("takes more than 197000 operations with this data; look at less of it")
        );
        let second_reason = reason(&job, "costly1");
        assert!(
            second_reason.contains("takes more than")
                && second_reason.contains("one decision may take 200000"),
            "{second_reason}"
        );
        assert_eq!(state(&job, "cheap"), StepState::Running);
    }

    #[test]
    fn a_cancel_when_is_evaluated_again_only_if_what_it_reads_has_changed() {
        // One of these fits in the budget of a decision, two of them exceed it.
        let comparisons = ["x == 1"; 32].join(" && ");
        let costly = |condition: &str| format!("input.l.all(x, {comparisons}) && {condition}");
        let dependent =
            Step { depends: vec![Dependency::Step(StepIndex(1))], ..step("dependent", None, None) };
        let (mut job, _) = create_job(vec![
            step("first", None, Some(&costly("false"))),
            step("trigger", None, None),
            step(
                "second",
                None,
                Some(&costly("steps.trigger.state == 'completed' && steps.trigger.output.go")),
            ),
            dependent,
        ]);
        assert_eq!(state(&job, "second"), StepState::Running);
        reply(&mut job, "trigger", r#"{"go":true}"#);
        assert_eq!(
            (state(&job, "first"), state(&job, "second")),
            (StepState::Running, StepState::Cancelled)
        );
    }

    #[test]
    fn a_cancel_when_that_became_true_during_a_pause_cancels_its_step_at_the_resume() {
        use crate::Operation;
        let (mut job, _) = create_job(vec![
            step("a", None, None),
            step("b", None, Some("steps.a.status == 'COMPLETED' && !has(input.m)")),
        ]);
        job.handle_input(Input::from_request(Operation::Pause), &context()).expect("it is paused");
        reply(&mut job, "a", "{}");
        assert_eq!(state(&job, "b"), StepState::Running);
        job.handle_input(Input::from_request(Operation::Resume), &context())
            .expect("it is resumed");
        assert_eq!(state(&job, "b"), StepState::Cancelled);
    }
}
