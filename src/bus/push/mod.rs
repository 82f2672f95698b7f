//! The push bus: calls web services.
//!
//! A message waits in a [`LeaseQueue`] until its service may be called. The answer of the service
//! is the reply. The bus has no durability of its own: after a restart, unanswered messages are
//! dispatched again from the journal. The exception is a message that a service defers (202): it is
//! confirmed like a message that a broker has stored.
//!
//! ```text
//! answer           interprets answers
//! resolver         resolves names to allowed addresses only
//! endpoint_client  sends a message as a request, and reads the answer
//! circuit_breaker  decides when a service may be called
//! section          the settings
//! endpoint_queue   runs the calls of one service
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

/// The lease that progress gives to a waiting message. A service reports progress on a waiting
/// message if it deferred the message before a restart.
const PROGRESS_LEASE: Duration = Duration::from_secs(300);

/// Finds the endpoint of a queue; `None`: no endpoint has that name.
pub type EndpointLookup = Box<dyn Fn(&str) -> Option<Endpoint> + Send>;

/// The parameters of a push bus.
pub struct PushConfig {
    /// The key of the bus.
    pub key: BusKey,
    /// The client that calls the services.
    pub client: EndpointClient,
    /// The backoff of the circuit breakers.
    pub backoff: BackoffSettings,
    /// The most concurrent calls of all endpoints.
    pub calls_max: usize,
    /// Finds the endpoints.
    pub endpoints: EndpointLookup,
    /// The registry to which the bus adds its lease queue, for deferred replies.
    pub lease_queues: Arc<LeaseQueues>,
}

/// The bus that calls web services.
pub struct PushBus {
    state: Rc<PushState>,
    endpoints: EndpointLookup,
    /// The endpoint queues by name; `None`: no endpoint has the name.
    endpoint_queues: HashMap<Arc<str>, Option<Rc<EndpointQueue>>>,
    /// The tasks of the endpoint queues.
    tasks: Vec<actix_rt::task::JoinHandle<()>>,
}

impl PushBus {
    /// Creates a bus, and adds its lease queue to the registry. The bus reports to `sink`. It must
    /// be created on an arbiter, where it spawns tasks.
    pub fn new(config: PushConfig, sink: EventSink) -> PushBus {
        let PushConfig { key, client, backoff, calls_max, endpoints, lease_queues } = config;
        // The number of deliveries is unlimited: a service may reject a message for now any number
        // of times within an attempt.
        let policy =
            LeasePolicy { lease: PROGRESS_LEASE, deliveries_max: u32::MAX, reports_leases: false };
        let lease_queue = Arc::new(LeaseQueue::new(policy, sink.clone()));
        lease_queues.add(key, &lease_queue);
        actix_rt::spawn(LeaseQueue::run_lease_expiry(lease_queue.clone(), drop));
        sink(BusEvent::State(BusState::CONNECTED));
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

    /// Returns the queue of an endpoint, and starts its task if it is new; `None`: no endpoint has
    /// that name.
    fn ensure_endpoint_queue(&mut self, queue: &Arc<str>) -> Option<&Rc<EndpointQueue>> {
        let PushBus { state, endpoints, endpoint_queues, tasks } = self;
        let entry = endpoint_queues.entry(queue.clone()).or_insert_with(|| {
            let endpoint_queue = Rc::new(EndpointQueue::new(queue.clone(), endpoints(queue)?));
            tasks.push(actix_rt::spawn(endpoint_queue.clone().run(state.clone())));
            Some(endpoint_queue)
        });
        entry.as_ref()
    }

    fn inspect_queue(&mut self, queue: &Arc<str>) -> QueueStatus {
        let (waiting, calls) = self.state.lease_queue.waiting_and_in_flight(queue);
        let failure = match self.ensure_endpoint_queue(queue) {
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
            // A web service cannot be a caller.
            Addressee::Caller => (self.state.sink)(BusEvent::Unroutable(message.confirm_token)),
            Addressee::Worker => {
                let queue = message.address.queue.clone();
                self.ensure_endpoint_queue(&queue);
                // Publishing is idempotent: a message that waits or is in flight stays so.
                if !self.state.lease_queue.has_message(&queue, &message.id) {
                    self.state.lease_queue.enqueue(message);
                }
            }
        }
    }

    /// Withdraws the message. If its attempt was answered, an active call is not aborted: the
    /// called service itself may have sent the reply.
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

    /// Does nothing: endpoint queues are created by their messages.
    fn set_served(&mut self, _: ServedQueues) {}

    /// Closes the queues, and waits for active calls. Waiting messages are dispatched again from
    /// the journal at the next start.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        self.state.lease_queue.close();
        self.state.closing.send_replace(true);
        let tasks = std::mem::take(&mut self.tasks);
        Box::pin(async move { drop(join_all(tasks).await) })
    }
}
