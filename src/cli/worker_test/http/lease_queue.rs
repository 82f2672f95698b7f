//! The lease queue of the stub manager: leases messages as a manager does, and logs what becomes of
//! them. To cut a connection, the server is stopped without a response and started again on its
//! port, as if a manager had been killed.

use super::super::super::text::Text;
use super::super::cut::CutTiming;
use super::super::event_log::{EventLog, ObservedEvent, Properties, Reply, ReplyKind};
use super::super::messages::{TestMessage, WORKFLOW};
use super::server::{PendingRequest, StubResponse, WorkerCall, serve};
use actix_web::dev::ServerHandle;
use base::clock;
use base::times::format_rfc3339;
use daemon::telemetry::log::print;
use engine::Timestamp;
use engine::text::{quote, shorten};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json, value::RawValue};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// The lease if a worker asks for none: a manager's default.
const LEASE_DEFAULT: Duration = Duration::from_secs(300);

/// How long binding the port again is tried.
const REBIND_TIMEOUT: Duration = Duration::from_secs(10);

/// What the harness tells the lease queue to do.
pub(super) enum QueueCommand {
    Put(TestMessage),
    Cut(usize, CutTiming),
    EndAttempt(usize),
    /// Ends the attempt of the message as soon as a worker has it.
    CancelWhenLeased(usize),
    Clear,
    Close,
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageState {
    /// It may be leased from this time on.
    Waiting(Instant),
    /// It is leased until this time.
    Leased(Instant),
    Done,
    AttemptOver,
}

struct QueuedMessage {
    message: TestMessage,
    state: MessageState,
    delivery: u32,
    lease: Duration,
}

/// A receive request of a worker that waits for messages.
struct PendingReceive {
    until: Instant,
    lease: Duration,
    max: Option<usize>,
    vhost: String,
    responder: oneshot::Sender<StubResponse>,
}

pub(super) struct StubLeaseQueue {
    queue: String,
    log: EventLog,
    address: SocketAddr,
    requests: mpsc::Sender<PendingRequest>,
    server: ServerHandle,
    entries: Vec<QueuedMessage>,
    waiters: VecDeque<PendingReceive>,
    cut: Option<(usize, CutTiming)>,
    cancel_when_leased: Option<usize>,
}

impl StubLeaseQueue {
    pub(super) fn new(
        queue: &str,
        log: EventLog,
        address: SocketAddr,
        requests: mpsc::Sender<PendingRequest>,
        server: ServerHandle,
    ) -> StubLeaseQueue {
        StubLeaseQueue {
            queue: queue.to_owned(),
            log,
            address,
            requests,
            server,
            entries: Vec::new(),
            waiters: VecDeque::new(),
            cut: None,
            cancel_when_leased: None,
        }
    }

    /// Handles commands, requests and timers, until it is closed.
    pub(super) async fn run(
        mut self,
        mut requests: mpsc::Receiver<PendingRequest>,
        mut commands: mpsc::UnboundedReceiver<QueueCommand>,
    ) {
        loop {
            self.lease_ready_messages();
            let next = self.next_timer();
            tokio::select! {
                biased;
                order = commands.recv() => match order {
                    Some(QueueCommand::Put(message)) => self.enqueue(message),
                    Some(QueueCommand::Cut(number, at)) => self.cut = Some((number, at)),
                    Some(QueueCommand::EndAttempt(number)) => {
                        if let Some(entry) = self.find_message(number) {
                            entry.state = MessageState::AttemptOver;
                        }
                    }
                    Some(QueueCommand::CancelWhenLeased(number)) => {
                        self.cancel_when_leased = Some(number)
                    }
                    Some(QueueCommand::Clear) => {
                        (self.cut, self.cancel_when_leased) = (None, None);
                        self.entries.iter_mut().for_each(|entry| entry.state = MessageState::Done);
                    }
                    Some(QueueCommand::Close) | None => {
                        self.server.stop(false).await;
                        return;
                    }
                },
                received = requests.recv() => {
                    let Some(request) = received else { return };
                    if let Some(responder) = self.handle_request(request) {
                        self.restart().await;
                        drop(responder);
                    }
                }
                () = sleep_until(next) => self.handle_timers(),
            }
        }
    }

    fn enqueue(&mut self, message: TestMessage) {
        let state = MessageState::Waiting(clock::timer_now());
        self.entries.push(QueuedMessage { message, state, delivery: 0, lease: LEASE_DEFAULT });
    }

    fn find_message(&mut self, number: usize) -> Option<&mut QueuedMessage> {
        self.entries.iter_mut().find(|entry| entry.message.number == number)
    }

    /// Returns the time of the next change that no command or request causes.
    fn next_timer(&self) -> Option<Instant> {
        let of_entries = self.entries.iter().filter_map(|entry| match entry.state {
            MessageState::Waiting(at) if !self.waiters.is_empty() => Some(at),
            MessageState::Leased(at) => Some(at),
            MessageState::Waiting(_) | MessageState::Done | MessageState::AttemptOver => None,
        });
        of_entries.chain(self.waiters.iter().map(|waiter| waiter.until)).min()
    }

    fn handle_timers(&mut self) {
        let now = clock::timer_now();
        for entry in &mut self.entries {
            if matches!(entry.state, MessageState::Leased(until) if until <= now) {
                entry.state = MessageState::Waiting(now);
                self.log.add(Some(entry.message.number), ObservedEvent::LeaseExpired);
            }
        }
        let (over, waiting): (Vec<PendingReceive>, Vec<PendingReceive>) =
            std::mem::take(&mut self.waiters).into_iter().partition(|one| one.until <= now);
        self.waiters = waiting.into();
        for waiter in over {
            let answer = match waiter.max {
                Some(_) => StubResponse::json(&json!([])),
                None => StubResponse { status: 204, headers: Vec::new(), body: Vec::new() },
            };
            // Sending fails if the worker has gone.
            let _ = waiter.responder.send(answer);
        }
    }

    /// Leases the messages that are ready to the workers that wait.
    fn lease_ready_messages(&mut self) {
        self.waiters.retain(|waiter| !waiter.responder.is_closed());
        loop {
            let now = clock::timer_now();
            let message_max = self.waiters.front().map_or(0, |waiter| waiter.max.unwrap_or(1));
            let is_ready = |entry: &&mut QueuedMessage| match entry.state {
                MessageState::Waiting(at) => at <= now,
                MessageState::Leased(_) | MessageState::Done | MessageState::AttemptOver => false,
            };
            let ready: Vec<&mut QueuedMessage> =
                self.entries.iter_mut().filter(is_ready).take(message_max).collect();
            if ready.is_empty() {
                return;
            }
            let Some(waiter) = self.waiters.pop_front() else { return };
            let mut leased = Vec::new();
            for entry in ready {
                entry.lease = waiter.lease;
                entry.state = if self.cancel_when_leased == Some(entry.message.number) {
                    MessageState::AttemptOver
                } else {
                    MessageState::Leased(now + waiter.lease)
                };
                entry.delivery += 1;
                self.log.add(Some(entry.message.number), ObservedEvent::Delivered);
                leased.push(&*entry);
            }
            let answer = match waiter.max {
                Some(_) => render_batch(&leased, &waiter.vhost),
                None => render_message(leased[0], &waiter.vhost),
            };
            let _ = waiter.responder.send(answer);
        }
    }

    /// Handles a request of a worker. Returns the responder if the response is to be lost.
    fn handle_request(&mut self, request: PendingRequest) -> Option<oneshot::Sender<StubResponse>> {
        let PendingRequest { queue, delivery: delivery_key, call, responder: answer } = request;
        let respond = |response: StubResponse, responder: oneshot::Sender<StubResponse>| {
            // Sending fails if the worker has gone.
            let _ = responder.send(response);
            None
        };
        if queue != self.queue {
            let detail = format!(
                "no loaded workflow has a queue {}; did you mean {}?",
                quote(&queue),
                quote(&self.queue)
            );
            return respond(StubResponse::problem(404, &detail), answer);
        }
        let Some((id, delivery)) = delivery_key else {
            if let WorkerCall::Receive { wait, lease, max, vhost } = call {
                self.log.add(None, ObservedEvent::Connected);
                let (until, lease) = (clock::timer_now() + wait, lease.unwrap_or(LEASE_DEFAULT));
                self.waiters.push_back(PendingReceive {
                    until,
                    lease,
                    max,
                    vhost,
                    responder: answer,
                });
            }
            return None;
        };
        let Some(at) = self.entries.iter().position(|entry| entry.message.id() == id) else {
            let stray = format!("a call about the message {}", shorten(&id));
            self.log.add(None, ObservedEvent::Unexpected(Text::new(&stray)));
            let reply_body = json!({ "taken": false, "reason": "unknown_job" });
            return respond(StubResponse::json(&reply_body), answer);
        };
        let number = self.entries[at].message.number;
        match call {
            WorkerCall::Receive { .. } => None,
            WorkerCall::Reply { kind, body } => {
                self.handle_reply(at, ReplyKind::from_name(&kind), body, answer)
            }
            WorkerCall::Extend { lease } => {
                self.log.add(Some(number), ObservedEvent::LeaseExtended);
                respond(extend_lease(&mut self.entries[at], delivery, lease), answer)
            }
            WorkerCall::Nack { requeue, delay } => {
                let entry = &mut self.entries[at];
                if !matches!(entry.state, MessageState::Leased(_)) || entry.delivery != delivery {
                    let detail = "lease expired: this delivery is not yours any more";
                    return respond(StubResponse::problem(410, detail), answer);
                }
                entry.state = if requeue {
                    MessageState::Waiting(clock::timer_now() + delay)
                } else {
                    MessageState::Done
                };
                self.log.add(Some(number), ObservedEvent::Nacked { requeue });
                respond(StubResponse::json(&json!({ "taken": true })), answer)
            }
        }
    }

    fn handle_reply(
        &mut self,
        at: usize,
        kind: ReplyKind,
        body: bytes::Bytes,
        responder: oneshot::Sender<StubResponse>,
    ) -> Option<oneshot::Sender<StubResponse>> {
        let entry = &mut self.entries[at];
        let number = entry.message.number;
        let settles = kind != ReplyKind::Progress;
        let cut = self.cut.take_if(|(of, _)| settles && *of == number).map(|(_, at)| at);
        if cut == Some(CutTiming::Reply) {
            self.log.add(Some(number), ObservedEvent::ConnectionCut);
            return Some(responder);
        }
        self.log.add(
            Some(number),
            ObservedEvent::Replied(Reply { kind, body, properties: Properties::default() }),
        );
        let is_open = matches!(entry.state, MessageState::Waiting(_) | MessageState::Leased(_));
        if !settles {
            if let MessageState::Leased(_) = entry.state {
                entry.state = MessageState::Leased(clock::timer_now() + entry.lease);
            }
        } else if is_open {
            entry.state = MessageState::Done;
            self.log.add(Some(number), ObservedEvent::Acked);
        }
        if cut.is_some() {
            self.log.add(Some(number), ObservedEvent::ConnectionCut);
            return Some(responder);
        }
        let outcome = if is_open {
            json!({ "taken": true })
        } else {
            json!({ "taken": false, "reason": "duplicate" })
        };
        let _ = responder.send(StubResponse::json(&outcome));
        None
    }

    /// Stops the server with all connections, and starts it again. Leases are in memory, so all
    /// leased messages wait again.
    async fn restart(&mut self) {
        self.server.stop(false).await;
        self.waiters.clear();
        let now = clock::timer_now();
        for entry in &mut self.entries {
            if matches!(entry.state, MessageState::Leased(_)) {
                entry.state = MessageState::Waiting(now);
                entry.delivery = 0;
            }
        }
        loop {
            match serve(self.address, self.requests.clone()) {
                Ok((server, _)) => {
                    self.server = server;
                    return;
                }
                Err(_) if clock::timer_now() < now + REBIND_TIMEOUT => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => {
                    print(&format!("cannot listen at {} again: {error}", self.address));
                    return;
                }
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn extend_lease(entry: &mut QueuedMessage, delivery: u32, lease: Option<Duration>) -> StubResponse {
    match entry.state {
        MessageState::Done | MessageState::AttemptOver => {
            let why = if entry.state == MessageState::Done { "settled" } else { "cancelled" };
            let detail = format!("{why}: the attempt is over, stop working on it");
            return StubResponse::problem(410, &detail);
        }
        MessageState::Leased(_) if entry.delivery != delivery => {
            let detail = "lease expired: another worker has the message";
            return StubResponse::problem(410, detail);
        }
        MessageState::Waiting(_) => entry.delivery = delivery,
        MessageState::Leased(_) => {}
    }
    entry.lease = lease.unwrap_or(entry.lease);
    entry.state = MessageState::Leased(clock::timer_now() + entry.lease);
    StubResponse::json(&json!({ "until": format_time_after(entry.lease) }))
}

fn format_time_after(span: Duration) -> String {
    let nanoseconds = i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    format_rfc3339(Timestamp(clock::now().0.saturating_add(nanoseconds)))
}

fn reply_to(entry: &QueuedMessage, vhost: &str) -> String {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let vhost = match vhost {
        "" => String::new(),
        vhost => format!("?vhost={}", encoded(vhost)),
    };
    let (queue, id) = (encoded(&entry.message.queue), encoded(&entry.message.id()));
    format!("/api/queue/{queue}/message/{id}/{}/reply{vhost}", entry.delivery)
}

/// Renders one message: its body, with everything else in headers.
fn render_message(entry: &QueuedMessage, vhost: &str) -> StubResponse {
    let message = &entry.message;
    let mut headers = vec![
        ("content-type", "application/json".to_owned()),
        ("Correlation-Id", message.correlation_id()),
        ("Message-Id", message.id()),
        ("workflow", WORKFLOW.to_owned()),
        ("job", message.job.to_string()),
        ("attempt", message.attempt.to_string()),
        ("traceparent", message.traceparent()),
        ("Delivery", entry.delivery.to_string()),
        ("Lease-Until", format_time_after(entry.lease)),
        ("Reply-To", reply_to(entry, vhost)),
    ];
    if message.has_extra_headers {
        headers.push(("X-Worker-Test", "what nobody knows; a=\"b\"".to_owned()));
        headers.push(("worker-test-long", "x".repeat(2000)));
    }
    StubResponse { status: 200, headers, body: message.body.clone() }
}

/// Renders an array of messages. A body that is not JSON becomes a JSON string.
fn render_batch(entries: &[&QueuedMessage], vhost: &str) -> StubResponse {
    let views: Vec<String> = entries
        .iter()
        .map(|entry| {
            let message = &entry.message;
            let mut view = json!({
                "correlation_id": message.correlation_id(),
                "message_id": message.id(),
                "workflow": WORKFLOW,
                "job": message.job.to_string(),
                "attempt": message.attempt,
                "traceparent": message.traceparent(),
                "delivery": entry.delivery,
                "lease_until": format_time_after(entry.lease),
                "reply_to": reply_to(entry, vhost),
            });
            if message.has_extra_headers {
                view["x_worker_test"] = json!({ "what": ["nobody", "knows"] });
            }
            let text = String::from_utf8_lossy(&message.body).into_owned();
            let body = match serde_json::from_str::<&RawValue>(&text) {
                Ok(_) => text,
                Err(_) => Value::String(text).to_string(),
            };
            let view = view.to_string();
            format!("{},\"body\":{body}}}", view.strip_suffix('}').unwrap_or(&view))
        })
        .collect();
    let headers = vec![("content-type", "application/json".to_owned())];
    StubResponse { status: 200, headers, body: format!("[{}]", views.join(",")).into_bytes() }
}
