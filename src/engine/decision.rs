//! The loop: decide, evolve, and again until nothing more follows. `decide` and the other rules
//! only read the job; [`Job::evolve`] alone changes it; [`Job::effects`] returns what an entry
//! causes. They take turns after each entry, because each one reads what the entry before has
//! changed. So no copy of the job is needed, however many items it has.

use super::caller::Caller;
use super::conditions::Conditions;
use super::effect::Effect;
use super::entry::{AffectedSteps, CallerEntry, Entry, JobEntry, Recorded};
use super::id::StepIndex;
use super::input::{Context, Input, Rejected};
use super::job::Job;
use super::json::Message;
use super::origin::Origin;
use super::state::JobState;
use std::sync::Arc;

/// The decision that follows from an input.
#[derive(Debug, Default)]
pub struct Decision {
    /// What to commit, as one row.
    pub recorded: Recorded,
    /// What to do after the commit, in order.
    pub effects: Vec<Effect>,
    /// The job's new state, if the entries changed it.
    pub state: Option<JobState>,
    /// The new statuses of a root job's steps, if the entries changed them (docs/operations.md).
    pub statuses: Vec<(StepIndex, Arc<str>)>,
    /// Whether nothing is left to do for the job. Its actor may stop; an operation or a call may
    /// still reopen the job.
    pub closed: bool,
}

impl Job {
    /// Creates a job, and decides what follows at once: its first dispatches.
    pub fn create(origin: Origin, message: Message, ctx: &Context<'_>) -> (Job, Decision) {
        Job::create_for_caller(origin, message, None, ctx)
    }

    /// Creates a job as [`Job::create`] does, for a caller that waits for the end.
    pub fn create_for_caller(
        origin: Origin,
        message: Message,
        caller: Option<Caller>,
        ctx: &Context<'_>,
    ) -> (Job, Decision) {
        let stored_message = origin.parent.is_none().then(|| message.clone());
        let trace = origin.trace.as_ref().map(|request_trace| request_trace.parent);
        let trace_state =
            origin.trace.as_ref().and_then(|request_trace| request_trace.state.clone());
        let mut job = Job::before_first_entry(origin, Some(message));
        let deadline = job.new_deadline(ctx);
        let created =
            Entry::Job(JobEntry::Created { message: stored_message, deadline, trace, trace_state });
        let joined = caller.map(|caller| Entry::Caller(CallerEntry::Joined(caller)));
        let mut decision = Decision::begin(&job, ctx);
        job.record([created].into_iter().chain(joined), &mut decision);
        job.advance(ctx, &mut decision);
        let decision = decision.finish(&job, JobState::Running);
        (job, decision)
    }

    /// Decides what follows from `input` and applies it. The effects may be sent only after the row
    /// is committed.
    pub fn handle_input(&mut self, input: Input, ctx: &Context<'_>) -> Result<Decision, Rejected> {
        let before = self.state;
        let mut decision = Decision::begin(self, ctx);
        if let Input::Timer { due, unread } = input {
            // Once for each step. If the clock was set back, what begins now would already be due
            // by that time.
            for due_event in self.find_due(due, &unread) {
                let entries = self.decide_due(due_event, ctx);
                self.record(entries, &mut decision);
            }
            if decision.recorded.entries.is_empty() {
                return Err(Rejected::Void);
            }
        } else {
            let entries = self.decide(input, ctx)?;
            self.record(entries, &mut decision);
        }
        self.advance(ctx, &mut decision);
        Ok(decision.finish(self, before))
    }

    /// Decides and applies what follows from the state alone, until nothing does.
    fn advance(&mut self, ctx: &Context<'_>, decision: &mut Decision) {
        let (mut conditions, mut seen) = (Conditions::default(), 0);
        loop {
            self.mark_stale(&decision.recorded.entries[seen..], &mut conditions);
            seen = decision.recorded.entries.len();
            let Some(entries) = self.decide_next(&mut conditions, ctx) else { return };
            self.record(entries, decision);
        }
    }

    fn record(&mut self, entries: impl IntoIterator<Item = Entry>, decision: &mut Decision) {
        for entry in entries {
            self.evolve(&entry, decision.recorded.at);
            decision.effects.extend(self.effects(&entry));
            decision.recorded.entries.push(entry);
        }
    }
}

impl Decision {
    fn begin(job: &Job, ctx: &Context<'_>) -> Decision {
        let recorded = Recorded { first: job.entry_count(), at: ctx.now, entries: Vec::new() };
        Decision { recorded, ..Decision::default() }
    }

    fn finish(mut self, job: &Job, before: JobState) -> Decision {
        self.state = (job.state != before).then_some(job.state);
        self.closed = job.is_closed();
        if job.origin.parent.is_none() {
            let mut affected: Vec<StepIndex> = Vec::new();
            for entry in &self.recorded.entries {
                match entry.affected_steps() {
                    AffectedSteps::Nothing => {}
                    AffectedSteps::Step(step) if affected.contains(&step) => {}
                    AffectedSteps::Step(step) => affected.push(step),
                    AffectedSteps::Every => affected = job.graph().indices().collect(),
                }
            }
            self.statuses =
                affected.into_iter().map(|step| (step, job.status(step).into())).collect();
        }
        self
    }
}
