//! The push bus: web services that are called. A message waits at a [`Desk`] until its service may
//! be called; the answer is the reply. No durability of its own: what was not answered is
//! dispatched again from the journal after a restart, but for what a service has taken over (202),
//! which is confirmed as a broker's message is.
//!
//! ```text
//! answer   what an answer means: one table
//! names    addresses, checked as connections are made
//! call     a message as a request, and the answer
//! gate     when a service may be called
//! line     the messages of one service: calls at once, aborts, replies
//! ```

mod answer;
mod call;
mod gate;
mod line;
mod names;

pub use call::{Caller, Calling, Endpoint, Unanswered};
pub use gate::Pauses;

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

/// How long a message that waits is not sent, after a service has reported progress on it: it had
/// taken the message over before a restart.
const REPORTED_LEASE: Duration = Duration::from_secs(300);

/// The web service that a queue stands for; none: there is none of that name.
pub type Directory = Box<dyn Fn(&str) -> Option<Endpoint> + Send>;

/// What a push bus is made of.
pub struct PushOpening {
    /// The bus.
    pub key: BusKey,
    /// What calls the services.
    pub caller: Caller,
    /// The pauses while nothing can be delivered.
    pub pauses: Pauses,
    /// The most calls at once.
    pub calls_max: usize,
    /// The services.
    pub directory: Directory,
    /// Where its desk is made known, for later replies.
    pub desks: Arc<Desks>,
}

/// Web services that are called.
pub struct PushBus {
    shared: Rc<Shared>,
    directory: Directory,
    /// By queue; none: no service has the name.
    lines: HashMap<Arc<str>, Option<Rc<Line>>>,
    tasks: Vec<actix_rt::task::JoinHandle<()>>,
}

impl PushBus {
    /// A bus that calls the services of the directory; it reports to `sink` and must be made on an
    /// arbiter.
    pub fn new(opening: PushOpening, sink: EventSink) -> PushBus {
        let PushOpening { key, caller, pauses, calls_max, directory, desks } = opening;
        // A message may be given back as often as its service likes: that spends no attempt.
        let lending = Lending { lease: REPORTED_LEASE, deliveries_max: u32::MAX, reports: false };
        let desk = Arc::new(Desk::new(lending, sink.clone()));
        desks.add(key, &desk);
        actix_rt::spawn(Desk::let_leases_end(desk.clone(), drop));
        sink(BusEvent::State(BusState::Connected));
        let shared = Shared {
            desk,
            caller,
            sink,
            pauses,
            places: Semaphore::new(calls_max.min(Semaphore::MAX_PERMITS)),
            closing: watch::Sender::new(false),
        };
        let (lines, tasks) = (HashMap::new(), Vec::new());
        PushBus { shared: Rc::new(shared), directory, lines, tasks }
    }

    /// The line of a queue, which is served from now on.
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
            // Nobody who asks for jobs waits behind a web service.
            Addressee::Caller => (self.shared.sink)(BusEvent::Unroutable(message.receipt)),
            Addressee::Worker => {
                let queue = message.to.queue.clone();
                self.line(&queue);
                // One that was sent again while it is under way here is under way still.
                if !self.shared.desk.has(&queue, &message.id) {
                    self.shared.desk.put(message);
                }
            }
        }
    }

    /// A call goes on after a reply that came in another way: it may be what sent it.
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

    /// The queues are known by their messages.
    fn serve(&mut self, _: Served) {}

    /// Lets the calls under way end; what waits is dispatched again at the next start.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        self.shared.desk.close();
        self.shared.closing.send_replace(true);
        let tasks = std::mem::take(&mut self.tasks);
        Box::pin(async move { drop(join_all(tasks).await) })
    }
}
