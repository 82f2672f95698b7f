//! The embedded bus: queues in this process, in a [`LeaseQueue`].
//!
//! Its workers are Rust functions on threads, and programs elsewhere that receive messages over
//! HTTP or gRPC. It has no broker and no durability of its own. It never confirms a worker's
//! message, so after a restart every running step is dispatched again from the journal.
//!
//! A message to the queue of a workflow is a call, as over AMQP, unless a worker of the process
//! serves that queue. The end of the called job is the reply.

use super::desk::{Desk, Desks, Lending};
use super::{
    Addressee, Bus, BusEvent, BusKey, BusState, DeadLetter, Delivery, ERROR, EventSink, Header,
    Over, Publication, QueueLook, Served, Settled, Settlement, Verdict,
};
use crate::engine::{Sender, TraceContext};
use crate::settings::EMBEDDED_REPLIES as REPLIES;
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Why a worker failed. Anything that implements `Display` converts into it, so that `?` works in a
/// worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerError {
    /// The reason in one sentence.
    pub reason: String,
}

impl<T: std::fmt::Display> From<T> for WorkerError {
    fn from(reason: T) -> Self {
        WorkerError { reason: reason.to_string() }
    }
}

/// A worker: takes a message and returns the body of the reply. An error fails the attempt; a panic
/// rejects the message.
pub type Worker = Arc<dyn Fn(&Publication) -> Result<Bytes, WorkerError> + Send + Sync>;

/// Workers by queue, each with its number of threads.
#[derive(Clone, Default)]
pub struct Workers(HashMap<String, (Worker, usize)>);

impl Workers {
    /// Creates an empty set of workers: step messages wait.
    pub fn new() -> Workers {
        Workers::default()
    }

    /// Adds a worker for `queue` on `threads` threads.
    pub fn with<F>(mut self, queue: &str, threads: usize, work: F) -> Workers
    where
        F: Fn(&Publication) -> Result<Bytes, WorkerError> + Send + Sync + 'static,
    {
        self.0.insert(queue.to_owned(), (Arc::new(work), threads.max(1)));
        self
    }
}

/// What an embedded bus is created from.
pub struct EmbeddedOpening {
    /// The key of the bus.
    pub key: BusKey,
    /// The workers of this process.
    pub workers: Workers,
    /// How messages are leased to workers elsewhere.
    pub lending: Lending,
    /// The registry in which the bus enters its lease queue.
    pub desks: Arc<Desks>,
}

/// The queues of this process.
pub struct EmbeddedBus {
    /// The queues on which messages ask for jobs.
    calls: HashSet<Arc<str>>,
    desk: Arc<Desk>,
    /// The queues whose worker threads were started.
    staffed: HashSet<Arc<str>>,
    workers: Workers,
    outside: Arc<Outside>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// Delivers the replies of worker threads, until they are settled.
struct Outside {
    sink: EventSink,
    settle: mpsc::UnboundedSender<Settled>,
    unsettled: Mutex<Unsettled>,
}

#[derive(Default)]
struct Unsettled {
    next_tag: u64,
    replies: HashMap<u64, Reply>,
}

#[derive(Clone)]
struct Reply {
    correlation_id: Option<Arc<str>>,
    attempt: Option<u32>,
    kind: Option<&'static str>,
    dead: Option<DeadLetter>,
    body: Bytes,
    /// Set if the message is a call, which asks for a job.
    call: Option<CallHeaders>,
}

/// The properties and headers of a call.
#[derive(Clone)]
struct CallHeaders {
    queue: Arc<str>,
    message_id: String,
    depth: Option<u16>,
    trace: Option<TraceContext>,
}

impl EmbeddedBus {
    /// Creates a bus with these workers and a lease queue, which it registers. The bus reports to
    /// `sink`, and must be created on an arbiter.
    pub fn new(opening: EmbeddedOpening, served: Served, sink: EventSink) -> EmbeddedBus {
        let EmbeddedOpening { key, workers, lending, desks } = opening;
        let (settle, settled) = mpsc::unbounded_channel();
        let desk = Arc::new(Desk::new(lending, sink.clone()));
        let outside = Arc::new(Outside { sink, settle, unsettled: Mutex::default() });
        actix_rt::spawn(settle_all(settled, Arc::downgrade(&outside)));
        let tells = outside.clone();
        actix_rt::spawn(Desk::let_leases_end(desk.clone(), move |message| {
            tells.deliver(dead_letter(message, "delivery_limit"));
        }));
        desks.add(key, &desk);
        (outside.sink)(BusEvent::State(BusState::Connected));
        EmbeddedBus {
            calls: served.calls.into_iter().collect(),
            desk,
            staffed: HashSet::new(),
            workers,
            outside,
            threads: Vec::new(),
        }
    }

    /// Starts the worker threads of a queue, once.
    fn staff(&mut self, queue: &Arc<str>) {
        if !self.staffed.insert(queue.clone()) {
            return;
        }
        if let Some((work, threads)) = self.workers.0.get(&**queue) {
            self.desk.staff(queue, *threads);
            for _ in 0..*threads {
                let (queue, desk) = (queue.clone(), self.desk.clone());
                let (outside, work) = (self.outside.clone(), work.clone());
                self.threads.push(std::thread::spawn(move || {
                    while let Some(message) = desk.next(&queue) {
                        outside.begun(&message);
                        outside.deliver(answer(&message, &work));
                    }
                }));
            }
        }
    }
}

impl Bus for EmbeddedBus {
    fn publish(&mut self, message: Publication) {
        let queue = message.to.queue.clone();
        match message.addressee {
            Addressee::Caller => return self.outside.answer(message),
            Addressee::Worker
                if self.calls.contains(&queue) && !self.workers.0.contains_key(&*queue) =>
            {
                self.outside.begun(&message);
                return self.outside.deliver(call(message));
            }
            Addressee::Worker => {}
        }
        self.staff(&queue);
        self.desk.put(message);
    }

    /// Withdraws the message. Its worker is notified at once if it has a session, else when it
    /// extends the lease.
    fn withdraw(&mut self, queue: &Arc<str>, id: &str, over: Over) {
        self.desk.withdraw(queue, id, over);
    }

    fn unconfirmed(&self) -> usize {
        self.desk.unsettled()
    }

    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueLook>> {
        let look = |queue: &Arc<str>| {
            self.staff(queue);
            self.desk.look(queue)
        };
        Box::pin(std::future::ready(queues.iter().map(look).collect()))
    }

    /// Turns the messages that waited for a reloaded workflow into calls.
    fn serve(&mut self, served: Served) {
        self.calls = served.calls.into_iter().collect();
        for queue in self.calls.iter().filter(|queue| !self.workers.0.contains_key(&***queue)) {
            let waited = self.desk.take_waiting(queue);
            waited.into_iter().for_each(|message| self.outside.deliver(call(message)));
        }
    }

    /// Lets workers finish the messages that they have. Waiting messages are dispatched again at
    /// the next start.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        self.desk.close();
        let threads = std::mem::take(&mut self.threads);
        Box::pin(async move {
            // A thread that panicked outside a worker has nothing left to close.
            let _ = actix_rt::task::spawn_blocking(move || {
                threads.into_iter().for_each(|thread| drop(thread.join()))
            })
            .await;
        })
    }
}

fn call(message: Publication) -> Reply {
    let (attempt, depth) = (message.number("attempt"), message.number("depth"));
    let text = |name| Header::text_in(&message.headers, name).map(|text| &**text);
    let trace = text("traceparent").and_then(|asked| TraceContext::read(asked, text("tracestate")));
    let body = message.body.to_bytes();
    let Publication { to, id, correlation_id, .. } = message;
    let call = Some(CallHeaders { queue: to.queue, message_id: id, depth, trace });
    Reply { correlation_id, attempt, kind: None, dead: None, body, call }
}

fn answer(message: &Publication, work: &Worker) -> Reply {
    let reply = |body: Bytes| Reply {
        correlation_id: message.correlation_id.clone(),
        attempt: message.number("attempt"),
        kind: None,
        dead: None,
        body,
        call: None,
    };
    match catch_unwind(AssertUnwindSafe(|| work(message))) {
        Ok(Ok(body)) => reply(body),
        Ok(Err(error)) => {
            let body = serde_json::json!({ "error": error.reason }).to_string();
            Reply { kind: Some(ERROR), ..reply(body.into()) }
        }
        Err(_) => Reply {
            dead: Some(DeadLetter::of(message, "rejected")),
            ..reply(message.body.to_bytes())
        },
    }
}

/// Creates the dead letter of a message that no worker could handle.
fn dead_letter(message: Publication, reason: &str) -> Reply {
    Reply {
        correlation_id: message.correlation_id.clone(),
        attempt: message.number("attempt"),
        kind: None,
        dead: Some(DeadLetter::of(&message, reason)),
        body: message.body.to_bytes(),
        call: None,
    }
}

impl Outside {
    /// Delivers an answer to its caller: a step of this process, or nobody.
    fn answer(&self, answer: Publication) {
        let attempt = answer.number("attempt");
        let Publication { to, correlation_id, kind, body, receipt, .. } = answer;
        if *to.queue != *REPLIES {
            return (self.sink)(BusEvent::Unroutable(receipt));
        }
        let body = body.to_bytes();
        self.deliver(Reply { correlation_id, attempt, kind, dead: None, body, call: None });
        (self.sink)(BusEvent::Taken(receipt));
    }

    /// Reports that a message was handed over.
    fn begun(&self, message: &Publication) {
        if let Some(receipt) = message.receipt.again() {
            (self.sink)(BusEvent::Begun(receipt));
        }
    }

    fn deliver(&self, reply: Reply) {
        let tag = {
            let mut unsettled = guard(&self.unsettled);
            unsettled.next_tag += 1;
            let tag = unsettled.next_tag;
            unsettled.replies.insert(tag, reply.clone());
            tag
        };
        self.send(tag, reply, false);
    }

    fn send(&self, tag: u64, reply: Reply, redelivered: bool) {
        let mut delivery = Delivery::new(
            reply.correlation_id.as_deref().map(str::to_owned),
            reply.body,
            Settlement::new(tag, 0, self.settle.clone()),
        );
        delivery.kind = reply.kind.map(str::to_owned);
        delivery.attempt = reply.attempt;
        delivery.dead_letter = reply.dead;
        delivery.redelivered = redelivered;
        // All of these come from this process.
        delivery.from = Sender::Manager;
        (self.sink)(match reply.call {
            None => BusEvent::Reply(delivery),
            Some(CallHeaders { queue, message_id, depth, trace }) => {
                delivery.message_id = Some(message_id);
                delivery.depth = depth;
                delivery.trace = trace;
                delivery.reply_to = Some(REPLIES.to_owned());
                BusEvent::Call { queue, delivery }
            }
        });
    }
}

/// Forgets replies that were acknowledged, and delivers those that were requeued again.
async fn settle_all(
    mut settled: mpsc::UnboundedReceiver<Settled>,
    outside: std::sync::Weak<Outside>,
) {
    while let Some(verdict) = settled.recv().await {
        let Some(outside) = outside.upgrade() else { return };
        match verdict.verdict {
            Verdict::Ack => {
                guard(&outside.unsettled).replies.remove(&verdict.tag);
            }
            Verdict::Requeue => {
                let reply = guard(&outside.unsettled).replies.get(&verdict.tag).cloned();
                if let Some(reply) = reply {
                    outside.send(verdict.tag, reply, true);
                }
            }
        }
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
