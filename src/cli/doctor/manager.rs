//! Checks of the manager as the command line reaches it: address, token, version, health, clock and
//! queues.

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

const MANAGER: &str = "manager";
const CLOCK: &str = "clock";
const QUEUES: &str = "queues";

/// How many queues are listed.
const QUEUES_LISTED_MAX: usize = 10;

/// How far the clocks of two machines may differ, in seconds. The manager reports whole seconds.
const CLOCK_SKEW_MAX_S: u64 = 3;

/// Checks the manager. Returns whether it answers. `is_journal_open` says whether a process has the
/// journal open.
pub(super) fn inspect(
    target: ManagerTarget,
    is_journal_open: Option<bool>,
    findings: &mut Vec<Finding>,
) -> Result<bool, ClientError> {
    let (server, source) = (target.display_address(), target.server_source.to_string());
    let client = Client::for_target(target);
    let date = match client.get_date("/livez") {
        Ok(date) => date,
        Err(ClientError::Unreachable { error, .. }) => {
            let text = format!("nobody answers at {server} ({source}): {error}");
            let to_do = match is_journal_open {
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
            findings.push(Finding::error(MANAGER, text, to_do));
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    let body = match client.try_get("/api/manager")? {
        Ok(body) => body,
        Err((status, detail)) => {
            let to_do = match status {
                StatusCode::UNAUTHORIZED => "give the right token: workflow-manager whoami",
                StatusCode::FORBIDDEN => "ask it under a name that http.hosts has",
                StatusCode::NOT_FOUND => "is this a manager, and of the same version?",
                _ => "see its log",
            };
            findings.push(Finding::error(MANAGER, format!("{server}: {detail}"), to_do));
            return Ok(true);
        }
    };
    check_manager(&server, &source, &parse_response(&body)?, findings);
    if is_journal_open == Some(false) {
        let text = "it answers, but no process has the journal of these settings open: it is \
                    another manager";
        let to_do = "give the address of the one that is meant with --server, or its settings";
        findings.push(Finding::warning(MANAGER, text, to_do));
    }
    findings.extend(date.and_then(|date| compare_clocks(&date)));
    if let Ok(body) = client.try_get("/api/queues")? {
        check_queues(&body, findings)?;
    }
    Ok(true)
}

fn check_manager(
    server: &str,
    source: &str,
    manager: &ManagerResponse,
    findings: &mut Vec<Finding>,
) {
    let own = env!("CARGO_PKG_VERSION");
    let text = format!("version {} answers at {server} ({source})", manager.version);
    findings.push(if manager.version == own {
        Finding::ok(MANAGER, text)
    } else {
        let to_do = format!("this command line is {own}: use the same version for both");
        Finding::warning(MANAGER, text, to_do)
    });
    for check in manager.checks.iter().filter(|check| !check.ok) {
        let text = format!("it is not ready: {}: {}", check.name, check.detail);
        let to_do = "docs/operations.md, section readiness, tells what the check means";
        findings.push(Finding::error(MANAGER, text, to_do));
    }
    if manager.ready {
        findings.push(Finding::ok(MANAGER, "it is ready"));
    }
}

/// Compares the manager's clock with the local one, by the header `Date` of its response.
fn compare_clocks(date: &str) -> Option<Finding> {
    let there = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_second();
    let here = clock::now().0 / 1_000_000_000;
    let skew = here.abs_diff(there);
    Some(if skew <= CLOCK_SKEW_MAX_S {
        Finding::ok(CLOCK, "that of the manager and that of this machine agree")
    } else {
        let which = if there > here { "ahead of" } else { "behind" };
        let to_do = "set both by NTP: deadlines, timeouts and retention go by the manager's clock";
        let text = format!("that of the manager is {skew}s {which} that of this machine");
        Finding::warning(CLOCK, text, to_do)
    })
}

fn check_queues(body: &str, findings: &mut Vec<Finding>) -> Result<(), ClientError> {
    let (mut is_fine, mut unattended) = (true, 0);
    for entry in parse_list(body, "queues")? {
        let queue: QueueResponse = parse_response(entry.get())?;
        let name = quote(&queue.queue);
        if let Some(why) = &queue.unknown {
            is_fine = false;
            let text = format!("nothing is known of {name}: {why}");
            findings.push(Finding::error(QUEUES, text, "see that the broker is reachable"));
        } else if queue.has_no_consumers() {
            is_fine = false;
            unattended += 1;
            if unattended > QUEUES_LISTED_MAX {
                continue;
            }
            let text = format!(
                "{name} has no worker, and {} messages wait; it is for {}",
                queue.messages.unwrap_or(0),
                queue.used_by()
            );
            findings.push(Finding::warning(QUEUES, text, "start a worker that takes from it"));
        }
    }
    if unattended > QUEUES_LISTED_MAX {
        let text = format!("{} more have no worker", unattended - QUEUES_LISTED_MAX);
        let to_do = "workflow-manager queues --unattended lists them";
        findings.push(Finding::warning(QUEUES, text, to_do));
    }
    if is_fine {
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
