//! Schedules: when jobs of a workflow start by themselves (docs/how-to/schedule-jobs.md).
//!
//! A schedule has *slots*: the times that its cron expression or its interval gives. [`calendar`]
//! computes them, and [`ledger`] judges each slot once: the job starts, or the slot is skipped or
//! missed. The id of the job follows from the schedule and the slot, so that no slot starts twice.

pub mod calendar;
pub mod ledger;
mod plan;

pub use calendar::{CalendarError, zone_names};
pub use ledger::{Judgement, Ledger, Pause, Start, Verdict};
pub use plan::{Missed, Overlap, Schedule, ScheduledSlot, Timing};
