//! Checks of the manager as the command line reaches it: address, token, version, health, clock and
//! queues.

use super::finding::Finding;
use crate::cli::client::Client;
use crate::cli::error::ClientError;
use crate::cli::lists::QueueAnswer;
use crate::cli::reach::Reach;
use crate::cli::show::{entries, parse};
use crate::cli::whoami::ManagerAnswer;
use crate::clock;
use crate::engine::words::quoted;
use ureq::http::StatusCode;

const MANAGER: &str = "manager";
const CLOCK: &str = "clock";
const QUEUES: &str = "queues";

/// How many queues are listed.
const QUEUES_SHOWN_MAX: usize = 10;

/// How far the clocks of two machines may differ, in seconds. The manager reports whole seconds.
const CLOCKS_DIFFER_MAX: u64 = 3;

/// Checks the manager. Returns whether it answers. `is_journal_open` says whether a process has the
/// journal open.
pub(super) fn look(
    reach: Reach,
    is_locked: Option<bool>,
    found: &mut Vec<Finding>,
) -> Result<bool, ClientError> {
    let (server, source) = (reach.shown(), reach.server_source.to_string());
    let client = Client::of(reach);
    let date = match client.date("/livez") {
        Ok(date) => date,
        Err(ClientError::Unreachable { error, .. }) => {
            let text = format!("nobody answers at {server} ({source}): {error}");
            let to_do = match is_locked {
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
            found.push(Finding::error(MANAGER, text, to_do));
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    let body = match client.ask("/api/manager")? {
        Ok(body) => body,
        Err((status, detail)) => {
            let to_do = match status {
                StatusCode::UNAUTHORIZED => "give the right token: workflow-manager whoami",
                StatusCode::FORBIDDEN => "ask it under a name that http.hosts has",
                StatusCode::NOT_FOUND => "is this a manager, and of the same version?",
                _ => "see its log",
            };
            found.push(Finding::error(MANAGER, format!("{server}: {detail}"), to_do));
            return Ok(true);
        }
    };
    about(&server, &source, &parse(&body)?, found);
    if is_locked == Some(false) {
        let text = "it answers, but no process has the journal of these settings open: it is \
                    another manager";
        let to_do = "give the address of the one that is meant with --server, or its settings";
        found.push(Finding::warning(MANAGER, text, to_do));
    }
    found.extend(date.and_then(|date| clocks(&date)));
    if let Ok(body) = client.ask("/api/queues")? {
        queues(&body, found)?;
    }
    Ok(true)
}

fn about(server: &str, source: &str, manager: &ManagerAnswer, found: &mut Vec<Finding>) {
    let own = env!("CARGO_PKG_VERSION");
    let text = format!("version {} answers at {server} ({source})", manager.version);
    found.push(if manager.version == own {
        Finding::ok(MANAGER, text)
    } else {
        let to_do = format!("this command line is {own}: use the same version for both");
        Finding::warning(MANAGER, text, to_do)
    });
    for check in manager.checks.iter().filter(|check| !check.ok) {
        let text = format!("it is not ready: {}: {}", check.name, check.detail);
        let to_do = "docs/operations.md, section readiness, tells what the check means";
        found.push(Finding::error(MANAGER, text, to_do));
    }
    if manager.ready {
        found.push(Finding::ok(MANAGER, "it is ready"));
    }
}

/// Compares the manager's clock with the local one, by the header `Date` of its response.
fn clocks(date: &str) -> Option<Finding> {
    let there = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_second();
    let here = clock::now().0 / 1_000_000_000;
    let apart = here.abs_diff(there);
    Some(if apart <= CLOCKS_DIFFER_MAX {
        Finding::ok(CLOCK, "that of the manager and that of this machine agree")
    } else {
        let which = if there > here { "ahead of" } else { "behind" };
        let to_do = "set both by NTP: deadlines, timeouts and retention go by the manager's clock";
        let text = format!("that of the manager is {apart}s {which} that of this machine");
        Finding::warning(CLOCK, text, to_do)
    })
}

fn queues(body: &str, found: &mut Vec<Finding>) -> Result<(), ClientError> {
    let (mut is_fine, mut shown) = (true, 0);
    for entry in entries(body, "queues")? {
        let queue: QueueAnswer = parse(entry.get())?;
        let name = quoted(&queue.queue);
        if let Some(why) = &queue.unknown {
            is_fine = false;
            let text = format!("nothing is known of {name}: {why}");
            found.push(Finding::error(QUEUES, text, "see that the broker is reachable"));
        } else if queue.is_unattended() {
            is_fine = false;
            shown += 1;
            if shown > QUEUES_SHOWN_MAX {
                continue;
            }
            let text = format!(
                "{name} has no worker, and {} messages wait; it is for {}",
                queue.messages.unwrap_or_default(),
                queue.used_by()
            );
            found.push(Finding::warning(QUEUES, text, "start a worker that takes from it"));
        }
    }
    if shown > QUEUES_SHOWN_MAX {
        let text = format!("{} more have no worker", shown - QUEUES_SHOWN_MAX);
        let to_do = "workflow-manager queues --unattended lists them";
        found.push(Finding::warning(QUEUES, text, to_do));
    }
    if is_fine {
        found.push(Finding::ok(QUEUES, "each has a worker"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn a_clock_that_is_wrong_is_told() {
        let finding = clocks("Thu, 01 Jan 2026 00:00:00 GMT").expect("a finding");
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.text.contains("s behind that of this machine"), "{finding:?}");
        assert_eq!(clocks("soon"), None);
    }
}
