//! The arguments that select jobs, steps and queues.

use super::job_ref::JobRef;
use super::reach::{ClientArguments, ListArguments};
use clap::{Args, ValueEnum};

/// Which jobs are meant.
#[derive(Args, Debug, Default)]
pub struct FilterArguments {
    /// Only of this workflow: NAME or VHOST/NAME
    #[arg(long)]
    pub workflow: Option<String>,
    /// Only in this state: running, paused, completed, failed or cancelled
    #[arg(long)]
    pub state: Option<String>,
    /// Only with this status of a step; needs --workflow
    #[arg(long, value_name = "STEP=STATUS")]
    pub status: Vec<StepStatusFilter>,
    /// Only those created at this time or later, such as 2026-01-31T12:00:00Z, or 7d for that long
    /// ago
    #[arg(long, value_name = "TIME")]
    pub after: Option<String>,
    /// Only those created before this time
    #[arg(long, value_name = "TIME")]
    pub before: Option<String>,
    /// At most this many, the newest first
    #[arg(long, default_value_t = 1_000)]
    pub limit: u32,
}

/// Arguments of `search`.
#[derive(Args, Debug)]
pub struct SearchArguments {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub filter: FilterArguments,
    /// Only those whose ids begin so: 4 digits or more
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Only those that ended at this time or later
    #[arg(long, value_name = "TIME")]
    pub ended_after: Option<String>,
    /// Only those that ended before this time
    #[arg(long, value_name = "TIME")]
    pub ended_before: Option<String>,
    /// The child jobs of this job, instead of top-level jobs
    #[arg(long, value_name = "ID")]
    pub parent: Option<JobRef>,
    /// Which come first
    #[arg(long, value_enum, default_value_t)]
    pub order: SearchOrder,
    /// Also tell how many there are in all
    #[arg(long)]
    pub count: bool,
    /// Go on where the page before ended
    #[arg(long, value_name = "CURSOR")]
    pub cursor: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub list: ListArguments,
}

/// In which order jobs are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SearchOrder {
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
pub struct OperateArguments {
    /// The job's id, or its first digits; without one, all that the filter finds
    #[arg(
        conflicts_with_all = ["workflow", "state", "status", "after", "before", "limit", "dry_run"]
    )]
    pub id: Option<JobRef>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub filter: FilterArguments,
    /// Tell which jobs the filter finds, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Why: it is kept in the job's record
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Do not ask before all that the filter finds is cancelled or deleted
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub client: ClientArguments,
}

/// Arguments of `complete`.
#[derive(Args, Debug)]
pub struct CompleteArguments {
    /// The job's id, or its first digits
    pub id: JobRef,
    /// The step
    pub step: String,
    /// The step's output: a JSON object, @FILE, or - for standard input
    #[arg(long, value_name = "JSON|@FILE|-", default_value = "{}", conflicts_with = "error")]
    pub message: String,
    /// Fail the attempt instead, for this reason
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// With --error: do not try again
    #[arg(long, requires = "error")]
    pub no_retry: bool,
    /// Why: it is kept in the job's record
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub client: ClientArguments,
}

/// Arguments of `redispatch`: a step, or a queue.
#[derive(Args, Debug)]
pub struct RedispatchArguments {
    /// The job's, or child job's, id
    #[arg(
        requires = "step",
        required_unless_present = "queue",
        conflicts_with_all = ["queue", "bus", "vhost", "dry_run"]
    )]
    pub id: Option<JobRef>,
    /// The step
    #[arg(requires = "id")]
    pub step: Option<String>,
    /// All steps of running jobs and child jobs that wait on this queue
    #[arg(long)]
    pub queue: Option<String>,
    /// The bus that has the queue [default: that of workflows that name none]
    #[arg(long, requires = "queue")]
    pub bus: Option<String>,
    /// The queue's virtual host, of workflows that name theirs
    #[arg(long, requires = "queue")]
    pub vhost: Option<String>,
    /// Tell how many steps wait on the queue, and send nothing
    #[arg(long, requires = "queue")]
    pub dry_run: bool,
    /// Why: it is kept in the job's record
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub client: ClientArguments,
}

/// A condition on the status of a step: `--filter STEP=STATUS`, `--status STEP=STATUS`.
#[derive(Clone, Debug)]
pub struct StepStatusFilter {
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
