//! Arguments of `token`, which creates tokens for the HTTP API.

use clap::{Args, Subcommand, ValueEnum};
use daemon::settings::Scope;
use std::path::PathBuf;

/// The commands of `token`.
#[derive(Subcommand, Debug)]
pub(crate) enum TokenCommand {
    /// Create a token: print it once, with the entry for the settings that has its hash
    New(NewTokenArguments),
    /// Print the hash of a token, which is read from standard input
    Hash,
}

/// Arguments of `token new`.
#[derive(Args, Debug)]
pub(crate) struct NewTokenArguments {
    /// The token's name, which is shown in logs and records
    pub(crate) name: String,
    /// What it allows: read reads; operate also creates jobs and runs operations that erase
    /// nothing; admin allows everything
    #[arg(long, value_enum, required_unless_present = "queues")]
    pub(crate) scope: Option<ScopeArgument>,
    /// A queue whose messages it may receive and settle; may be given several times
    #[arg(long = "queue", value_name = "QUEUE")]
    pub(crate) queues: Vec<String>,
    /// Add it to this file, the one in the setting http.tokens_file; a missing file is created
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// A scope, as an argument.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ScopeArgument {
    Read,
    Operate,
    Admin,
}

impl From<ScopeArgument> for Scope {
    fn from(scope: ScopeArgument) -> Scope {
        match scope {
            ScopeArgument::Read => Scope::Read,
            ScopeArgument::Operate => Scope::Operate,
            ScopeArgument::Admin => Scope::Admin,
        }
    }
}
