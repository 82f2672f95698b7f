//! The transport over HTTP, for a manager without a broker. Messages are leased. Leases are
//! extended while messages are in flight, and a reply is sent until the manager has committed it.
//! If the worker dies, the lease ends, and the manager delivers the message to another worker.

use crate::backoff::Backoff;
use crate::failure::Failure;
use crate::step::Facts;
use crate::tls;
use crate::work::{Boxed, Handler, Message, Outcome, Post, Reply, attempt, perform};
use crate::worker::{Error, Plan, refused, stopped};
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
const WAIT: Duration = Duration::from_secs(30);

/// How much longer than its wait a request may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// How long a reply is sent again after the worker was asked to stop.
const STOP_WITHIN: Duration = Duration::from_secs(20);

const EXTENSIONS_PER_LEASE: u32 = 6;

/// Serves until the worker stops.
pub(crate) async fn serve(plan: Plan, stopping: watch::Receiver<bool>) -> Result<(), Error> {
    let manager = Arc::new(Manager::new(&plan)?);
    let mut queues = JoinSet::new();
    for (queue, handler) in plan.handlers {
        let room = Arc::new(Semaphore::new(usize::from(plan.prefetch)));
        let queue = Queue { name: queue, handler, manager: manager.clone(), room };
        queues.spawn(queue.serve(stopping.clone()));
    }
    while queues.join_next().await.is_some() {}
    Ok(())
}

/// A client of the manager's queue API.
struct Manager {
    client: Client,
    base: Url,
    vhost: Option<String>,
    token: Option<String>,
    lease: Duration,
}

/// A response of the manager.
struct Answer {
    status: StatusCode,
    headers: reqwest::header::HeaderMap,
    body: Bytes,
}

/// The body of a response: a problem, or the answer to a reply.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Told {
    taken: bool,
    reason: String,
    detail: String,
}

impl Answer {
    fn told(&self) -> Told {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Describes the response for people.
    fn shown(&self) -> String {
        format!("{} {}", self.status.as_u16(), self.told().detail)
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    fn retry_after(&self) -> Duration {
        Duration::from_secs(self.header("retry-after").parse().unwrap_or_default())
    }
}

impl Manager {
    fn new(plan: &Plan) -> Result<Manager, Error> {
        let wrong = |why: &str| refused(&plan.server, why);
        let mut base = Url::parse(&plan.server).map_err(|error| wrong(&error.to_string()))?;
        if !base.username().is_empty() || base.password().is_some() {
            return Err(wrong("a token belongs into WORKFLOW_MANAGER_TOKEN"));
        }
        let vhost = base.query_pairs().find(|(name, _)| name == "vhost");
        let vhost = vhost.map(|(_, name)| name.into_owned());
        base.set_query(None);
        // Installing fails if another part of the program has installed a provider before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        if let Some(file) = &plan.authorities {
            let tls = tls::client(Some(file)).map_err(|why| wrong(&why))?;
            client = client.tls_backend_preconfigured(tls);
        }
        let client = client.build().map_err(Error::Http)?;
        Ok(Manager { client, base, vhost, token: plan.token.clone(), lease: plan.lease })
    }

    async fn post(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: Bytes,
        within: Duration,
    ) -> Result<Answer, String> {
        let told = |error: reqwest::Error| text(&error.without_url());
        let mut url = self.base.join(path).map_err(|error| format!("{path}: {error}"))?;
        for (name, value) in query {
            url.query_pairs_mut().append_pair(name, value);
        }
        let mut request =
            self.client.post(url).body(body).header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let asking = async {
            let answer = request.send().await.map_err(told)?;
            let (status, headers) = (answer.status(), answer.headers().clone());
            Ok(Answer { status, headers, body: answer.bytes().await.map_err(told)? })
        };
        timeout(within, asking)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {within:?}")))
    }

    fn lease(&self) -> (&'static str, String) {
        ("lease", format!("{}ms", self.lease.as_millis()))
    }
}

/// Formats an error with its causes.
fn text(error: &reqwest::Error) -> String {
    Failure::from_error(error).reason().to_owned()
}

/// A queue with its handler.
struct Queue {
    name: String,
    handler: Handler,
    manager: Arc<Manager>,
    room: Arc<Semaphore>,
}

/// A message in flight. It may be delivered again meanwhile, with another path.
struct Held {
    path: Mutex<String>,
}

impl Held {
    /// Returns the path of a call about the message: that of its replies, or one next to it.
    fn path(&self, word: &str) -> String {
        let path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        let base = path.strip_suffix("reply").unwrap_or(path);
        if query.is_empty() { format!("{base}{word}") } else { format!("{base}{word}?{query}") }
    }
}

impl Queue {
    async fn serve(self, mut stopping: watch::Receiver<bool>) {
        let queue = Arc::new(self);
        let mut tasks = JoinSet::new();
        let in_hand: Arc<Mutex<HashMap<String, Arc<Held>>>> = Arc::default();
        let for_tasks = stopping.clone();
        tokio::select! {
            () = stopped(&mut stopping) => {}
            () = queue.receive(&in_hand, &mut tasks, &for_tasks) => {}
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Receives messages as long as there are free permits. The request is dropped when the worker
    /// stops, so that the manager sees that nobody waits.
    async fn receive(
        self: &Arc<Self>,
        in_hand: &Arc<Mutex<HashMap<String, Arc<Held>>>>,
        tasks: &mut JoinSet<()>,
        stopping: &watch::Receiver<bool>,
    ) {
        let (mut backoff, mut is_connected) = (Backoff::new(), false);
        let name = utf8_percent_encode(&self.name, NON_ALPHANUMERIC);
        let path = format!("/api/queue/{name}/receive");
        loop {
            let Ok(room) = self.room.clone().acquire_owned().await else { return };
            while tasks.try_join_next().is_some() {}
            let wait = if is_connected { WAIT } else { Duration::ZERO };
            let mut query = vec![("wait", format!("{}s", wait.as_secs())), self.manager.lease()];
            query.extend(self.manager.vhost.clone().map(|vhost| ("vhost", vhost)));
            let asked = self.manager.post(&path, &query, Bytes::new(), wait + ANSWER_WITHIN).await;
            let (told, at_least) = match asked {
                Ok(answer) if answer.status.is_success() => {
                    if !is_connected {
                        tracing::info!(queue = self.name, server = %self.manager.base, "consuming");
                    }
                    is_connected = true;
                    backoff.reset();
                    if answer.status == StatusCode::OK {
                        self.take(answer, in_hand, tasks, stopping, room);
                    }
                    continue;
                }
                Ok(answer) => (answer.shown(), answer.retry_after()),
                Err(told) => (told, Duration::ZERO),
            };
            is_connected = false;
            let pause = backoff.next().max(at_least);
            tracing::warn!(
                queue = self.name,
                server = %self.manager.base,
                ?pause,
                "no message: {told}"
            );
            sleep(pause).await;
        }
    }

    fn take(
        self: &Arc<Self>,
        answer: Answer,
        in_hand: &Arc<Mutex<HashMap<String, Arc<Held>>>>,
        tasks: &mut JoinSet<()>,
        stopping: &watch::Receiver<bool>,
        room: tokio::sync::OwnedSemaphorePermit,
    ) {
        let path = answer.header("reply-to").to_owned();
        let id = answer.header("message-id").to_owned();
        let mut known = in_hand.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = known.get(&id) {
            // The message is processed already. From now on it counts as this delivery.
            *held.path.lock().unwrap_or_else(PoisonError::into_inner) = path;
            return;
        }
        let held = Arc::new(Held { path: Mutex::new(path) });
        known.insert(id.clone(), held.clone());
        drop(known);
        let (queue, in_hand, stopping) = (self.clone(), in_hand.clone(), stopping.clone());
        tasks.spawn(async move {
            queue.work(answer, &held, stopping).await;
            in_hand.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            drop(room);
        });
    }

    async fn work(&self, answer: Answer, held: &Arc<Held>, stopping: watch::Receiver<bool>) {
        let (tell, end) = watch::channel(None);
        let facts = Facts {
            queue: self.name.clone(),
            correlation_id: answer.header("correlation-id").to_owned(),
            attempt: attempt(answer.header("attempt")),
            job: answer.header("job").to_owned(),
            workflow: answer.header("workflow").to_owned(),
            delivery: answer.header("delivery").parse().unwrap_or(1),
        };
        let post = Arc::new(Said { manager: self.manager.clone(), held: held.clone() });
        let message = Message { facts, body: answer.body, is_answerable: true, post, end };
        let outcome = tokio::select! {
            outcome = perform(&self.handler, message) => outcome,
            () = self.extend(held, tell) => Outcome::Dropped,
        };
        match outcome {
            Outcome::Reply(reply) => self.reply(reply, held, stopping).await,
            Outcome::Refused | Outcome::Dropped => {}
        }
    }

    /// Extends the lease until the future is dropped. Reports it to the function if the attempt is
    /// over.
    async fn extend(&self, held: &Held, tell: watch::Sender<Option<Arc<str>>>) {
        let mut has_lease = true;
        loop {
            sleep(self.manager.lease / EXTENSIONS_PER_LEASE).await;
            let path = held.path("extend");
            let lease = self.manager.lease();
            let asked = self.manager.post(&path, &[lease], Bytes::new(), self.manager.lease).await;
            // An unreachable manager is logged by the receive requests and the replies.
            let Ok(answer) = asked else { continue };
            let reason = answer.told().reason;
            if answer.status == StatusCode::GONE && reason != "lease expired" {
                tell.send_replace(Some(reason.into()));
                // The select in `process` ends this future.
                return std::future::pending().await;
            }
            if answer.status == StatusCode::GONE && has_lease {
                tracing::warn!(path, "the lease has ended: the message may be given out again");
            } else if !answer.status.is_success() && answer.status != StatusCode::GONE {
                tracing::warn!(path, "the lease could not be extended: {}", answer.shown());
            }
            has_lease = answer.status != StatusCode::GONE;
        }
    }

    /// Sends the reply until the manager has committed it. The lease is no longer extended: a reply
    /// counts without one.
    async fn reply(&self, mut reply: Reply, held: &Held, mut stopping: watch::Receiver<bool>) {
        let mut backoff = Backoff::new();
        let mut until = None;
        loop {
            let path = held.path("reply");
            let kind = if reply.is_error { "error" } else { "result" };
            let query = [("type", kind.to_owned())];
            let asked = self.manager.post(&path, &query, reply.body.clone(), ANSWER_WITHIN).await;
            let (told, at_least) = match asked {
                Ok(answer) if answer.status.is_success() => {
                    let told = answer.told();
                    if !told.taken {
                        tracing::info!(path, reason = told.reason, "the reply changed nothing");
                    }
                    return;
                }
                Ok(answer) if answer.status == StatusCode::PAYLOAD_TOO_LARGE && !reply.is_error => {
                    let size = reply.body.len();
                    let why = format!("the reply has {size} bytes: {}", answer.told().detail);
                    tracing::error!(path, why, "the attempt failed");
                    reply = Reply { is_error: true, body: Failure::last(why).body().into() };
                    continue;
                }
                Ok(answer) if is_final(answer.status) => {
                    tracing::error!(
                        path,
                        "the manager does not take the reply: {}",
                        answer.shown()
                    );
                    return;
                }
                Ok(answer) => (answer.shown(), answer.retry_after()),
                Err(told) => (told, Duration::ZERO),
            };
            if *stopping.borrow() {
                let until = *until.get_or_insert_with(|| Instant::now() + STOP_WITHIN);
                if Instant::now() >= until {
                    tracing::error!(
                        path,
                        "the reply is given up: {told}; its lease ends by itself"
                    );
                    return;
                }
            }
            let pause = backoff.next().max(at_least);
            tracing::warn!(path, ?pause, "the reply was not taken: {told}");
            if *stopping.borrow() {
                sleep(pause.min(Duration::from_secs(1))).await;
            } else {
                tokio::select! {
                    () = sleep(pause) => {}
                    () = stopped(&mut stopping) => {}
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
struct Said {
    manager: Arc<Manager>,
    held: Arc<Held>,
}

impl Post for Said {
    fn progress(&self, body: Bytes) -> Boxed<'_, ()> {
        Box::pin(async move {
            let query = [("type", "progress".to_owned())];
            let path = self.held.path("reply");
            match self.manager.post(&path, &query, body, ANSWER_WITHIN).await {
                Ok(answer) if answer.status.is_success() => {}
                Ok(answer) => tracing::warn!(path, "progress was not told: {}", answer.shown()),
                Err(told) => tracing::warn!(path, "progress was not told: {told}"),
            }
        })
    }
}
