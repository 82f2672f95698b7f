//! Prints the JSON of `check --json`. Workflows have the same keys as in a workflow file.

use daemon::load::{Diagnostic, LoadErrors, LoadedWorkflows};
use daemon::view::DefinitionView;
use serde::Serialize;
use std::io::{self, Write};

/// The output of `check --json`. If any file is not valid, there are errors only.
#[derive(Serialize)]
struct CheckOutcome<'l> {
    valid: bool,
    workflows: Vec<DefinitionView<'l>>,
    warnings: &'l [Diagnostic],
    errors: &'l [Diagnostic],
}

/// Prints the workflows of the files, or all errors, as one JSON object.
pub(super) fn print_json(
    load_result: &Result<LoadedWorkflows, LoadErrors>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let outcome = match load_result {
        Ok(workflows) => CheckOutcome {
            valid: true,
            workflows: workflows
                .definitions
                .iter()
                .map(|definition| DefinitionView::from_definition(definition))
                .collect(),
            warnings: &workflows.warnings,
            errors: &[],
        },
        Err(errors) => {
            CheckOutcome { valid: false, workflows: Vec::new(), warnings: &[], errors: &errors.0 }
        }
    };
    serde_json::to_writer_pretty(&mut *out, &outcome)?;
    writeln!(out)
}
