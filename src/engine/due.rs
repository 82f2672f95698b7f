//! Decides what follows as time passes: from deadlines, timeouts, and the end of a backoff.

use super::entry::{Entry, Failure, JobEntry};
use super::failure::{expire_job, fail_job};
use super::id::StepIndex;
use super::input::{Context, UnreadReplies};
use super::job::Job;
use super::limit::ClaimState;
use super::reply::AttemptFailure;
use super::state::JobState;
use super::time::{Millis, Timestamp};

/// An event that is due at a time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// The job's deadline has passed.
    Deadline,
    /// The time has come at which the job begins.
    Begin,
    /// The job has waited for its place for longer than it may.
    PlaceWait,
    /// The timeout of a step's attempt has not started within `startWithin`.
    StartTimeout(StepIndex),
    /// The timeout of a step's attempt has passed.
    Timeout(StepIndex),
    /// A step has waited for its limits for longer than it may.
    Wait(StepIndex),
    /// The backoff before a step's next attempt is over.
    Retry(StepIndex),
}

impl Job {
    /// Returns the events that are due at `now`: the deadline alone, or the events of the steps. An
    /// attempt that started before its step's time in `unread` does not time out.
    pub(super) fn find_due(&self, now: Timestamp, unread: &UnreadReplies) -> Vec<Due> {
        let is_due = |time: Option<Timestamp>| time.is_some_and(|time| time <= now);
        if is_due(self.deadline()) {
            return vec![Due::Deadline];
        }
        if is_due(self.begins_at()) {
            return vec![Due::Begin];
        }
        if is_due(self.place_wait_until()) {
            return vec![Due::PlaceWait];
        }
        let event_of_step = |step: StepIndex| {
            let run = &self.steps[step.as_usize()];
            if is_due(run.retry_at()) && self.is_under_way() {
                Some(Due::Retry(step))
            } else if is_due(self.wait_until(step)) {
                Some(Due::Wait(step))
            } else if !self.accepts_replies() || self.may_have_unread_reply(step, unread) {
                None
            } else if run.has_active_attempt() && is_due(run.timeout_at()) {
                Some(Due::Timeout(step))
            } else if run.has_active_attempt() && is_due(run.start_by()) {
                Some(Due::StartTimeout(step))
            } else {
                None
            }
        };
        self.graph().indices().filter_map(event_of_step).collect()
    }

    /// Returns whether a worker's reply to the running attempt may lie unread in a reply queue.
    /// Fan-out steps and external steps have no such replies.
    fn may_have_unread_reply(&self, step: StepIndex, unread: &UnreadReplies) -> bool {
        let (definition, run) = (self.graph().step(step), &self.steps[step.as_usize()]);
        let timeout = definition.timeout.unwrap_or(Millis(0));
        let timeout_started = match run.timeout_at() {
            Some(deadline) => Some(deadline.before(timeout)),
            // A worker may have received the message although the timeout has not started: the
            // confirm can be lost.
            None => run.start_by().and(run.sent),
        };
        let unread_before = unread.get(&step).copied();
        definition.has_queue()
            && timeout_started.zip(unread_before).is_some_and(|(started, before)| started < before)
    }

    /// Decides what follows from a due event, unless an earlier entry has made it obsolete.
    pub(super) fn decide_due(&self, event: Due, ctx: &Context<'_>) -> Vec<Entry> {
        match event {
            Due::Deadline => {
                let deadline = self.origin.definition.deadline;
                let limit = deadline.map_or_else(String::new, |limit| format!(" of {limit}"));
                vec![expire_job(format!("it was not done within its deadline{limit}").into())]
            }
            Due::Begin => {
                let begun = Entry::Job(JobEntry::Begun);
                let claim = if self.claim.is_none() { self.claim_job_place() } else { None };
                [begun].into_iter().chain(claim).collect()
            }
            Due::PlaceWait => vec![fail_job(self.place_wait_reason().into(), None)],
            Due::Timeout(step)
                if self.accepts_replies() && self.step(step).has_active_attempt() =>
            {
                let attempt_failure =
                    AttemptFailure { failure: self.timeout_failure(step), is_retryable: true };
                self.fail_attempt(step, attempt_failure, ctx)
            }
            Due::StartTimeout(step)
                if self.accepts_replies() && self.step(step).is_timeout_pending() =>
            {
                let attempt_failure = AttemptFailure {
                    failure: self.start_timeout_failure(step),
                    is_retryable: true,
                };
                self.fail_attempt(step, attempt_failure, ctx)
            }
            Due::Retry(step) if self.is_under_way() && self.step(step).retry_at().is_some() => {
                self.start_attempt(step, ctx)
            }
            Due::Wait(step) if self.wait_until(step).is_some() => {
                self.fail_step(step, self.wait_failure(step))
            }
            Due::StartTimeout(_) | Due::Timeout(_) | Due::Wait(_) | Due::Retry(_) => Vec::new(),
        }
    }

    /// Returns when a step fails unless its limits have admitted it by then; `None`: it waits for
    /// no limit, or without a bound.
    pub(super) fn wait_until(&self, step: StepIndex) -> Option<Timestamp> {
        let claim = self.step(step).claim().filter(|claim| claim.state == ClaimState::Waiting)?;
        let wait_at_most = self.graph().step(step).wait_at_most?;
        self.is_under_way().then(|| claim.since.plus(wait_at_most))
    }

    /// Returns when the job fails unless its limit has admitted it by then; `None`: it waits for no
    /// place, or without a bound.
    pub(super) fn place_wait_until(&self) -> Option<Timestamp> {
        let claim = self.waiting_claim().filter(|_| self.state == JobState::Running)?;
        let wait_at_most = self.origin.definition.limit.as_ref()?.wait_at_most?;
        Some(claim.since.plus(wait_at_most))
    }

    fn place_wait_reason(&self) -> String {
        let limit = self.origin.definition.limit.as_ref();
        let name = limit.map_or("", |limit| &*limit.name);
        let bound = limit.and_then(|limit| limit.wait_at_most);
        let bound = bound.map_or_else(String::new, |bound| bound.to_string());
        format!("it waited for limit {name} for longer than its waitAtMost of {bound}")
    }

    fn wait_failure(&self, step: StepIndex) -> Failure {
        let definition = self.graph().step(step);
        let bound = definition.wait_at_most.map_or_else(String::new, |bound| bound.to_string());
        let noun = if definition.limits.len() == 1 { "limit" } else { "limits" };
        let names = definition.limits.join(" and ");
        Failure::new(format!(
            "it waited for {noun} {names} for longer than its waitAtMost of {bound}"
        ))
    }

    fn start_timeout_failure(&self, step: StepIndex) -> Failure {
        let start_within = self.graph().step(step).start_within;
        let limit = start_within.map_or_else(String::new, |limit| limit.to_string());
        Failure::new(format!("its message was not taken within its startWithin of {limit}"))
    }

    fn timeout_failure(&self, step: StepIndex) -> Failure {
        let definition = self.graph().step(step);
        let limit = definition.timeout.map_or_else(String::new, |limit| limit.to_string());
        Failure::new(match (definition.task, definition.external) {
            (Some(_), _) => format!("its child jobs were not done within its timeout of {limit}"),
            (None, true) => format!("nobody completed it within its timeout of {limit}"),
            (None, false) => format!("no reply within its timeout of {limit}"),
        })
    }
}
