//! The arguments of the commands.

use crate::engine::JobId;
use crate::settings::{Overrides, Span};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use ureq::http::Uri;

/// Coordinates jobs over independent workers through a message bus.
#[derive(Parser, Debug)]
#[command(name = "workflow-manager", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done, 1 the job or check failed, 2 wrong usage, 3 cannot \
                        reach the manager.")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the manager until SIGTERM or SIGINT
    Serve(ServeArguments),
    /// Validate workflow files: print the graph, queues and singulars, or every error
    Check {
        /// Workflow files; - is standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Tell which jobs that this journal keeps would go another way under these files; exit
        /// code 1 if running ones would
        #[arg(long, value_name = "JOURNAL")]
        against: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON Schema of workflow files, for editors
    Schema,
    /// Rehearse workflows in virtual time, with scripted workers, as test files say
    Test {
        /// Test files
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Tell what happened in every test, not in the failed ones alone
        #[arg(long)]
        verbose: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show from a journal's file what happened to a job, or the job as it was; the file is only
    /// read: no manager is needed, and one may be running on it
    Replay(ReplayArguments),
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    Client(ClientCommand),
}

/// The commands that speak to a manager.
#[derive(Subcommand, Debug)]
pub enum ClientCommand {
    /// Create a job, follow it, print its result
    Run(RunArguments),
    /// List jobs by workflow: running, and ended within the interval
    Jobs {
        /// Only this workflow: NAME or VHOST/NAME
        workflow: Option<String>,
        /// How far back ended jobs are listed, in minutes; 0: without limit
        #[arg(long, default_value_t = 480)]
        interval: u64,
        #[command(flatten)]
        #[allow(missing_docs, reason = "flattened")]
        client: ClientArguments,
    },
    /// Search top-level jobs by workflow, state, status and time
    Search {
        #[command(flatten)]
        #[allow(missing_docs, reason = "flattened")]
        filter: FilterArguments,
        #[command(flatten)]
        #[allow(missing_docs, reason = "flattened")]
        client: ClientArguments,
    },
    /// End jobs under way; later replies are ignored
    Cancel(OperateArguments),
    /// Dispatch nothing new until resumed; replies are taken
    Pause(OperateArguments),
    /// Go on after a pause
    Resume(OperateArguments),
    /// Let failed jobs go on from their failed steps; what is complete is kept
    Retry(OperateArguments),
    /// Run a step of ended jobs, and all that depends on it, once more
    Rerun {
        /// The step
        #[arg(long)]
        step: String,
        #[command(flatten)]
        #[allow(missing_docs, reason = "flattened")]
        jobs: OperateArguments,
    },
    /// Delete ended jobs
    Delete(OperateArguments),
    /// Send the message of a running step once more, as the same attempt, or of all steps that wait
    /// on a queue
    Redispatch(RedispatchArguments),
    /// Complete, or fail, a running step by hand
    Complete(CompleteArguments),
    /// Tell in one sentence why a job does not move
    Why {
        /// The job's id
        id: JobId,
        #[command(flatten)]
        #[allow(missing_docs, reason = "flattened")]
        client: ClientArguments,
    },
    /// Reload the workflow files: all, or nothing if one has an error
    Reload {
        #[command(flatten)]
        #[allow(missing_docs, reason = "flattened")]
        client: ClientArguments,
    },
    /// Show a job, its steps and the first of its child jobs; with --children these alone
    Job {
        /// The job's id
        id: JobId,
        #[command(flatten)]
        #[allow(missing_docs, reason = "flattened")]
        children: ChildrenArguments,
        #[command(flatten)]
        #[allow(missing_docs, reason = "flattened")]
        client: ClientArguments,
    },
    /// Show what happened to a job, entry by entry of its record, or the job as it was
    History(HistoryArguments),
    /// Follow events, of all jobs or of one and its child jobs until it has ended
    Watch(WatchArguments),
    /// Show the statuses of a workflow's jobs, newest first
    Status(StatusArguments),
}

/// Arguments of `serve`.
#[derive(Args, Debug)]
pub struct ServeArguments {
    /// Workflow files [setting workflows]
    #[arg(long, num_args = 1..)]
    pub workflows: Vec<PathBuf>,
    /// The broker, amqp://user:password@host:port/vhost; without one the embedded bus is used
    /// [setting amqp.server, AMQP_SERVER]
    #[arg(long, value_name = "URL")]
    pub amqp_server: Option<String>,
    /// The journal, a file; :memory: keeps nothing beyond the end [setting journal.file]
    #[arg(long, value_name = "FILE")]
    pub db: Option<PathBuf>,
    /// Where the API listens; PORT: on loopback, :PORT: on all interfaces [setting http.listen]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// A settings file, YAML (workflow files go with --workflows)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen beyond loopback without a token
    #[arg(long)]
    pub insecure: bool,
    /// Print the effective settings, secrets masked, and end
    #[arg(long)]
    pub print_settings: bool,
}

impl ServeArguments {
    /// What the flags override.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            workflows: self.workflows.clone(),
            amqp_server: self.amqp_server.clone(),
            journal_file: self.db.clone(),
            listen: self.listen.clone(),
            insecure: self.insecure,
        }
    }
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct RunArguments {
    /// The workflow: NAME or VHOST/NAME
    pub workflow: String,
    /// The job's message: a JSON object, @FILE, or - for standard input
    #[arg(long, value_name = "JSON|@FILE|-", default_value = "{}")]
    pub message: String,
    /// The job's id, a UUID; the same id with the same message starts nothing twice
    #[arg(long, value_name = "UUID")]
    pub id: Option<JobId>,
    /// Print the job's id and do not follow it
    #[arg(long)]
    pub detach: bool,
    /// How long to wait for a manager that does not answer while the job is followed
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = span)]
    pub reconnect_for: Span,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub client: ClientArguments,
}

/// Which part of a record is shown.
#[derive(Args, Debug)]
pub struct RecordArguments {
    /// The job's, or child job's, id
    pub id: JobId,
    /// Show the job as it was after the entry with this number; the first is 1
    #[arg(long, value_name = "N", conflicts_with_all = ["after", "limit"])]
    pub at: Option<u64>,
    /// Only entries after the one with this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub after: u64,
    /// At most this many [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
}

/// Arguments of `history`.
#[derive(Args, Debug)]
pub struct HistoryArguments {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub record: RecordArguments,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub client: ClientArguments,
}

/// Arguments of `replay`.
#[derive(Args, Debug)]
pub struct ReplayArguments {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub record: RecordArguments,
    /// The journal's file
    #[arg(long, value_name = "FILE")]
    pub db: PathBuf,
    /// Print JSON: a line for each entry, or the job
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `watch`.
#[derive(Args, Debug)]
pub struct WatchArguments {
    /// The job's id
    pub id: Option<JobId>,
    /// Only what happens to the job itself, not to its child jobs
    #[arg(long, requires = "id")]
    pub no_children: bool,
    /// How long to wait for a manager that does not answer
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = span)]
    pub reconnect_for: Span,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub client: ClientArguments,
}

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
    pub status: Vec<StepStatus>,
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

/// Arguments of the operations: one job, or a filter.
#[derive(Args, Debug)]
pub struct OperateArguments {
    /// The job's id; without one, all that the filter finds
    #[arg(conflicts_with_all = ["workflow", "state", "status", "after", "before", "limit", "dry_run"])]
    pub id: Option<JobId>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub filter: FilterArguments,
    /// Tell which jobs the filter finds, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub client: ClientArguments,
}

/// Which child jobs `job ID` lists.
#[derive(Args, Debug)]
pub struct ChildrenArguments {
    /// List its child jobs, by step and item
    #[arg(long)]
    pub children: bool,
    /// Only those that failed: --state failed
    #[arg(long, requires = "children", conflicts_with = "state")]
    pub failed: bool,
    /// Only in this state: running, paused, completed, failed or cancelled
    #[arg(long, requires = "children")]
    pub state: Option<String>,
    /// Only those of this step
    #[arg(long, requires = "children")]
    pub step: Option<String>,
    /// At most this many, up to 10000
    #[arg(long, value_name = "N", requires = "children", default_value_t = 1_000)]
    pub limit: u32,
    /// Go on where the page before ended
    #[arg(long, value_name = "CURSOR", requires = "children")]
    pub after: Option<String>,
}

/// Arguments of `complete`.
#[derive(Args, Debug)]
pub struct CompleteArguments {
    /// The job's id
    pub id: JobId,
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
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub client: ClientArguments,
}

/// Arguments of `redispatch`: a step, or a queue.
#[derive(Args, Debug)]
pub struct RedispatchArguments {
    /// The job's, or child job's, id
    #[arg(requires = "step", required_unless_present = "queue", conflicts_with_all = ["queue", "vhost", "dry_run"])]
    pub id: Option<JobId>,
    /// The step
    #[arg(requires = "id")]
    pub step: Option<String>,
    /// All steps of running jobs and child jobs that wait on this queue
    #[arg(long)]
    pub queue: Option<String>,
    /// The queue's virtual host, of workflows that name theirs
    #[arg(long, requires = "queue")]
    pub vhost: Option<String>,
    /// Tell how many steps wait on the queue, and send nothing
    #[arg(long, requires = "queue")]
    pub dry_run: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub client: ClientArguments,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct StatusArguments {
    /// The workflow: NAME or VHOST/NAME
    pub workflow: String,
    /// Only this job
    #[arg(long, value_name = "UUID")]
    pub job: Option<JobId>,
    /// Only jobs in which the step has this status; given several times, all must hold
    #[arg(long = "filter", value_name = "STEP=STATUS")]
    pub filters: Vec<StepStatus>,
    /// The most jobs to show, up to 10000 [default: 1000, with --csv all]
    #[arg(long, value_name = "N")]
    pub limit: Option<u32>,
    /// Only these steps, in this order [default: all; of too many those that are not empty, as many
    /// as fit]
    #[arg(long, value_name = "STEP,STEP", value_delimiter = ',', conflicts_with_all = ["json", "csv"])]
    pub columns: Vec<String>,
    /// Print CSV
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub client: ClientArguments,
}

/// How to reach the manager.
#[derive(Args, Debug)]
pub struct ClientArguments {
    /// The manager's address
    #[arg(long, value_name = "URL", env = "WORKFLOW_MANAGER_URL", default_value = "http://127.0.0.1:8088", value_parser = address)]
    pub server: String,
    /// The manager's token
    #[arg(long, env = "WORKFLOW_MANAGER_TOKEN", hide_env_values = true, default_value = "")]
    pub token: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn span(text: &str) -> Result<Span, String> {
    let wrong = |error| format!("{error}; write for example 500ms, 30s or 5m");
    humantime::parse_duration(text).map(Span).map_err(wrong)
}

/// Reads the address of a manager: the argument `--server`.
fn address(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let is_address = host.is_some_and(|host| !host.is_empty() && !host.starts_with('/'))
        && text.parse::<Uri>().is_ok();
    if is_address {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is no address: expected http://host:port"))
    }
}

/// A status that a job must have: `--filter STEP=STATUS`, `--status STEP=STATUS`.
#[derive(Clone, Debug)]
pub struct StepStatus {
    pub(super) step: String,
    pub(super) status: String,
}

impl std::str::FromStr for StepStatus {
    type Err = String;

    fn from_str(text: &str) -> Result<StepStatus, String> {
        let (step, status) = text
            .split_once('=')
            .ok_or("expected STEP=STATUS; STEP= alone finds the jobs in which the step waits")?;
        Ok(StepStatus { step: step.to_owned(), status: status.to_owned() })
    }
}
