//! `health`: whether a manager works, for health checks of containers and for scripts.

use super::arguments::ReachArguments;
use super::client::Client;
use super::error::ClientError;
use engine::text::escape_lines;
use std::io::Write;

/// Prints each check, and returns an error if one fails. With `live` it checks only whether the
/// process answers.
pub(super) fn health(
    live: bool,
    reach: &ReachArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let path = if live { "/livez" } else { "/readyz?verbose" };
    let text = Client::new(reach)?.get(path)?;
    writeln!(out, "{}", escape_lines(text.trim_end()))?;
    Ok(())
}
