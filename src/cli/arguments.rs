//! The commands and their arguments, as clap parses them. The doc comments of commands and fields
//! are their help texts.

mod cluster;
mod common;
mod contexts;
mod controls;
mod dev;
mod init;
mod job_ref;
mod journal;
mod operate;
mod parts;
mod schedule;
mod serve;
mod tokens;
mod work;
mod worker_test;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use daemon::settings::DurationSetting;
use engine::JobId;
use std::path::PathBuf;

pub(super) use cluster::{ClusterArguments, ClusterCommand, StepDownArguments};
use common::parse_duration;
pub(super) use common::{
    ClientArguments, Format, FormatArguments, ListArguments, TargetArguments, TimeArguments,
    TimeStyle,
};
pub(super) use contexts::{AddArguments, ContextCommand};
pub(super) use controls::{
    ControlOptions, LimitArguments, NamedSubject, PauseArguments, PauseSubject, QueueSubject,
    ResumeArguments, ResumeSubject,
};
use dev::DevArguments;
pub(super) use init::InitArguments;
pub(super) use job_ref::JobRef;
pub(super) use journal::{CopyArguments, JournalCommand};
pub(super) use operate::{
    ColumnsCommand, CompleteArguments, FilterArguments, InboxArguments, OperateArguments,
    ReasonsArguments, RedispatchArguments, SearchArguments, StepStatusFilter,
};
pub(super) use parts::{
    AwaitedState, ChildrenArguments, ItemsArguments, StepArguments, WaitArguments,
};
pub(super) use schedule::{ScheduleArguments, ScheduleOperation};
pub(super) use serve::DevOptions;
pub use serve::ServeArguments;
pub(super) use serve::SettingsArguments;
pub(super) use tokens::NewTokenArguments;
#[cfg(test)]
pub(super) use tokens::ScopeArgument;
pub(super) use tokens::TokenCommand;
pub(super) use work::WorkArguments;
pub(super) use worker_test::{TestedBus, WorkerTestArguments};

/// Coordinates jobs over independent workers through a message bus.
#[derive(Parser, Debug)]
#[command(name = "workflow-manager", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done, 1 the job or check failed, 2 wrong usage, 3 cannot \
                        reach the manager, 4 the time of `wait` is over.")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run the manager until SIGTERM or SIGINT
    Serve(ServeArguments),
    /// Run a manager for the author of a workflow: in memory, and the files are reloaded when they
    /// change
    Dev(DevArguments),
    /// Validate workflow files: print their steps and queues, or every error
    Check {
        /// Workflow files; - is standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Report which jobs in this journal would run differently under these files; exit code 1
        /// if a running job would
        #[arg(long, value_name = "JOURNAL")]
        against: Option<PathBuf>,
        /// The manager's settings, which must define the buses that the files name
        #[arg(long, value_name = "SETTINGS")]
        config: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON Schema of workflow files, for editors
    Schema,
    /// Test workflows in virtual time with scripted workers, as test files describe
    Test {
        /// Test files
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Print what happened in every test, not only in failed ones
        #[arg(long)]
        verbose: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a folder with a workflow, its worker and its tests, from a template
    Init(InitArguments),
    /// Show what happened to a job, or the job as it was, from a journal's file; the file is only
    /// read, and a manager may be using it
    Replay(ReplayArguments),
    /// Make a consistent and verified copy of a journal's file, even while a manager uses it
    Backup(BackupArguments),
    /// Restore a journal from a backup, or check whether that is possible
    Restore(RestoreArguments),
    /// Copy a journal from a file into a database, or back
    #[command(subcommand, subcommand_required = true, arg_required_else_help = true)]
    Journal(JournalCommand),
    /// Check an installation, and suggest a remedy for each problem
    Doctor(DoctorArguments),
    /// Check whether a worker keeps the worker protocol, with a stub of the manager and with faults
    WorkerTest(WorkerTestArguments),
    /// Name managers, with their addresses and tokens, to choose them with --context
    #[command(subcommand, subcommand_required = true, arg_required_else_help = true)]
    Context(ContextCommand),
    /// Create tokens for the HTTP API
    #[command(subcommand, subcommand_required = true, arg_required_else_help = true)]
    Token(TokenCommand),
    /// Print the script with which a shell completes commands and options
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write manual pages into a directory, one for each command
    #[command(after_help = "To read one: man -l DIR/workflow-manager-run.1")]
    Man {
        /// The directory; it is created if it is missing
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    #[command(flatten)]
    Client(Box<ClientCommand>),
}

/// Where each shell expects its completion script.
const COMPLETIONS_HELP: &str = "\
For bash:  workflow-manager completions bash > \
    ~/.local/share/bash-completion/completions/workflow-manager
For zsh:   workflow-manager completions zsh > DIR/_workflow-manager, with DIR in fpath
For fish:  workflow-manager completions fish > ~/.config/fish/completions/workflow-manager.fish";

/// The commands that call a manager.
#[derive(Subcommand, Debug)]
pub(crate) enum ClientCommand {
    /// Create a job, follow it, and print its result
    Run(RunArguments),
    /// List the running jobs of each workflow, and those that ended within the interval
    Jobs {
        /// Only this workflow: NAME or VHOST/NAME
        workflow: Option<String>,
        /// How far back ended jobs are listed, in minutes; 0: without limit
        #[arg(long, default_value_t = 480)]
        interval: u64,
        #[command(flatten)]
        list: ListArguments,
    },
    /// Search jobs by workflow, state, status, id and time
    Search(SearchArguments),
    /// List the steps that wait for people, those that have waited longest first
    Inbox(InboxArguments),
    /// Tell why jobs and child jobs failed, the most frequent reasons first
    Reasons(ReasonsArguments),
    /// Cancel running or paused jobs; later replies are ignored
    Cancel(OperateArguments),
    /// Pause jobs, a queue, a workflow or a limit: replies are accepted, but nothing new is
    /// dispatched
    Pause(PauseArguments),
    /// Continue paused jobs, or end the pause of a queue, a workflow or a limit
    Resume(ResumeArguments),
    /// Continue failed jobs from their failed steps; completed steps are kept
    Retry(OperateArguments),
    /// Run a step of ended jobs again, and all steps that depend on it
    Rerun {
        /// The step
        #[arg(long)]
        step: String,
        /// Run only the failed items of the step again: what its other items gave is kept
        #[arg(long, value_parser = ["failed"])]
        items: Option<String>,
        #[command(flatten)]
        jobs: OperateArguments,
    },
    /// Delete ended jobs
    Delete(OperateArguments),
    /// Send the message of a running step again, as the same attempt, or the messages of all steps
    /// that wait on a queue
    Redispatch(RedispatchArguments),
    /// Complete, or fail, a running step by hand
    Complete(CompleteArguments),
    /// Explain in one sentence why a job makes no progress
    Why {
        /// The job's id, or its first digits
        id: JobRef,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Reload the workflow files; if one has an error, none is reloaded
    Reload {
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Show a job, its steps and the first of its child jobs; with --children, only child jobs
    Job {
        /// The job's id, or its first digits
        id: JobRef,
        #[command(flatten)]
        children: ChildrenArguments,
        #[command(flatten)]
        list: ListArguments,
    },
    /// Show a step of a job with its attempts; or its input or output, byte for byte
    Step(StepArguments),
    /// Show the items of a fan-out: how many are in which state, and the first of its child jobs
    Items(ItemsArguments),
    /// List the workflows, with the number of their running jobs
    Workflows {
        /// Also show statistics of their jobs over this time, from 1m to 24h
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        stats: Option<DurationSetting>,
        #[command(flatten)]
        list: ListArguments,
    },
    /// List the queues of the loaded workflows, with the number of their messages and workers
    Queues {
        /// Only queues without a worker
        #[arg(long)]
        unattended: bool,
        #[command(flatten)]
        list: ListArguments,
    },
    /// List the limits of rate and concurrency: who holds their places, and who waits
    Limits(ListArguments),
    /// Give a limit another rate or concurrency for a time
    Limit(LimitArguments),
    /// Compute the label and the columns of a workflow's jobs anew, after the workflow file changed
    #[command(subcommand)]
    Columns(ColumnsCommand),
    /// List the schedules: their next slots, and how the last ones were judged
    Schedules(ListArguments),
    /// Show a schedule; or trigger, pause or resume it, or start the jobs of slots that have passed
    Schedule(ScheduleArguments),
    /// List the managers that share a database: their names, versions, states and addresses
    Cluster(ClusterArguments),
    /// Wait until a job is in a given state
    Wait(WaitArguments),
    /// Run a program as a worker, once for each message in queues of the embedded bus
    Work(WorkArguments),
    /// Check whether the manager is ready: exit code 0 if it is, 1 with the failed checks if it is
    /// not, 3 if nobody answers
    Health {
        /// Check only whether the process answers, for a supervisor that restarts it otherwise
        #[arg(long)]
        live: bool,
        #[command(flatten)]
        target: TargetArguments,
    },
    /// Show which manager is called, and what the token allows
    Whoami {
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Show what happened to a job, entry by entry of its record, or the job as it was
    History(HistoryArguments),
    /// Follow the events of all jobs, or of one job and its child jobs until it has ended
    Watch(WatchArguments),
    /// Show the statuses of a workflow's jobs, newest first
    Status(StatusArguments),
}

/// Arguments of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArguments {
    #[command(flatten)]
    pub(crate) settings: SettingsArguments,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub(crate) struct RunArguments {
    /// The workflow: NAME or VHOST/NAME
    pub(crate) workflow: String,
    /// The job's message: a JSON object, @FILE, or - for standard input
    #[arg(long, value_name = "JSON|@FILE|-", default_value = "{}")]
    pub(crate) message: String,
    /// The job's id, a UUID; the same id with the same message starts nothing twice
    #[arg(long, value_name = "UUID")]
    pub(crate) id: Option<JobId>,
    /// Begin the job so long after its creation, such as 2h
    #[arg(long, value_name = "DURATION", conflicts_with = "at")]
    pub(crate) after: Option<String>,
    /// Begin the job at this time, such as 2026-12-01T08:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<String>,
    /// Print the job's id and do not follow it
    #[arg(long)]
    pub(crate) detach: bool,
    /// How long to wait for a manager that does not answer while the job is followed
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub(crate) reconnect_for: DurationSetting,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

/// Arguments that select a part of a job's record.
#[derive(Args, Debug)]
pub(crate) struct RecordArguments {
    /// The id of a job or child job; of a job also its first digits
    pub(crate) id: JobRef,
    /// Show the job as it was after the entry with this number; the first is 1
    #[arg(long = "at", value_name = "N", conflicts_with_all = ["after", "limit"])]
    pub(crate) at_entry: Option<u64>,
    /// Only entries after the one with this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) after: u64,
    /// Print at most this many entries [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
}

/// Arguments of `history`.
#[derive(Args, Debug)]
pub(crate) struct HistoryArguments {
    #[command(flatten)]
    pub(crate) record: RecordArguments,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
    #[command(flatten)]
    pub(crate) times: TimeArguments,
}

/// Arguments of `replay`.
#[derive(Args, Debug)]
pub(crate) struct ReplayArguments {
    #[command(flatten)]
    pub(crate) record: RecordArguments,
    /// The journal's file
    #[arg(long, value_name = "FILE")]
    pub(crate) db: PathBuf,
    /// Print JSON: a line for each entry, or the job
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) times: TimeArguments,
}

/// Arguments of `backup`.
#[derive(Args, Debug)]
pub(crate) struct BackupArguments {
    /// The new file
    #[arg(value_name = "FILE")]
    pub(crate) target: PathBuf,
    /// The journal's file
    #[arg(long, value_name = "FILE")]
    pub(crate) db: PathBuf,
    /// The maximum speed of the copy, in MiB per second; 0: no limit
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub(crate) rate: u32,
    /// Leave out free space within the file, so that the copy is as small as possible
    #[arg(long)]
    pub(crate) vacuum: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `restore`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["db", "check"]))]
pub(crate) struct RestoreArguments {
    /// The backup
    #[arg(value_name = "FILE")]
    pub(crate) backup: PathBuf,
    /// The journal's file, which must not exist yet
    #[arg(long, value_name = "FILE")]
    pub(crate) db: Option<PathBuf>,
    /// Only check whether every row can be read and every job can continue; for this, a copy is
    /// made in the directory for temporary files, and removed
    #[arg(long)]
    pub(crate) check: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `watch`.
#[derive(Args, Debug)]
pub(crate) struct WatchArguments {
    /// The job's id, or its first digits
    pub(crate) id: Option<JobRef>,
    /// Only what happens to the job itself, not to its child jobs
    #[arg(long, requires = "id")]
    pub(crate) no_children: bool,
    /// How long to wait for a manager that does not answer
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub(crate) reconnect_for: DurationSetting,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
    #[command(flatten)]
    pub(crate) times: TimeArguments,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    /// The workflow: NAME or VHOST/NAME
    pub(crate) workflow: String,
    /// Only this job
    #[arg(long, value_name = "ID")]
    pub(crate) job: Option<JobRef>,
    /// Only jobs in which the step has this status; given several times, all must hold
    #[arg(long = "filter", value_name = "STEP=STATUS")]
    pub(crate) filters: Vec<StepStatusFilter>,
    /// Show at most this many jobs, up to 10000 [default: 1000, with --csv all]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u32>,
    /// Only these steps, in this order [default: all; if they do not fit, as many non-empty ones as
    /// do]
    #[arg(
        long,
        value_name = "STEP,STEP",
        value_delimiter = ',',
        conflicts_with_all = ["json", "csv"]
    )]
    pub(crate) columns: Vec<String>,
    /// Print CSV of all jobs, as the manager writes it
    #[arg(long, conflicts_with_all = ["json", "output"])]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) list: ListArguments,
}
