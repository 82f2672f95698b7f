//! The transport over HTTP, for a manager without a broker. Messages are received by long polls,
//! and leased. A lease is extended while the function runs, and the reply is sent until the manager
//! has committed it. If the worker dies, the lease ends, and the manager delivers the message to
//! another worker. Of several addresses the one of the active manager is in use. When it changes,
//! the messages in flight stay in flight.

use crate::addresses::{self, Addresses};
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

/// How long the manager holds a long poll while there is no message.
const RECEIVE_WAIT: Duration = Duration::from_secs(30);

/// The timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The header with the address of the active manager, in a refusal by another one.
const ACTIVE_HEADER: &str = "workflow-manager-active";

/// The beginning of the detail of a refusal by a manager that stands by. It need not know the
/// address of the active one.
const STANDS_BY: &str = "stands by";

/// How long a request may take, in addition to the wait of a long poll.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long to retry a reply while the worker is stopping.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The maximum pause between two tries to send a reply while the worker is stopping.
const STOP_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often a lease is extended within its duration.
const EXTENSIONS_PER_LEASE: u32 = 6;

/// An extension may take this part of a lease, so that at a machine that is gone there is time left
/// for the next address.
const EXTENSION_TIMEOUTS_PER_LEASE: u32 = 3;

/// The minimum timeout of an extension.
const EXTENSION_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Serves all queues until the worker stops.
pub(crate) async fn serve(
    config: WorkerConfig,
    stopping: watch::Receiver<bool>,
) -> Result<(), Error> {
    let manager = Arc::new(ManagerClient::new(&config)?);
    let mut queue_tasks = JoinSet::new();
    for (name, handler) in config.handlers {
        let permits = Arc::new(Semaphore::new(usize::from(config.prefetch)));
        let receiver = QueueReceiver { name, handler, manager: manager.clone(), permits };
        queue_tasks.spawn(receiver.serve(stopping.clone()));
    }
    while queue_tasks.join_next().await.is_some() {}
    Ok(())
}

/// A client of the manager's queue API.
struct ManagerClient {
    client: Client,
    addresses: Addresses,
    /// The bearer token, if one is needed.
    token: Option<String>,
    /// The duration of each lease.
    lease: Duration,
}

/// A response of the manager.
struct ManagerResponse {
    status: StatusCode,
    headers: reqwest::header::HeaderMap,
    body: Bytes,
}

/// The body of a response: problem details (RFC 9457), or the answer to a reply.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseBody {
    /// Whether a reply took effect.
    taken: bool,
    /// Why a reply had no effect, or why an attempt is over.
    reason: String,
    /// The detail of a problem.
    detail: String,
    /// The address of the active manager, if the answering one is another one.
    active: Option<String>,
}

impl ManagerResponse {
    /// Parses the body. A body that cannot be parsed counts as empty.
    fn parse_body(&self) -> ResponseBody {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Describes the response for people.
    fn describe(&self) -> String {
        format!("{} {}", self.status.as_u16(), self.parse_body().detail)
    }

    /// Returns a header. Empty if it is missing or not ASCII.
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the address of the active manager if this one is another one. Empty if it does not
    /// know it. `None` if this manager is the one to ask: a 503 by itself is an overload.
    fn find_other(&self) -> Option<String> {
        let is_misdirected = self.status == StatusCode::MISDIRECTED_REQUEST;
        if self.status != StatusCode::SERVICE_UNAVAILABLE && !is_misdirected {
            return None;
        }
        let body = self.parse_body();
        let header = self.header(ACTIVE_HEADER);
        let named =
            if header.is_empty() { body.active.unwrap_or_default() } else { header.to_owned() };
        let is_other = is_misdirected || !named.is_empty() || body.detail.starts_with(STANDS_BY);
        is_other.then_some(named)
    }

    /// Returns how long to wait before the next try (`Retry-After`). Zero if it is not given in
    /// seconds.
    fn retry_after(&self) -> Duration {
        Duration::from_secs(self.header("retry-after").parse().unwrap_or_default())
    }
}

impl ManagerClient {
    fn new(config: &WorkerConfig) -> Result<ManagerClient, Error> {
        let to_error = |reason: &str| address_error(&config.server, reason);
        let addresses = Addresses::parse(&config.server)?;
        // Installing fails if the program has already installed a provider, which is then used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT);
        if let Some(file) = &config.authorities {
            let tls = tls::client_config(Some(file)).map_err(|reason| to_error(&reason))?;
            client = client.tls_backend_preconfigured(tls);
        }
        let client = client.build().map_err(Error::Http)?;
        let (token, lease) = (config.token.clone(), config.lease);
        Ok(ManagerClient { client, addresses, token, lease })
    }

    /// Posts a request to the active manager. If the address in use cannot be reached, or its
    /// manager is another one, goes to the next address, at most once to each. An error is a text
    /// for the log: there was no response in time.
    async fn post(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: Bytes,
        time_limit: Duration,
    ) -> Result<ManagerResponse, String> {
        // The addresses that were tried, each with what went wrong there.
        let mut tried: Vec<(Url, String)> = Vec::new();
        loop {
            let address = self.addresses.current();
            let result = self.post_to(&address, path, query, body.clone(), time_limit).await;
            let (response, problem) = match result {
                Ok(response) => match response.find_other() {
                    None => {
                        if !tried.is_empty() {
                            let problems = join_problems(&tried);
                            tracing::info!(server = %address, after = problems, "goes on");
                        }
                        return Ok(response);
                    }
                    Some(named) if named.is_empty() => {
                        self.addresses.leave(&address);
                        let problem = response.describe();
                        (Some(response), problem)
                    }
                    Some(named) => {
                        let result = self.addresses.follow(&address, &named);
                        let hint = result.err().map(|hint| format!("; {hint}")).unwrap_or_default();
                        let problem = format!("{}{hint}", response.describe());
                        (Some(response), problem)
                    }
                },
                Err(error) => {
                    self.addresses.leave(&address);
                    (None, error)
                }
            };
            tried.push((address, problem));
            let next = self.addresses.current();
            if tried.iter().any(|(url, _)| addresses::is_same_place(url, &next)) {
                return match response {
                    Some(response) if tried.len() == 1 => Ok(response),
                    Some(_) | None => Err(join_problems(&tried)),
                };
            }
        }
    }

    /// Posts a request to one address.
    async fn post_to(
        &self,
        address: &Url,
        path: &str,
        query: &[(&str, String)],
        body: Bytes,
        time_limit: Duration,
    ) -> Result<ManagerResponse, String> {
        let to_text = |error: reqwest::Error| format_error(&error.without_url());
        let mut url = addresses::join(address, path)?;
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

/// Lists the addresses that were tried, each with what went wrong there.
fn join_problems(tried: &[(Url, String)]) -> String {
    let problems = tried.iter().map(|(url, problem)| format!("{url}: {problem}"));
    problems.collect::<Vec<_>>().join("; ")
}

/// Formats an error with its causes.
fn format_error(error: &reqwest::Error) -> String {
    Failure::from_error(error).reason().to_owned()
}

/// Receives the messages of one queue.
struct QueueReceiver {
    /// The name of the queue.
    name: String,
    handler: Handler,
    manager: Arc<ManagerClient>,
    /// Each message in flight holds a permit.
    permits: Arc<Semaphore>,
}

/// The messages in flight of one queue, by message id.
type InFlightMessages = Arc<Mutex<HashMap<String, Arc<InFlightMessage>>>>;

/// A message in flight.
struct InFlightMessage {
    /// The path for replies to the latest delivery. A message that is delivered again gets another
    /// path.
    path: Mutex<String>,
}

impl InFlightMessage {
    /// Returns the path of a call about the message. It differs from the path for replies in its
    /// last segment.
    fn call_path(&self, action: &str) -> String {
        let path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        let base = path.strip_suffix("reply").unwrap_or(path);
        if query.is_empty() { format!("{base}{action}") } else { format!("{base}{action}?{query}") }
    }
}

impl QueueReceiver {
    /// Receives messages until the worker stops, and then waits for the messages in flight.
    async fn serve(self, mut stopping: watch::Receiver<bool>) {
        let receiver = Arc::new(self);
        let mut tasks = JoinSet::new();
        let in_flight = InFlightMessages::default();
        let task_stopping = stopping.clone();
        tokio::select! {
            () = wait_for_stop(&mut stopping) => {}
            () = receiver.receive(&in_flight, &mut tasks, &task_stopping) => {}
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Receives messages by long polls, whenever a permit is free. When the worker stops, this
    /// future is dropped. That closes the connection of the long poll, so the manager leases no
    /// message to it.
    async fn receive(
        self: &Arc<Self>,
        in_flight: &InFlightMessages,
        tasks: &mut JoinSet<()>,
        stopping: &watch::Receiver<bool>,
    ) {
        let (mut backoff, mut is_connected) = (Backoff::new(), false);
        let name = utf8_percent_encode(&self.name, NON_ALPHANUMERIC);
        let path = format!("/api/queue/{name}/receive");
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else { return };
            while tasks.try_join_next().is_some() {}
            // The first request, and one after a failure, does not wait, so that the log soon says
            // whether it works.
            let wait = if is_connected { RECEIVE_WAIT } else { Duration::ZERO };
            let mut query =
                vec![("wait", format!("{}s", wait.as_secs())), self.manager.lease_parameter()];
            let vhost = self.manager.addresses.vhost().map(str::to_owned);
            query.extend(vhost.map(|vhost| ("vhost", vhost)));
            let result =
                self.manager.post(&path, &query, Bytes::new(), wait + RESPONSE_TIMEOUT).await;
            let (problem, retry_after) = match result {
                Ok(response) if response.status.is_success() => {
                    if !is_connected {
                        let server = self.manager.addresses.current();
                        tracing::info!(queue = self.name, %server, "consuming");
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
            let pause = backoff.next().max(retry_after);
            tracing::warn!(queue = self.name, ?pause, "no message: {problem}");
            sleep(pause).await;
        }
    }

    /// Starts the task that processes a message. If the message is already in flight, it only gets
    /// the path of its new delivery.
    fn start_task(
        self: &Arc<Self>,
        response: ManagerResponse,
        in_flight: &InFlightMessages,
        tasks: &mut JoinSet<()>,
        stopping: &watch::Receiver<bool>,
        permit: tokio::sync::OwnedSemaphorePermit,
    ) {
        let path = response.header("reply-to").to_owned();
        let id = response.header("message-id").to_owned();
        let mut messages = in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(message) = messages.get(&id) {
            // A restarted manager delivers the message again. The function is not called twice.
            *message.path.lock().unwrap_or_else(PoisonError::into_inner) = path;
            return;
        }
        let message = Arc::new(InFlightMessage { path: Mutex::new(path) });
        messages.insert(id.clone(), message.clone());
        drop(messages);
        let (receiver, messages_in_flight, stopping) =
            (self.clone(), in_flight.clone(), stopping.clone());
        tasks.spawn(async move {
            receiver.process(response, &message, stopping).await;
            messages_in_flight.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            drop(permit);
        });
    }

    /// Calls the function for a message, extends the lease meanwhile, and sends the reply.
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
        let disposition = tokio::select! {
            disposition = process(&self.handler, message) => disposition,
            // `extend_lease` never returns.
            () = self.extend_lease(in_flight, end_sender) => Disposition::Dropped,
        };
        match disposition {
            Disposition::Reply(reply) => self.send_reply(reply, in_flight, stopping).await,
            Disposition::Rejected | Disposition::Dropped => {}
        }
    }

    /// Extends the lease until this future is dropped. If the manager says that the attempt is
    /// over, sends the reason to the function, and extends no more.
    async fn extend_lease(
        &self,
        message: &InFlightMessage,
        end_sender: watch::Sender<Option<Arc<str>>>,
    ) {
        // Whether the latest extension succeeded, so that a lost lease is logged only once.
        let mut has_lease = true;
        loop {
            sleep(self.manager.lease / EXTENSIONS_PER_LEASE).await;
            let path = message.call_path("extend");
            let lease = self.manager.lease_parameter();
            let time_limit = self.manager.lease / EXTENSION_TIMEOUTS_PER_LEASE;
            let time_limit = time_limit.max(EXTENSION_TIMEOUT_MIN);
            let result = self.manager.post(&path, &[lease], Bytes::new(), time_limit).await;
            // An unreachable manager is logged by the receive requests and the replies.
            let Ok(response) = result else { continue };
            let reason = response.parse_body().reason;
            if response.status == StatusCode::GONE && reason != "lease expired" {
                end_sender.send_replace(Some(reason.into()));
                // The select in `process` ends this future.
                return std::future::pending().await;
            }
            if response.status == StatusCode::GONE && has_lease {
                tracing::warn!(path, "the lease has ended: the message may be delivered again");
            } else if !response.status.is_success() && response.status != StatusCode::GONE {
                tracing::warn!(path, "the lease could not be extended: {}", response.describe());
            }
            has_lease = response.status != StatusCode::GONE;
        }
    }

    /// Sends the reply, with exponential backoff, until the manager has committed it or finally
    /// refuses it. The lease is no longer extended, because a reply needs none.
    async fn send_reply(
        &self,
        mut reply: Reply,
        message: &InFlightMessage,
        mut stopping: watch::Receiver<bool>,
    ) {
        let mut backoff = Backoff::new();
        // When to give up. `None` until the first failure while the worker is stopping.
        let mut deadline = None;
        loop {
            let path = message.call_path("reply");
            let kind = if reply.is_error { "error" } else { "result" };
            let query = [("type", kind.to_owned())];
            let result =
                self.manager.post(&path, &query, reply.body.clone(), RESPONSE_TIMEOUT).await;
            let (problem, retry_after) = match result {
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
                    let reason =
                        format!("the reply has {size} bytes: {}", response.parse_body().detail);
                    tracing::error!(path, why = reason, "the attempt failed");
                    reply = Reply { is_error: true, body: Failure::last(reason).to_body().into() };
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
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + STOP_TIMEOUT);
                if Instant::now() >= deadline {
                    tracing::error!(
                        path,
                        "the reply is given up: {problem}; the lease of its message will expire"
                    );
                    return;
                }
            }
            let pause = backoff.next().max(retry_after);
            tracing::warn!(path, ?pause, "the reply was not taken: {problem}");
            if *stopping.borrow() {
                sleep(pause.min(STOP_PAUSE_MAX)).await;
            } else {
                tokio::select! {
                    () = sleep(pause) => {}
                    () = wait_for_stop(&mut stopping) => {}
                }
            }
        }
    }
}

/// Returns whether it is useless to send the reply again. A missing or insufficient token is not
/// final, because its rights may be changed meanwhile.
fn is_final(status: StatusCode) -> bool {
    let retryable = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_client_error() && !retryable.contains(&status)
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
                    tracing::warn!(path, "progress could not be sent: {}", response.describe())
                }
                Err(error) => tracing::warn!(path, "progress could not be sent: {error}"),
            }
        })
    }
}
