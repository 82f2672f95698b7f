//! Arguments of `dev`, which runs a manager for the author of a workflow.

use super::serve::{DevOptions, ServeArguments, SettingsArguments};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `dev`.
#[derive(Args, Debug)]
#[command(after_help = DEV_HELP)]
pub(crate) struct DevArguments {
    /// Workflow files, which are reloaded when they change [default: a built-in example]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Open the page in a browser
    #[arg(long)]
    pub(crate) open: bool,
    #[command(flatten)]
    pub(crate) settings: SettingsArguments,
}

impl DevArguments {
    /// Returns the arguments of `serve` that do the same.
    pub(crate) fn into_serve_arguments(self) -> ServeArguments {
        let DevArguments { files, open, mut settings } = self;
        let is_in_memory = settings.db.is_none();
        settings.workflows.extend(files);
        settings.db.get_or_insert_with(|| PathBuf::from(":memory:"));
        let dev = Some(DevOptions { opens_page: open, is_in_memory });
        ServeArguments { settings, print_settings: false, dev }
    }
}

/// What the help text says after the options.
const DEV_HELP: &str = "\
Jobs are kept in memory, unless --db names a file. Whatever happens to a job is told in a line, and
each change of a workflow file: what is different, or what is wrong with it.

  workflow-manager dev                   an example with workers, whose file may be changed
  workflow-manager dev workflow.yaml     and workers: workflow-manager work --watch QUEUE -- CMD";
