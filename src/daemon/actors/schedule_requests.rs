//! What clients ask of schedules, and what they see of them.

use super::client_response::RequestError;
use engine::schedule::{Judgement, Pause};
use engine::{JobId, Schedule, Timestamp};
use std::sync::Arc;

/// What clients see of a schedule.
#[derive(Clone, Debug)]
pub struct ScheduleStatus {
    /// The schedule.
    pub schedule: Arc<Schedule>,
    /// The pause; `None`: it is not paused.
    pub paused: Option<Pause>,
    /// The slot that waits for the end of an earlier job.
    pub waiting: Option<Timestamp>,
    /// Why its due job cannot be started; `None`: it can, or none is due.
    pub refusal: Option<Refusal>,
    /// The next slots.
    pub next: Vec<Timestamp>,
    /// The last judgements, the newest first.
    pub judgements: Vec<Judgement>,
}

/// Why the due job of a schedule cannot be started. It is tried again each second.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Since when its jobs are refused.
    pub since: Timestamp,
    /// Why the last attempt was.
    pub error: RequestError,
}

impl Refusal {
    /// Creates the refusal that follows another one, or none, and returns whether an error of its
    /// kind was told already.
    pub fn following(
        previous: Option<Refusal>,
        error: &RequestError,
        now: Timestamp,
    ) -> (Refusal, bool) {
        let kind = std::mem::discriminant(error);
        let is_like = |previous: &Refusal| std::mem::discriminant(&previous.error) == kind;
        let is_told = previous.as_ref().is_some_and(is_like);
        let since = previous.map_or(now, |previous| previous.since);
        (Refusal { since, error: error.clone() }, is_told)
    }

    /// Returns the reason, for people.
    pub fn reason(&self) -> &str {
        match &self.error {
            RequestError::NotFound => "there is no such workflow",
            RequestError::UnknownStep(reason)
            | RequestError::Conflict(reason)
            | RequestError::Invalid(reason)
            | RequestError::NoPlace(reason)
            | RequestError::Overloaded(reason)
            | RequestError::Failed(reason) => reason,
        }
    }
}

/// What a client asks of a schedule.
#[derive(Clone, Debug)]
pub enum ScheduleOperation {
    /// Starts a job now.
    Trigger {
        /// The reason, if there is one.
        reason: Option<Arc<str>>,
        /// The principal; `None`: no token was required.
        by: Option<Arc<str>>,
    },
    /// Skips the slots from now on.
    Pause {
        /// The reason, if there is one.
        reason: Option<Arc<str>>,
        /// The principal; `None`: no token was required.
        by: Option<Arc<str>>,
    },
    /// Goes on after a pause.
    Resume,
}

/// What a client asks of a schedule: to start the jobs of slots that have passed.
#[derive(Clone, Debug)]
pub struct Backfill {
    /// The slots.
    pub slots: Vec<Timestamp>,
    /// The reason, if there is one.
    pub reason: Option<Arc<str>>,
    /// The principal; `None`: no token was required.
    pub by: Option<Arc<str>>,
}

/// A slot of a backfill.
#[derive(Clone, Copy, Debug)]
pub struct BackfilledSlot {
    /// The slot.
    pub slot: Timestamp,
    /// Its job.
    pub job: JobId,
    /// Whether the job was there before.
    pub existed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_once_for_each_kind_and_keeps_its_beginning() {
        let no_place = |job: &str| RequestError::NoPlace(format!("job {job} has it"));
        let full = RequestError::Overloaded("too many jobs".to_owned());
        let mut previous = None;
        for (at, error, is_told) in [
            (1, no_place("a"), false),
            (2, no_place("b"), true),
            (3, full.clone(), false),
            (4, full, true),
            (5, no_place("b"), false),
        ] {
            let (refusal, told) = Refusal::following(previous, &error, Timestamp(at));
            assert_eq!((refusal.since, told), (Timestamp(1), is_told), "{error:?}");
            assert_eq!(refusal.error, error, "clients see the last one");
            previous = Some(refusal);
        }
    }
}
