//! The history of a job's last run: the fold of its entries up to an end. A job that goes on after
//! an end begins a new run. The runs before the last one are dropped, because they were exported at
//! their ends.

use engine::{
    Entry, FanOutEntry, JobEntry, JobState, Recorded, StepEntry, StepIndex, StepState, Timestamp,
    TraceContext,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most events of one span.
const EVENTS_MAX: usize = 32;

/// How much of a reason a span contains, in characters.
const REASON_CHARS_MAX: usize = 1_000;

/// Where the fold ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldLimit {
    /// The number of the last entry.
    pub(super) entry: u64,
    /// A new run that begins after this time is ignored.
    pub(super) at: Timestamp,
}

/// The last run of a job.
#[derive(Debug, Default)]
pub(super) struct RunHistory {
    /// How many runs there were before: how often the job went on after an end.
    pub(super) run_number: u32,
    pub(super) trace_context: Option<TraceContext>,
    pub(super) started: Timestamp,
    pub(super) ended: Option<End<JobState>>,
    pub(super) steps: BTreeMap<StepIndex, StepHistory>,
    pub(super) events: Vec<(Timestamp, &'static str)>,
    /// How many child jobs each step has started since it last began.
    pub(super) children_started: BTreeMap<StepIndex, u64>,
    /// How many attempts of the run are kept, and how many may be. Once there are as many, a new
    /// attempt replaces the last one of its step.
    attempts_retained: usize,
    attempts_max: usize,
    /// How many attempts were replaced.
    pub(super) omitted: u64,
    is_complete: bool,
}

/// How a job, a step or an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End<S> {
    pub(super) at: Timestamp,
    pub(super) state: S,
    pub(super) reason: Option<Arc<str>>,
}

/// A step in the run.
#[derive(Debug)]
pub(super) struct StepHistory {
    pub(super) started: Timestamp,
    pub(super) ended: Option<End<StepState>>,
    pub(super) attempts: Vec<Attempt>,
    /// The number of items, for a fan-out step.
    pub(super) items: Option<u32>,
}

/// An attempt that began in the run.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) number: u32,
    pub(super) started: Timestamp,
    pub(super) ended: Option<End<StepState>>,
    pub(super) events: Vec<(Timestamp, &'static str)>,
}

impl RunHistory {
    /// Makes a history that keeps about `attempts_max` attempts.
    pub(super) fn new(attempts_max: usize) -> RunHistory {
        RunHistory { attempts_max, ..RunHistory::default() }
    }

    /// Applies a row of the record. Rows must come in order.
    pub(super) fn apply(&mut self, row: &Recorded, until: FoldLimit) {
        for (number, entry) in (row.first + 1..).zip(&row.entries) {
            let begins_anew =
                matches!(entry, Entry::Job(JobEntry::Retried { .. } | JobEntry::Rerun { .. }));
            self.is_complete |= number > until.entry || (begins_anew && row.at > until.at);
            if self.is_complete {
                return;
            }
            match entry {
                Entry::Job(entry) => self.apply_job(entry, row.at),
                Entry::Step(step, entry) => self.apply_step(*step, entry, row.at),
                Entry::FanOut(step, entry) => self.apply_fan_out(*step, entry, row.at),
                Entry::Caller(_) => {}
            }
        }
    }

    fn apply_job(&mut self, entry: &JobEntry, at: Timestamp) {
        match entry {
            JobEntry::Created { trace, trace_state, .. } => {
                let state = trace_state.clone();
                self.trace_context = trace.map(|parent| TraceContext { parent, state });
            }
            JobEntry::Completed => self.set_ended(JobState::Completed, at, None),
            JobEntry::Failed { reason, .. } => self.set_ended(JobState::Failed, at, Some(reason)),
            JobEntry::Cancelled { reason, .. } => {
                self.set_ended(JobState::Cancelled, at, Some(reason))
            }
            JobEntry::Paused => add_event(&mut self.events, at, "paused"),
            JobEntry::Resumed => add_event(&mut self.events, at, "resumed"),
            JobEntry::Retried { .. } | JobEntry::Rerun { .. } => {
                self.run_number += 1;
                self.started = at;
                self.ended = None;
                self.steps.clear();
                self.events.clear();
                (self.attempts_retained, self.omitted) = (0, 0);
            }
            JobEntry::ToldAgain | JobEntry::Asked { .. } => {}
        }
    }

    fn set_ended(&mut self, state: JobState, at: Timestamp, reason: Option<&Arc<str>>) {
        self.ended = Some(End { at, state, reason: reason.map(truncate_reason) });
    }

    fn apply_step(&mut self, step: StepIndex, entry: &StepEntry, at: Timestamp) {
        match entry {
            StepEntry::Started { attempt, .. } => {
                self.begin_attempt(step, *attempt, at);
            }
            StepEntry::Confirmed => self.add_attempt_event(step, at, "confirmed"),
            StepEntry::Leased(lease) => {
                let name = if lease.delivery > 1 { "leased again" } else { "leased" };
                self.add_attempt_event(step, at, name);
            }
            StepEntry::Begun => self.add_attempt_event(step, at, "begun"),
            StepEntry::Unconfirmed => self.add_attempt_event(step, at, "sent again"),
            StepEntry::Progressed { .. } => {}
            StepEntry::AttemptFailed { failure, .. } => {
                let history = self.continued_step(step);
                history.end_attempt(StepState::Failed, at, Some(&failure.reason));
            }
            StepEntry::Completed(_) => self.end_step(step, StepState::Completed, at, None),
            StepEntry::Failed(failure) => {
                self.end_step(step, StepState::Failed, at, Some(&failure.reason));
            }
            // A step that never ran begins and ends at once.
            StepEntry::Skipped => {
                self.begun_step(step, at);
                self.end_step(step, StepState::Skipped, at, None);
            }
            StepEntry::Cancelled => {
                self.begun_step(step, at);
                self.end_step(step, StepState::Cancelled, at, None);
            }
        }
    }

    fn apply_fan_out(&mut self, step: StepIndex, entry: &FanOutEntry, at: Timestamp) {
        match entry {
            FanOutEntry::Started { items, .. } => {
                self.begun_step(step, at).items = Some(*items);
                self.children_started.remove(&step);
            }
            FanOutEntry::Restarted { .. } => {
                self.begun_step(step, at);
            }
            FanOutEntry::ChildrenStarted { count, .. } => {
                *self.children_started.entry(step).or_default() += u64::from(*count);
            }
            FanOutEntry::Completed => self.end_step(step, StepState::Completed, at, None),
            FanOutEntry::ChildStarted { .. }
            | FanOutEntry::ChildCompleted { .. }
            | FanOutEntry::ChildFailed { .. } => {}
        }
    }

    /// Returns the step, which begins now unless it has begun.
    fn begun_step(&mut self, step: StepIndex, at: Timestamp) -> &mut StepHistory {
        self.steps.entry(step).or_insert_with(|| StepHistory {
            started: at,
            ended: None,
            attempts: Vec::new(),
            items: None,
        })
    }

    /// Returns the step, which continues from the run before unless it has begun in this one.
    fn continued_step(&mut self, step: StepIndex) -> &mut StepHistory {
        self.begun_step(step, self.started)
    }

    fn begin_attempt(&mut self, step: StepIndex, number: u32, at: Timestamp) {
        let is_full = self.attempts_retained >= self.attempts_max;
        let attempts = &mut self.begun_step(step, at).attempts;
        // The first attempts show how the step began, the last one how it ended.
        let is_replacement = is_full && attempts.pop().is_some();
        attempts.push(Attempt { number, started: at, ended: None, events: Vec::new() });
        if is_replacement {
            self.omitted += 1;
        } else {
            self.attempts_retained += 1;
        }
    }

    fn end_step(
        &mut self,
        step: StepIndex,
        state: StepState,
        at: Timestamp,
        reason: Option<&Arc<str>>,
    ) {
        let history = self.continued_step(step);
        history.end_attempt(state, at, reason);
        history.ended = Some(End { at, state, reason: reason.map(truncate_reason) });
    }

    fn add_attempt_event(&mut self, step: StepIndex, at: Timestamp, name: &'static str) {
        let attempt = self.steps.get_mut(&step).and_then(|life| life.attempts.last_mut());
        if let Some(attempt) = attempt {
            add_event(&mut attempt.events, at, name);
        }
    }
}

impl StepHistory {
    fn end_attempt(&mut self, state: StepState, at: Timestamp, reason: Option<&Arc<str>>) {
        if let Some(attempt) = self.attempts.last_mut().filter(|last| last.ended.is_none()) {
            attempt.ended = Some(End { at, state, reason: reason.map(truncate_reason) });
        }
    }
}

/// Truncates a reason.
fn truncate_reason(reason: &Arc<str>) -> Arc<str> {
    match reason.char_indices().nth(REASON_CHARS_MAX) {
        Some((end, _)) => reason[..end].into(),
        None => reason.clone(),
    }
}

fn add_event(events: &mut Vec<(Timestamp, &'static str)>, at: Timestamp, name: &'static str) {
    if events.len() < EVENTS_MAX {
        events.push((at, name));
    }
}
