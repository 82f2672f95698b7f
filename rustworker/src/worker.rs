//! A worker: its queues, where it takes them from, and its end.

use crate::failure::Failure;
use crate::step::Step;
use crate::work::{Handler, handler};
use crate::{amqp, http};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::env;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;

/// Where a manager without a broker is, unless something else is said.
const SERVER_DEFAULT: &str = "http://127.0.0.1:8088";

/// For how long a message is lent over HTTP.
const LEASE_DEFAULT: Duration = Duration::from_secs(60);

const LEASE_MIN: Duration = Duration::from_secs(1);

/// Why a worker could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be used.
    #[error("the server's address {shown} cannot be used: {why}")]
    Address {
        /// The address, without its password.
        shown: String,
        /// What is wrong with it.
        why: String,
    },
    /// A worker without queues has nothing to do.
    #[error("the worker has no queue: name one with Worker::queue")]
    NoQueue,
    /// The signals of the process cannot be heard.
    #[error("cannot listen to signals")]
    Signals(#[source] std::io::Error),
    /// HTTP is not to be had.
    #[error("there can be no HTTP client")]
    Http(#[source] reqwest::Error),
}

/// Serves one queue until SIGTERM or SIGINT: `Worker::new().queue(queue, function).run()`.
///
/// # Errors
///
/// If the server's address cannot be used. A server that is away is waited for.
pub async fn run<I, O, F, R>(queue: &str, function: F) -> Result<(), Error>
where
    I: DeserializeOwned,
    O: Serialize,
    F: Fn(I, Step) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O, Failure>> + Send + 'static,
{
    Worker::new().queue(queue, function).run().await
}

/// What a transport needs to know.
pub(crate) struct Plan {
    pub(crate) handlers: BTreeMap<String, Handler>,
    pub(crate) server: String,
    pub(crate) prefetch: u16,
    pub(crate) lease: Duration,
    pub(crate) token: Option<String>,
    pub(crate) authorities: Option<PathBuf>,
}

/// A worker for some queues.
pub struct Worker {
    plan: Plan,
}

impl Default for Worker {
    fn default() -> Worker {
        Worker::new()
    }
}

impl Worker {
    /// A worker of the server in `AMQP_SERVER`, else `WORKFLOW_MANAGER_URL`, else
    /// `http://127.0.0.1:8088`; with the token in `WORKFLOW_MANAGER_TOKEN`.
    pub fn new() -> Worker {
        let named = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let server = named("AMQP_SERVER").or_else(|| named("WORKFLOW_MANAGER_URL"));
        Worker {
            plan: Plan {
                handlers: BTreeMap::new(),
                server: server.unwrap_or_else(|| SERVER_DEFAULT.to_owned()),
                prefetch: 1,
                lease: LEASE_DEFAULT,
                token: named("WORKFLOW_MANAGER_TOKEN"),
                authorities: None,
            },
        }
    }

    /// Has this function do what comes to a queue.
    #[must_use]
    pub fn queue<I, O, F, R>(mut self, queue: &str, function: F) -> Worker
    where
        I: DeserializeOwned,
        O: Serialize,
        F: Fn(I, Step) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, Failure>> + Send + 'static,
    {
        self.plan.handlers.insert(queue.to_owned(), handler(function));
        self
    }

    /// Where messages come from: `amqp://` or `amqps://` is a broker, `http://` or `https://` a
    /// manager that runs without one. Over TLS the authorities of the machine are believed; the
    /// variable `SSL_CERT_FILE` names others.
    #[must_use]
    pub fn server(mut self, address: &str) -> Worker {
        self.plan.server = address.to_owned();
        self
    }

    /// How many messages of each queue are worked on at once; 1 unless said otherwise.
    #[must_use]
    pub fn prefetch(mut self, count: u16) -> Worker {
        self.plan.prefetch = count.max(1);
        self
    }

    /// For how long a message is lent over HTTP; 60 s unless said otherwise, 1 s at least. It is
    /// extended while the function works.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Worker {
        self.plan.lease = lease.max(LEASE_MIN);
        self
    }

    /// The manager's token, over HTTP.
    #[must_use]
    pub fn token(mut self, token: &str) -> Worker {
        self.plan.token = Some(token.to_owned());
        self
    }

    /// A file of authorities in PEM that are believed besides those of the machine, over `amqps://`
    /// and `https://`.
    #[must_use]
    pub fn authorities(mut self, file: impl Into<PathBuf>) -> Worker {
        self.plan.authorities = Some(file.into());
        self
    }

    /// Works until SIGTERM or SIGINT: then it takes no new message, finishes and answers what it
    /// has in hand, and returns. A second signal ends the process, with 128 + its number.
    ///
    /// # Errors
    ///
    /// If it cannot begin. A server that is away is waited for.
    pub async fn run(self) -> Result<(), Error> {
        let mut signals = Signals::new().map_err(Error::Signals)?;
        let (begun, is_begun) = tokio::sync::oneshot::channel();
        let first = async move {
            let number = signals.next().await;
            tracing::info!(signal = number, "stopping: what is in hand is finished");
            // Nobody waits for it any more if the worker has ended.
            let _ = begun.send(());
            signals
        };
        let impatient = tokio::spawn(async move {
            let mut signals = first.await;
            let number = signals.next().await;
            std::process::exit(128 + number);
        });
        let stop = async {
            // It is sent, or the task is gone: both mean the end.
            let _ = is_begun.await;
        };
        let ran = self.run_until(stop).await;
        impatient.abort();
        ran
    }

    /// The same until `stop` is over, for a worker within a larger program.
    ///
    /// # Errors
    ///
    /// If it cannot begin.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let plan = self.plan;
        if plan.handlers.is_empty() {
            return Err(Error::NoQueue);
        }
        let (stopping, is_stopping) = watch::channel(false);
        let serving = async {
            match plan.server.clone().split_once("://").map_or("", |(scheme, _)| scheme) {
                "amqp" | "amqps" => amqp::serve(plan, is_stopping).await,
                "http" | "https" => http::serve(plan, is_stopping).await,
                _ => Err(refused(
                    &plan.server,
                    "it begins neither with amqp:// or amqps:// nor with http:// or https://",
                )),
            }
        };
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            ended = &mut serving => return ended,
            () = stop => {}
        }
        stopping.send_replace(true);
        serving.await
    }
}

pub(crate) fn refused(address: &str, why: impl ToString) -> Error {
    Error::Address { shown: shown(address), why: why.to_string() }
}

/// An address without what stands before its host.
pub(crate) fn shown(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

/// Waits until the worker is to stop.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // A worker that is dropped stops too.
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

    /// The number of the next signal.
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

    /// The number of the next signal.
    async fn next(&mut self) -> i32 {
        // Where Ctrl-C cannot be heard, it ends the process by itself.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        2
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(shown("amqp://user:pass@broker:5672/%2f"), "amqp://broker:5672/%2f");
        assert_eq!(shown("http://127.0.0.1:8088"), "http://127.0.0.1:8088");
        assert_eq!(shown("user:pass@broker"), "broker");
    }
}
