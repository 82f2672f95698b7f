//! Notifies the service manager of the machine (systemd), over the socket that it names in
//! `NOTIFY_SOCKET`; without one it does nothing. The protocol is that of sd_notify(3). This file is
//! the only user of the crate `sd_notify`.
//!
//! | when | what |
//! |---|---|
//! | the journal is recovered | `STATUS=` |
//! | the API listens, and a [round](door::round) through all three actors is over | `READY=1` |
//! | each further round is over | `WATCHDOG=1`, if the service manager wants it |
//! | the number of jobs or a check of readiness has changed | `STATUS=` |
//! | SIGHUP, and the end of its reload | `RELOADING=1` with `MONOTONIC_USEC=`, `READY=1` |
//! | a stop begins | `STOPPING=1`, with `EXTEND_TIMEOUT_USEC=` |
//!
//! A round that does not end sends no `WATCHDOG=1`: the service manager then ends the process, and
//! the next start recovers. A full disk or an unreachable broker does not stop a round: a restart
//! would not help.

use crate::actors::door;
use crate::actors::ways::Ways;
use crate::engine::Millis;
use crate::engine::words::{cut, escaped};
use sd_notify::NotifyState;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The longest time between two rounds, and so the greatest age of the status.
const ROUND_EVERY_MAX: Duration = Duration::from_secs(5);

/// The longest status, in bytes. systemd reads messages of 4 KiB.
const STATUS_BYTES_MAX: usize = 1000;

/// The environment variables by which the service manager addresses a process. They are for this
/// process alone.
const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"];

/// The service manager that started this process.
pub struct Service {
    /// How often the watchdog has to hear of a round. `None`: there is no watchdog.
    watchdog: Option<Duration>,
    /// Whether a notification has failed, which is logged once.
    is_deaf: AtomicBool,
}

impl Service {
    /// Makes the notifier for the service manager that the environment names.
    pub fn of_environment() -> Arc<Service> {
        Arc::new(Service {
            watchdog: sd_notify::watchdog_enabled(),
            is_deaf: AtomicBool::new(false),
        })
    }

    /// Notifies that the journal is being recovered.
    pub fn recovering(&self, journal: &Path) {
        self.tell(&[NotifyState::Status(&line(&format!(
            "recovering the journal {}",
            journal.display()
        )))]);
    }

    /// Notifies that the manager is ready, and from then on of rounds and of changes. Never
    /// returns.
    pub async fn attend(&self, ways: &Ways) {
        let every = self.watchdog.map_or(ROUND_EVERY_MAX, |limit| limit / 2).min(ROUND_EVERY_MAX);
        let mut told = String::new();
        let mut is_ready = false;
        loop {
            self.round(ways, every).await;
            let status = status_of(ways);
            let mut news = Vec::new();
            if !std::mem::replace(&mut is_ready, true) {
                news.push(NotifyState::Ready);
            }
            if self.watchdog.is_some() {
                news.push(NotifyState::Watchdog);
            }
            if status != told {
                news.push(NotifyState::Status(&status));
            }
            self.tell(&news);
            told = status;
            tokio::time::sleep(every).await;
        }
    }

    /// Waits for the end of a round. Logs a round that takes longer than `long`.
    async fn round(&self, ways: &Ways, long: Duration) {
        let mut round = std::pin::pin!(door::round(ways));
        if tokio::time::timeout(long, &mut round).await.is_ok() {
            return;
        }
        tracing::warn!(
            elapsed_ms = Millis::of(long).0,
            watchdog_ms = self.watchdog.map(|limit| Millis::of(limit).0),
            "the supervisor's round through router and journal does not end: a slow disk, or a \
             thread that hangs; at the watchdog's limit the service manager ends the process"
        );
        round.await;
        tracing::info!("the supervisor's round has ended");
    }

    /// Notifies that the files are being reloaded. [`SystemdNotifier::notify_reloaded`] must
    /// follow.
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.tell(&[NotifyState::Reloading, now]),
            Err(error) => self.failed(&error),
        }
    }

    /// Notifies that the reload is over, and of its outcome.
    pub fn reloaded(&self, ways: &Ways, came_of_it: &str) {
        let status = line(&format!("{}; {came_of_it}", status_of(ways)));
        self.tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
    }

    /// Notifies that a stop has begun, which takes `longest` at most.
    pub fn stopping(&self, longest: Duration) {
        let longest = u32::try_from(longest.as_micros()).unwrap_or(u32::MAX);
        self.tell(&[
            NotifyState::Stopping,
            NotifyState::ExtendTimeoutUsec(longest),
            NotifyState::Status("stopping: waits for confirms and for the journal"),
        ]);
    }

    fn tell(&self, news: &[NotifyState<'_>]) {
        if news.is_empty() {
            return;
        }
        if let Err(error) = sd_notify::notify(news) {
            self.failed(&error);
        }
    }

    fn failed(&self, error: &io::Error) {
        if !self.is_deaf.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %error,
                "the service manager cannot be told anything over NOTIFY_SOCKET: it may take the \
                 start for failed; the manager goes on (logged once)"
            );
        }
    }
}

/// Removes the service manager's variables from the environment of a process to be started.
pub fn keep_from(command: &mut Command) {
    for variable in VARIABLES {
        command.env_remove(variable);
    }
}

fn status_of(ways: &Ways) -> String {
    status(ways.routes.roots(), &ways.common.health.checks())
}

/// Formats the status: how many jobs are under way, and which checks fail.
fn status(jobs: usize, checks: &[(String, bool, String)]) -> String {
    let jobs = match jobs {
        1 => "1 job under way".to_owned(),
        jobs => format!("{jobs} jobs under way"),
    };
    let waits = checks.iter().filter(|(_, good, _)| !good);
    let waits: Vec<String> = waits.map(|(name, _, text)| format!("{name}: {text}")).collect();
    if waits.is_empty() { jobs } else { line(&format!("{jobs}; waits: {}", waits.join("; "))) }
}

/// Makes one line that means nothing else to the service manager, whatever a broker's text
/// contains.
fn line(text: &str) -> String {
    cut(&escaped(text), STATUS_BYTES_MAX).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, good: bool, text: &str) -> (String, bool, String) {
        (name.to_owned(), good, text.to_owned())
    }

    #[test]
    fn a_status_says_how_many_jobs_there_are_and_what_is_waited_for() {
        assert_eq!(status(0, &[check("journal", true, "ok")]), "0 jobs under way");
        assert_eq!(
            status(1, &[check("journal", true, "ok"), check("bus", false, "disconnected")]),
            "1 job under way; waits: bus: disconnected"
        );
    }

    #[test]
    fn what_a_broker_says_is_no_word_to_the_service_manager() {
        let told = status(2, &[check("bus", false, &format!("refused\nSTOPPING=1{:2000}", "x"))]);
        assert!(!told.contains('\n') && told.contains("refused\\nSTOPPING=1"), "{told}");
        assert!(told.len() <= STATUS_BYTES_MAX, "{} bytes", told.len());
    }
}
