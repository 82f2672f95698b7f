//! One step of a job, and the pauses between its attempts.

use super::definition::{Retry, Step};
use super::entry::{Failure, Progress};
use super::fanout::FanOut;
use super::id::{JobId, retry_chance};
use super::json::Message;
use super::state::StepState;
use super::time::Timestamp;
use std::sync::Arc;

/// One step of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRun {
    /// Its state.
    pub state: StepState,
    /// Dispatches so far; of a step with a task, beginnings.
    pub attempt: u32,
    /// Those of them before the last retry or rerun, which do not count among the attempts allowed.
    pub(super) attempts_before: u32,
    /// Those that a rerun has undone: their results count no more.
    pub(super) attempts_undone: u32,
    /// How often the step's child jobs were begun anew by a rerun.
    pub(super) reruns: u32,
    /// Whether the broker confirmed the last dispatch.
    pub confirmed: bool,
    /// Which of the job's entries, counted from 1, dispatched it last: no two dispatches have the
    /// same.
    pub dispatch: u64,
    /// When that was, where the entry tells.
    pub sent: Option<Timestamp>,
    /// When it started first; a rerun begins anew.
    pub started: Option<Timestamp>,
    /// When the last attempt began.
    pub attempt_started: Option<Timestamp>,
    /// When it was settled.
    pub ended: Option<Timestamp>,
    /// Its output, once completed.
    pub output: Option<Message>,
    /// Why it, or its last attempt, failed.
    pub failure: Option<Failure>,
    /// When the attempt that runs fails.
    pub deadline: Option<Timestamp>,
    /// When the next attempt is due; the one before has failed.
    pub retry_at: Option<Timestamp>,
    /// What its worker told last.
    pub progress: Option<Progress>,
    /// The status that its worker has reported.
    pub(super) status: Option<Arc<str>>,
    /// What the reader should know about its input.
    pub warning: Option<Arc<str>>,
    /// Its child jobs, for a step with a task that has started.
    pub fan_out: Option<Box<FanOut>>,
    /// Steps that it depends on and that are not done.
    pub(super) waits_for: u16,
}

impl StepRun {
    pub(super) fn waiting(step: &Step) -> StepRun {
        StepRun {
            waits_for: u16::try_from(step.depended_on().len()).unwrap_or(u16::MAX),
            ..StepRun::default()
        }
    }

    /// Back to waiting; its attempts are counted on, and those allowed are counted anew. When it
    /// started first is kept.
    pub(super) fn reset(&mut self) {
        *self = StepRun {
            attempt: self.attempt,
            attempts_before: self.attempt,
            attempts_undone: self.attempts_undone,
            reruns: self.reruns,
            started: self.started,
            warning: self.warning.take(),
            fan_out: self.fan_out.take(),
            ..StepRun::default()
        };
    }

    /// Whether an attempt is under way, rather than waited for.
    pub fn is_under_way(&self) -> bool {
        self.state == StepState::Running && self.retry_at.is_none()
    }

    /// When the next attempt is due after the one that runs has failed; none: that was the last.
    pub(super) fn next_attempt(
        &self,
        job: JobId,
        step: &Step,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let retry = step.retry.unwrap_or_default();
        let used = self.attempt - self.attempts_before;
        (used < retry.attempts).then(|| {
            Timestamp(now.0.saturating_add(pause_ns(
                &retry,
                used,
                retry_chance(job, &step.name, self.attempt),
            )))
        })
    }
}

/// The pause after the attempt number `used`: exponential with full jitter, `chance` of 2^64 of the
/// longest one.
fn pause_ns(retry: &Retry, used: u32, chance: u64) -> i64 {
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
        let longest = |used| pause_ns(&retry, used, u64::MAX) / 1_000_000;
        assert_eq!([1, 2, 3, 4, 1_000].map(longest), [99, 299, 899, 999, 999]);
        assert_eq!(pause_ns(&retry, 3, 0), 0);
        assert_eq!(pause_ns(&retry, 3, 1 << 63) / 1_000_000, 450);
        let job = |n: u128| JobId(uuid::Uuid::from_u128(n));
        let chances: Vec<u64> = (0..1_000).map(|n| retry_chance(job(n), "a", 1) >> 62).collect();
        for quarter in 0..4 {
            let share = chances.iter().filter(|chance| **chance == quarter).count();
            assert!((150..350).contains(&share), "{share} of 1000 in quarter {quarter}");
        }
        assert_eq!(retry_chance(job(1), "a", 1), retry_chance(job(1), "a", 1));
        assert_ne!(retry_chance(job(1), "a", 1), retry_chance(job(1), "a", 2));
    }
}
