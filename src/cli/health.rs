//! `health`: checks whether a manager works, for health checks of containers and for scripts.

use super::arguments::TargetArguments;
use super::client::Client;
use super::error::ClientError;
use engine::text::escape_lines;
use std::io::Write;

/// Prints the health checks of a manager. With `is_live_only` it checks only whether the process
/// answers.
///
/// # Errors
///
/// Returns an error if a check fails, or if the manager cannot be reached.
pub(super) fn print_health(
    is_live_only: bool,
    target: &TargetArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let path = if is_live_only { "/livez" } else { "/readyz?verbose" };
    let text = Client::new(target)?.get(path)?;
    writeln!(out, "{}", escape_lines(text.trim_end()))?;
    Ok(())
}
