//! Checks of a running manager over its API: address, token, version, health, clock and queues.

use super::finding::Finding;
use crate::client::Client;
use crate::error::ClientError;
use crate::list_commands::QueueResponse;
use crate::responses::{parse_list, parse_response};
use crate::target::ManagerTarget;
use crate::whoami::ManagerResponse;
use base::clock;
use engine::text::quote;
use ureq::http::StatusCode;

// The names of the checks.
const MANAGER: &str = "manager";
const CLOCK: &str = "clock";
const QUEUES: &str = "queues";

/// The check of readiness that a manager does not pass while it stands by.
const STANDBY_CHECK: &str = "cluster";

/// How many queues without a worker are listed.
const QUEUES_LISTED_MAX: usize = 10;

/// How far the clocks of two machines may differ without a warning, in seconds. The header `Date`
/// has whole seconds, so a smaller limit would not be reliable.
const CLOCK_SKEW_MAX_S: u64 = 3;

const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

/// Checks the manager. Returns whether any server answers at its address. `is_journal_open` is
/// whether a process has the journal of the settings open, or `None` if that is unknown.
///
/// # Errors
///
/// Returns an error if the manager stops answering during the checks, or answers with something
/// unknown.
pub(super) fn inspect(
    target: ManagerTarget,
    is_journal_open: Option<bool>,
    findings: &mut Vec<Finding>,
) -> Result<bool, ClientError> {
    let source = target.server_source.to_string();
    let absent = find_absent(&target);
    let client = Client::for_target(target);
    let date = match client.get_date("/livez") {
        Ok(date) => date,
        Err(ClientError::Unreachable { server, error }) => {
            let text = format!("nobody answers at {server} ({source}): {error}");
            let remedy = match is_journal_open {
                Some(true) => {
                    "a process has the journal open: see its setting http.listen, and give its \
                     address with --server"
                }
                Some(false) => "start it: workflow-manager serve",
                None => {
                    "start it (workflow-manager serve), or give its address with --server or a \
                         context"
                }
            };
            findings.push(Finding::error(MANAGER, text, remedy));
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    findings.extend(absent);
    let result = client.try_get("/api/manager")?;
    let server = client.display_address();
    let body = match result {
        Ok(body) => body,
        Err((status, detail)) => {
            let remedy = match status {
                StatusCode::UNAUTHORIZED => "give the right token: workflow-manager whoami",
                StatusCode::FORBIDDEN => "ask it under a name that http.hosts has",
                StatusCode::NOT_FOUND => "is this a manager, and of the same version?",
                _ => "see its log",
            };
            findings.push(Finding::error(MANAGER, format!("{server}: {detail}"), remedy));
            return Ok(true);
        }
    };
    check_manager(&server, &source, &parse_response(&body)?, findings);
    if is_journal_open == Some(false) {
        let text = "it answers, but no process has the journal of these settings open: it is \
                    another manager";
        let remedy = "give the address of the intended one with --server, or its settings";
        findings.push(Finding::warning(MANAGER, text, remedy));
    }
    findings.extend(date.and_then(|date| compare_clocks(&date)));
    if let Ok(body) = client.try_get("/api/queues")? {
        check_queues(&body, findings)?;
    }
    Ok(true)
}

/// Returns a warning for each of several addresses at which nobody answers. One address gets none.
fn find_absent(target: &ManagerTarget) -> Vec<Finding> {
    let targets: Vec<ManagerTarget> = target
        .addresses
        .each()
        .map(|addresses| ManagerTarget { addresses, ..target.clone() })
        .collect();
    if targets.len() == 1 {
        return Vec::new();
    }
    let find = |target: ManagerTarget| {
        let error = Client::for_target(target).get_here("/livez").err()?;
        let remedy = "start it, so that it stands by; without it nobody takes over";
        Some(Finding::warning(MANAGER, error.to_string(), remedy))
    };
    targets.into_iter().filter_map(find).collect()
}

/// Adds findings about the version and the readiness of the manager.
fn check_manager(
    server: &str,
    source: &str,
    manager: &ManagerResponse,
    findings: &mut Vec<Finding>,
) {
    let client_version = env!("CARGO_PKG_VERSION");
    let text = format!("version {} answers at {server} ({source})", manager.version);
    findings.push(if manager.version == client_version {
        Finding::ok(MANAGER, text)
    } else {
        let remedy =
            format!("this command line is {client_version}: use the same version for both");
        Finding::warning(MANAGER, text, remedy)
    });
    for check in manager.checks.iter().filter(|check| !check.is_ok) {
        if check.name == STANDBY_CHECK {
            // It does what it is there for.
            findings.push(Finding::ok(MANAGER, format!("it {}", check.detail)));
            continue;
        }
        let text = format!("it is not ready: {}: {}", check.name, check.detail);
        let remedy = "docs/reference/metrics.md, section readiness, tells what the check means";
        findings.push(Finding::error(MANAGER, text, remedy));
    }
    if manager.is_ready {
        findings.push(Finding::ok(MANAGER, "it is ready"));
    }
}

/// Compares the manager's clock with the local one. `date` is the header `Date` of a response.
/// Returns `None` if it cannot be parsed.
fn compare_clocks(date: &str) -> Option<Finding> {
    let manager_s = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_second();
    let local_s = clock::now().0 / NANOSECONDS_PER_SECOND;
    let skew_s = local_s.abs_diff(manager_s);
    Some(if skew_s <= CLOCK_SKEW_MAX_S {
        Finding::ok(CLOCK, "that of the manager and that of this machine agree")
    } else {
        let direction = if manager_s > local_s { "ahead of" } else { "behind" };
        let remedy = "set both by NTP: deadlines, timeouts and retention go by the manager's clock";
        let text = format!("that of the manager is {skew_s}s {direction} that of this machine");
        Finding::warning(CLOCK, text, remedy)
    })
}

/// Adds a warning for each queue without a worker, and an error for each queue whose state is
/// unknown.
fn check_queues(body: &str, findings: &mut Vec<Finding>) -> Result<(), ClientError> {
    let (mut has_problems, mut unattended_count) = (false, 0);
    for entry in parse_list(body, "queues")? {
        let queue: QueueResponse = parse_response(entry.get())?;
        let name = quote(&queue.queue);
        if let Some(reason) = &queue.unknown {
            has_problems = true;
            let text = format!("nothing is known of {name}: {reason}");
            findings.push(Finding::error(QUEUES, text, "see that the broker is reachable"));
        } else if queue.has_no_consumers() {
            has_problems = true;
            unattended_count += 1;
            if unattended_count > QUEUES_LISTED_MAX {
                continue;
            }
            let text = format!(
                "{name} has no worker, and {} messages wait; it is for {}",
                queue.messages.unwrap_or(0),
                queue.format_steps()
            );
            findings.push(Finding::warning(QUEUES, text, "start a worker that takes from it"));
        }
    }
    if unattended_count > QUEUES_LISTED_MAX {
        let text = format!("{} more have no worker", unattended_count - QUEUES_LISTED_MAX);
        let remedy = "workflow-manager queues --unattended lists them";
        findings.push(Finding::warning(QUEUES, text, remedy));
    }
    if !has_problems {
        findings.push(Finding::ok(QUEUES, "each has a worker"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn a_wrong_clock_is_reported() {
        let finding = compare_clocks("Thu, 01 Jan 2026 00:00:00 GMT").expect("a finding");
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.text.contains("s behind that of this machine"), "{finding:?}");
        assert_eq!(compare_clocks("soon"), None);
    }
}
