//! `health`: checks whether a manager works, for health checks of containers and for scripts.

use super::active::Round;
use super::arguments::TargetArguments;
use super::client::Client;
use super::error::ClientError;
use super::target::ManagerTarget;
use engine::text::escape_lines;
use std::io::Write;

/// Prints the health checks of a manager; of several, those of the first one that is healthy. With
/// `is_live_only` it checks only whether the process answers.
///
/// # Errors
///
/// Returns an error if at each address a check fails, or the manager cannot be reached.
pub(super) fn print_health(
    is_live_only: bool,
    target: &TargetArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let path = if is_live_only { "/livez" } else { "/readyz?verbose" };
    let target = ManagerTarget::from_arguments(target)?;
    let mut failures = Vec::new();
    for addresses in target.addresses.each() {
        let address = addresses.display_current();
        let client = Client::for_target(ManagerTarget { addresses, ..target.clone() });
        match client.get_here(path) {
            Ok(text) => {
                writeln!(out, "{}", escape_lines(text.trim_end()))?;
                return Ok(());
            }
            Err(error) => failures.push((address, error)),
        }
    }
    Err(merge(failures))
}

/// Merges the errors of several managers, each with its address. If none of them can be reached,
/// the merged error says so.
fn merge(mut failures: Vec<(String, ClientError)>) -> ClientError {
    if failures.len() == 1 {
        return failures.remove(0).1;
    }
    let mut round = Round::default();
    let mut is_reached = false;
    for (address, error) in failures {
        let problem = if let ClientError::Unreachable { error, .. } = error {
            error
        } else {
            is_reached = true;
            error.to_string()
        };
        round.add(address, problem);
    }
    let (server, error) = round.describe();
    if is_reached {
        ClientError::Refused(error)
    } else {
        ClientError::Unreachable { server, error }
    }
}
