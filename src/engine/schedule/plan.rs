//! A schedule: when its slots are, and what happens to those that pass or overlap.

use super::calendar::Calendar;
use crate::id::JobId;
use crate::json::Message;
use crate::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The number of nanoseconds in a millisecond.
const NANOS_PER_MILLI: i64 = 1_000_000;

/// A schedule of a workflow file.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The name, which is unique in its virtual host.
    pub name: String,
    /// The virtual host of the workflow; empty: that of the connection's address.
    pub vhost: String,
    /// The full name of the workflow that it starts.
    pub workflow: String,
    /// When its slots are.
    pub timing: Timing,
    /// The message of its jobs.
    pub message: Message,
    /// What happens to slots that passed while no manager ran.
    pub missed: Missed,
    /// What happens to a slot while an earlier job of the schedule runs.
    pub overlap: Overlap,
    /// Each job starts up to this long after its slot. The delay follows from the slot.
    pub jitter: Millis,
    /// How long after its slot a job starts at the latest; `None`: at any time.
    pub deadline: Option<Millis>,
}

/// When the slots of a schedule are.
#[derive(Clone, Debug, PartialEq)]
pub enum Timing {
    /// At the times of a cron expression in a time zone.
    Cron(Box<Calendar>),
    /// At the multiples of an interval since 1970-01-01 00:00 UTC.
    Every(Millis),
}

/// What happens to slots that passed while no manager ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missed {
    /// None of them starts.
    None,
    /// The last of them starts.
    #[default]
    Last,
    /// The last ones start, up to [`MISSED_STARTS_MAX`](super::ledger::MISSED_STARTS_MAX).
    All,
}

impl Missed {
    /// The words of the key `missed`.
    pub const WORDS: [(&'static str, Missed); 3] =
        [("none", Missed::None), ("last", Missed::Last), ("all", Missed::All)];
}

/// What happens to a slot while an earlier job of the schedule runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Its job starts beside the earlier one.
    Allow,
    /// It is skipped.
    #[default]
    Skip,
    /// Its job starts when the earlier one has ended. One slot waits; further ones are skipped.
    Wait,
    /// The earlier job is cancelled, and its own starts.
    Replace,
}

impl Overlap {
    /// The words of the key `overlap`.
    pub const WORDS: [(&'static str, Overlap); 4] = [
        ("allow", Overlap::Allow),
        ("skip", Overlap::Skip),
        ("wait", Overlap::Wait),
        ("replace", Overlap::Replace),
    ];
}

/// The schedule and the slot for which a job was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledSlot {
    /// The full name of the schedule.
    pub schedule: Arc<str>,
    /// The slot.
    pub slot: Timestamp,
}

impl Timing {
    /// Returns the first slot after a time; `None`: there is none.
    pub fn next_after(&self, time: Timestamp) -> Option<Timestamp> {
        match self {
            Timing::Cron(calendar) => calendar.next_after(time),
            Timing::Every(interval) => {
                let nanos = interval_nanos(*interval);
                time.0.div_euclid(nanos).checked_add(1)?.checked_mul(nanos).map(Timestamp)
            }
        }
    }
}

/// Describes the timing, for users and to notice a change: `0 2 * * 1-5 Europe/Berlin`.
impl std::fmt::Display for Timing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Timing::Cron(calendar) => write!(f, "{calendar}"),
            Timing::Every(interval) => write!(f, "every {interval}"),
        }
    }
}

fn interval_nanos(interval: Millis) -> i64 {
    i64::try_from(interval.0).unwrap_or(i64::MAX).saturating_mul(NANOS_PER_MILLI).max(1)
}

impl Schedule {
    /// Returns the schedule's name for users: `<vhost>/<name>`, or only the name if there is no
    /// virtual host.
    pub fn full_name(&self) -> String {
        if self.vhost.is_empty() {
            self.name.clone()
        } else {
            format!("{}/{}", self.vhost, self.name)
        }
    }

    /// Returns the id of the job for a slot. It is the same whoever starts the job.
    pub fn job_id(&self, slot: Timestamp) -> JobId {
        JobId::from_slot(&self.vhost, &self.name, slot)
    }

    /// Returns when the job of a slot starts: up to the jitter after the slot.
    pub fn start_time(&self, slot: Timestamp) -> Timestamp {
        let digest = Sha256::digest(self.job_id(slot).0.as_bytes());
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&digest[..8]);
        let share = u128::from(u64::from_be_bytes(bytes));
        let delay = (u128::from(self.jitter.0) * share) >> 64;
        slot.plus(Millis(u64::try_from(delay).unwrap_or(u64::MAX)))
    }

    /// Returns whether the job of a slot must not start any more: its deadline has passed.
    pub fn is_too_late(&self, slot: Timestamp, now: Timestamp) -> bool {
        slot.after(self.deadline).is_some_and(|deadline| deadline < now)
    }

    /// Returns the next slots after a time, at most `count`.
    pub fn next_slots(&self, after: Timestamp, count: usize) -> Vec<Timestamp> {
        std::iter::successors(self.timing.next_after(after), |slot| self.timing.next_after(*slot))
            .take(count)
            .collect()
    }
}
