//! What clients ask of schedules, and what they see of them.

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
    /// The next slots.
    pub next: Vec<Timestamp>,
    /// The last judgements, the newest first.
    pub judgements: Vec<Judgement>,
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
