//! Arguments of `cluster`.

use super::common::{ClientArguments, ListArguments};
use clap::{Args, Subcommand};

/// Arguments of `cluster`. Without a command it lists the managers.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ClusterArguments {
    #[command(subcommand)]
    pub(crate) command: Option<ClusterCommand>,
    #[command(flatten)]
    pub(crate) list: ListArguments,
}

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
