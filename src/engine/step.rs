//! One step of a job, and the pauses between its attempts.

use super::definition::{Retry, Step};
use super::entry::{Failure, Lease, Progress};
use super::fanout::FanOut;
use super::id::{JobId, retry_jitter};
use super::json::Message;
use super::state::StepState;
use super::time::Timestamp;
use std::sync::Arc;

/// One step of a job, as it runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRun {
    /// The state of the step.
    pub state: StepState,
    /// The number of dispatches so far; for a step with a task, how often it began.
    pub attempt: u32,
    /// How many attempts came before the last retry or rerun: they do not count against the limit.
    pub(super) attempts_before_reset: u32,
    /// The number of the last attempt that a rerun has undone: results of undone attempts no longer
    /// count.
    pub(super) attempts_undone: u32,
    /// How often a rerun has begun the step's child jobs anew.
    pub(super) reruns: u32,
    /// Whether the broker confirmed the last dispatch.
    pub confirmed: bool,
    /// The lease of the message of the last dispatch, if the bus leases its messages. Boxed, as the
    /// failure and the progress are: most steps have none of them.
    pub lease: Option<Box<Lease>>,
    /// The number of the entry that dispatched it last, from 1. No two dispatches have the same
    /// number.
    pub dispatch: u64,
    /// When it was dispatched last, if the entry records it.
    pub sent: Option<Timestamp>,
    /// When it first started; a rerun starts anew.
    pub started: Option<Timestamp>,
    /// When the last attempt began.
    pub attempt_started: Option<Timestamp>,
    /// When it was settled.
    pub ended: Option<Timestamp>,
    /// Its output, once completed.
    pub output: Option<Message>,
    /// Why it failed, or why its last attempt did.
    pub failure: Option<Box<Failure>>,
    /// What is due in the step, and when.
    pub(super) timer: Option<StepTimer>,
    /// The last progress that its worker reported.
    pub progress: Option<Box<Progress>>,
    /// The status that its worker has reported.
    pub(super) status: Option<Arc<str>>,
    /// A warning about its input, for users.
    pub warning: Option<Arc<str>>,
    /// Its child jobs, for a step with a task that has started.
    pub fan_out: Option<Box<FanOut>>,
    /// How many of the steps that it depends on are not done.
    pub(super) dependencies_left: u16,
}

/// What is due in a step as time passes. An attempt is under way or there is a pause before the
/// next one, never both.
///
/// The time of an attempt begins when its message is where workers can have it: with the broker, or
/// with the first worker where the bus leases its messages. Until then no worker can be late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StepTimer {
    /// The time of the running attempt has not begun; the attempt fails if that is not so by this
    /// time.
    Start(Option<Timestamp>),
    /// The running attempt times out.
    Timeout(Timestamp),
    /// The next attempt is due, after one has failed.
    Retry(Timestamp),
}

impl StepRun {
    /// Returns when the running attempt times out.
    pub fn deadline(&self) -> Option<Timestamp> {
        match self.timer {
            Some(StepTimer::Timeout(at)) => Some(at),
            Some(StepTimer::Start(_) | StepTimer::Retry(_)) | None => None,
        }
    }

    /// Returns whether the time of the running attempt has not begun, although one is set.
    pub fn is_waiting_for_start(&self) -> bool {
        matches!(self.timer, Some(StepTimer::Start(_)))
    }

    /// Returns when the running attempt fails, unless its time has begun by then.
    pub fn start_by(&self) -> Option<Timestamp> {
        match self.timer {
            Some(StepTimer::Start(at)) => at,
            Some(StepTimer::Timeout(_) | StepTimer::Retry(_)) | None => None,
        }
    }

    /// Returns when the next attempt is due, after one has failed.
    pub fn retry_at(&self) -> Option<Timestamp> {
        match self.timer {
            Some(StepTimer::Retry(at)) => Some(at),
            Some(StepTimer::Start(_) | StepTimer::Timeout(_)) | None => None,
        }
    }

    /// Makes the running attempt of `step` wait for its start: its message is sent, but its time
    /// has not begun.
    pub(super) fn wait_for_start(&mut self, step: &Step) {
        let is_timed = step.timeout.is_some() || step.start_within.is_some();
        let start_by = self.sent.and_then(|sent| sent.after(step.start_within));
        self.timer = is_timed.then_some(StepTimer::Start(start_by));
    }

    /// Sets when the running attempt times out; `None`: it never does.
    pub(super) fn set_deadline(&mut self, deadline: Option<Timestamp>) {
        self.timer = deadline.map(StepTimer::Timeout);
    }

    pub(super) fn waiting(step: &Step) -> StepRun {
        StepRun {
            dependencies_left: u16::try_from(step.step_dependencies().len()).unwrap_or(u16::MAX),
            ..StepRun::default()
        }
    }

    /// Resets the step to waiting. Attempts keep their numbers, but the limit counts from here. The
    /// time of its first start is kept.
    pub(super) fn reset(&mut self) {
        *self = StepRun {
            attempt: self.attempt,
            attempts_before_reset: self.attempt,
            attempts_undone: self.attempts_undone,
            reruns: self.reruns,
            started: self.started,
            warning: self.warning.take(),
            fan_out: self.fan_out.take(),
            ..StepRun::default()
        };
    }

    /// Returns the last attempt that a rerun has undone; 0: none.
    pub fn attempts_undone(&self) -> u32 {
        self.attempts_undone
    }

    /// Returns whether an attempt is under way, as opposed to a pause before the next.
    pub fn is_under_way(&self) -> bool {
        self.state == StepState::Running && self.retry_at().is_none()
    }

    /// Returns when the next attempt is due if the running one fails; `None`: it is the last.
    pub(super) fn next_attempt_at(
        &self,
        job: JobId,
        step: &Step,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let retry = step.retry.unwrap_or_default();
        let used = self.attempt - self.attempts_before_reset;
        (used < retry.attempts).then(|| {
            Timestamp(now.0.saturating_add(backoff_ns(
                &retry,
                used,
                retry_jitter(job, &step.name, self.attempt),
            )))
        })
    }
}

/// Returns the pause after attempt number `used`: exponential with full jitter. It is the share
/// `chance` / 2^64 of the longest pause.
fn backoff_ns(retry: &Retry, used: u32, chance: u64) -> i64 {
    let most = u128::from(retry.max_backoff.0);
    let mut longest = u128::from(retry.backoff.0);
    for _ in 1..used {
        if longest >= most {
            break;
        }
        longest = longest * u128::from(retry.factor_milli) / 1_000;
    }
    let longest_ns = longest.min(most) * 1_000_000;
    i64::try_from((longest_ns * u128::from(chance)) >> 64).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::time::Millis;
    use super::*;

    #[test]
    fn pauses_grow_to_their_longest_and_jitter_is_full_and_repeatable() {
        let retry = Retry {
            attempts: 9,
            backoff: Millis(100),
            factor_milli: 3_000,
            max_backoff: Millis(1_000),
        };
        let longest = |used| backoff_ns(&retry, used, u64::MAX) / 1_000_000;
        assert_eq!([1, 2, 3, 4, 1_000].map(longest), [99, 299, 899, 999, 999]);
        assert_eq!(backoff_ns(&retry, 3, 0), 0);
        assert_eq!(backoff_ns(&retry, 3, 1 << 63) / 1_000_000, 450);
        let job = |n: u128| JobId(uuid::Uuid::from_u128(n));
        let chances: Vec<u64> = (0..1_000).map(|n| retry_jitter(job(n), "a", 1) >> 62).collect();
        for quarter in 0..4 {
            let share = chances.iter().filter(|chance| **chance == quarter).count();
            assert!((150..350).contains(&share), "{share} of 1000 in quarter {quarter}");
        }
        assert_eq!(retry_jitter(job(1), "a", 1), retry_jitter(job(1), "a", 1));
        assert_ne!(retry_jitter(job(1), "a", 1), retry_jitter(job(1), "a", 2));
    }
}
