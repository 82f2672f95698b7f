//! The lease queue of the stub manager: leases messages as a manager does, and logs what becomes of
//! them. To cut a connection, the server is stopped without a response and started again on its
//! port, as if a manager had been killed.

use super::super::super::text::Text;
use super::super::cut::CutAt;
use super::super::log::{Kind, Log, Properties, Reply, What};
use super::super::messages::{Message, WORKFLOW};
use super::server::{Answer, Ask, Call, serve};
use crate::clock;
use crate::engine::Timestamp;
use crate::engine::words::{quoted, shortened};
use crate::telemetry::log::say;
use crate::times::rfc3339;
use actix_web::dev::ServerHandle;
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
const BIND_WITHIN: Duration = Duration::from_secs(10);

/// What the harness tells the lease queue to do.
pub(super) enum Order {
    Put(Message),
    Cut(usize, CutAt),
    GiveUp(usize),
    /// Ends the attempt of the message as soon as a worker has it.
    CancelWhenLent(usize),
    Clear,
    Close,
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It may be leased from this time on.
    Waiting(Instant),
    /// It is leased until this time.
    Lent(Instant),
    Done,
    GivenUp,
}

struct Entry {
    message: Message,
    state: State,
    delivery: u32,
    lease: Duration,
}

/// A receive request of a worker that waits for messages.
struct Waiter {
    until: Instant,
    lease: Duration,
    max: Option<usize>,
    vhost: String,
    answer: oneshot::Sender<Answer>,
}

pub(super) struct Desk {
    queue: String,
    log: Log,
    address: SocketAddr,
    asks: mpsc::Sender<Ask>,
    server: ServerHandle,
    entries: Vec<Entry>,
    waiters: VecDeque<Waiter>,
    cut: Option<(usize, CutAt)>,
    cancelled: Option<usize>,
}

impl Desk {
    pub(super) fn new(
        queue: &str,
        log: Log,
        address: SocketAddr,
        asks: mpsc::Sender<Ask>,
        server: ServerHandle,
    ) -> Desk {
        Desk {
            queue: queue.to_owned(),
            log,
            address,
            asks,
            server,
            entries: Vec::new(),
            waiters: VecDeque::new(),
            cut: None,
            cancelled: None,
        }
    }

    /// Handles commands, requests and timers, until it is closed.
    pub(super) async fn run(
        mut self,
        mut asked: mpsc::Receiver<Ask>,
        mut ordered: mpsc::UnboundedReceiver<Order>,
    ) {
        loop {
            self.lend();
            let next = self.next_change();
            tokio::select! {
                biased;
                order = ordered.recv() => match order {
                    Some(Order::Put(message)) => self.put(message),
                    Some(Order::Cut(number, at)) => self.cut = Some((number, at)),
                    Some(Order::GiveUp(number)) => {
                        if let Some(entry) = self.entry(number) {
                            entry.state = State::GivenUp;
                        }
                    }
                    Some(Order::CancelWhenLent(number)) => self.cancelled = Some(number),
                    Some(Order::Clear) => {
                        (self.cut, self.cancelled) = (None, None);
                        self.entries.iter_mut().for_each(|entry| entry.state = State::Done);
                    }
                    Some(Order::Close) | None => {
                        self.server.stop(false).await;
                        return;
                    }
                },
                ask = asked.recv() => {
                    let Some(ask) = ask else { return };
                    if let Some(held) = self.hear(ask) {
                        self.restart().await;
                        drop(held);
                    }
                }
                () = sleep_until(next) => self.pass_time(),
            }
        }
    }

    fn put(&mut self, message: Message) {
        let state = State::Waiting(clock::ticks());
        self.entries.push(Entry { message, state, delivery: 0, lease: LEASE_DEFAULT });
    }

    fn entry(&mut self, number: usize) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.message.number == number)
    }

    /// Returns the time of the next change that no command or request causes.
    fn next_change(&self) -> Option<Instant> {
        let of_entries = self.entries.iter().filter_map(|entry| match entry.state {
            State::Waiting(at) if !self.waiters.is_empty() => Some(at),
            State::Lent(at) => Some(at),
            State::Waiting(_) | State::Done | State::GivenUp => None,
        });
        of_entries.chain(self.waiters.iter().map(|waiter| waiter.until)).min()
    }

    fn pass_time(&mut self) {
        let now = clock::ticks();
        for entry in &mut self.entries {
            if matches!(entry.state, State::Lent(until) if until <= now) {
                entry.state = State::Waiting(now);
                self.log.add(Some(entry.message.number), What::Expired);
            }
        }
        let (over, waiting): (Vec<Waiter>, Vec<Waiter>) =
            std::mem::take(&mut self.waiters).into_iter().partition(|one| one.until <= now);
        self.waiters = waiting.into();
        for waiter in over {
            let answer = match waiter.max {
                Some(_) => Answer::json(&json!([])),
                None => Answer { status: 204, headers: Vec::new(), body: Vec::new() },
            };
            // Sending fails if the worker has gone.
            let _ = waiter.answer.send(answer);
        }
    }

    /// Leases the messages that are ready to the workers that wait.
    fn lend(&mut self) {
        self.waiters.retain(|waiter| !waiter.answer.is_closed());
        loop {
            let now = clock::ticks();
            let most = self.waiters.front().map_or(0, |waiter| waiter.max.unwrap_or(1));
            let is_ready =
                |entry: &&mut Entry| matches!(entry.state, State::Waiting(at) if at <= now);
            let ready: Vec<&mut Entry> =
                self.entries.iter_mut().filter(is_ready).take(most).collect();
            if ready.is_empty() {
                return;
            }
            let Some(waiter) = self.waiters.pop_front() else { return };
            let mut lent = Vec::new();
            for entry in ready {
                entry.lease = waiter.lease;
                entry.state = if self.cancelled == Some(entry.message.number) {
                    State::GivenUp
                } else {
                    State::Lent(now + waiter.lease)
                };
                entry.delivery += 1;
                self.log.add(Some(entry.message.number), What::Given);
                lent.push(&*entry);
            }
            let answer = match waiter.max {
                Some(_) => many(&lent, &waiter.vhost),
                None => one(lent[0], &waiter.vhost),
            };
            let _ = waiter.answer.send(answer);
        }
    }

    /// Handles a request of a worker. Returns the responder if the response is to be lost.
    fn hear(&mut self, ask: Ask) -> Option<oneshot::Sender<Answer>> {
        let Ask { queue, of, call, answer } = ask;
        let tell = |said: Answer, answer: oneshot::Sender<Answer>| {
            // Sending fails if the worker has gone.
            let _ = answer.send(said);
            None
        };
        if queue != self.queue {
            let detail = format!(
                "no loaded workflow has a queue {}; did you mean {}?",
                quoted(&queue),
                quoted(&self.queue)
            );
            return tell(Answer::problem(404, &detail), answer);
        }
        let Some((id, delivery)) = of else {
            if let Call::Receive { wait, lease, max, vhost } = call {
                self.log.add(None, What::Came);
                let (until, lease) = (clock::ticks() + wait, lease.unwrap_or(LEASE_DEFAULT));
                self.waiters.push_back(Waiter { until, lease, max, vhost, answer });
            }
            return None;
        };
        let Some(at) = self.entries.iter().position(|entry| entry.message.id() == id) else {
            let stray = format!("a call about the message {}", shortened(&id));
            self.log.add(None, What::Stray(Text::new(&stray)));
            let taken = json!({ "taken": false, "reason": "unknown_job" });
            return tell(Answer::json(&taken), answer);
        };
        let number = self.entries[at].message.number;
        match call {
            Call::Receive { .. } => None,
            Call::Reply { kind, body } => self.take(at, Kind::of(&kind), body, answer),
            Call::Extend { lease } => {
                self.log.add(Some(number), What::Extended);
                tell(extended(&mut self.entries[at], delivery, lease), answer)
            }
            Call::Nack { requeue, delay } => {
                let entry = &mut self.entries[at];
                if !matches!(entry.state, State::Lent(_)) || entry.delivery != delivery {
                    let detail = "lease expired: this delivery is not yours any more";
                    return tell(Answer::problem(410, detail), answer);
                }
                entry.state =
                    if requeue { State::Waiting(clock::ticks() + delay) } else { State::Done };
                self.log.add(Some(number), What::Nacked { requeue });
                tell(Answer::json(&json!({ "taken": true })), answer)
            }
        }
    }

    fn take(
        &mut self,
        at: usize,
        kind: Kind,
        body: bytes::Bytes,
        answer: oneshot::Sender<Answer>,
    ) -> Option<oneshot::Sender<Answer>> {
        let entry = &mut self.entries[at];
        let number = entry.message.number;
        let settles = kind != Kind::Progress;
        let cut = self.cut.take_if(|(of, _)| settles && *of == number).map(|(_, at)| at);
        if cut == Some(CutAt::Reply) {
            self.log.add(Some(number), What::Cut);
            return Some(answer);
        }
        self.log
            .add(Some(number), What::Said(Reply { kind, body, properties: Properties::default() }));
        let is_open = matches!(entry.state, State::Waiting(_) | State::Lent(_));
        if !settles {
            if let State::Lent(_) = entry.state {
                entry.state = State::Lent(clock::ticks() + entry.lease);
            }
        } else if is_open {
            entry.state = State::Done;
            self.log.add(Some(number), What::Acked);
        }
        if cut.is_some() {
            self.log.add(Some(number), What::Cut);
            return Some(answer);
        }
        let taken = if is_open {
            json!({ "taken": true })
        } else {
            json!({ "taken": false, "reason": "duplicate" })
        };
        let _ = answer.send(Answer::json(&taken));
        None
    }

    /// Stops the server with all connections, and starts it again. Leases are in memory, so all
    /// leased messages wait again.
    async fn restart(&mut self) {
        self.server.stop(false).await;
        self.waiters.clear();
        let now = clock::ticks();
        for entry in &mut self.entries {
            if matches!(entry.state, State::Lent(_)) {
                entry.state = State::Waiting(now);
                entry.delivery = 0;
            }
        }
        loop {
            match serve(self.address, self.asks.clone()) {
                Ok((server, _)) => {
                    self.server = server;
                    return;
                }
                Err(_) if clock::ticks() < now + BIND_WITHIN => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => {
                    say(&format!("cannot listen at {} again: {error}", self.address));
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

fn extended(entry: &mut Entry, delivery: u32, lease: Option<Duration>) -> Answer {
    match entry.state {
        State::Done | State::GivenUp => {
            let why = if entry.state == State::Done { "settled" } else { "cancelled" };
            let detail = format!("{why}: the attempt is over, stop working on it");
            return Answer::problem(410, &detail);
        }
        State::Lent(_) if entry.delivery != delivery => {
            let detail = "lease expired: another worker has the message";
            return Answer::problem(410, detail);
        }
        State::Waiting(_) => entry.delivery = delivery,
        State::Lent(_) => {}
    }
    entry.lease = lease.unwrap_or(entry.lease);
    entry.state = State::Lent(clock::ticks() + entry.lease);
    Answer::json(&json!({ "until": after(entry.lease) }))
}

fn after(span: Duration) -> String {
    let nanoseconds = i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    rfc3339(Timestamp(clock::now().0.saturating_add(nanoseconds)))
}

fn reply_to(entry: &Entry, vhost: &str) -> String {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let vhost = match vhost {
        "" => String::new(),
        vhost => format!("?vhost={}", encoded(vhost)),
    };
    let (queue, id) = (encoded(&entry.message.queue), encoded(&entry.message.id()));
    format!("/api/queue/{queue}/message/{id}/{}/reply{vhost}", entry.delivery)
}

/// Renders one message: its body, with everything else in headers.
fn one(entry: &Entry, vhost: &str) -> Answer {
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
        ("Lease-Until", after(entry.lease)),
        ("Reply-To", reply_to(entry, vhost)),
    ];
    if message.is_adorned {
        headers.push(("X-Worker-Test", "what nobody knows; a=\"b\"".to_owned()));
        headers.push(("worker-test-long", "x".repeat(2000)));
    }
    Answer { status: 200, headers, body: message.body.clone() }
}

/// Renders an array of messages. A body that is not JSON becomes a JSON string.
fn many(entries: &[&Entry], vhost: &str) -> Answer {
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
                "lease_until": after(entry.lease),
                "reply_to": reply_to(entry, vhost),
            });
            if message.is_adorned {
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
    Answer { status: 200, headers, body: format!("[{}]", views.join(",")).into_bytes() }
}
