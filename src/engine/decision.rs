//! The decision loop: decide, evolve, and repeat until nothing more follows.
//!
//! `decide` and the other rules only read the job, only [`Job::evolve`] changes it, and
//! [`Job::effects`] returns what an entry causes. The entries of an iteration are applied before
//! the next iteration decides, so no copy of the job is needed, however many items it has.

use super::caller::Caller;
use super::cells::CellChanges;
use super::conditions::PendingConditions;
use super::effect::Effect;
use super::entry::{AffectedSteps, CallerEntry, Entry, JobEntry, Recorded};
use super::id::StepIndex;
use super::input::{Context, Input, Rejected};
use super::job::Job;
use super::json::Message;
use super::limit::StepDemands;
use super::origin::Origin;
use super::state::JobState;
use std::sync::Arc;

/// The outcome of one input: the entries to commit, and what follows from them.
#[derive(Debug, Default)]
pub struct Decision {
    /// The entries to commit, as one row.
    pub recorded: Recorded,
    /// The effects to carry out after the commit, in order.
    pub effects: Vec<Effect>,
    /// What the gate is told after the commit: what the job and its steps want of it, as far as
    /// that has changed.
    pub demands: StepDemands,
    /// The job's new state; `None`: it has not changed, and the job has not ended once more.
    pub state: Option<JobState>,
    /// The statuses of the steps that the entries affect (docs/how-to/read-statuses-by-sql.md).
    /// Empty for a child job.
    pub statuses: Vec<(StepIndex, Arc<str>)>,
    /// The cells of the label and the columns that may have changed. Empty for a child job.
    pub cells: CellChanges,
    /// Whether the job has completed although items of it have failed.
    pub has_failed_items: bool,
    /// Whether nothing is left to do for the job (see [`Job::is_closed`]), so that its actor may
    /// stop. An operation or a call may still need the job.
    pub closed: bool,
}

impl Job {
    /// Creates a job, and decides what follows immediately: its first dispatches.
    pub fn create(origin: Origin, message: Message, ctx: &Context<'_>) -> (Job, Decision) {
        Job::create_for_caller(origin, message, None, ctx)
    }

    /// Creates a job as [`Job::create`] does, for a caller that waits for its end; `None`: nobody
    /// called it.
    pub fn create_for_caller(
        mut origin: Origin,
        message: Message,
        caller: Option<Caller>,
        ctx: &Context<'_>,
    ) -> (Job, Decision) {
        let stored_message = origin.parent.is_none().then(|| message.clone());
        let trace = origin.trace.as_ref().map(|request_trace| request_trace.parent);
        let trace_state =
            origin.trace.as_ref().and_then(|request_trace| request_trace.state.clone());
        let slot = origin.slot.clone();
        let is_later = origin.begins_later();
        if !is_later {
            origin.starts_at = origin.delayed_until();
        }
        let starts_at = origin.starts_at;
        let mut job = Job::before_first_entry(origin, Some(message));
        let creation = Entry::Job(JobEntry::Created {
            message: stored_message,
            deadline: job.new_deadline(ctx),
            trace,
            trace_state,
            starts_at,
            slot,
        });
        let joined = caller.map(|caller| Entry::Caller(CallerEntry::Joined(caller)));
        // A job that was asked to begin later claims its place then.
        let claim = if is_later { None } else { job.claim_job_place() };
        let mut decision = Decision::start(&job, ctx);
        job.record([creation].into_iter().chain(claim).chain(joined), &mut decision);
        job.advance(ctx, &mut decision);
        let decision = decision.finish(&job, JobState::Running, &[]);
        (job, decision)
    }

    /// Decides what follows from `input`, and applies it. The effects may be carried out only after
    /// the row is committed.
    ///
    /// # Errors
    ///
    /// Returns an error if the input changes nothing.
    pub fn handle_input(&mut self, input: Input, ctx: &Context<'_>) -> Result<Decision, Rejected> {
        let (previous_state, previous_tickets) = (self.state, self.wanted_tickets());
        let mut decision = Decision::start(self, ctx);
        if let Input::Timer { due, unread } = input {
            // What is due is determined only once: if the clock was set back, an attempt that
            // starts now would be due again in the same decision.
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
        Ok(decision.finish(self, previous_state, &previous_tickets))
    }

    /// Returns the job as it would be after an entry, and all that follows from it at once.
    pub(super) fn with_entry(&self, entry: Entry, ctx: &Context<'_>) -> Job {
        let (mut job, mut decision) = (self.clone(), Decision::start(self, ctx));
        job.record([entry], &mut decision);
        job.advance(ctx, &mut decision);
        job
    }

    /// Decides and applies what follows from the job's state alone, until nothing more follows.
    fn advance(&mut self, ctx: &Context<'_>, decision: &mut Decision) {
        let mut pending = PendingConditions::default();
        // How many entries of the decision have been checked for what they make stale.
        let mut checked_count = 0;
        loop {
            self.mark_stale(&decision.recorded.entries[checked_count..], &mut pending);
            checked_count = decision.recorded.entries.len();
            let Some(entries) = self.decide_next(&mut pending, ctx) else { return };
            self.record(entries, decision);
        }
    }

    /// Applies entries, and adds them and their effects to the decision.
    fn record(&mut self, entries: impl IntoIterator<Item = Entry>, decision: &mut Decision) {
        for entry in entries {
            self.evolve(&entry, decision.recorded.at);
            decision.effects.extend(self.effects(&entry));
            decision.recorded.entries.push(entry);
        }
    }
}

impl Decision {
    /// Starts an empty decision about a job.
    fn start(job: &Job, ctx: &Context<'_>) -> Decision {
        let recorded = Recorded { first: job.entry_count(), at: ctx.now, entries: Vec::new() };
        Decision { recorded, ..Decision::default() }
    }

    /// Completes the decision with what has changed in the job.
    fn finish(
        mut self,
        job: &Job,
        previous_state: JobState,
        previous_tickets: &[(StepIndex, u64)],
    ) -> Decision {
        let is_reopened = self.recorded.entries.iter().any(Entry::is_reopening);
        self.state = (is_reopened || job.state != previous_state).then_some(job.state);
        self.has_failed_items = job.has_failed_items();
        self.closed = job.is_closed();
        self.demands = job.changed_demands(previous_tickets);
        self.cells = job.changed_cells(&self.recorded.entries);
        if job.origin.parent.is_none() {
            let mut affected_steps: Vec<StepIndex> = Vec::new();
            for entry in &self.recorded.entries {
                match entry.affected_steps() {
                    AffectedSteps::None => {}
                    AffectedSteps::One(step) if affected_steps.contains(&step) => {}
                    AffectedSteps::One(step) => affected_steps.push(step),
                    AffectedSteps::All => affected_steps = job.graph().indices().collect(),
                }
            }
            self.statuses =
                affected_steps.into_iter().map(|step| (step, job.status(step).into())).collect();
        }
        self
    }
}
