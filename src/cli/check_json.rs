//! The output of `check --json`. Its keys are those of the workflow file.

use crate::load::{LoadErrors, Loaded, Problem};
use crate::view::DefinitionView;
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Outcome<'l> {
    valid: bool,
    workflows: Vec<DefinitionView<'l>>,
    warnings: &'l [Problem],
    errors: &'l [Problem],
}

/// Prints the workflows of the files, or all errors.
pub(super) fn print_json(
    loaded: &Result<Loaded, LoadErrors>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let view = match loaded {
        Ok(loaded) => Outcome {
            valid: true,
            workflows: loaded
                .definitions
                .iter()
                .map(|definition| DefinitionView::of(definition))
                .collect(),
            warnings: &loaded.warnings,
            errors: &[],
        },
        Err(errors) => {
            Outcome { valid: false, workflows: Vec::new(), warnings: &[], errors: &errors.0 }
        }
    };
    serde_json::to_writer_pretty(&mut *out, &view)?;
    writeln!(out)
}
