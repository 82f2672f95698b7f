//! `completions` and `man`: shell completions and manual pages, generated from the definition of
//! the commands.

use super::error::ClientError;
use super::groups;
use clap_complete::Shell;
use std::io::{self, Write};
use std::path::Path;

/// The program's name on the command line.
const PROGRAM: &str = "workflow-manager";

/// Runs `completions SHELL`: prints the completion script of a shell.
pub(super) fn print_completions(shell: Shell, out: &mut dyn Write) -> io::Result<()> {
    // The generator panics if it cannot write, so it writes to a buffer.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut groups::command(), PROGRAM, &mut script);
    if shell == Shell::Bash {
        // clap_complete 4.6.11 spells a program name with a hyphen in two ways, so that bash would
        // complete nothing after a command. Once that is fixed, this replacement has no effect.
        let text = String::from_utf8_lossy(&script);
        script = text.replace("workflow__subcmd__manager", "workflow__manager").into_bytes();
    }
    out.write_all(&script)?;
    out.flush()
}

/// Runs `man DIR`: writes a manual page for the program and each of its commands.
pub(super) fn write_manual_pages(directory: &Path, out: &mut dyn Write) -> Result<(), ClientError> {
    let result = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(groups::command(), directory));
    result.map_err(|error| {
        let directory = directory.display();
        ClientError::Refused(format!(
            "cannot write manual pages to {directory}: {error}; name a directory that you may \
             write to"
        ))
    })?;
    let directory = directory.display();
    writeln!(out, "the manual pages are in {directory}: man -l {directory}/{PROGRAM}.1")?;
    Ok(())
}
