//! The transport over HTTP, for a manager without a broker. Messages are leased. Leases are
//! extended while messages are in flight, and a reply is sent until the manager has committed it.
//! If the worker dies, the lease ends, and the manager delivers the message to another worker.

use crate::backoff::Backoff;
use crate::failure::Failure;
use crate::processing::{
    BoxFuture, Disposition, Handler, Message, ProgressSender, Reply, parse_attempt, process,
};
use crate::step::MessageInfo;
use crate::tls;
use crate::worker::{Error, WorkerConfig, address_error, wait_for_stop};
use bytes::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// How long a receive request waits at the manager for a message.
const RECEIVE_WAIT: Duration = Duration::from_secs(30);

/// How much longer than its wait a request may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a reply is sent again after the worker was asked to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

const EXTENSIONS_PER_LEASE: u32 = 6;

/// Serves until the worker stops.
pub(crate) async fn serve(
    config: WorkerConfig,
    stopping: watch::Receiver<bool>,
) -> Result<(), Error> {
    let manager = Arc::new(ManagerClient::new(&config)?);
    let mut queues = JoinSet::new();
    for (queue, handler) in config.handlers {
        let permits = Arc::new(Semaphore::new(usize::from(config.prefetch)));
        let queue = QueueReceiver { name: queue, handler, manager: manager.clone(), permits };
        queues.spawn(queue.serve(stopping.clone()));
    }
    while queues.join_next().await.is_some() {}
    Ok(())
}

/// A client of the manager's queue API.
struct ManagerClient {
    client: Client,
    base: Url,
    vhost: Option<String>,
    token: Option<String>,
    lease: Duration,
}

/// A response of the manager.
struct ManagerResponse {
    status: StatusCode,
    headers: reqwest::header::HeaderMap,
    body: Bytes,
}

/// The body of a response: a problem, or the answer to a reply.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseBody {
    taken: bool,
    reason: String,
    detail: String,
}

impl ManagerResponse {
    fn parse_body(&self) -> ResponseBody {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Describes the response for people.
    fn describe(&self) -> String {
        format!("{} {}", self.status.as_u16(), self.parse_body().detail)
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    fn retry_after(&self) -> Duration {
        Duration::from_secs(self.header("retry-after").parse().unwrap_or_default())
    }
}

impl ManagerClient {
    fn new(config: &WorkerConfig) -> Result<ManagerClient, Error> {
        let to_error = |why: &str| address_error(&config.server, why);
        let mut base = Url::parse(&config.server).map_err(|error| to_error(&error.to_string()))?;
        if !base.username().is_empty() || base.password().is_some() {
            return Err(to_error("a token belongs into WORKFLOW_MANAGER_TOKEN"));
        }
        let vhost = base.query_pairs().find(|(name, _)| name == "vhost");
        let vhost = vhost.map(|(_, name)| name.into_owned());
        base.set_query(None);
        // Installing fails if another part of the program has installed a provider before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        if let Some(file) = &config.authorities {
            let tls = tls::client_config(Some(file)).map_err(|why| to_error(&why))?;
            client = client.tls_backend_preconfigured(tls);
        }
        let client = client.build().map_err(Error::Http)?;
        Ok(ManagerClient { client, base, vhost, token: config.token.clone(), lease: config.lease })
    }

    async fn post(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: Bytes,
        time_limit: Duration,
    ) -> Result<ManagerResponse, String> {
        let to_text = |error: reqwest::Error| format_error(&error.without_url());
        let mut url = self.base.join(path).map_err(|error| format!("{path}: {error}"))?;
        for (name, value) in query {
            url.query_pairs_mut().append_pair(name, value);
        }
        let mut request =
            self.client.post(url).body(body).header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let exchange = async {
            let response = request.send().await.map_err(to_text)?;
            let (status, headers) = (response.status(), response.headers().clone());
            Ok(ManagerResponse { status, headers, body: response.bytes().await.map_err(to_text)? })
        };
        timeout(time_limit, exchange)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {time_limit:?}")))
    }

    fn lease_parameter(&self) -> (&'static str, String) {
        ("lease", format!("{}ms", self.lease.as_millis()))
    }
}

/// Formats an error with its causes.
fn format_error(error: &reqwest::Error) -> String {
    Failure::from_error(error).reason().to_owned()
}

/// A queue with its handler.
struct QueueReceiver {
    name: String,
    handler: Handler,
    manager: Arc<ManagerClient>,
    permits: Arc<Semaphore>,
}

/// A message in flight. It may be delivered again meanwhile, with another path.
struct InFlightMessage {
    path: Mutex<String>,
}

impl InFlightMessage {
    /// Returns the path of a call about the message: that of its replies, or one next to it.
    fn call_path(&self, action: &str) -> String {
        let path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        let base = path.strip_suffix("reply").unwrap_or(path);
        if query.is_empty() { format!("{base}{action}") } else { format!("{base}{action}?{query}") }
    }
}

impl QueueReceiver {
    async fn serve(self, mut stopping: watch::Receiver<bool>) {
        let queue = Arc::new(self);
        let mut tasks = JoinSet::new();
        let in_flight: Arc<Mutex<HashMap<String, Arc<InFlightMessage>>>> = Arc::default();
        let task_stopping = stopping.clone();
        tokio::select! {
            () = wait_for_stop(&mut stopping) => {}
            () = queue.receive(&in_flight, &mut tasks, &task_stopping) => {}
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Receives messages as long as there are free permits. The request is dropped when the worker
    /// stops, so that the manager sees that nobody waits.
    async fn receive(
        self: &Arc<Self>,
        in_flight: &Arc<Mutex<HashMap<String, Arc<InFlightMessage>>>>,
        tasks: &mut JoinSet<()>,
        stopping: &watch::Receiver<bool>,
    ) {
        let (mut backoff, mut is_connected) = (Backoff::new(), false);
        let name = utf8_percent_encode(&self.name, NON_ALPHANUMERIC);
        let path = format!("/api/queue/{name}/receive");
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else { return };
            while tasks.try_join_next().is_some() {}
            let wait = if is_connected { RECEIVE_WAIT } else { Duration::ZERO };
            let mut query =
                vec![("wait", format!("{}s", wait.as_secs())), self.manager.lease_parameter()];
            query.extend(self.manager.vhost.clone().map(|vhost| ("vhost", vhost)));
            let result =
                self.manager.post(&path, &query, Bytes::new(), wait + RESPONSE_TIMEOUT).await;
            let (problem, at_least) = match result {
                Ok(response) if response.status.is_success() => {
                    if !is_connected {
                        tracing::info!(queue = self.name, server = %self.manager.base, "consuming");
                    }
                    is_connected = true;
                    backoff.reset();
                    if response.status == StatusCode::OK {
                        self.start_task(response, in_flight, tasks, stopping, permit);
                    }
                    continue;
                }
                Ok(response) => (response.describe(), response.retry_after()),
                Err(error) => (error, Duration::ZERO),
            };
            is_connected = false;
            let pause = backoff.next().max(at_least);
            tracing::warn!(
                queue = self.name,
                server = %self.manager.base,
                ?pause,
                "no message: {problem}"
            );
            sleep(pause).await;
        }
    }

    fn start_task(
        self: &Arc<Self>,
        response: ManagerResponse,
        in_flight: &Arc<Mutex<HashMap<String, Arc<InFlightMessage>>>>,
        tasks: &mut JoinSet<()>,
        stopping: &watch::Receiver<bool>,
        permit: tokio::sync::OwnedSemaphorePermit,
    ) {
        let path = response.header("reply-to").to_owned();
        let id = response.header("message-id").to_owned();
        let mut messages = in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(message) = messages.get(&id) {
            // The message is processed already. From now on it counts as this delivery.
            *message.path.lock().unwrap_or_else(PoisonError::into_inner) = path;
            return;
        }
        let message = Arc::new(InFlightMessage { path: Mutex::new(path) });
        messages.insert(id.clone(), message.clone());
        drop(messages);
        let (queue, messages_in_flight, stopping) =
            (self.clone(), in_flight.clone(), stopping.clone());
        tasks.spawn(async move {
            queue.process(response, &message, stopping).await;
            messages_in_flight.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            drop(permit);
        });
    }

    async fn process(
        &self,
        response: ManagerResponse,
        in_flight: &Arc<InFlightMessage>,
        stopping: watch::Receiver<bool>,
    ) {
        let (end_sender, end_reason) = watch::channel(None);
        let info = MessageInfo {
            queue: self.name.clone(),
            correlation_id: response.header("correlation-id").to_owned(),
            attempt: parse_attempt(response.header("attempt")),
            job: response.header("job").to_owned(),
            workflow: response.header("workflow").to_owned(),
            delivery: response.header("delivery").parse().unwrap_or(1),
        };
        let progress_sender =
            Arc::new(HttpProgress { manager: self.manager.clone(), message: in_flight.clone() });
        let message =
            Message { info, body: response.body, has_reply_to: true, progress_sender, end_reason };
        let outcome = tokio::select! {
            outcome = process(&self.handler, message) => outcome,
            () = self.extend_lease(in_flight, end_sender) => Disposition::Dropped,
        };
        match outcome {
            Disposition::Reply(reply) => self.send_reply(reply, in_flight, stopping).await,
            Disposition::Rejected | Disposition::Dropped => {}
        }
    }

    /// Extends the lease until the future is dropped. Reports it to the function if the attempt is
    /// over.
    async fn extend_lease(
        &self,
        message: &InFlightMessage,
        end_sender: watch::Sender<Option<Arc<str>>>,
    ) {
        let mut has_lease = true;
        loop {
            sleep(self.manager.lease / EXTENSIONS_PER_LEASE).await;
            let path = message.call_path("extend");
            let lease = self.manager.lease_parameter();
            let result = self.manager.post(&path, &[lease], Bytes::new(), self.manager.lease).await;
            // An unreachable manager is logged by the receive requests and the replies.
            let Ok(response) = result else { continue };
            let reason = response.parse_body().reason;
            if response.status == StatusCode::GONE && reason != "lease expired" {
                end_sender.send_replace(Some(reason.into()));
                // The select in `process` ends this future.
                return std::future::pending().await;
            }
            if response.status == StatusCode::GONE && has_lease {
                tracing::warn!(path, "the lease has ended: the message may be given out again");
            } else if !response.status.is_success() && response.status != StatusCode::GONE {
                tracing::warn!(path, "the lease could not be extended: {}", response.describe());
            }
            has_lease = response.status != StatusCode::GONE;
        }
    }

    /// Sends the reply until the manager has committed it. The lease is no longer extended: a reply
    /// counts without one.
    async fn send_reply(
        &self,
        mut reply: Reply,
        message: &InFlightMessage,
        mut stopping: watch::Receiver<bool>,
    ) {
        let mut backoff = Backoff::new();
        let mut until = None;
        loop {
            let path = message.call_path("reply");
            let kind = if reply.is_error { "error" } else { "result" };
            let query = [("type", kind.to_owned())];
            let result =
                self.manager.post(&path, &query, reply.body.clone(), RESPONSE_TIMEOUT).await;
            let (problem, at_least) = match result {
                Ok(response) if response.status.is_success() => {
                    let body = response.parse_body();
                    if !body.taken {
                        tracing::info!(path, reason = body.reason, "the reply changed nothing");
                    }
                    return;
                }
                Ok(response)
                    if response.status == StatusCode::PAYLOAD_TOO_LARGE && !reply.is_error =>
                {
                    let size = reply.body.len();
                    let why =
                        format!("the reply has {size} bytes: {}", response.parse_body().detail);
                    tracing::error!(path, why, "the attempt failed");
                    reply = Reply { is_error: true, body: Failure::last(why).to_body().into() };
                    continue;
                }
                Ok(response) if is_final(response.status) => {
                    tracing::error!(
                        path,
                        "the manager does not take the reply: {}",
                        response.describe()
                    );
                    return;
                }
                Ok(response) => (response.describe(), response.retry_after()),
                Err(error) => (error, Duration::ZERO),
            };
            if *stopping.borrow() {
                let until = *until.get_or_insert_with(|| Instant::now() + STOP_TIMEOUT);
                if Instant::now() >= until {
                    tracing::error!(
                        path,
                        "the reply is given up: {problem}; its lease ends by itself"
                    );
                    return;
                }
            }
            let pause = backoff.next().max(at_least);
            tracing::warn!(path, ?pause, "the reply was not taken: {problem}");
            if *stopping.borrow() {
                sleep(pause.min(Duration::from_secs(1))).await;
            } else {
                tokio::select! {
                    () = sleep(pause) => {}
                    () = wait_for_stop(&mut stopping) => {}
                }
            }
        }
    }
}

/// Returns whether it is useless to send the reply again.
fn is_final(status: StatusCode) -> bool {
    status.is_client_error()
        && ![StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status)
        && ![StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status)
}

/// Sends progress over HTTP.
struct HttpProgress {
    manager: Arc<ManagerClient>,
    message: Arc<InFlightMessage>,
}

impl ProgressSender for HttpProgress {
    fn progress(&self, body: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let query = [("type", "progress".to_owned())];
            let path = self.message.call_path("reply");
            match self.manager.post(&path, &query, body, RESPONSE_TIMEOUT).await {
                Ok(response) if response.status.is_success() => {}
                Ok(response) => {
                    tracing::warn!(path, "progress was not told: {}", response.describe())
                }
                Err(error) => tracing::warn!(path, "progress was not told: {error}"),
            }
        })
    }
}
