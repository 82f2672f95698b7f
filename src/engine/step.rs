//! The state of one step of a job, its timer, and the backoff between its attempts.

use super::definition::{Retry, Step};
use super::entry::{Failure, Lease, Progress};
use super::fanout::FanOut;
use super::id::{JobId, retry_jitter};
use super::json::Message;
use super::limit::{ClaimState, StepClaim};
use super::state::StepState;
use super::time::Timestamp;
use std::sync::Arc;

/// The state of one step of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRun {
    /// Whether the step waits or runs, or how it ended.
    pub state: StepState,
    /// The number of the latest attempt, from 1; 0: none has started.
    pub attempt: u32,
    /// The number of attempts before the last retry or rerun of the step. They do not count towards
    /// the limit.
    pub(super) attempts_before_reset: u32,
    /// The number of the last attempt that a rerun has undone; 0: none. The results of undone
    /// attempts are rejected.
    pub(super) last_undone_attempt: u32,
    /// How often a rerun has replaced the step's child jobs with new ones.
    pub(super) reruns: u32,
    /// Whether the broker has confirmed the latest dispatch.
    pub confirmed: bool,
    /// The lease of the latest dispatch's message; `None`: no worker has leased it. Boxed to save
    /// memory, as the failure and the progress are: most steps have none of them.
    pub lease: Option<Box<Lease>>,
    /// The number of the entry of the latest dispatch, from 1; 0: nothing was dispatched. It
    /// identifies the dispatch within the job.
    pub dispatch: u64,
    /// The time of the latest dispatch; `None`: nothing was dispatched.
    pub sent: Option<Timestamp>,
    /// When the step first started, since the last rerun; `None`: it has not.
    pub started: Option<Timestamp>,
    /// When the latest attempt started; `None`: none has, since the last retry or rerun of the
    /// step.
    pub attempt_started: Option<Timestamp>,
    /// When the step ended; `None`: it has not.
    pub ended: Option<Timestamp>,
    /// The output; `None`: the step is not completed.
    pub output: Option<Message>,
    /// Why the step, or an attempt of it, last failed; `None`: none has, or the step completed.
    pub failure: Option<Box<Failure>>,
    /// The pending timer; `None`: no time limit applies, and no retry is pending.
    pub(super) timer: Option<StepTimer>,
    /// The progress that the worker has reported, with the latest value of each field; `None`: it
    /// has reported none.
    pub progress: Option<Box<Progress>>,
    /// The status that the worker has reported; `None`: it has reported none.
    pub(super) status: Option<Arc<str>>,
    /// A warning about the step's input, for users; `None`: the input is as expected.
    pub warning: Option<Arc<str>>,
    /// The child jobs; `None`: the step is not a fan-out step, or has not started.
    pub fan_out: Option<Box<FanOut>>,
    /// What the attempt claims or holds of limits; `None`: nothing.
    pub(super) claim: Option<Box<StepClaim>>,
    /// The number of dependencies that are not done.
    pub(super) dependencies_left: u16,
}

/// The timer of a running step. Either an attempt is active, or the step waits for its next
/// attempt, never both.
///
/// The timeout of an attempt starts when workers can receive its message: when the broker confirms
/// it, or, on a bus that leases messages, when the first worker leases it. Until then no worker can
/// be late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StepTimer {
    /// The timeout of the running attempt has not started. If it does not start by this time, the
    /// attempt fails; `None`: it may start at any time.
    TimeoutPending(Option<Timestamp>),
    /// The running attempt times out at this time.
    Timeout(Timestamp),
    /// The latest attempt failed, and the next one is due at this time.
    Retry(Timestamp),
}

impl StepRun {
    /// Creates the state of a step that has not started.
    pub(super) fn new(step: &Step) -> StepRun {
        StepRun {
            dependencies_left: u16::try_from(step.step_dependencies().len()).unwrap_or(u16::MAX),
            ..StepRun::default()
        }
    }

    /// Returns when the running attempt times out; `None`: it has no timeout, or the timeout has
    /// not started.
    pub fn timeout_at(&self) -> Option<Timestamp> {
        match self.timer {
            Some(StepTimer::Timeout(time)) => Some(time),
            Some(StepTimer::TimeoutPending(_) | StepTimer::Retry(_)) | None => None,
        }
    }

    /// Returns whether the running attempt waits for its timeout to start.
    pub fn is_timeout_pending(&self) -> bool {
        matches!(self.timer, Some(StepTimer::TimeoutPending(_)))
    }

    /// Returns when the running attempt fails if its timeout has not started by then; `None`:
    /// never, or the timeout has started.
    pub fn start_by(&self) -> Option<Timestamp> {
        match self.timer {
            Some(StepTimer::TimeoutPending(time)) => time,
            Some(StepTimer::Timeout(_) | StepTimer::Retry(_)) | None => None,
        }
    }

    /// Returns when the next attempt is due, after one has failed; `None`: the step does not wait
    /// for its next attempt.
    pub fn retry_at(&self) -> Option<Timestamp> {
        match self.timer {
            Some(StepTimer::Retry(time)) => Some(time),
            Some(StepTimer::TimeoutPending(_) | StepTimer::Timeout(_)) | None => None,
        }
    }

    /// Makes the running attempt wait for its timeout to start, if `step` has a limit at all.
    pub(super) fn set_timeout_pending(&mut self, step: &Step) {
        let is_timed = step.timeout.is_some() || step.start_within.is_some();
        let start_by = self.sent.and_then(|sent| sent.after(step.start_within));
        self.timer = is_timed.then_some(StepTimer::TimeoutPending(start_by));
    }

    /// Sets when the running attempt times out; `None`: never.
    pub(super) fn set_timeout_at(&mut self, time: Option<Timestamp>) {
        self.timer = time.map(StepTimer::Timeout);
    }

    /// Resets the step to waiting. Attempt numbers continue, but earlier attempts no longer count
    /// towards the limit. The time of the first start and the child jobs are kept.
    pub(super) fn reset(&mut self) {
        *self = StepRun {
            attempt: self.attempt,
            attempts_before_reset: self.attempt,
            last_undone_attempt: self.last_undone_attempt,
            reruns: self.reruns,
            started: self.started,
            warning: self.warning.take(),
            fan_out: self.fan_out.take(),
            ..StepRun::default()
        };
    }

    /// Returns the number of the last attempt that a rerun has undone; 0: none.
    pub fn last_undone_attempt(&self) -> u32 {
        self.last_undone_attempt
    }

    /// Returns whether an attempt is running: the step runs, and does not wait for its next
    /// attempt, or for places of limits.
    pub fn has_active_attempt(&self) -> bool {
        self.state == StepState::Running && self.retry_at().is_none() && !self.is_claiming()
    }

    /// Returns whether the next attempt waits for places of limits.
    pub fn is_claiming(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.state == ClaimState::Waiting)
    }

    /// Returns what the attempt claims or holds of limits; `None`: nothing.
    pub fn claim(&self) -> Option<&StepClaim> {
        self.claim.as_deref()
    }

    /// Returns the claim of an attempt or a resent message that waits for places of limits; `None`:
    /// nothing waits.
    pub fn waiting_claim(&self) -> Option<&StepClaim> {
        self.claim().filter(|claim| claim.state != ClaimState::Holding)
    }

    /// Returns when the next attempt is due if the running one fails; `None`: it is the last.
    pub(super) fn next_attempt_at(
        &self,
        job: JobId,
        step: &Step,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let retry = step.retry.unwrap_or_default();
        let attempt_count = self.attempt - self.attempts_before_reset;
        (attempt_count < retry.attempts).then(|| {
            let jitter = retry_jitter(job, &step.name, self.attempt);
            Timestamp(now.0.saturating_add(backoff_ns(&retry, attempt_count, jitter)))
        })
    }
}

/// Returns the pause after `attempt_count` attempts (at least 1), in nanoseconds: exponential
/// backoff with full jitter. `jitter` is the fraction of the longest pause, in units of 2^-64.
fn backoff_ns(retry: &Retry, attempt_count: u32, jitter: u64) -> i64 {
    let max_ms = u128::from(retry.max_backoff.0);
    let mut longest_ms = u128::from(retry.backoff.0);
    for _ in 1..attempt_count {
        if longest_ms >= max_ms {
            break;
        }
        longest_ms = longest_ms * u128::from(retry.factor_milli) / 1_000;
    }
    let longest_ns = longest_ms.min(max_ms) * 1_000_000;
    i64::try_from((longest_ns * u128::from(jitter)) >> 64).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::time::Millis;
    use super::*;

    #[test]
    fn the_backoff_grows_to_its_maximum_and_its_jitter_is_full_and_repeatable() {
        let retry = Retry {
            attempts: 9,
            backoff: Millis(100),
            factor_milli: 3_000,
            max_backoff: Millis(1_000),
        };
        let longest = |attempt_count| backoff_ns(&retry, attempt_count, u64::MAX) / 1_000_000;
        assert_eq!([1, 2, 3, 4, 1_000].map(longest), [99, 299, 899, 999, 999]);
        assert_eq!(backoff_ns(&retry, 3, 0), 0);
        assert_eq!(backoff_ns(&retry, 3, 1 << 63) / 1_000_000, 450);
        let job = |n: u128| JobId(uuid::Uuid::from_u128(n));
        // The two highest bits of the jitter are the quarter of the pause in which it lies.
        let quarters: Vec<u64> = (0..1_000).map(|n| retry_jitter(job(n), "a", 1) >> 62).collect();
        for quarter in 0..4 {
            let count = quarters.iter().filter(|other| **other == quarter).count();
            assert!((150..350).contains(&count), "{count} of 1000 in quarter {quarter}");
        }
        assert_eq!(retry_jitter(job(1), "a", 1), retry_jitter(job(1), "a", 1));
        assert_ne!(retry_jitter(job(1), "a", 1), retry_jitter(job(1), "a", 2));
    }
}
