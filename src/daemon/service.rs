//! Notifies the service manager (systemd) by the protocol of sd_notify(3), over the socket that the
//! variable `NOTIFY_SOCKET` names. Without this variable nothing is sent. This file is the only
//! user of the crate `sd_notify`.
//!
//! | event | notification |
//! |---|---|
//! | the journal is being recovered | `STATUS=` |
//! | the API listens, and a [probe](ManagerHandle::probe_liveness) has passed | `READY=1` |
//! | a further probe has passed | `WATCHDOG=1`, if the service manager has a watchdog |
//! | the number of jobs or a check of readiness has changed | `STATUS=` |
//! | a reload begins (SIGHUP), and ends | `RELOADING=1` with `MONOTONIC_USEC=`, `READY=1` |
//! | a stop begins | `STOPPING=1`, with `EXTEND_TIMEOUT_USEC=` |
//!
//! A probe that does not pass sends no `WATCHDOG=1`. The service manager then kills the process,
//! and the next start recovers. A full disk or an unreachable broker does not stop a probe, because
//! a restart would not help.

use crate::actors::health::HealthCheck;
use crate::actors::manager_handle::ManagerHandle;
use engine::Millis;
use engine::text::{escape, truncate};
use sd_notify::NotifyState;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::Duration;

/// The longest pause between two probes. Each updates the status.
const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// The longest status, in bytes. systemd reads messages of at most 4 KiB.
const STATUS_BYTES_MAX: usize = 1000;

/// The environment variables of the service manager. They are for this process alone, and not for
/// its child processes.
const ENV_VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"];

/// Sends notifications to the service manager that started this process.
pub struct SystemdNotifier {
    /// The timeout of the watchdog; `None` if there is no watchdog.
    watchdog: Option<Duration>,
    /// Whether a notification has failed. The failure is logged once.
    has_failed: AtomicBool,
}

/// Notifies the watchdog until it is dropped.
pub struct WatchdogKeeper {
    /// The thread ends when this is dropped.
    _stop: Sender<()>,
}

impl SystemdNotifier {
    /// Creates the notifier for the service manager that the environment names.
    pub fn from_env() -> Arc<SystemdNotifier> {
        Arc::new(SystemdNotifier {
            watchdog: sd_notify::watchdog_enabled(),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Notifies that the journal is being recovered.
    pub fn notify_recovering(&self, journal: &str) {
        let status = to_status_line(&format!("recovering the journal {journal}"));
        self.notify(&[NotifyState::Status(&status)]);
    }

    /// Notifies the watchdog from a thread until the result is dropped: a standby that becomes
    /// active counts as started, and its recovery may take longer than the watchdog waits.
    pub fn keep_watchdog(self: &Arc<SystemdNotifier>) -> WatchdogKeeper {
        let (stop, stopped) = std::sync::mpsc::channel();
        if let Some(timeout) = self.watchdog {
            let notifier = self.clone();
            std::thread::spawn(move || {
                while stopped.recv_timeout(timeout / 2) == Err(RecvTimeoutError::Timeout) {
                    notifier.notify(&[NotifyState::Watchdog]);
                }
            });
        }
        WatchdogKeeper { _stop: stop }
    }

    /// Notifies that this process stands by. It counts as started, so the watchdog is fed too.
    pub fn notify_standby(&self, reason: &str) {
        let status = to_status_line(&format!("stands by: {reason}"));
        let states = [NotifyState::Ready, NotifyState::Status(&status), NotifyState::Watchdog];
        self.notify(&states);
    }

    /// Notifies that the manager is ready, and then of passed probes and of changes of the status.
    /// Never returns.
    pub async fn run(&self, manager: &ManagerHandle) {
        let interval =
            self.watchdog.map_or(PROBE_INTERVAL_MAX, |timeout| timeout / 2).min(PROBE_INTERVAL_MAX);
        let mut last_status = String::new();
        let mut has_sent_ready = false;
        loop {
            self.await_probe(manager, interval).await;
            let status = current_status(manager);
            let mut states = Vec::new();
            if !std::mem::replace(&mut has_sent_ready, true) {
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

    /// Waits until a probe has passed. Logs a probe that takes longer than `slow_threshold`.
    async fn await_probe(&self, manager: &ManagerHandle, slow_threshold: Duration) {
        let mut probe = std::pin::pin!(manager.probe_liveness());
        if tokio::time::timeout(slow_threshold, &mut probe).await.is_ok() {
            return;
        }
        tracing::warn!(
            elapsed_ms = Millis::from_duration(slow_threshold).0,
            watchdog_ms = self.watchdog.map(|timeout| Millis::from_duration(timeout).0),
            "the supervisor's round through router and journal does not end: a slow disk, or a \
             thread that hangs; at the watchdog's limit the service manager ends the process"
        );
        probe.await;
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

    /// Notifies that the reload has ended, and of its outcome.
    pub fn notify_reloaded(&self, manager: &ManagerHandle, outcome: &str) {
        let status = to_status_line(&format!("{}; {outcome}", current_status(manager)));
        self.notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
    }

    /// Notifies that a stop has begun, which takes at most `duration_max`.
    pub fn notify_stopping(&self, duration_max: Duration) {
        let micros_max = u32::try_from(duration_max.as_micros()).unwrap_or(u32::MAX);
        self.notify(&[
            NotifyState::Stopping,
            NotifyState::ExtendTimeoutUsec(micros_max),
            NotifyState::Status("stopping: waits for confirms and for the journal"),
        ]);
    }

    /// Sends notifications in one message.
    fn notify(&self, states: &[NotifyState<'_>]) {
        if states.is_empty() {
            return;
        }
        if let Err(error) = sd_notify::notify(states) {
            self.report_failure(&error);
        }
    }

    /// Logs the first failure.
    fn report_failure(&self, error: &io::Error) {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %error,
                "the service manager cannot be notified over NOTIFY_SOCKET: it may consider the \
                 start failed; the manager continues (logged once)"
            );
        }
    }
}

/// Removes the service manager's variables from the environment of a child process.
pub fn clear_systemd_env(command: &mut Command) {
    for variable in ENV_VARIABLES {
        command.env_remove(variable);
    }
}

/// Returns the status of the manager.
fn current_status(manager: &ManagerHandle) -> String {
    format_status(manager.routes().root_count(), &manager.health().checks())
}

/// Formats the status: the number of root jobs that have not ended, and the checks that fail.
fn format_status(job_count: usize, checks: &[HealthCheck]) -> String {
    let jobs = match job_count {
        1 => "1 job under way".to_owned(),
        _ => format!("{job_count} jobs under way"),
    };
    let failed_checks: Vec<String> =
        checks.iter().filter(|check| !check.is_passed).map(ToString::to_string).collect();
    if failed_checks.is_empty() {
        jobs
    } else {
        to_status_line(&format!("{jobs}; waits: {}", failed_checks.join("; ")))
    }
}

/// Returns a text as one line, so that a broker's text in it cannot forge notifications.
fn to_status_line(text: &str) -> String {
    truncate(&escape(text), STATUS_BYTES_MAX).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_has_the_number_of_jobs_and_the_failed_checks() {
        let passed = HealthCheck::new("journal", true, "ok");
        let failed = HealthCheck::new("bus", false, "disconnected");
        assert_eq!(format_status(0, std::slice::from_ref(&passed)), "0 jobs under way");
        assert_eq!(
            format_status(1, &[passed, failed]),
            "1 job under way; waits: bus: disconnected"
        );
    }

    #[test]
    fn text_of_a_broker_forges_no_systemd_notification() {
        let text = format_status(
            2,
            &[HealthCheck::new("bus", false, format!("refused\nSTOPPING=1{:2000}", "x"))],
        );
        assert!(!text.contains('\n') && text.contains("refused\\nSTOPPING=1"), "{text}");
        assert!(text.len() <= STATUS_BYTES_MAX, "{} bytes", text.len());
    }
}
