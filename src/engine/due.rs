//! What happens as time passes: deadlines, timeouts, and the ends of pauses between attempts.

use super::entry::{Entry, Failure};
use super::failure::job_expired;
use super::id::StepIndex;
use super::input::{Context, UnreadReplies};
use super::job::Job;
use super::reply::AttemptFailure;
use super::state::JobState;
use super::time::{Millis, Timestamp};

/// Something that is due.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// The job's deadline has passed.
    Deadline,
    /// The time of a step's attempt has not begun in time.
    StartTimeout(StepIndex),
    /// A step had no reply in time.
    Timeout(StepIndex),
    /// The pause before the next attempt is over.
    Retry(StepIndex),
}

impl Job {
    /// Returns what is due at `due`. Attempts that began before their step's time in `unread` do
    /// not time out.
    pub(super) fn find_due(&self, due: Timestamp, unread: &UnreadReplies) -> Vec<Due> {
        let is_due = |at: Option<Timestamp>| at.is_some_and(|at| at <= due);
        if is_due(self.deadline()) {
            return vec![Due::Deadline];
        }
        let of_step = |step: StepIndex| {
            let run = &self.steps[step.as_usize()];
            if is_due(run.retry_at()) && self.state == JobState::Running {
                Some(Due::Retry(step))
            } else if !self.accepts_replies() || self.may_have_unread_reply(step, unread) {
                None
            } else if run.is_under_way() && is_due(run.deadline()) {
                Some(Due::Timeout(step))
            } else if run.is_under_way() && is_due(run.start_by()) {
                Some(Due::StartTimeout(step))
            } else {
                None
            }
        };
        self.graph().indices().filter_map(of_step).collect()
    }

    /// Returns whether the worker may have replied already, and nobody has read the reply yet.
    /// Child jobs and people have no such replies.
    fn may_have_unread_reply(&self, step: StepIndex, unread: &UnreadReplies) -> bool {
        let (definition, run) = (self.graph().step(step), &self.steps[step.as_usize()]);
        let span = definition.timeout.unwrap_or(Millis(0));
        // A message whose time has not begun may have been sent, and the update on it is lost.
        let began = match run.deadline() {
            Some(deadline) => Some(deadline.before(span)),
            None => run.start_by().and(run.sent),
        };
        definition.has_queue()
            && unread.get(&step).zip(began).is_some_and(|(unread, began)| began < *unread)
    }

    /// Decides what follows from `due`, unless an earlier entry has settled it.
    pub(super) fn decide_due(&self, due: Due, ctx: &Context<'_>) -> Vec<Entry> {
        match due {
            Due::Deadline => {
                let span = self.origin.definition.deadline;
                let span = span.map_or_else(String::new, |span| format!(" of {span}"));
                vec![job_expired(format!("it was not done within its deadline{span}").into())]
            }
            Due::Timeout(step) if self.accepts_replies() && self.step(step).is_under_way() => {
                let failed =
                    AttemptFailure { failure: self.timeout_failure(step), retryable: true };
                self.fail_attempt(step, failed, ctx)
            }
            Due::StartTimeout(step)
                if self.accepts_replies() && self.step(step).is_waiting_for_start() =>
            {
                let failed =
                    AttemptFailure { failure: self.start_timeout_failure(step), retryable: true };
                self.fail_attempt(step, failed, ctx)
            }
            Due::Retry(step)
                if self.state == JobState::Running && self.step(step).retry_at().is_some() =>
            {
                self.start_attempt(step, ctx)
            }
            Due::StartTimeout(_) | Due::Timeout(_) | Due::Retry(_) => Vec::new(),
        }
    }

    fn start_timeout_failure(&self, step: StepIndex) -> Failure {
        let span = self.graph().step(step).start_within;
        let span = span.map_or_else(String::new, |span| span.to_string());
        Failure::new(format!("its message was not taken within its startWithin of {span}"))
    }

    fn timeout_failure(&self, step: StepIndex) -> Failure {
        let definition = self.graph().step(step);
        let span = definition.timeout.map_or_else(String::new, |span| span.to_string());
        Failure::new(match (definition.task, definition.external) {
            (Some(_), _) => format!("its child jobs were not done within its timeout of {span}"),
            (None, true) => format!("nobody completed it within its timeout of {span}"),
            (None, false) => format!("no reply within its timeout of {span}"),
        })
    }
}
