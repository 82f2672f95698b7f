//! The embedded bus: queues in this process, in a [`LeaseQueue`].
//!
//! Its workers are Rust functions on threads of this process, and other programs that receive
//! messages over HTTP or gRPC. The bus has no broker and no durability of its own: it never
//! confirms a worker's message, so every running step is dispatched again from the journal after a
//! restart.
//!
//! A message to the queue of a workflow is a call, as over AMQP, unless a worker of this process
//! serves that queue. The outcome of the called job is the reply.

use super::lease_queue::{LeasePolicy, LeaseQueue};
use crate::delivery::{DeadLetter, Delivery, Disposition, SettleCommand, Settlement};
use crate::event::{BusEvent, BusState, EventSink};
use crate::key::BusKey;
use crate::kind::EMBEDDED_REPLY_QUEUE;
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

/// The error of a worker. Any value that implements `Display` converts into it, so that a worker
/// can use `?`.
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

/// A worker: a function from a message to the body of its reply. An error fails the attempt; a
/// panic rejects the message.
pub type Worker = Arc<dyn Fn(&Publication) -> Result<Bytes, WorkerError> + Send + Sync>;

/// The workers of this process by queue, each with its number of threads.
#[derive(Clone, Default)]
pub struct Workers(HashMap<String, (Worker, usize)>);

impl Workers {
    /// Creates an empty set of workers.
    pub fn new() -> Workers {
        Workers::default()
    }

    /// Adds a worker for a queue, which runs on this number of threads, at least one.
    pub fn with_worker<F>(mut self, queue: &str, threads: usize, worker: F) -> Workers
    where
        F: Fn(&Publication) -> Result<Bytes, WorkerError> + Send + Sync + 'static,
    {
        self.0.insert(queue.to_owned(), (Arc::new(worker), threads.max(1)));
        self
    }
}

/// The parameters of an embedded bus.
pub struct EmbeddedConfig {
    /// The key of the bus.
    pub key: BusKey,
    /// The workers of this process.
    pub workers: Workers,
    /// How messages are leased to workers in other programs.
    pub policy: LeasePolicy,
    /// The registry to which the bus adds its lease queue.
    pub lease_queues: Arc<LeaseQueues>,
}

/// The bus whose queues are in this process.
pub struct EmbeddedBus {
    /// The queues of workflows. A message to one of them is a call.
    workflow_queues: HashSet<Arc<str>>,
    lease_queue: Arc<LeaseQueue>,
    /// The queues whose worker threads were started.
    started_queues: HashSet<Arc<str>>,
    workers: Workers,
    replies: Arc<ReplyDelivery>,
    /// The worker threads, to be joined when the bus closes.
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// Delivers replies and calls, and keeps them until they are acknowledged.
struct ReplyDelivery {
    sink: EventSink,
    /// Receives the commands that settle the deliveries.
    settlements: mpsc::UnboundedSender<SettleCommand>,
    unsettled: Mutex<UnsettledReplies>,
}

/// The deliveries that are not acknowledged, by tag.
#[derive(Default)]
struct UnsettledReplies {
    last_tag: u64,
    replies: HashMap<u64, EmbeddedReply>,
}

/// A message to this process: a reply, a dead letter, or a call.
#[derive(Clone)]
struct EmbeddedReply {
    correlation_id: Option<Arc<str>>,
    attempt: Option<u32>,
    kind: Option<&'static str>,
    dead_letter: Option<DeadLetter>,
    body: Bytes,
    /// The headers of a call; `None`: the message is a reply or a dead letter.
    call: Option<CallHeaders>,
}

/// The properties and headers of a call.
#[derive(Clone)]
struct CallHeaders {
    /// The queue of the called workflow.
    queue: Arc<str>,
    message_id: String,
    depth: Option<u16>,
    trace: Option<TraceContext>,
}

impl EmbeddedBus {
    /// Creates a bus, and adds its lease queue to the registry. The bus reports to `sink`. It must
    /// be created on an arbiter, where it spawns tasks.
    pub fn new(config: EmbeddedConfig, served: ServedQueues, sink: EventSink) -> EmbeddedBus {
        let EmbeddedConfig { key, workers, policy, lease_queues } = config;
        let (settlements, commands) = mpsc::unbounded_channel();
        let lease_queue = Arc::new(LeaseQueue::new(policy, sink.clone()));
        let replies = Arc::new(ReplyDelivery { sink, settlements, unsettled: Mutex::default() });
        actix_rt::spawn(run_settlements(commands, Arc::downgrade(&replies)));
        let reply_delivery = replies.clone();
        actix_rt::spawn(LeaseQueue::run_lease_expiry(lease_queue.clone(), move |message| {
            reply_delivery.deliver(dead_letter(message, DeadLetter::DELIVERY_LIMIT));
        }));
        lease_queues.add(key, &lease_queue);
        (replies.sink)(BusEvent::State(BusState::CONNECTED));
        EmbeddedBus {
            workflow_queues: served.workflow_queues.into_iter().collect(),
            lease_queue,
            started_queues: HashSet::new(),
            workers,
            replies,
            threads: Vec::new(),
        }
    }

    /// Starts the worker threads of a queue, unless they were started before.
    fn start_workers(&mut self, queue: &Arc<str>) {
        if !self.started_queues.insert(queue.clone()) {
            return;
        }
        if let Some((worker, threads)) = self.workers.0.get(&**queue) {
            self.lease_queue.set_thread_count(queue, *threads);
            for _ in 0..*threads {
                let (queue, lease_queue) = (queue.clone(), self.lease_queue.clone());
                let (replies, worker) = (self.replies.clone(), worker.clone());
                self.threads.push(std::thread::spawn(move || {
                    while let Some(message) = lease_queue.take_blocking(&queue) {
                        replies.report_handed_over(&message);
                        replies.deliver(run_worker(&message, &worker));
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
                if self.workflow_queues.contains(&queue)
                    && !self.workers.0.contains_key(&*queue) =>
            {
                self.replies.report_handed_over(&message);
                return self.replies.deliver(call_from_publication(message));
            }
            Addressee::Worker => {}
        }
        self.start_workers(&queue);
        self.lease_queue.enqueue(message);
    }

    /// Withdraws the message. A worker with a session is notified at once; another worker finds out
    /// when it extends its lease.
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

    /// Replaces the served queues, and turns the messages that wait on new workflow queues into
    /// calls.
    fn set_served(&mut self, served: ServedQueues) {
        self.workflow_queues = served.workflow_queues.into_iter().collect();
        for queue in
            self.workflow_queues.iter().filter(|queue| !self.workers.0.contains_key(&***queue))
        {
            for message in self.lease_queue.drain_waiting(queue) {
                self.replies.deliver(call_from_publication(message));
            }
        }
    }

    fn set_consuming(&mut self, is_consuming: bool) {
        self.lease_queue.set_suspended(!is_consuming);
    }

    /// Closes the queues, and waits for the worker threads to finish their messages. Waiting
    /// messages are dispatched again from the journal at the next start.
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

/// Creates the call of a workflow from a message to its queue.
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

/// Runs a worker on a message, and returns its reply. If the worker panics, that is a dead letter.
fn run_worker(message: &Publication, worker: &Worker) -> EmbeddedReply {
    let reply = |body: Bytes| EmbeddedReply {
        correlation_id: message.correlation_id.clone(),
        attempt: message.number_header("attempt"),
        kind: None,
        dead_letter: None,
        body,
        call: None,
    };
    match catch_unwind(AssertUnwindSafe(|| worker(message))) {
        Ok(Ok(body)) => reply(body),
        Ok(Err(error)) => {
            let body = serde_json::json!({ "error": error.reason }).to_string();
            EmbeddedReply { kind: Some(ERROR_KIND), ..reply(body.into()) }
        }
        Err(_) => EmbeddedReply {
            dead_letter: Some(DeadLetter::from_publication(message, DeadLetter::REJECTED)),
            ..reply(message.body.to_bytes())
        },
    }
}

/// Creates the dead letter of a message, for this reason.
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
    /// Delivers the reply of a called job to its caller, if that is a step of this process.
    /// Otherwise the reply is unroutable.
    fn answer_caller(&self, reply: Publication) {
        let attempt = reply.number_header("attempt");
        let Publication { address, correlation_id, kind, body, confirm_token, .. } = reply;
        if *address.queue != *EMBEDDED_REPLY_QUEUE {
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

    /// Reports that a worker or a workflow has received the message, without a lease.
    fn report_handed_over(&self, message: &Publication) {
        if let Some(confirm_token) = message.confirm_token.try_clone() {
            (self.sink)(BusEvent::HandedOver(confirm_token));
        }
    }

    /// Delivers a message for the first time.
    fn deliver(&self, reply: EmbeddedReply) {
        let tag = {
            let mut unsettled = lock(&self.unsettled);
            unsettled.last_tag += 1;
            let tag = unsettled.last_tag;
            unsettled.replies.insert(tag, reply.clone());
            tag
        };
        self.report_reply(tag, reply, false);
    }

    /// Reports a message as a delivery with this tag.
    fn report_reply(&self, tag: u64, reply: EmbeddedReply, is_redelivered: bool) {
        let mut delivery = Delivery::new(
            reply.correlation_id.as_deref().map(str::to_owned),
            reply.body,
            Settlement::new(tag, 0, self.settlements.clone()),
        );
        delivery.kind = reply.kind.map(str::to_owned);
        delivery.attempt = reply.attempt;
        delivery.dead_letter = reply.dead_letter;
        delivery.redelivered = is_redelivered;
        // This process has created the message.
        delivery.sender = Sender::Manager;
        (self.sink)(match reply.call {
            None => BusEvent::Reply(delivery),
            Some(CallHeaders { queue, message_id, depth, trace }) => {
                delivery.message_id = Some(message_id);
                delivery.depth = depth;
                delivery.trace = trace;
                delivery.reply_to = Some(EMBEDDED_REPLY_QUEUE.to_owned());
                BusEvent::Call { queue, delivery }
            }
        });
    }
}

/// Settles deliveries: drops those that are acknowledged, and redelivers those that are requeued.
async fn run_settlements(
    mut commands: mpsc::UnboundedReceiver<SettleCommand>,
    replies: std::sync::Weak<ReplyDelivery>,
) {
    while let Some(command) = commands.recv().await {
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

/// Locks a mutex, even if a thread panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
