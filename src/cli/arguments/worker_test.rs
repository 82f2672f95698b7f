//! Arguments of `worker-test`, which checks a worker.

use super::common::parse_duration;
use clap::{Args, ValueEnum};
use daemon::settings::DurationSetting;
use std::ffi::OsString;

/// Arguments of `worker-test`.
#[derive(Args, Debug)]
#[command(after_help = WORKER_TEST_HELP)]
pub(crate) struct WorkerTestArguments {
    /// The worker's queue
    #[arg(value_name = "QUEUE")]
    pub(crate) queue: String,
    /// A message that the worker can process: a JSON object, or @FILE
    #[arg(long, value_name = "JSON|@FILE", default_value = "{}")]
    pub(crate) message: String,
    /// The output that it must answer with: a JSON object, or @FILE
    #[arg(long, value_name = "JSON|@FILE")]
    pub(crate) expect: Option<String>,
    /// How long an answer may take; a worker whose connection was cut has twice that
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub(crate) within: DurationSetting,
    /// How the worker takes its messages [default: amqp if a broker is set, else http]
    #[arg(long, value_name = "BUS")]
    pub(crate) bus: Option<TestedBus>,
    /// The broker, amqp://user:password@host:port/vhost
    #[arg(long, value_name = "URL", env = "AMQP_SERVER", hide_env_values = true)]
    pub(crate) amqp_server: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// The worker and its arguments; without it, start one yourself at the address that is printed
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// How the worker takes its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TestedBus {
    /// From RabbitMQ
    Amqp,
    /// From the manager, by HTTP
    Http,
    /// From the manager, by gRPC
    #[cfg(feature = "grpc")]
    Grpc,
}

/// How the test works, which the help text explains after the options.
const WORKER_TEST_HELP: &str = "\
It plays the manager for one worker: it sends valid and invalid messages, cuts the connection, and
checks what the worker does. No manager is needed.

  workflow-manager worker-test price --message '{\"count\": 3}' --expect '{\"cents\": 750}' \\
      -- workflow-manager work price -- python3 price.py

Over HTTP and gRPC the worker finds the address in WORKFLOW_MANAGER_URL, over AMQP in AMQP_SERVER.
The queue must be empty and without other workers: use one, or a virtual host, that no manager uses.

Exit code 1: the worker fails a requirement of docs/reference/worker-protocol.md. Advice fails
nothing.";
