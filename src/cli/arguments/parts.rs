//! The arguments of commands about parts of a job (its child jobs, a step, the items of a fan-out),
//! and of `wait`.

use super::common::{ClientArguments, ListArguments, TimeArguments, parse_duration};
use super::job_ref::JobRef;
use clap::{Args, ValueEnum};
use daemon::settings::DurationSetting;

/// Arguments that select the child jobs that `job ID` lists.
#[derive(Args, Debug)]
pub(crate) struct ChildrenArguments {
    /// List its child jobs, ordered by step and item
    #[arg(long)]
    pub(crate) children: bool,
    /// Only child jobs that failed: --state failed
    #[arg(long, requires = "children", conflicts_with = "state")]
    pub(crate) failed: bool,
    /// Only child jobs in this state: running, paused, completed, failed or cancelled
    #[arg(long, requires = "children")]
    pub(crate) state: Option<String>,
    /// Only child jobs of this step
    #[arg(long, requires = "children")]
    pub(crate) step: Option<String>,
    /// List at most this many, up to 10000
    #[arg(long, value_name = "N", requires = "children", default_value_t = 1_000)]
    pub(crate) limit: u32,
    /// Continue where the previous page ended
    #[arg(long, value_name = "CURSOR", requires = "children")]
    pub(crate) after: Option<String>,
}

/// Arguments of `step`.
#[derive(Args, Debug)]
#[command(
    after_help = "Into a pipe or a file, --input, --output and --raw write the bytes as the \
                        manager has them and nothing else:\n\n  workflow-manager step ID STEP \
                        --output | jq .total"
)]
pub(crate) struct StepArguments {
    /// The id of a job or child job; of a job also its first digits
    pub(crate) id: JobRef,
    /// The step
    pub(crate) step: String,
    /// Print the input that was sent to the worker
    #[arg(long, group = "payload")]
    pub(crate) input: bool,
    /// Print the output of the worker
    #[arg(long, group = "payload")]
    pub(crate) output: bool,
    /// Print the beginning of a reply that was not a JSON object
    #[arg(long, group = "payload")]
    pub(crate) raw: bool,
    /// Show the step as it was after the entry with this number (see `history`)
    #[arg(long = "at", value_name = "N", conflicts_with_all = ["input", "output"])]
    pub(crate) at_entry: Option<u64>,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
    #[command(flatten)]
    pub(crate) times: TimeArguments,
}

/// Arguments of `items`.
#[derive(Args, Debug)]
pub(crate) struct ItemsArguments {
    /// The id of a job or child job; of a job also its first digits
    pub(crate) id: JobRef,
    /// The step; may be left out where one step of the job has items
    pub(crate) step: Option<String>,
    /// Only the items that failed: --state failed
    #[arg(long, conflicts_with = "state")]
    pub(crate) failed: bool,
    /// Only the items in this state: running, paused, completed, failed or cancelled
    #[arg(long)]
    pub(crate) state: Option<String>,
    /// Group the items that failed by their reasons
    #[arg(long, conflicts_with_all = ["failed", "state", "limit", "after"])]
    pub(crate) reasons: bool,
    /// List at most this many, up to 10000
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: u32,
    /// Continue where the previous page ended
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
    #[command(flatten)]
    pub(crate) list: ListArguments,
}

/// Arguments of `wait`.
#[derive(Args, Debug)]
#[command(after_help = "Exit codes: 0 the job is in the state; 1 it has ended in another one; 3 \
                        cannot reach the manager; 4 the time is over.")]
pub(crate) struct WaitArguments {
    /// The id of a job or child job; of a job also its first digits
    pub(crate) id: JobRef,
    /// The state
    #[arg(long = "for", value_name = "STATE", default_value = "ended")]
    pub(crate) state: AwaitedState,
    /// How long to wait, such as 30s or 5m [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<DurationSetting>,
    /// How long to wait for a manager that does not answer
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub(crate) reconnect_for: DurationSetting,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

/// A state that `wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AwaitedState {
    /// Completed, failed or cancelled
    Ended,
    /// It is running
    Running,
    /// It is paused
    Paused,
    /// It has completed
    Completed,
    /// It has failed
    Failed,
    /// It was cancelled
    Cancelled,
}
