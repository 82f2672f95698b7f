//! A worker: its queues, its server, and how it stops.

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

/// The default address of a manager without a broker.
const DEFAULT_SERVER: &str = "http://127.0.0.1:8088";

/// The default lease of a message over HTTP.
const DEFAULT_LEASE: Duration = Duration::from_secs(60);

const LEASE_MIN: Duration = Duration::from_secs(1);

/// Why a worker could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server's address cannot be used.
    #[error("the server's address {shown} cannot be used: {why}")]
    Address {
        /// The address, without its password.
        shown: String,
        /// What is wrong with it.
        why: String,
    },
    /// The worker has no queue.
    #[error("the worker has no queue: name one with Worker::queue")]
    NoQueue,
    /// The process cannot listen for signals.
    #[error("cannot listen to signals")]
    Signals(#[source] std::io::Error),
    /// The HTTP client cannot be made.
    #[error("there can be no HTTP client")]
    Http(#[source] reqwest::Error),
}

/// Serves one queue until SIGTERM or SIGINT: `Worker::new().queue(queue, function).run()`.
///
/// # Errors
///
/// Returns an error if the server's address cannot be used. An unreachable server is tried again.
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
    pub(crate) handlers: BTreeMap<String, Handler>,
    pub(crate) server: String,
    pub(crate) prefetch: u16,
    pub(crate) lease: Duration,
    pub(crate) token: Option<String>,
    pub(crate) authorities: Option<PathBuf>,
}

/// A worker for some queues.
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
    /// without one. Over TLS the authorities of the machine are trusted; the variable
    /// `SSL_CERT_FILE` names others.
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

    /// Sets the lease of messages over HTTP. The default is 60 s, the minimum 1 s. It is extended
    /// while the function runs.
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

    /// Sets a file of authorities in PEM, which are trusted besides those of the machine, for
    /// `amqps://` and `https://`.
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
    /// Returns an error if the worker cannot start. An unreachable server is tried again.
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
            std::process::exit(128 + number);
        });
        let stop = async {
            // An error means that the task has ended, which is a stop too.
            let _ = stop_receiver.await;
        };
        let ran = self.run_until(stop).await;
        second_signal.abort();
        ran
    }

    /// Runs until `stop` completes, for a worker within a larger program.
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
            ended = &mut serving => return ended,
            () = stop => {}
        }
        stop_sender.send_replace(true);
        serving.await
    }
}

pub(crate) fn address_error(address: &str, why: impl ToString) -> Error {
    Error::Address { shown: display_address(address), why: why.to_string() }
}

/// Returns an address without user and password.
pub(crate) fn display_address(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

/// Waits until the worker is asked to stop.
pub(crate) async fn wait_for_stop(stopping: &mut watch::Receiver<bool>) {
    // A worker that is dropped stops, too.
    let _ = stopping.wait_for(|is_stopping| *is_stopping).await;
}

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
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals)
    }

    /// Waits for Ctrl-C, and returns the number of SIGINT.
    async fn next(&mut self) -> i32 {
        // If the process cannot listen for Ctrl-C, it is terminated by it.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        2
    }
}

#[cfg(test)]
mod tests {
    use super::display_address;

    #[test]
    fn a_password_is_masked() {
        assert_eq!(display_address("amqp://user:pass@broker:5672/%2f"), "amqp://broker:5672/%2f");
        assert_eq!(display_address("http://127.0.0.1:8088"), "http://127.0.0.1:8088");
        assert_eq!(display_address("user:pass@broker"), "broker");
    }
}
