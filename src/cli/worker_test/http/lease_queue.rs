//! The lease queue of the stub manager: leases messages as a manager does, and logs what the worker
//! does with them. To cut a connection, it stops the server without a response and starts it again
//! on the same port, as if a manager had been killed.

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

/// The duration of a lease if the request names none: the default of a manager.
const LEASE_DEFAULT: Duration = Duration::from_secs(300);

/// How long to retry before giving up on binding the port again.
const REBIND_TIMEOUT: Duration = Duration::from_secs(10);

/// The delay between two tries to bind the port.
const REBIND_DELAY: Duration = Duration::from_millis(20);

/// A command of the harness. A `usize` is the number of a message.
pub(super) enum QueueCommand {
    /// Enqueues a message.
    Put(TestMessage),
    /// Cuts the connection once, at the message.
    Cut(usize, CutTiming),
    /// Ends the attempt of the message.
    EndAttempt(usize),
    /// Ends the attempt of the message as soon as it is leased.
    CancelWhenLeased(usize),
    /// Removes all messages that are not settled.
    Clear,
    /// Stops the server and the queue.
    Close,
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageState {
    /// It may be leased from this time on.
    Waiting(Instant),
    /// It is leased until this time.
    Leased(Instant),
    /// It is settled.
    Settled,
    /// Its attempt is over, and it is not settled.
    AttemptOver,
}

/// A message of the queue. It stays in the queue after it is settled.
struct QueuedMessage {
    message: TestMessage,
    state: MessageState,
    /// The number of its latest delivery, from 1. 0 before the first one, and after a restart of
    /// the server ended its lease.
    delivery: u32,
    /// The duration of its latest lease.
    lease: Duration,
}

/// A long poll that waits for messages.
struct PendingReceive {
    /// When it is answered even without a message.
    deadline: Instant,
    /// The duration of the leases that it takes.
    lease: Duration,
    /// The maximum number of messages in the response, which is then an array. With `None` the
    /// response is a single message: its body as it is, and the rest in headers.
    max: Option<usize>,
    /// The virtual host, which `Reply-To` must repeat. Empty if the request names none.
    vhost: String,
    responder: oneshot::Sender<StubResponse>,
}

/// The lease queue. It owns the server, and restarts it to cut connections.
pub(super) struct StubLeaseQueue {
    queue: String,
    log: EventLog,
    /// The address of the server. A restarted server binds it again.
    address: SocketAddr,
    /// Passed to each server, so that its requests arrive here.
    requests: mpsc::Sender<PendingRequest>,
    server: ServerHandle,
    /// All messages in the order in which they were sent, including the settled ones.
    entries: Vec<QueuedMessage>,
    long_polls: VecDeque<PendingReceive>,
    /// The number of the message at which to cut the connection, and when. `None` after the cut.
    cut: Option<(usize, CutTiming)>,
    /// The number of the message whose attempt ends as soon as it is leased.
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
            long_polls: VecDeque::new(),
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
            let next_timer = self.next_timer();
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(QueueCommand::Put(message)) => self.enqueue(message),
                    Some(QueueCommand::Cut(number, timing)) => self.cut = Some((number, timing)),
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
                        for entry in &mut self.entries {
                            entry.state = MessageState::Settled;
                        }
                    }
                    Some(QueueCommand::Close) | None => {
                        self.server.stop(false).await;
                        return;
                    }
                },
                request = requests.recv() => {
                    let Some(request) = request else { return };
                    if let Some(responder) = self.handle_request(request) {
                        self.restart().await;
                        // Dropped only now: dropping it while the connection is open would answer
                        // the request.
                        drop(responder);
                    }
                }
                () = sleep_until(next_timer) => self.handle_timers(),
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

    /// Returns when the next lease or long poll ends, or the next message may be leased to a long
    /// poll. `None` if there is nothing to wait for.
    fn next_timer(&self) -> Option<Instant> {
        let entry_timers = self.entries.iter().filter_map(|entry| match entry.state {
            MessageState::Waiting(time) if !self.long_polls.is_empty() => Some(time),
            MessageState::Leased(time) => Some(time),
            MessageState::Waiting(_) | MessageState::Settled | MessageState::AttemptOver => None,
        });
        entry_timers.chain(self.long_polls.iter().map(|long_poll| long_poll.deadline)).min()
    }

    /// Ends the leases and long polls whose time is over.
    fn handle_timers(&mut self) {
        let now = clock::timer_now();
        for entry in &mut self.entries {
            if matches!(entry.state, MessageState::Leased(until) if until <= now) {
                entry.state = MessageState::Waiting(now);
                self.log.add(Some(entry.message.number), ObservedEvent::LeaseExpired);
            }
        }
        let (expired, open): (Vec<PendingReceive>, Vec<PendingReceive>) =
            std::mem::take(&mut self.long_polls)
                .into_iter()
                .partition(|long_poll| long_poll.deadline <= now);
        self.long_polls = open.into();
        for long_poll in expired {
            let response = match long_poll.max {
                Some(_) => StubResponse::json(&json!([])),
                None => StubResponse { status: 204, headers: Vec::new(), body: Vec::new() },
            };
            // Sending fails if the worker has disconnected.
            let _ = long_poll.responder.send(response);
        }
    }

    /// Leases the messages that are ready to the long polls, in order.
    fn lease_ready_messages(&mut self) {
        self.long_polls.retain(|long_poll| !long_poll.responder.is_closed());
        loop {
            let now = clock::timer_now();
            // Without a long poll the limit is 0, so no message is ready.
            let message_limit =
                self.long_polls.front().map_or(0, |long_poll| long_poll.max.unwrap_or(1));
            let is_ready = |entry: &&mut QueuedMessage| match entry.state {
                MessageState::Waiting(time) => time <= now,
                MessageState::Leased(_) | MessageState::Settled | MessageState::AttemptOver => {
                    false
                }
            };
            let ready: Vec<&mut QueuedMessage> =
                self.entries.iter_mut().filter(is_ready).take(message_limit).collect();
            if ready.is_empty() {
                return;
            }
            let Some(long_poll) = self.long_polls.pop_front() else { return };
            let mut leased = Vec::new();
            for entry in ready {
                entry.lease = long_poll.lease;
                entry.state = if self.cancel_when_leased == Some(entry.message.number) {
                    MessageState::AttemptOver
                } else {
                    MessageState::Leased(now + long_poll.lease)
                };
                entry.delivery += 1;
                self.log.add(Some(entry.message.number), ObservedEvent::Delivered);
                leased.push(&*entry);
            }
            let response = match long_poll.max {
                Some(_) => render_batch(&leased, &long_poll.vhost),
                None => render_message(leased[0], &long_poll.vhost),
            };
            // Sending fails if the worker has disconnected.
            let _ = long_poll.responder.send(response);
        }
    }

    /// Handles a request of a worker, and answers it unless it is a long poll. Returns the
    /// responder if the connection is to be cut instead of answering.
    fn handle_request(&mut self, request: PendingRequest) -> Option<oneshot::Sender<StubResponse>> {
        let PendingRequest { queue, delivery: delivery_key, call, responder } = request;
        let respond = |response: StubResponse, responder: oneshot::Sender<StubResponse>| {
            // Sending fails if the worker has disconnected.
            let _ = responder.send(response);
            None
        };
        if queue != self.queue {
            let detail = format!(
                "no loaded workflow has a queue {}; did you mean {}?",
                quote(&queue),
                quote(&self.queue)
            );
            return respond(StubResponse::problem(404, &detail), responder);
        }
        let Some((id, delivery)) = delivery_key else {
            if let WorkerCall::Receive { wait, lease, max, vhost } = call {
                self.log.add(None, ObservedEvent::Connected);
                let deadline = clock::timer_now() + wait;
                let lease = lease.unwrap_or(LEASE_DEFAULT);
                self.long_polls.push_back(PendingReceive {
                    deadline,
                    lease,
                    max,
                    vhost,
                    responder,
                });
            }
            return None;
        };
        let Some(index) = self.entries.iter().position(|entry| entry.message.id() == id) else {
            let description = format!("a call about the message {}", shorten(&id));
            self.log.add(None, ObservedEvent::Unexpected(Text::new(&description)));
            let body = json!({ "taken": false, "reason": "unknown_job" });
            return respond(StubResponse::json(&body), responder);
        };
        let number = self.entries[index].message.number;
        match call {
            WorkerCall::Receive { .. } => None,
            WorkerCall::Reply { kind, body } => {
                self.handle_reply(index, ReplyKind::from_name(&kind), body, responder)
            }
            WorkerCall::Extend { lease } => {
                self.log.add(Some(number), ObservedEvent::LeaseExtended);
                respond(extend_lease(&mut self.entries[index], delivery, lease), responder)
            }
            WorkerCall::Nack { requeue, delay } => {
                let entry = &mut self.entries[index];
                if !matches!(entry.state, MessageState::Leased(_)) || entry.delivery != delivery {
                    let detail = "lease expired: this delivery is not yours any more";
                    return respond(StubResponse::problem(410, detail), responder);
                }
                entry.state = if requeue {
                    MessageState::Waiting(clock::timer_now() + delay)
                } else {
                    MessageState::Settled
                };
                self.log.add(Some(number), ObservedEvent::Nacked { requeue });
                respond(StubResponse::json(&json!({ "taken": true })), responder)
            }
        }
    }

    /// Handles a reply, and answers it. Returns the responder if the connection is to be cut
    /// instead of answering.
    fn handle_reply(
        &mut self,
        index: usize,
        kind: ReplyKind,
        body: bytes::Bytes,
        responder: oneshot::Sender<StubResponse>,
    ) -> Option<oneshot::Sender<StubResponse>> {
        let entry = &mut self.entries[index];
        let number = entry.message.number;
        let is_settling = kind != ReplyKind::Progress;
        let cut = self
            .cut
            .take_if(|(cut_number, _)| is_settling && *cut_number == number)
            .map(|(_, timing)| timing);
        if cut == Some(CutTiming::Reply) {
            self.log.add(Some(number), ObservedEvent::ConnectionCut);
            return Some(responder);
        }
        self.log.add(
            Some(number),
            ObservedEvent::Replied(Reply { kind, body, properties: Properties::default() }),
        );
        let is_open = matches!(entry.state, MessageState::Waiting(_) | MessageState::Leased(_));
        if !is_settling {
            if let MessageState::Leased(_) = entry.state {
                entry.state = MessageState::Leased(clock::timer_now() + entry.lease);
            }
        } else if is_open {
            entry.state = MessageState::Settled;
            self.log.add(Some(number), ObservedEvent::Acked);
        }
        if cut.is_some() {
            self.log.add(Some(number), ObservedEvent::ConnectionCut);
            return Some(responder);
        }
        let body = if is_open {
            json!({ "taken": true })
        } else {
            json!({ "taken": false, "reason": "duplicate" })
        };
        // Sending fails if the worker has disconnected.
        let _ = responder.send(StubResponse::json(&body));
        None
    }

    /// Stops the server, which closes all connections, and starts it again. Leased messages become
    /// available again, because a manager keeps leases in memory only.
    async fn restart(&mut self) {
        self.server.stop(false).await;
        self.long_polls.clear();
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
                    tokio::time::sleep(REBIND_DELAY).await;
                }
                Err(error) => {
                    print(&format!("cannot listen at {} again: {error}", self.address));
                    return;
                }
            }
        }
    }
}

/// Sleeps until a time. Never returns if there is none.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Extends the lease of a delivery. A message whose lease has ended is leased again. The response
/// is 410 if the attempt is over, or another delivery has the lease.
fn extend_lease(entry: &mut QueuedMessage, delivery: u32, lease: Option<Duration>) -> StubResponse {
    match entry.state {
        MessageState::Settled | MessageState::AttemptOver => {
            let reason = if entry.state == MessageState::Settled { "settled" } else { "cancelled" };
            let detail = format!("{reason}: the attempt is over, stop working on it");
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

/// Formats the time that is this duration from now.
fn format_time_after(duration: Duration) -> String {
    let nanoseconds = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    format_rfc3339(Timestamp(clock::now().0.saturating_add(nanoseconds)))
}

/// Returns the path for the reply to the latest delivery of a message.
fn reply_to(entry: &QueuedMessage, vhost: &str) -> String {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let vhost = match vhost {
        "" => String::new(),
        vhost => format!("?vhost={}", encode(vhost)),
    };
    let (queue, id) = (encode(&entry.message.queue), encode(&entry.message.id()));
    format!("/api/queue/{queue}/message/{id}/{}/reply{vhost}", entry.delivery)
}

/// Renders the response to a receive of one message: its body, with everything else in headers.
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

/// Renders the response to a receive of several messages: a JSON array of objects. A body that is
/// not JSON becomes a JSON string.
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
            // The body is spliced in as text: parsing it would change its numbers and key order.
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
