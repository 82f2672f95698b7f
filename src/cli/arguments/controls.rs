//! Arguments of the commands that change something for a time: pauses, and other values of limits.

use super::common::ClientArguments;
use super::operate::OperateArguments;
use clap::{ArgGroup, Args, Subcommand};

/// Arguments of `pause`: jobs, or something that is paused for a time.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PauseArguments {
    #[command(flatten)]
    pub(crate) jobs: OperateArguments,
    #[command(subcommand)]
    pub(crate) subject: Option<PauseSubject>,
}

/// What is paused besides jobs.
#[derive(Debug, Subcommand)]
pub(crate) enum PauseSubject {
    /// Pause a queue: nothing new is sent to it, and replies are taken
    Queue {
        #[command(flatten)]
        queue: QueueSubject,
        #[command(flatten)]
        time: ControlTime,
        #[command(flatten)]
        options: ControlOptions,
    },
    /// Pause a workflow: its jobs are taken and wait, and no step begins
    Workflow {
        #[command(flatten)]
        subject: NamedSubject,
        #[command(flatten)]
        time: ControlTime,
        #[command(flatten)]
        options: ControlOptions,
    },
    /// Pause a limit: nobody is admitted to its places
    Limit {
        #[command(flatten)]
        subject: NamedSubject,
        #[command(flatten)]
        time: ControlTime,
        #[command(flatten)]
        options: ControlOptions,
    },
}

/// Arguments of `resume`: jobs, or something that was paused.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ResumeArguments {
    #[command(flatten)]
    pub(crate) jobs: OperateArguments,
    #[command(subcommand)]
    pub(crate) subject: Option<ResumeSubject>,
}

/// What is resumed besides jobs.
#[derive(Debug, Subcommand)]
pub(crate) enum ResumeSubject {
    /// End the pause of a queue
    Queue {
        #[command(flatten)]
        queue: QueueSubject,
        #[command(flatten)]
        options: ControlOptions,
    },
    /// End the pause of a workflow
    Workflow {
        #[command(flatten)]
        subject: NamedSubject,
        #[command(flatten)]
        options: ControlOptions,
    },
    /// End the pause of a limit
    Limit {
        #[command(flatten)]
        subject: NamedSubject,
        #[command(flatten)]
        options: ControlOptions,
    },
}

/// A queue.
#[derive(Args, Debug)]
pub(crate) struct QueueSubject {
    /// The queue
    pub(crate) name: String,
    /// The bus that has the queue [default: the bus of workflows that name none]
    #[arg(long)]
    pub(crate) bus: Option<String>,
    /// The queue's virtual host, of workflows that name theirs
    #[arg(long)]
    pub(crate) vhost: Option<String>,
}

/// A workflow or a limit.
#[derive(Args, Debug)]
pub(crate) struct NamedSubject {
    /// Its name
    pub(crate) name: String,
    /// The virtual host, of workflows that name theirs
    #[arg(long)]
    pub(crate) vhost: Option<String>,
}

/// How long a change lasts.
#[derive(Args, Debug)]
pub(crate) struct ControlTime {
    /// How long it lasts, such as 90s, 30m, 1h or 2d [default: until it is ended]
    #[arg(long = "for", value_name = "DURATION")]
    pub(crate) duration: Option<String>,
}

/// Arguments that all changes for a time have.
#[derive(Args, Debug)]
pub(crate) struct ControlOptions {
    /// The reason, which whoever waits is told
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

/// Arguments of `limit`.
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("change")
        .args(["rate", "concurrency", "end"])
        .multiple(true)
        .required(true)
)]
pub(crate) struct LimitArguments {
    #[command(flatten)]
    pub(crate) subject: NamedSubject,
    /// The rate meanwhile, such as 20/s
    #[arg(long)]
    pub(crate) rate: Option<String>,
    /// How many messages the rate lets through at once
    #[arg(long, value_name = "NUMBER", requires = "rate")]
    pub(crate) burst: Option<u32>,
    /// The concurrency meanwhile
    #[arg(long, value_name = "NUMBER")]
    pub(crate) concurrency: Option<u32>,
    #[command(flatten)]
    pub(crate) time: ControlTime,
    /// End the change: the limit allows again what its file says
    #[arg(long, conflicts_with_all = ["rate", "burst", "concurrency", "duration"])]
    pub(crate) end: bool,
    #[command(flatten)]
    pub(crate) options: ControlOptions,
}
