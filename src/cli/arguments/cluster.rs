//! Arguments of `cluster`.

use super::common::ClientArguments;
use clap::{Args, Subcommand};

/// The commands of `cluster`.
#[derive(Subcommand, Debug)]
pub(crate) enum ClusterCommand {
    /// End the active manager in an orderly way, so that a standby takes over
    StepDown(StepDownArguments),
}

/// Arguments of `cluster step-down`.
#[derive(Args, Debug)]
pub(crate) struct StepDownArguments {
    /// Only if the manager has this name (setting cluster.name)
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Also if no other manager of the name stands by
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}
