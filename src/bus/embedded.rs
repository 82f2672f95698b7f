//! The embedded bus: queues in this process, in a [`LeaseQueue`].
//!
//! Its workers are Rust functions on threads, and programs elsewhere that receive messages over
//! HTTP or gRPC. It has no broker and no durability of its own. It never confirms a worker's
//! message, so after a restart every running step is dispatched again from the journal.
//!
//! A message to the queue of a workflow is a call, as over AMQP, unless a worker of the process
//! serves that queue. The end of the called job is the reply.

use super::lease_queue::{LeasePolicy, LeaseQueue};
use crate::delivery::{DeadLetter, Delivery, Disposition, SettleCommand, Settlement};
use crate::event::{BusEvent, BusState, EventSink};
use crate::key::BusKey;
use crate::kind::EMBEDDED_REPLY_QUEUE as REPLIES;
use crate::lease_queues::LeaseQueues;
use crate::publication::{Addressee, ERROR_KIND, Header, Publication};
use crate::queue_status::QueueStatus;
use crate::transport::{AttemptEnd, Bus, ServedQueues};
use bytes::Bytes;
use engine::{Sender, TraceContext};
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
    pub fn with_worker<F>(mut self, queue: &str, threads: usize, work: F) -> Workers
    where
        F: Fn(&Publication) -> Result<Bytes, WorkerError> + Send + Sync + 'static,
    {
        self.0.insert(queue.to_owned(), (Arc::new(work), threads.max(1)));
        self
    }
}

/// What an embedded bus is created from.
pub struct EmbeddedConfig {
    /// The key of the bus.
    pub key: BusKey,
    /// The workers of this process.
    pub workers: Workers,
    /// How messages are leased to workers elsewhere.
    pub policy: LeasePolicy,
    /// The registry in which the bus enters its lease queue.
    pub lease_queues: Arc<LeaseQueues>,
}

/// The queues of this process.
pub struct EmbeddedBus {
    /// The queues on which messages ask for jobs.
    calls: HashSet<Arc<str>>,
    lease_queue: Arc<LeaseQueue>,
    /// The queues whose worker threads were started.
    started: HashSet<Arc<str>>,
    workers: Workers,
    replies: Arc<ReplyDelivery>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// Delivers the replies of worker threads, until they are settled.
struct ReplyDelivery {
    sink: EventSink,
    settle: mpsc::UnboundedSender<SettleCommand>,
    unsettled: Mutex<UnsettledReplies>,
}

#[derive(Default)]
struct UnsettledReplies {
    next_tag: u64,
    replies: HashMap<u64, EmbeddedReply>,
}

#[derive(Clone)]
struct EmbeddedReply {
    correlation_id: Option<Arc<str>>,
    attempt: Option<u32>,
    kind: Option<&'static str>,
    dead_letter: Option<DeadLetter>,
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
    pub fn new(config: EmbeddedConfig, served: ServedQueues, sink: EventSink) -> EmbeddedBus {
        let EmbeddedConfig { key, workers, policy, lease_queues } = config;
        let (settle, settled) = mpsc::unbounded_channel();
        let lease_queue = Arc::new(LeaseQueue::new(policy, sink.clone()));
        let replies = Arc::new(ReplyDelivery { sink, settle, unsettled: Mutex::default() });
        actix_rt::spawn(run_settlements(settled, Arc::downgrade(&replies)));
        let dead_letters = replies.clone();
        actix_rt::spawn(LeaseQueue::run_lease_expiry(lease_queue.clone(), move |message| {
            dead_letters.deliver(dead_letter(message, "delivery_limit"));
        }));
        lease_queues.add(key, &lease_queue);
        (replies.sink)(BusEvent::State(BusState::Connected));
        EmbeddedBus {
            calls: served.call_queues.into_iter().collect(),
            lease_queue,
            started: HashSet::new(),
            workers,
            replies,
            threads: Vec::new(),
        }
    }

    /// Starts the worker threads of a queue, once.
    fn start_workers(&mut self, queue: &Arc<str>) {
        if !self.started.insert(queue.clone()) {
            return;
        }
        if let Some((work, threads)) = self.workers.0.get(&**queue) {
            self.lease_queue.set_thread_count(queue, *threads);
            for _ in 0..*threads {
                let (queue, lease_queue) = (queue.clone(), self.lease_queue.clone());
                let (replies, work) = (self.replies.clone(), work.clone());
                self.threads.push(std::thread::spawn(move || {
                    while let Some(message) = lease_queue.take_blocking(&queue) {
                        replies.report_handed_over(&message);
                        replies.deliver(run_worker(&message, &work));
                    }
                }));
            }
        }
    }
}

impl Bus for EmbeddedBus {
    fn publish(&mut self, message: Publication) {
        let queue = message.address.queue.clone();
        match message.addressee {
            Addressee::Caller => return self.replies.answer_caller(message),
            Addressee::Worker
                if self.calls.contains(&queue) && !self.workers.0.contains_key(&*queue) =>
            {
                self.replies.report_handed_over(&message);
                return self.replies.deliver(call_from_publication(message));
            }
            Addressee::Worker => {}
        }
        self.start_workers(&queue);
        self.lease_queue.enqueue(message);
    }

    /// Withdraws the message. Its worker is notified at once if it has a session, else when it
    /// extends the lease.
    fn withdraw(&mut self, queue: &Arc<str>, id: &str, end: AttemptEnd) {
        self.lease_queue.withdraw(queue, id, end);
    }

    fn unconfirmed(&self) -> usize {
        self.lease_queue.unsettled()
    }

    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueStatus>> {
        let inspect = |queue: &Arc<str>| {
            self.start_workers(queue);
            self.lease_queue.inspect(queue)
        };
        Box::pin(std::future::ready(queues.iter().map(inspect).collect()))
    }

    /// Turns the messages that waited for a reloaded workflow into calls.
    fn set_served(&mut self, served: ServedQueues) {
        self.calls = served.call_queues.into_iter().collect();
        for queue in self.calls.iter().filter(|queue| !self.workers.0.contains_key(&***queue)) {
            let waiting = self.lease_queue.drain_waiting(queue);
            waiting
                .into_iter()
                .for_each(|message| self.replies.deliver(call_from_publication(message)));
        }
    }

    /// Lets workers finish the messages that they have. Waiting messages are dispatched again at
    /// the next start.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        self.lease_queue.close();
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

fn call_from_publication(message: Publication) -> EmbeddedReply {
    let (attempt, depth) = (message.number_header("attempt"), message.number_header("depth"));
    let text = |name| Header::find_text(&message.headers, name).map(|text| &**text);
    let trace = text("traceparent")
        .and_then(|traceparent| TraceContext::parse(traceparent, text("tracestate")));
    let body = message.body.to_bytes();
    let Publication { address, id, correlation_id, .. } = message;
    let call = Some(CallHeaders { queue: address.queue, message_id: id, depth, trace });
    EmbeddedReply { correlation_id, attempt, kind: None, dead_letter: None, body, call }
}

fn run_worker(message: &Publication, work: &Worker) -> EmbeddedReply {
    let reply = |body: Bytes| EmbeddedReply {
        correlation_id: message.correlation_id.clone(),
        attempt: message.number_header("attempt"),
        kind: None,
        dead_letter: None,
        body,
        call: None,
    };
    match catch_unwind(AssertUnwindSafe(|| work(message))) {
        Ok(Ok(body)) => reply(body),
        Ok(Err(error)) => {
            let body = serde_json::json!({ "error": error.reason }).to_string();
            EmbeddedReply { kind: Some(ERROR_KIND), ..reply(body.into()) }
        }
        Err(_) => EmbeddedReply {
            dead_letter: Some(DeadLetter::from_publication(message, "rejected")),
            ..reply(message.body.to_bytes())
        },
    }
}

/// Creates the dead letter of a message that no worker could handle.
fn dead_letter(message: Publication, reason: &str) -> EmbeddedReply {
    EmbeddedReply {
        correlation_id: message.correlation_id.clone(),
        attempt: message.number_header("attempt"),
        kind: None,
        dead_letter: Some(DeadLetter::from_publication(&message, reason)),
        body: message.body.to_bytes(),
        call: None,
    }
}

impl ReplyDelivery {
    /// Delivers an answer to its caller: a step of this process, or nobody.
    fn answer_caller(&self, answer: Publication) {
        let attempt = answer.number_header("attempt");
        let Publication { address, correlation_id, kind, body, confirm_token, .. } = answer;
        if *address.queue != *REPLIES {
            return (self.sink)(BusEvent::Unroutable(confirm_token));
        }
        let body = body.to_bytes();
        self.deliver(EmbeddedReply {
            correlation_id,
            attempt,
            kind,
            dead_letter: None,
            body,
            call: None,
        });
        (self.sink)(BusEvent::Confirmed(confirm_token));
    }

    /// Reports that a message was handed over.
    fn report_handed_over(&self, message: &Publication) {
        if let Some(confirm_token) = message.confirm_token.try_clone() {
            (self.sink)(BusEvent::HandedOver(confirm_token));
        }
    }

    fn deliver(&self, reply: EmbeddedReply) {
        let tag = {
            let mut unsettled = lock(&self.unsettled);
            unsettled.next_tag += 1;
            let tag = unsettled.next_tag;
            unsettled.replies.insert(tag, reply.clone());
            tag
        };
        self.report_reply(tag, reply, false);
    }

    fn report_reply(&self, tag: u64, reply: EmbeddedReply, redelivered: bool) {
        let mut delivery = Delivery::new(
            reply.correlation_id.as_deref().map(str::to_owned),
            reply.body,
            Settlement::new(tag, 0, self.settle.clone()),
        );
        delivery.kind = reply.kind.map(str::to_owned);
        delivery.attempt = reply.attempt;
        delivery.dead_letter = reply.dead_letter;
        delivery.redelivered = redelivered;
        // All of these come from this process.
        delivery.sender = Sender::Manager;
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
async fn run_settlements(
    mut settled: mpsc::UnboundedReceiver<SettleCommand>,
    replies: std::sync::Weak<ReplyDelivery>,
) {
    while let Some(command) = settled.recv().await {
        let Some(reply_delivery) = replies.upgrade() else { return };
        match command.disposition {
            Disposition::Ack => {
                lock(&reply_delivery.unsettled).replies.remove(&command.tag);
            }
            Disposition::Requeue => {
                let reply = lock(&reply_delivery.unsettled).replies.get(&command.tag).cloned();
                if let Some(reply) = reply {
                    reply_delivery.report_reply(command.tag, reply, true);
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
