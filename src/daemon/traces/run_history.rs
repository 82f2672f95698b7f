//! Derives the history of a job's last run from its entries, up to one of the job's ends. A retry
//! or rerun of an ended job begins a new run. Earlier runs are left out, because they were exported
//! when they ended.

use engine::{
    Entry, FanOutEntry, JobEntry, JobState, Recorded, StepEntry, StepIndex, StepState, Timestamp,
    TraceContext,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How many events one span may have. Further events are dropped.
const EVENTS_MAX: usize = 32;

/// The length to which a reason is truncated in a span, in characters.
const REASON_CHARS_MAX: usize = 1_000;

/// Where the fold of the entries stops.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldLimit {
    /// The number of the last entry to apply, from 1.
    pub(super) last_entry_number: u64,
    /// The latest start of a run. A run that begins later is ignored.
    pub(super) run_start_max: Timestamp,
}

/// The last run of a job.
#[derive(Debug, Default)]
pub(super) struct RunHistory {
    /// The number of earlier runs: how often the ended job was retried or rerun.
    pub(super) run_number: u32,
    /// The trace context with which the job was created, if there was one.
    pub(super) trace_context: Option<TraceContext>,
    /// The start of the run. For the first run it is set by the caller, to the job's creation.
    pub(super) started: Timestamp,
    /// The end of the run; `None` while it is running.
    pub(super) ended: Option<End<JobState>>,
    /// The steps that the run has started, ended or skipped.
    pub(super) steps: BTreeMap<StepIndex, StepHistory>,
    pub(super) events: Vec<SpanEvent>,
    /// How many child jobs each fan-out step has started since it started from the beginning. A
    /// restart of the fan-out or a new run of the job does not reset the number.
    pub(super) children_started: BTreeMap<StepIndex, u64>,
    /// How many attempts of the run are retained.
    attempts_retained: usize,
    /// The number of retained attempts at which a new attempt replaces the last one of its step. A
    /// step without an attempt still gets one.
    attempts_max: usize,
    /// How many attempts were replaced.
    pub(super) omitted: u64,
    /// Whether the fold has reached its limit.
    is_complete: bool,
}

/// Something that happened at a time within a span.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanEvent {
    pub(super) time: Timestamp,
    pub(super) name: &'static str,
}

/// How a job, a step or an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End<S> {
    pub(super) time: Timestamp,
    pub(super) state: S,
    /// The reason for the end, truncated; `None` if the entry has none.
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
    pub(super) events: Vec<SpanEvent>,
}

impl RunHistory {
    /// Creates an empty history. It retains up to `attempts_max` attempts, and in any case one
    /// attempt of each step.
    pub(super) fn new(attempts_max: usize) -> RunHistory {
        RunHistory { attempts_max, ..RunHistory::default() }
    }

    /// Applies a row of the record. Rows must be applied in order. Those beyond the limit are
    /// ignored.
    pub(super) fn apply(&mut self, row: &Recorded, limit: FoldLimit) {
        for (number, entry) in (row.first + 1..).zip(&row.entries) {
            let begins_run =
                matches!(entry, Entry::Job(JobEntry::Retried { .. } | JobEntry::Rerun { .. }));
            self.is_complete |=
                number > limit.last_entry_number || (begins_run && row.at > limit.run_start_max);
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

    fn apply_job(&mut self, entry: &JobEntry, time: Timestamp) {
        match entry {
            JobEntry::Created { trace, trace_state, .. } => {
                let state = trace_state.clone();
                self.trace_context = trace.map(|parent| TraceContext { parent, state });
            }
            JobEntry::Completed => self.set_ended(JobState::Completed, time, None),
            JobEntry::Failed { reason, .. } => self.set_ended(JobState::Failed, time, Some(reason)),
            JobEntry::Cancelled { reason, .. } => {
                self.set_ended(JobState::Cancelled, time, Some(reason))
            }
            JobEntry::Paused => add_event(&mut self.events, time, "paused"),
            JobEntry::Resumed => add_event(&mut self.events, time, "resumed"),
            JobEntry::Retried { .. } | JobEntry::Rerun { .. } => {
                self.run_number += 1;
                self.started = time;
                self.ended = None;
                self.steps.clear();
                self.events.clear();
                (self.attempts_retained, self.omitted) = (0, 0);
            }
            JobEntry::Begun => add_event(&mut self.events, time, "begun"),
            JobEntry::Claimed { .. } => add_event(&mut self.events, time, "limited"),
            JobEntry::Admitted => add_event(&mut self.events, time, "admitted"),
            JobEntry::ToldAgain | JobEntry::Asked { .. } => {}
        }
    }

    /// Ends the run.
    fn set_ended(&mut self, state: JobState, time: Timestamp, reason: Option<&Arc<str>>) {
        self.ended = Some(End { time, state, reason: reason.map(truncate_reason) });
    }

    fn apply_step(&mut self, step: StepIndex, entry: &StepEntry, time: Timestamp) {
        match entry {
            StepEntry::Started { attempt, .. } => {
                self.begin_attempt(step, *attempt, time);
            }
            StepEntry::Confirmed => self.add_attempt_event(step, time, "confirmed"),
            StepEntry::Leased(lease) => {
                let name = if lease.delivery > 1 { "leased again" } else { "leased" };
                self.add_attempt_event(step, time, name);
            }
            StepEntry::Begun => self.add_attempt_event(step, time, "begun"),
            StepEntry::Unconfirmed => self.add_attempt_event(step, time, "sent again"),
            StepEntry::Progressed { .. } | StepEntry::Claimed { .. } | StepEntry::ResendClaimed => {
            }
            StepEntry::AttemptFailed { failure, .. } => {
                let history = self.get_or_continue_step(step);
                history.end_attempt(StepState::Failed, time, Some(&failure.reason));
            }
            StepEntry::Completed(_) => self.end_step(step, StepState::Completed, time, None),
            StepEntry::Failed(failure) => {
                self.end_step(step, StepState::Failed, time, Some(&failure.reason));
            }
            // A step that never ran starts and ends at the same time.
            StepEntry::Skipped => {
                self.get_or_start_step(step, time);
                self.end_step(step, StepState::Skipped, time, None);
            }
            StepEntry::Cancelled => {
                self.get_or_start_step(step, time);
                self.end_step(step, StepState::Cancelled, time, None);
            }
        }
    }

    fn apply_fan_out(&mut self, step: StepIndex, entry: &FanOutEntry, time: Timestamp) {
        match entry {
            FanOutEntry::Started { items, .. } => {
                self.get_or_start_step(step, time).items = Some(*items);
                self.children_started.remove(&step);
            }
            FanOutEntry::Restarted { .. } => {
                self.get_or_start_step(step, time);
            }
            FanOutEntry::ChildrenStarted { count, .. } => {
                *self.children_started.entry(step).or_default() += u64::from(*count);
            }
            FanOutEntry::Completed => self.end_step(step, StepState::Completed, time, None),
            FanOutEntry::ChildStarted { .. }
            | FanOutEntry::ChildCompleted { .. }
            | FanOutEntry::ChildFailed { .. } => {}
        }
    }

    /// Returns the history of a step. A step without one is added, with `time` as its start.
    fn get_or_start_step(&mut self, step: StepIndex, time: Timestamp) -> &mut StepHistory {
        self.steps.entry(step).or_insert_with(|| StepHistory {
            started: time,
            ended: None,
            attempts: Vec::new(),
            items: None,
        })
    }

    /// Returns the history of a step. A step without one was started in an earlier run, and is
    /// added with the start of this run.
    fn get_or_continue_step(&mut self, step: StepIndex) -> &mut StepHistory {
        self.get_or_start_step(step, self.started)
    }

    /// Adds an attempt. At the limit it replaces the last attempt of its step.
    fn begin_attempt(&mut self, step: StepIndex, number: u32, time: Timestamp) {
        let is_full = self.attempts_retained >= self.attempts_max;
        let attempts = &mut self.get_or_start_step(step, time).attempts;
        // The first attempts show how the step started, the last one how it ended.
        let is_replacement = is_full && attempts.pop().is_some();
        attempts.push(Attempt { number, started: time, ended: None, events: Vec::new() });
        if is_replacement {
            self.omitted += 1;
        } else {
            self.attempts_retained += 1;
        }
    }

    /// Ends a step and its last attempt.
    fn end_step(
        &mut self,
        step: StepIndex,
        state: StepState,
        time: Timestamp,
        reason: Option<&Arc<str>>,
    ) {
        let history = self.get_or_continue_step(step);
        history.end_attempt(state, time, reason);
        history.ended = Some(End { time, state, reason: reason.map(truncate_reason) });
    }

    /// Adds an event to the last attempt of a step.
    fn add_attempt_event(&mut self, step: StepIndex, time: Timestamp, name: &'static str) {
        let attempt = self.steps.get_mut(&step).and_then(|history| history.attempts.last_mut());
        if let Some(attempt) = attempt {
            add_event(&mut attempt.events, time, name);
        }
    }
}

impl StepHistory {
    /// Ends the last attempt, unless it has already ended.
    fn end_attempt(&mut self, state: StepState, time: Timestamp, reason: Option<&Arc<str>>) {
        if let Some(attempt) = self.attempts.last_mut().filter(|attempt| attempt.ended.is_none()) {
            attempt.ended = Some(End { time, state, reason: reason.map(truncate_reason) });
        }
    }
}

/// Returns the first [`REASON_CHARS_MAX`] characters of a reason.
fn truncate_reason(reason: &Arc<str>) -> Arc<str> {
    match reason.char_indices().nth(REASON_CHARS_MAX) {
        Some((end, _)) => reason[..end].into(),
        None => reason.clone(),
    }
}

/// Adds an event to those of a span, unless the span has [`EVENTS_MAX`] already.
fn add_event(events: &mut Vec<SpanEvent>, time: Timestamp, name: &'static str) {
    if events.len() < EVENTS_MAX {
        events.push(SpanEvent { time, name });
    }
}
