//! Arguments of `work`, which runs a program as a worker.

use super::common::{TargetArguments, parse_duration};
use clap::Args;
use daemon::settings::DurationSetting;
use std::ffi::OsString;

/// Arguments of `work`.
#[derive(Args, Debug)]
#[command(after_help = WORK_HELP)]
pub(crate) struct WorkArguments {
    /// The queues, which are polled in turn
    #[arg(required = true, value_name = "QUEUE")]
    pub(crate) queues: Vec<String>,
    /// How many messages are worked on at once
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) jobs: u32,
    /// After how long without a sign of life of this worker another one gets the message; the lease
    /// is extended while the program runs
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub(crate) lease: DurationSetting,
    /// The virtual host of the queues
    #[arg(long, value_name = "VHOST", default_value = "")]
    pub(crate) vhost: String,
    /// Print no line for each message
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// When the program's file changes, or one that its arguments name, begin messages in hand
    /// again
    #[arg(long)]
    pub(crate) watch: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) target: TargetArguments,
}

/// The contract of the program, which the help text explains after the options.
const WORK_HELP: &str = "\
The program runs once for each message: the step's input is its standard input, its standard output
is the step's output (a JSON object, or nothing). If its exit code is not 0 the attempt fails, with
the last lines of its standard error as the reason.

  workflow-manager work price --jobs 4 -- python3 price.py
  workflow-manager work greet -- jq -c '{greeting: (\"Hello, \" + .name)}'

Its environment describes the message: WORKFLOW_QUEUE, WORKFLOW_VHOST, WORKFLOW_NAME, WORKFLOW_JOB,
WORKFLOW_STEP, WORKFLOW_ATTEMPT, WORKFLOW_DELIVERY, WORKFLOW_CORRELATION_ID, WORKFLOW_MESSAGE_ID,
WORKFLOW_PRIORITY, WORKFLOW_DEPTH, WORKFLOW_TRACEPARENT, WORKFLOW_TRACESTATE.

SIGTERM or Ctrl-C: messages in flight are finished. A second signal gives them back.";
