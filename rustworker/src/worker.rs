//! A worker: its settings, the choice of a transport, and how signals stop it.

use crate::failure::Failure;
use crate::processing::{Handler, handler};
use crate::step::Step;
use crate::{amqp, http};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::env;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;

/// The server if no variable names one: a manager on this machine that runs without a broker.
const DEFAULT_SERVER: &str = "http://127.0.0.1:8088";

/// The default lease of a message over HTTP.
const DEFAULT_LEASE: Duration = Duration::from_secs(60);

/// The shortest lease that a manager grants.
const LEASE_MIN: Duration = Duration::from_secs(1);

/// The signal numbers, which are the same on all Unix systems.
const SIGINT: i32 = 2;
#[cfg(unix)]
const SIGTERM: i32 = 15;

/// Shells report the death by a signal as this exit code plus the number of the signal.
const SIGNAL_EXIT_CODE_BASE: i32 = 128;

/// Why a worker could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server's address cannot be used.
    #[error("the server's address {shown} cannot be used: {why}")]
    Address {
        /// The address, without user and password.
        shown: String,
        /// What is wrong with it.
        why: String,
    },
    /// The worker has no queue.
    #[error("the worker has no queue: name one with Worker::queue")]
    NoQueue,
    /// The process cannot listen for signals.
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
    /// The HTTP client cannot be created.
    #[error("cannot create the HTTP client")]
    Http(#[source] reqwest::Error),
}

/// Serves one queue until SIGTERM or SIGINT: `Worker::new().queue(queue, function).run()`.
///
/// # Errors
///
/// Returns an error if the worker cannot start. If the server is unreachable, the worker retries
/// and returns no error.
pub async fn run<I, O, F, R>(queue: &str, function: F) -> Result<(), Error>
where
    I: DeserializeOwned,
    O: Serialize,
    F: Fn(I, Step) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O, Failure>> + Send + 'static,
{
    Worker::new().queue(queue, function).run().await
}

/// The settings that a transport needs.
pub(crate) struct WorkerConfig {
    /// The handlers by queue.
    pub(crate) handlers: BTreeMap<String, Handler>,
    /// The URL of the server. Its scheme chooses the transport.
    pub(crate) server: String,
    /// How many messages of each queue are processed at once, at least 1.
    pub(crate) prefetch: u16,
    /// The duration of each lease, at least `LEASE_MIN`. HTTP only.
    pub(crate) lease: Duration,
    /// The manager's token, if it needs one. HTTP only.
    pub(crate) token: Option<String>,
    /// A file of additional trusted certificate authorities, in PEM.
    pub(crate) authorities: Option<PathBuf>,
}

/// A worker that serves one or more queues.
pub struct Worker {
    config: WorkerConfig,
}

impl Default for Worker {
    fn default() -> Worker {
        Worker::new()
    }
}

impl Worker {
    /// Makes a worker for the server in `AMQP_SERVER`, else in `WORKFLOW_MANAGER_URL`, else for
    /// `http://127.0.0.1:8088`, with the token in `WORKFLOW_MANAGER_TOKEN`.
    pub fn new() -> Worker {
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let server = variable("AMQP_SERVER").or_else(|| variable("WORKFLOW_MANAGER_URL"));
        Worker {
            config: WorkerConfig {
                handlers: BTreeMap::new(),
                server: server.unwrap_or_else(|| DEFAULT_SERVER.to_owned()),
                prefetch: 1,
                lease: DEFAULT_LEASE,
                token: variable("WORKFLOW_MANAGER_TOKEN"),
                authorities: None,
            },
        }
    }

    /// Calls this function for each message of a queue.
    #[must_use]
    pub fn queue<I, O, F, R>(mut self, queue: &str, function: F) -> Worker
    where
        I: DeserializeOwned,
        O: Serialize,
        F: Fn(I, Step) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, Failure>> + Send + 'static,
    {
        self.config.handlers.insert(queue.to_owned(), handler(function));
        self
    }

    /// Sets the server: `amqp://` or `amqps://` for a broker, `http://` or `https://` for a manager
    /// without one. Several managers of which one is active have commas in between: the worker goes
    /// where the active one is, which may also be an address that one of them names. Over TLS the
    /// certificate authorities of the machine are trusted, or those in the file that the variable
    /// `SSL_CERT_FILE` names.
    #[must_use]
    pub fn server(mut self, address: &str) -> Worker {
        self.config.server = address.to_owned();
        self
    }

    /// Sets how many messages of each queue are processed at once. The default is 1.
    #[must_use]
    pub fn prefetch(mut self, count: u16) -> Worker {
        self.config.prefetch = count.max(1);
        self
    }

    /// Sets the duration of leases over HTTP. The default is 60 s, the minimum 1 s. A lease is
    /// extended while the function runs.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Worker {
        self.config.lease = lease.max(LEASE_MIN);
        self
    }

    /// Sets the manager's token, for HTTP.
    #[must_use]
    pub fn token(mut self, token: &str) -> Worker {
        self.config.token = Some(token.to_owned());
        self
    }

    /// Sets a file of certificate authorities in PEM. Over `amqps://` and `https://` they are
    /// trusted in addition to those of the machine.
    #[must_use]
    pub fn authorities(mut self, file: impl Into<PathBuf>) -> Worker {
        self.config.authorities = Some(file.into());
        self
    }

    /// Runs until SIGTERM or SIGINT. Then it receives no more messages, finishes those in flight,
    /// and returns. A second signal ends the process with the exit code 128 + its number.
    ///
    /// # Errors
    ///
    /// Returns an error if the worker cannot start. If the server is unreachable, the worker
    /// retries and returns no error.
    pub async fn run(self) -> Result<(), Error> {
        let mut signals = Signals::new().map_err(Error::Signals)?;
        let (stop_sender, stop_receiver) = tokio::sync::oneshot::channel();
        let first_signal = async move {
            let number = signals.next().await;
            tracing::info!(signal = number, "stopping: what is in hand is finished");
            // Sending fails if the worker has ended.
            let _ = stop_sender.send(());
            signals
        };
        let second_signal = tokio::spawn(async move {
            let mut signals = first_signal.await;
            let number = signals.next().await;
            std::process::exit(SIGNAL_EXIT_CODE_BASE + number);
        });
        let stop = async {
            // An error means that the task of the signals has ended. The worker stops then, too.
            let _ = stop_receiver.await;
        };
        let result = self.run_until(stop).await;
        second_signal.abort();
        result
    }

    /// Runs until `stop` completes, and finishes the messages in flight. For a worker within a
    /// larger program, which handles signals itself.
    ///
    /// # Errors
    ///
    /// Returns an error if the worker cannot start.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let config = self.config;
        if config.handlers.is_empty() {
            return Err(Error::NoQueue);
        }
        let (stop_sender, stopping) = watch::channel(false);
        let serving = async {
            match config.server.clone().split_once("://").map_or("", |(scheme, _)| scheme) {
                "amqp" | "amqps" => amqp::serve(config, stopping).await,
                "http" | "https" => http::serve(config, stopping).await,
                _ => Err(address_error(
                    &config.server,
                    "it begins neither with amqp:// or amqps:// nor with http:// or https://",
                )),
            }
        };
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            result = &mut serving => return result,
            () = stop => {}
        }
        stop_sender.send_replace(true);
        serving.await
    }
}

/// Makes the error for an address that cannot be used.
pub(crate) fn address_error(address: &str, reason: impl ToString) -> Error {
    Error::Address { shown: display_address(address), why: reason.to_string() }
}

/// Returns an address, or several with commas in between, without users and passwords.
pub(crate) fn display_address(address: &str) -> String {
    // A broker has one address, and its password may contain commas.
    if address.starts_with("http") {
        return address.split(',').map(display_one).collect::<Vec<_>>().join(",");
    }
    display_one(address)
}

/// Returns one address without user and password.
fn display_one(address: &str) -> String {
    let (scheme, authority) = address.split_once("://").unwrap_or(("", address));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
}

/// Waits until the worker is asked to stop.
pub(crate) async fn wait_for_stop(stopping: &mut watch::Receiver<bool>) {
    // An error means that the worker was dropped, which stops it, too.
    let _ = stopping.wait_for(|is_stopping| *is_stopping).await;
}

/// The signals that stop a worker.
#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal, and returns its number.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => SIGTERM,
            _ = self.interrupt.recv() => SIGINT,
        }
    }
}

/// The signal that stops a worker: Ctrl-C.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals)
    }

    /// Waits for Ctrl-C, and returns the number of SIGINT.
    async fn next(&mut self) -> i32 {
        // If the process cannot listen for Ctrl-C, then Ctrl-C terminates it.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        SIGINT
    }
}

#[cfg(test)]
mod tests {
    use super::display_address;

    #[test]
    fn user_and_password_are_not_displayed() {
        assert_eq!(display_address("amqp://user:pass@broker:5672/%2f"), "amqp://broker:5672/%2f");
        assert_eq!(display_address("http://127.0.0.1:8088"), "http://127.0.0.1:8088");
        assert_eq!(display_address("user:pass@broker"), "broker");
    }
}
