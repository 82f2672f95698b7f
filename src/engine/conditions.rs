//! The conditions of a job's steps: when each is evaluated, and what the evaluations of one
//! decision may cost together.
//!
//! A `when` is evaluated when its step is about to start. A `cancelWhen` is evaluated when
//! something that it reads has changed, and not before: its result depends on nothing else.

use super::definition::Dependency;
use super::entry::{AffectedSteps, Entry};
use super::expression::{DecisionBudget, Expression, Scope, ScopeStep};
use super::id::StepIndex;
use super::job::Job;
use super::json::Message;
use super::state::StepState;
use std::collections::BTreeSet;

/// The conditions that one decision still has to evaluate, and what it may still spend on them.
/// `when` and `cancelWhen` have budgets of their own: a costly `cancelWhen` must not make a `when`
/// fail.
#[derive(Default)]
pub(super) struct Conditions {
    when: DecisionBudget,
    cancel_when: DecisionBudget,
    /// The steps whose `cancelWhen` reads something that has changed since it was evaluated.
    stale: BTreeSet<StepIndex>,
}

impl Job {
    /// Marks the steps as stale whose `cancelWhen` reads something that `entries` have changed.
    pub(super) fn mark_stale(&self, entries: &[Entry], conditions: &mut Conditions) {
        let has_one = |step: &StepIndex| self.graph().step(*step).cancel_when.is_some();
        for entry in entries {
            match entry.affected_steps() {
                AffectedSteps::Nothing => {}
                AffectedSteps::Every => {
                    conditions.stale.extend(self.graph().indices().filter(has_one))
                }
                AffectedSteps::Step(changed) => conditions
                    .stale
                    .extend(self.graph().indices().filter(|step| self.reads_step(*step, changed))),
            }
        }
    }

    /// Returns whether the `cancelWhen` of `step` reads anything of the step `changed`.
    fn reads_step(&self, step: StepIndex, changed: StepIndex) -> bool {
        let definition = self.graph().step(step);
        definition.cancel_when.as_ref().is_some_and(|condition| {
            let is_in_input = || definition.depends.contains(&Dependency::Step(changed));
            condition.reads_step(&self.graph().step(changed).name)
                || (condition.reads_input() && is_in_input())
        })
    }

    /// Returns the first step whose condition `cancelWhen` is true while it waits or runs.
    pub(super) fn next_cancelled(&self, conditions: &mut Conditions) -> Option<StepIndex> {
        while let Some(step) = conditions.stale.pop_first() {
            if !matches!(self.step(step).state, StepState::Waiting | StepState::Running) {
                continue;
            }
            let Some(condition) = &self.graph().step(step).cancel_when else { continue };
            let following = conditions.stale.len();
            let cancelled = self.evaluate(condition, step, &mut conditions.cancel_when, following);
            // A condition that cannot be evaluated yet is not true.
            if cancelled == Ok(true) {
                return Some(step);
            }
        }
        None
    }

    /// Returns whether the condition of a step that is about to start is true; `None`: it has no
    /// condition.
    pub(super) fn evaluate_when(
        &self,
        step: StepIndex,
        conditions: &mut Conditions,
    ) -> Option<Result<bool, String>> {
        let condition = self.graph().step(step).when.as_ref()?;
        let may_follow = |other: &StepIndex| {
            *other != step
                && self.steps[other.as_usize()].state == StepState::Waiting
                && self.graph().step(*other).when.is_some()
        };
        let following = self.graph().indices().filter(may_follow).count();
        let started = self.evaluate(condition, step, &mut conditions.when, following);
        Some(started.map_err(|reason| {
            format!("its condition `when: {}` cannot be evaluated: {reason}", condition.text())
        }))
    }

    fn evaluate(
        &self,
        condition: &Expression,
        step: StepIndex,
        budget: &mut DecisionBudget,
        following: usize,
    ) -> Result<bool, String> {
        condition.evaluate(&JobScope { job: self, step }, budget, following)
    }
}

/// What the conditions of a step read of its job.
struct JobScope<'a> {
    job: &'a Job,
    step: StepIndex,
}

impl JobScope<'_> {
    fn scope_step(&self, index: StepIndex) -> ScopeStep<'_> {
        ScopeStep {
            name: &self.job.graph().step(index).name,
            state: self.job.step_state(index).as_str(),
            status: self.job.status(index),
            output: self.job.step(index).output.as_ref(),
        }
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
        self.job.graph().find_index(name).map(|index| self.scope_step(index))
    }

    fn steps(&self) -> Vec<ScopeStep<'_>> {
        self.job.graph().indices().map(|index| self.scope_step(index)).collect()
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

    /// A condition that costs more than one decision may take, over the list of [`message`].
    const COSTLY: &str = "input.l.all(x, input.l.all(y, x + y < 9))";

    fn context() -> Context<'static> {
        Context { now: Timestamp(1), limits: &LIMITS }
    }

    /// Returns a message of 2 kB.
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

    fn created(steps: Vec<Step>) -> (Job, Decision) {
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
        .expect("taken");
    }

    fn state(job: &Job, name: &str) -> StepState {
        job.step(job.graph().find_index(name).expect(name)).state
    }

    fn reason(job: &Job, name: &str) -> String {
        let run = job.step(job.graph().find_index(name).expect(name));
        run.failure.as_ref().map_or_else(String::new, |failure| failure.reason.to_string())
    }

    #[test]
    fn all_conditions_of_a_decision_have_one_budget_and_costly_ones_leave_enough_for_cheap_ones() {
        let mut steps: Vec<Step> =
            (0..10).map(|n| step(&format!("costly{n}"), None, Some(COSTLY))).collect();
        steps.push(step(
            "cheap",
            Some("size(input.l) == 1001"),
            Some("steps.costly0.state == 'completed'"),
        ));
        steps.push(step("last", None, Some("steps.costly1.state == 'completed'")));
        let (mut job, _) = created(steps);
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
    fn a_step_that_the_budget_leaves_nothing_for_fails_with_that_reason() {
        let continues = |step: Step| Step { on_failure: crate::OnFailure::Continue, ..step };
        let steps = (0..3)
            .map(|n| continues(step(&format!("costly{n}"), Some(COSTLY), None)))
            .chain([step("cheap", Some("true"), None)]);
        let (job, _) = created(steps.collect());
        assert!(
            reason(&job, "costly0")
                .ends_with("takes more than 197000 operations with this data; look at less of it")
        );
        let second = reason(&job, "costly1");
        assert!(
            second.contains("takes more than") && second.contains("one decision may take 200000"),
            "{second}"
        );
        assert_eq!(state(&job, "cheap"), StepState::Running);
    }

    #[test]
    fn a_condition_is_evaluated_again_only_if_what_it_reads_has_changed() {
        // Two of these in one decision are too much.
        let half = |and: &str| format!("input.l.all(x, {}) && {and}", ["x == 1"; 32].join(" && "));
        let affordable = half("false");
        let dependent =
            Step { depends: vec![Dependency::Step(StepIndex(1))], ..step("behind", None, None) };
        let (mut job, _) = created(vec![
            step("first", None, Some(&affordable)),
            step("trigger", None, None),
            step(
                "second",
                None,
                Some(&half("steps.trigger.state == 'completed' && steps.trigger.output.go")),
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
    fn what_was_left_out_while_a_job_was_paused_is_evaluated_when_it_goes_on() {
        use crate::Operation;
        let (mut job, _) = created(vec![
            step("a", None, None),
            step("b", None, Some("steps.a.status == 'COMPLETED' && !has(input.m)")),
        ]);
        job.handle_input(Input::from_request(Operation::Pause), &context()).expect("paused");
        reply(&mut job, "a", "{}");
        assert_eq!(state(&job, "b"), StepState::Running);
        job.handle_input(Input::from_request(Operation::Resume), &context()).expect("resumed");
        assert_eq!(state(&job, "b"), StepState::Cancelled);
    }
}
