//! The embedded bus: queues in this process, on a [`Desk`]. Its workers are Rust functions on
//! threads, and programs elsewhere that ask for messages over HTTP. No broker, no durability of its
//! own: it gives back no receipt of a worker's message, so after a restart every running step is
//! dispatched again from the journal.
//!
//! A worker's message to the queue of a workflow asks for a job of it, as over AMQP, unless a
//! worker of the process serves that queue; the job's end is the reply.

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

/// Why a worker could not do its work; anything that can be shown becomes one, so that `?` works in
/// a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerError {
    /// In one sentence, for the reader.
    pub reason: String,
}

impl<T: std::fmt::Display> From<T> for WorkerError {
    fn from(reason: T) -> Self {
        WorkerError { reason: reason.to_string() }
    }
}

/// A worker: takes a message, gives the reply's body. An error is a failed attempt; a panic is
/// a nack.
pub type Worker = Arc<dyn Fn(&Publication) -> Result<Bytes, WorkerError> + Send + Sync>;

/// Workers by queue, each with the number of threads it runs on.
#[derive(Clone, Default)]
pub struct Workers(HashMap<String, (Worker, usize)>);

impl Workers {
    /// No workers: step messages wait.
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

/// What an embedded bus is made of.
pub struct EmbeddedOpening {
    /// The bus.
    pub key: BusKey,
    /// The workers of this process.
    pub workers: Workers,
    /// How messages are lent to others.
    pub lending: Lending,
    /// Where its desk is made known.
    pub desks: Arc<Desks>,
}

/// The queues of this process.
pub struct EmbeddedBus {
    /// The queues on which messages ask for jobs.
    calls: HashSet<Arc<str>>,
    desk: Arc<Desk>,
    /// The queues whose workers were started.
    staffed: HashSet<Arc<str>>,
    workers: Workers,
    outside: Arc<Outside>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// What a worker's thread needs of the world.
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
    /// It asks for a job.
    call: Option<CallHeaders>,
}

/// What a message that asks for a job says besides its body.
#[derive(Clone)]
struct CallHeaders {
    queue: Arc<str>,
    message_id: String,
    depth: Option<u16>,
    trace: Option<TraceContext>,
}

impl EmbeddedBus {
    /// A bus with these workers and a desk, which is made known; it reports to `sink` and must be
    /// made on an arbiter.
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

    /// Starts the workers of a queue, once.
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

    /// It no longer waits. Whoever has it learns of this at once, or when it asks for more time.
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

    /// What waited for a workflow that is loaded again asks for its jobs now.
    fn serve(&mut self, served: Served) {
        self.calls = served.calls.into_iter().collect();
        for queue in self.calls.iter().filter(|queue| !self.workers.0.contains_key(&***queue)) {
            let waited = self.desk.take_waiting(queue);
            waited.into_iter().for_each(|message| self.outside.deliver(call(message)));
        }
    }

    /// Lets the workers finish what they have in hand; what waits is dispatched again at the next
    /// start.
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

/// A message that no worker could deal with.
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
    /// An answer to a caller: a step of this process, or nobody.
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

    /// Reports that a message is handed over.
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

/// Forgets what was taken, and delivers again what was sent back.
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
