//! Prints the JSON of `check --json`. Workflows have the same keys as in a workflow file.

use daemon::api::CheckView;
use daemon::load::{LoadErrors, LoadedWorkflows};
use std::io::{self, Write};

/// Prints the workflows of the files, or all errors, as one JSON object.
pub(super) fn print_json(
    load_result: &Result<LoadedWorkflows, LoadErrors>,
    out: &mut dyn Write,
) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &CheckView::new(load_result))?;
    writeln!(out)
}
