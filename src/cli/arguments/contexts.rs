//! Arguments of `context`, which names managers.

use super::common::{FormatArguments, parse_addresses};
use clap::{Args, Subcommand};

/// The commands of `context`.
#[derive(Subcommand, Debug)]
pub(crate) enum ContextCommand {
    /// Name a manager; the first one is used from then on
    Add(AddArguments),
    /// Use a context from now on
    Use {
        /// Its name; without one, no context is used any more
        name: Option<String>,
    },
    /// List the contexts; tokens are not shown
    List {
        #[command(flatten)]
        list: FormatArguments,
    },
    /// Remove a context and its token
    Remove {
        /// Its name
        name: String,
    },
}

/// Arguments of `context add`.
#[derive(Args, Debug)]
pub(crate) struct AddArguments {
    /// Its name
    pub(crate) name: String,
    /// The manager's address, or several with commas in between, of which the active one is asked
    #[arg(long, value_name = "URL", value_parser = parse_addresses)]
    pub(crate) server: String,
    /// The manager's token; - reads it from standard input, so that no list of processes shows it
    #[arg(long, conflicts_with = "token_command")]
    pub(crate) token: Option<String>,
    /// A command whose output is the token; it runs with sh each time a token is needed
    #[arg(long, value_name = "COMMAND")]
    pub(crate) token_command: Option<String>,
    /// Replace the context of this name
    #[arg(long)]
    pub(crate) replace: bool,
    /// Use it from now on
    #[arg(long = "use")]
    pub(crate) is_current: bool,
}
