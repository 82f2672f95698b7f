//! Arguments of `journal`, which copies journals.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// The commands of `journal`.
#[derive(Subcommand, Debug)]
pub(crate) enum JournalCommand {
    /// Copy a journal from a file into a PostgreSQL database, or back, while no manager runs on
    /// either; every job of the copy is compared with its original
    #[command(after_help = COPY_HELP)]
    Copy(CopyArguments),
}

/// How the addresses of databases are given.
const COPY_HELP: &str = "\
A JOURNAL is a file, an address postgres://user@host:5432/database, or @FILE: the file that has \
the address, so that its password is in no list of processes.";

/// Arguments of `journal copy`.
#[derive(Args, Debug)]
pub(crate) struct CopyArguments {
    /// The journal that is copied; it stays as it is
    #[arg(long, value_name = "JOURNAL")]
    pub(crate) from: String,
    /// The new journal: a file that does not exist yet, or a database in which cluster.name has no
    /// jobs
    #[arg(long, value_name = "JOURNAL")]
    pub(crate) to: String,
    /// The manager's settings, for cluster.name and tls.authorities
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
