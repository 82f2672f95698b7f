//! Arguments of `schedule`.

use super::common::ListArguments;
use clap::{Args, ValueEnum};

/// Arguments of `schedule`. Without an operation it shows the schedule.
#[derive(Args, Debug)]
pub(crate) struct ScheduleArguments {
    /// The name of the schedule
    pub(crate) name: String,
    /// What to do; without it, the next slots and the last judgements are shown
    #[arg(value_enum)]
    pub(crate) operation: Option<ScheduleOperation>,
    /// The schedule's virtual host, of workflows that name theirs
    #[arg(long)]
    pub(crate) vhost: Option<String>,
    /// With backfill: from this time on, such as 2026-01-31T12:00:00Z, or 7d for seven days ago
    #[arg(long, value_name = "TIME", required_if_eq("operation", "backfill"))]
    pub(crate) from: Option<String>,
    /// With backfill: before this time [default: now]
    #[arg(long, value_name = "TIME", requires = "from")]
    pub(crate) to: Option<String>,
    /// With backfill: only list the slots
    #[arg(long, requires = "from")]
    pub(crate) dry_run: bool,
    /// The reason, which is kept in the record
    #[arg(long, value_name = "TEXT", requires = "operation")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) list: ListArguments,
}

/// What can be done to a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScheduleOperation {
    /// Start a job now
    Trigger,
    /// Skip the slots from now on
    Pause,
    /// Go on after a pause
    Resume,
    /// Start the jobs of slots that have passed and have none
    Backfill,
}
