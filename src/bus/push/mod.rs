//! The push bus: web services that are called.
//!
//! A message waits in a [`LeaseQueue`] until its service may be called. The answer is the reply.
//! The bus has no durability of its own: unanswered messages are dispatched again from the journal
//! after a restart. The exception is a message that a service deferred (202), which is confirmed
//! like a broker's message.
//!
//! ```text
//! answer           what an answer means: one table
//! resolver         addresses, checked as connections are made
//! endpoint_client  a message as a request, and the answer
//! circuit_breaker  when a service may be called
//! section          the settings
//! endpoint_queue   the messages of one service: calls at once, aborts, replies
//! ```

mod answer;
mod circuit_breaker;
mod endpoint_client;
mod endpoint_queue;
mod resolver;
mod section;

pub use circuit_breaker::BackoffSettings;
pub use endpoint_client::{Endpoint, EndpointClient, EndpointClientSettings, ProbeError};
pub use section::{EndpointSettings, NetworkSettings, PushBusSection, PushSection};

use super::lease_queue::{LeasePolicy, LeaseQueue};
use crate::event::{BusEvent, BusNotice, BusState, EventSink};
use crate::key::BusKey;
use crate::lease_queues::LeaseQueues;
use crate::publication::{Addressee, Publication};
use crate::queue_status::{EndpointFailure, QueueStatus};
use crate::transport::{AttemptEnd, Bus, ServedQueues};
use endpoint_queue::{EndpointQueue, PushState};
use futures_util::future::{LocalBoxFuture, join_all};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// How long a waiting message is not sent after a service has reported progress on it. The service
/// had deferred the message before a restart.
const PROGRESS_LEASE: Duration = Duration::from_secs(300);

/// Finds the endpoint of a queue; `None`: there is none of that name.
pub type EndpointLookup = Box<dyn Fn(&str) -> Option<Endpoint> + Send>;

/// What a push bus is created from.
pub struct PushConfig {
    /// The key of the bus.
    pub key: BusKey,
    /// The client that calls the services.
    pub client: EndpointClient,
    /// The backoff while nothing can be delivered.
    pub backoff: BackoffSettings,
    /// The most concurrent calls.
    pub calls_max: usize,
    /// The services.
    pub endpoints: EndpointLookup,
    /// The registry in which the bus enters its lease queue, for deferred replies.
    pub lease_queues: Arc<LeaseQueues>,
}

/// The bus that calls web services.
pub struct PushBus {
    state: Rc<PushState>,
    endpoints: EndpointLookup,
    /// The endpoint queues by name; `None`: no service has the name.
    endpoint_queues: HashMap<Arc<str>, Option<Rc<EndpointQueue>>>,
    tasks: Vec<actix_rt::task::JoinHandle<()>>,
}

impl PushBus {
    /// Creates a bus that calls the services of `endpoints`. The bus reports to `sink`, and must be
    /// created on an arbiter.
    pub fn new(config: PushConfig, sink: EventSink) -> PushBus {
        let PushConfig { key, client, backoff, calls_max, endpoints, lease_queues } = config;
        // A service may return a message as often as it likes: that uses up no attempt.
        let policy =
            LeasePolicy { lease: PROGRESS_LEASE, deliveries_max: u32::MAX, reports_leases: false };
        let lease_queue = Arc::new(LeaseQueue::new(policy, sink.clone()));
        lease_queues.add(key, &lease_queue);
        actix_rt::spawn(LeaseQueue::run_lease_expiry(lease_queue.clone(), drop));
        sink(BusEvent::State(BusState::Connected));
        let state = PushState {
            lease_queue,
            client,
            sink,
            backoff,
            call_permits: Semaphore::new(calls_max.min(Semaphore::MAX_PERMITS)),
            closing: watch::Sender::new(false),
        };
        let (endpoint_queues, tasks) = (HashMap::new(), Vec::new());
        PushBus { state: Rc::new(state), endpoints, endpoint_queues, tasks }
    }

    /// Returns the queue of an endpoint, and starts to serve it.
    fn endpoint_queue(&mut self, queue: &Arc<str>) -> Option<&Rc<EndpointQueue>> {
        let PushBus { state, endpoints, endpoint_queues, tasks } = self;
        let entry = endpoint_queues.entry(queue.clone()).or_insert_with(|| {
            let created = Rc::new(EndpointQueue::new(queue.clone(), endpoints(queue)?));
            tasks.push(actix_rt::spawn(created.clone().run(state.clone())));
            Some(created)
        });
        entry.as_ref()
    }

    fn inspect_queue(&mut self, queue: &Arc<str>) -> QueueStatus {
        let (waiting, calls) = self.state.lease_queue.waiting_and_in_flight(queue);
        let failure = match self.endpoint_queue(queue) {
            Some(endpoint) => endpoint.failure(),
            None => Some(EndpointFailure {
                reason: "the settings have no web service of this name".to_owned(),
                retry_at: None,
            }),
        };
        QueueStatus::Endpoint { waiting, calls, failure }
    }
}

impl Bus for PushBus {
    fn publish(&mut self, message: Publication) {
        match message.addressee {
            // A caller cannot wait behind a web service.
            Addressee::Caller => (self.state.sink)(BusEvent::Unroutable(message.confirm_token)),
            Addressee::Worker => {
                let queue = message.address.queue.clone();
                self.endpoint_queue(&queue);
                // A message that is sent again while it is in flight here stays in flight.
                if !self.state.lease_queue.has_message(&queue, &message.id) {
                    self.state.lease_queue.enqueue(message);
                }
            }
        }
    }

    /// Withdraws the message. If it was answered in another way, its call continues: the called
    /// service may itself have sent that reply.
    fn withdraw(&mut self, queue: &Arc<str>, id: &str, end: AttemptEnd) {
        if end == AttemptEnd::Answered {
            return self.state.lease_queue.remove_waiting(queue, id);
        }
        self.state.lease_queue.remove(queue, id);
        let endpoint_queue = self.endpoint_queues.get(queue).and_then(Option::as_ref);
        if endpoint_queue.is_some_and(|endpoint| endpoint.abort_call(id)) {
            (self.state.sink)(BusEvent::Notice(BusNotice::CallAborted));
        }
    }

    fn unconfirmed(&self) -> usize {
        self.state.lease_queue.unsettled()
    }

    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueStatus>> {
        let statuses = queues.iter().map(|queue| self.inspect_queue(queue)).collect();
        Box::pin(std::future::ready(statuses))
    }

    /// Does nothing: the queues are known by their messages.
    fn set_served(&mut self, _: ServedQueues) {}

    /// Lets open calls end. Waiting messages are dispatched again at the next start.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        self.state.lease_queue.close();
        self.state.closing.send_replace(true);
        let tasks = std::mem::take(&mut self.tasks);
        Box::pin(async move { drop(join_all(tasks).await) })
    }
}
