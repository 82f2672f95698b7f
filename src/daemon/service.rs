//! Notifies the service manager of the machine (systemd), over the socket that it names in
//! `NOTIFY_SOCKET`; without one it does nothing. The protocol is that of sd_notify(3). This file is
//! the only user of the crate `sd_notify`.
//!
//! | when | what |
//! |---|---|
//! | the journal is recovered | `STATUS=` |
//! | the API listens, and a [probe](ManagerHandle::probe_liveness) has passed | `READY=1` |
//! | each further probe has passed | `WATCHDOG=1`, if the service manager wants it |
//! | the number of jobs or a check of readiness has changed | `STATUS=` |
//! | SIGHUP, and the end of its reload | `RELOADING=1` with `MONOTONIC_USEC=`, `READY=1` |
//! | a stop begins | `STOPPING=1`, with `EXTEND_TIMEOUT_USEC=` |
//!
//! A round that does not end sends no `WATCHDOG=1`: the service manager then ends the process, and
//! the next start recovers. A full disk or an unreachable broker does not stop a round: a restart
//! would not help.

use crate::actors::manager_handle::ManagerHandle;
use engine::Millis;
use engine::text::{escape, truncate};
use sd_notify::NotifyState;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The longest time between two rounds, and so the greatest age of the status.
const ROUND_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// The longest status, in bytes. systemd reads messages of 4 KiB.
const STATUS_BYTES_MAX: usize = 1000;

/// The environment variables by which the service manager addresses a process. They are for this
/// process alone.
const ENV_VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"];

/// The service manager that started this process.
pub struct SystemdNotifier {
    /// How often the watchdog has to hear of a round. `None`: there is no watchdog.
    watchdog: Option<Duration>,
    /// Whether a notification has failed, which is logged once.
    has_failed: AtomicBool,
}

impl SystemdNotifier {
    /// Makes the notifier for the service manager that the environment names.
    pub fn from_env() -> Arc<SystemdNotifier> {
        Arc::new(SystemdNotifier {
            watchdog: sd_notify::watchdog_enabled(),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Notifies that the journal is being recovered.
    pub fn notify_recovering(&self, journal: &Path) {
        self.notify(&[NotifyState::Status(&to_status_line(&format!(
            "recovering the journal {}",
            journal.display()
        )))]);
    }

    /// Notifies that the manager is ready, and from then on of rounds and of changes. Never
    /// returns.
    pub async fn run(&self, manager: &ManagerHandle) {
        let interval =
            self.watchdog.map_or(ROUND_INTERVAL_MAX, |limit| limit / 2).min(ROUND_INTERVAL_MAX);
        let mut last_status = String::new();
        let mut is_ready = false;
        loop {
            self.await_round(manager, interval).await;
            let status = current_status(manager);
            let mut states = Vec::new();
            if !std::mem::replace(&mut is_ready, true) {
                states.push(NotifyState::Ready);
            }
            if self.watchdog.is_some() {
                states.push(NotifyState::Watchdog);
            }
            if status != last_status {
                states.push(NotifyState::Status(&status));
            }
            self.notify(&states);
            last_status = status;
            tokio::time::sleep(interval).await;
        }
    }

    /// Waits for the end of a round. Logs a round that takes longer than `long`.
    async fn await_round(&self, manager: &ManagerHandle, long: Duration) {
        let mut round = std::pin::pin!(manager.probe_liveness());
        if tokio::time::timeout(long, &mut round).await.is_ok() {
            return;
        }
        tracing::warn!(
            elapsed_ms = Millis::from_duration(long).0,
            watchdog_ms = self.watchdog.map(|limit| Millis::from_duration(limit).0),
            "the supervisor's round through router and journal does not end: a slow disk, or a \
             thread that hangs; at the watchdog's limit the service manager ends the process"
        );
        round.await;
        tracing::info!("the supervisor's round has ended");
    }

    /// Notifies that the files are being reloaded. [`SystemdNotifier::notify_reloaded`] must
    /// follow.
    pub fn notify_reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.notify(&[NotifyState::Reloading, now]),
            Err(error) => self.report_failure(&error),
        }
    }

    /// Notifies that the reload is over, and of its outcome.
    pub fn notify_reloaded(&self, manager: &ManagerHandle, outcome: &str) {
        let status = to_status_line(&format!("{}; {outcome}", current_status(manager)));
        self.notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
    }

    /// Notifies that a stop has begun, which takes `longest` at most.
    pub fn notify_stopping(&self, longest: Duration) {
        let longest = u32::try_from(longest.as_micros()).unwrap_or(u32::MAX);
        self.notify(&[
            NotifyState::Stopping,
            NotifyState::ExtendTimeoutUsec(longest),
            NotifyState::Status("stopping: waits for confirms and for the journal"),
        ]);
    }

    fn notify(&self, states: &[NotifyState<'_>]) {
        if states.is_empty() {
            return;
        }
        if let Err(error) = sd_notify::notify(states) {
            self.report_failure(&error);
        }
    }

    fn report_failure(&self, error: &io::Error) {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %error,
                "the service manager cannot be told anything over NOTIFY_SOCKET: it may take the \
                 start for failed; the manager goes on (logged once)"
            );
        }
    }
}

/// Removes the service manager's variables from the environment of a process to be started.
pub fn clear_systemd_env(command: &mut Command) {
    for variable in ENV_VARIABLES {
        command.env_remove(variable);
    }
}

fn current_status(manager: &ManagerHandle) -> String {
    format_status(manager.routes().root_count(), &manager.health().checks())
}

/// Formats the status: how many jobs are under way, and which checks fail.
fn format_status(jobs: usize, checks: &[(String, bool, String)]) -> String {
    let jobs = match jobs {
        1 => "1 job under way".to_owned(),
        jobs => format!("{jobs} jobs under way"),
    };
    let waits = checks.iter().filter(|(_, good, _)| !good);
    let waits: Vec<String> = waits.map(|(name, _, text)| format!("{name}: {text}")).collect();
    if waits.is_empty() {
        jobs
    } else {
        to_status_line(&format!("{jobs}; waits: {}", waits.join("; ")))
    }
}

/// Makes one line that means nothing else to the service manager, whatever a broker's text
/// contains.
fn to_status_line(text: &str) -> String {
    truncate(&escape(text), STATUS_BYTES_MAX).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, good: bool, text: &str) -> (String, bool, String) {
        (name.to_owned(), good, text.to_owned())
    }

    #[test]
    fn the_status_has_the_number_of_jobs_and_what_is_waited_for() {
        assert_eq!(format_status(0, &[check("journal", true, "ok")]), "0 jobs under way");
        assert_eq!(
            format_status(1, &[check("journal", true, "ok"), check("bus", false, "disconnected")]),
            "1 job under way; waits: bus: disconnected"
        );
    }

    #[test]
    fn text_of_a_broker_forges_no_systemd_notification() {
        let text =
            format_status(2, &[check("bus", false, &format!("refused\nSTOPPING=1{:2000}", "x"))]);
        assert!(!text.contains('\n') && text.contains("refused\\nSTOPPING=1"), "{text}");
        assert!(text.len() <= STATUS_BYTES_MAX, "{} bytes", text.len());
    }
}
