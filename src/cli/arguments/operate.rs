//! Arguments of the commands that search for jobs, and of those that operate on jobs and steps.

use super::common::{ClientArguments, ListArguments};
use super::job_ref::JobRef;
use clap::{Args, Subcommand, ValueEnum};

/// Arguments that filter jobs. A job must match all that are given.
#[derive(Args, Debug, Default)]
pub(crate) struct FilterArguments {
    /// Only jobs of this workflow: NAME or VHOST/NAME
    #[arg(long)]
    pub(crate) workflow: Option<String>,
    /// Only jobs in this state: running, paused, completed, failed or cancelled
    #[arg(long)]
    pub(crate) state: Option<String>,
    /// Only jobs in which the step has this status; needs --workflow
    #[arg(long, value_name = "STEP=STATUS")]
    pub(crate) status: Vec<StepStatusFilter>,
    /// Only jobs that this schedule started: NAME or VHOST/NAME
    #[arg(long, value_name = "NAME")]
    pub(crate) schedule: Option<String>,
    /// Only jobs whose column has this value
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) column: Vec<ColumnFilter>,
    /// Only jobs whose label has this text, in upper or lower case
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Only jobs that failed for this reason, or with child jobs that did: an id of `reasons`
    #[arg(long, value_name = "ID")]
    pub(crate) reason_id: Option<String>,
    /// Only completed jobs of which items have failed
    #[arg(long)]
    pub(crate) failed_items: bool,
    /// Only jobs created at this time or later, such as 2026-01-31T12:00:00Z, or 7d for seven days
    /// ago
    #[arg(long, value_name = "TIME")]
    pub(crate) after: Option<String>,
    /// Only jobs created before this time
    #[arg(long, value_name = "TIME")]
    pub(crate) before: Option<String>,
    /// Only jobs that ended at this time or later
    #[arg(long, value_name = "TIME")]
    pub(crate) ended_after: Option<String>,
    /// Only jobs that ended before this time
    #[arg(long, value_name = "TIME")]
    pub(crate) ended_before: Option<String>,
    /// At most this many jobs, the newest first
    #[arg(long, default_value_t = 1_000)]
    pub(crate) limit: u32,
}

/// The commands of `columns`.
#[derive(Subcommand, Debug)]
pub(crate) enum ColumnsCommand {
    /// Compute the label and the columns of a workflow's jobs anew from their records, by the
    /// definition that is loaded now; it can be stopped, and run again
    Refill {
        /// The workflow: NAME or VHOST/NAME
        workflow: String,
        /// Change nothing, only tell how many jobs would change
        #[arg(long)]
        dry_run: bool,
        /// Why, for the audit log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        #[command(flatten)]
        client: ClientArguments,
    },
}

/// Arguments of `inbox`.
#[derive(Args, Debug)]
pub(crate) struct InboxArguments {
    /// Only steps of this workflow: NAME or VHOST/NAME
    #[arg(long)]
    pub(crate) workflow: Option<String>,
    /// How many jobs are listed at most, each with its steps: 1 to 1000
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) list: ListArguments,
}

/// Arguments of `reasons`.
#[derive(Args, Debug)]
pub(crate) struct ReasonsArguments {
    /// Only failures of this workflow: NAME or VHOST/NAME
    #[arg(long)]
    pub(crate) workflow: Option<String>,
    /// Only jobs that failed at this time or later, such as 2026-01-31T12:00:00Z, or 7d for seven
    /// days ago
    #[arg(long, value_name = "TIME")]
    pub(crate) ended_after: Option<String>,
    /// Only jobs that failed before this time
    #[arg(long, value_name = "TIME")]
    pub(crate) ended_before: Option<String>,
    #[command(flatten)]
    pub(crate) list: ListArguments,
}

/// Arguments of `search`.
#[derive(Args, Debug)]
pub(crate) struct SearchArguments {
    #[command(flatten)]
    pub(crate) filter: FilterArguments,
    /// Only jobs whose ids begin with these digits, 4 or more
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// The child jobs of this job, instead of top-level jobs
    #[arg(long, value_name = "ID")]
    pub(crate) parent: Option<JobRef>,
    /// Which jobs are listed first
    #[arg(long, value_enum, default_value_t)]
    pub(crate) order: SearchOrder,
    /// Also print how many jobs match in all
    #[arg(long)]
    pub(crate) count: bool,
    /// Continue where the previous page ended
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
    #[command(flatten)]
    pub(crate) list: ListArguments,
}

/// The order of the jobs that a search returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SearchOrder {
    /// The newest first
    #[default]
    Newest,
    /// The oldest first
    Oldest,
}

impl SearchOrder {
    /// Returns the value of the query parameter.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            SearchOrder::Newest => "newest",
            SearchOrder::Oldest => "oldest",
        }
    }
}

/// Arguments of the operations: one job, or a filter.
#[derive(Args, Debug)]
pub(crate) struct OperateArguments {
    /// The job's id, or its first digits; without one, all jobs that the filter finds
    #[arg(
        conflicts_with_all = [
            "workflow", "state", "status", "schedule", "column", "label", "reason_id",
            "failed_items", "after", "before", "ended_after", "ended_before", "limit",
            "dry_run",
        ]
    )]
    pub(crate) id: Option<JobRef>,
    #[command(flatten)]
    pub(crate) filter: FilterArguments,
    /// Only list the jobs that the filter finds
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The reason, which is kept in the job's record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Do not ask for confirmation: `cancel` and `delete` ask before they do it to all jobs that
    /// the filter finds
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

/// Arguments of `complete`.
#[derive(Args, Debug)]
pub(crate) struct CompleteArguments {
    /// The job's id, or its first digits
    pub(crate) id: JobRef,
    /// The step
    pub(crate) step: String,
    /// The step's output: a JSON object, @FILE, or - for standard input
    #[arg(long, value_name = "JSON|@FILE|-", default_value = "{}", conflicts_with = "error")]
    pub(crate) message: String,
    /// Fail the attempt instead, for this reason
    #[arg(long, value_name = "TEXT")]
    pub(crate) error: Option<String>,
    /// With --error: do not retry the step
    #[arg(long, requires = "error")]
    pub(crate) no_retry: bool,
    /// The reason, which is kept in the job's record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

/// Arguments of `redispatch`: a step, or a queue.
#[derive(Args, Debug)]
pub(crate) struct RedispatchArguments {
    /// The id of the job or child job
    #[arg(
        requires = "step",
        required_unless_present = "queue",
        conflicts_with_all = ["queue", "bus", "vhost", "dry_run"]
    )]
    pub(crate) id: Option<JobRef>,
    /// The step
    #[arg(requires = "id")]
    pub(crate) step: Option<String>,
    /// All steps of running jobs and child jobs that wait on this queue
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// The bus that has the queue [default: the bus of workflows that name none]
    #[arg(long, requires = "queue")]
    pub(crate) bus: Option<String>,
    /// The queue's virtual host, of workflows that name theirs
    #[arg(long, requires = "queue")]
    pub(crate) vhost: Option<String>,
    /// Only print how many steps wait on the queue
    #[arg(long, requires = "queue")]
    pub(crate) dry_run: bool,
    /// The reason, which is kept in the job's record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

/// A condition on the status of a step: `--filter STEP=STATUS`, `--status STEP=STATUS`.
#[derive(Clone, Debug)]
pub(crate) struct StepStatusFilter {
    pub(crate) step: String,
    pub(crate) status: String,
}

impl std::str::FromStr for StepStatusFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<StepStatusFilter, String> {
        let (step, status) = text
            .split_once('=')
            .ok_or("expected STEP=STATUS; STEP= alone finds the jobs in which the step waits")?;
        Ok(StepStatusFilter { step: step.to_owned(), status: status.to_owned() })
    }
}

/// A condition on the value of a column: `--column NAME=VALUE`.
#[derive(Clone, Debug)]
pub(crate) struct ColumnFilter {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl std::str::FromStr for ColumnFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<ColumnFilter, String> {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| format!("expected NAME=VALUE, such as order=4711, found {text:?}"))?;
        Ok(ColumnFilter { name: name.to_owned(), value: value.to_owned() })
    }
}
