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
//! endpoint_queue   the messages of one service: calls at once, aborts, replies
//! ```

mod answer;
mod gate;
mod line;
mod names;
mod service_client;

pub use gate::Pauses;
pub use service_client::{Endpoint, ServiceClient, ServiceClientSettings, Unanswered};

use super::desk::{Desk, Desks, Lending};
use super::{
    Addressee, Bus, BusEvent, BusKey, BusNotice, BusState, EventSink, Over, Publication, QueueLook,
    Served, Trouble,
};
use futures_util::future::{LocalBoxFuture, join_all};
use line::{Line, Shared};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// How long a waiting message is not sent after a service has reported progress on it. The service
/// had deferred the message before a restart.
const REPORTED_LEASE: Duration = Duration::from_secs(300);

/// Finds the endpoint of a queue; `None`: there is none of that name.
pub type Directory = Box<dyn Fn(&str) -> Option<Endpoint> + Send>;

/// What a push bus is created from.
pub struct PushOpening {
    /// The key of the bus.
    pub key: BusKey,
    /// The client that calls the services.
    pub client: ServiceClient,
    /// The backoff while nothing can be delivered.
    pub pauses: Pauses,
    /// The most concurrent calls.
    pub calls_max: usize,
    /// The services.
    pub directory: Directory,
    /// The registry in which the bus enters its lease queue, for deferred replies.
    pub desks: Arc<Desks>,
}

/// The bus that calls web services.
pub struct PushBus {
    shared: Rc<Shared>,
    directory: Directory,
    /// The endpoint queues by name; `None`: no service has the name.
    lines: HashMap<Arc<str>, Option<Rc<Line>>>,
    tasks: Vec<actix_rt::task::JoinHandle<()>>,
}

impl PushBus {
    /// Creates a bus that calls the services of `endpoints`. The bus reports to `sink`, and must be
    /// created on an arbiter.
    pub fn new(opening: PushOpening, sink: EventSink) -> PushBus {
        let PushOpening { key, client, pauses, calls_max, directory, desks } = opening;
        // A service may return a message as often as it likes: that uses up no attempt.
        let lending = Lending { lease: REPORTED_LEASE, deliveries_max: u32::MAX, reports: false };
        let desk = Arc::new(Desk::new(lending, sink.clone()));
        desks.add(key, &desk);
        actix_rt::spawn(Desk::let_leases_end(desk.clone(), drop));
        sink(BusEvent::State(BusState::Connected));
        let shared = Shared {
            desk,
            client,
            sink,
            pauses,
            places: Semaphore::new(calls_max.min(Semaphore::MAX_PERMITS)),
            closing: watch::Sender::new(false),
        };
        let (lines, tasks) = (HashMap::new(), Vec::new());
        PushBus { shared: Rc::new(shared), directory, lines, tasks }
    }

    /// Returns the queue of an endpoint, and starts to serve it.
    fn line(&mut self, queue: &Arc<str>) -> Option<&Rc<Line>> {
        let PushBus { shared, directory, lines, tasks } = self;
        let line = lines.entry(queue.clone()).or_insert_with(|| {
            let line = Rc::new(Line::new(queue.clone(), directory(queue)?));
            tasks.push(actix_rt::spawn(line.clone().serve(shared.clone())));
            Some(line)
        });
        line.as_ref()
    }

    fn look(&mut self, queue: &Arc<str>) -> QueueLook {
        let (waiting, calls) = self.shared.desk.counts(queue);
        let trouble = match self.line(queue) {
            Some(line) => line.trouble(),
            None => Some(Trouble {
                why: "the settings have no web service of this name".to_owned(),
                next: None,
            }),
        };
        QueueLook::Service { waiting, calls, trouble }
    }
}

impl Bus for PushBus {
    fn publish(&mut self, message: Publication) {
        match message.addressee {
            // A caller cannot wait behind a web service.
            Addressee::Caller => (self.shared.sink)(BusEvent::Unroutable(message.receipt)),
            Addressee::Worker => {
                let queue = message.to.queue.clone();
                self.line(&queue);
                // A message that is sent again while it is in flight here stays in flight.
                if !self.shared.desk.has(&queue, &message.id) {
                    self.shared.desk.put(message);
                }
            }
        }
    }

    /// Withdraws the message. If it was answered in another way, its call continues: the called
    /// service may itself have sent that reply.
    fn withdraw(&mut self, queue: &Arc<str>, id: &str, over: Over) {
        if over == Over::Answered {
            return self.shared.desk.forget_waiting(queue, id);
        }
        self.shared.desk.forget(queue, id);
        let line = self.lines.get(queue).and_then(Option::as_ref);
        if line.is_some_and(|line| line.break_off(id)) {
            (self.shared.sink)(BusEvent::Noted(BusNotice::BrokenOff));
        }
    }

    fn unconfirmed(&self) -> usize {
        self.shared.desk.unsettled()
    }

    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueLook>> {
        let looks = queues.iter().map(|queue| self.look(queue)).collect();
        Box::pin(std::future::ready(looks))
    }

    /// Does nothing: the queues are known by their messages.
    fn serve(&mut self, _: Served) {}

    /// Lets open calls end. Waiting messages are dispatched again at the next start.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        self.shared.desk.close();
        self.shared.closing.send_replace(true);
        let tasks = std::mem::take(&mut self.tasks);
        Box::pin(async move { drop(join_all(tasks).await) })
    }
}
