//! The bus over AMQP 0-9-1, for RabbitMQ. It is the only user of lapin.
//!
//! It runs three tasks, each with its own connection, so that a broker that blocks publishers
//! cannot stop the acks. The `publisher` sends step messages and waits for confirms. The `consumer`
//! takes deliveries and settles them. The `quarantine` moves away messages that cannot be read;
//! [`wire`] makes sure that such a message costs no connection. Each task reconnects by itself,
//! without end. They run on the arbiter on which [`Connector::connect`] was called. `stub_manager`
//! is separate: it plays the manager for a single worker that is tested.

mod acks;
mod aside;
mod aside_room;
mod backlog;
mod call_room;
mod connection;
mod consumer;
mod credentials;
mod inspect;
mod lane;
mod link;
mod management;
mod pace;
mod policy;
mod probe;
mod publisher;
mod queues;
mod received;
mod settings;
mod shapes;
mod shared;
mod topic;
mod trial;
mod turns;
pub mod wire;
mod workflow_queues;

use super::event::watched;
use super::{Addressee, Bus, EventSink, Over, Publication, QueueDepth, QueueLook, Served};
use aside_room::AsideRoom;
use backlog::Order;
use connection::BrokerAddress;
use futures_util::future::LocalBoxFuture;
use management::Management;
use shapes::Shapes;
use shared::{Board, Phase, Serving, Shared};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use turns::Turns;
use wire::room::DeliveryRoom;

pub use policy::PolicyLook;
pub use probe::{Probe, probe};
pub use received::dead_letter;
pub use settings::{AmqpError, AmqpSettings};
pub use topic::TopicConnector;
pub use trial::{CutAt, Heard, Trial, TrialMessage, TrialReply};

/// Validated settings, ready to connect.
#[derive(Debug)]
pub struct Connector {
    settings: AmqpSettings,
}

impl Connector {
    /// Validates the settings. It does not connect yet.
    pub fn new(settings: AmqpSettings) -> Result<Connector, AmqpError> {
        BrokerAddress::parse(&settings)?;
        Management::of(&settings)?;
        Ok(Connector { settings })
    }

    /// Starts to connect, without waiting for it, and reports to `sink`. Must be called on an
    /// arbiter.
    pub fn connect(self, sink: EventSink) -> AmqpBus {
        let (outbox, inbox) = mpsc::unbounded_channel();
        let (looks_for, looked_for) = mpsc::unbounded_channel();
        let (phase, phases) = watch::channel(Phase::Open);
        let unconfirmed = Rc::new(Cell::new(0));
        // The settings were validated by `Connector::new`.
        let Ok(address) = BrokerAddress::parse(&self.settings) else {
            return AmqpBus { outbox, looks_for, unconfirmed, phase, loops: None, shared: None };
        };
        let board = Rc::new(Board::new(sink.clone()));
        let management = Management::of(&self.settings).ok().flatten();
        let serving = watch::channel(Serving::of(self.settings.served.clone())).0;
        let (aside, put_aside) = mpsc::unbounded_channel();
        let shared = Rc::new(Shared {
            room: DeliveryRoom::new(self.settings.replies_bytes_max),
            aside_room: AsideRoom::new(self.settings.replies_bytes_max),
            turns: Turns::default(),
            settings: self.settings,
            address,
            management,
            sink,
            board,
            serving,
            shapes: Shapes::default(),
            full: RefCell::default(),
            aside,
        });
        let publishing = watched(
            shared.sink.clone(),
            publisher::run(
                shared.clone(),
                (inbox, looked_for),
                unconfirmed.clone(),
                phases.clone(),
            ),
        );
        let consuming = watched(shared.sink.clone(), consumer::run(shared.clone(), phases));
        let putting_aside = watched(shared.sink.clone(), aside::run(shared.clone(), put_aside));
        let loops = Loops {
            consumer: actix_rt::spawn(consuming),
            publisher: actix_rt::spawn(publishing),
            aside: actix_rt::spawn(putting_aside),
        };
        AmqpBus { outbox, looks_for, unconfirmed, phase, loops: Some(loops), shared: Some(shared) }
    }
}

/// The bus over AMQP. If it is dropped without being closed, its tasks are aborted.
pub struct AmqpBus {
    outbox: mpsc::UnboundedSender<Order>,
    /// Requests to check queues on which steps wait.
    looks_for: mpsc::UnboundedSender<Vec<Arc<str>>>,
    unconfirmed: Rc<Cell<usize>>,
    phase: watch::Sender<Phase>,
    loops: Option<Loops>,
    shared: Option<Rc<Shared>>,
}

impl Bus for AmqpBus {
    fn publish(&mut self, message: Publication) {
        self.unconfirmed.set(self.unconfirmed.get() + 1);
        if let (Addressee::Worker, Some(shared)) = (message.addressee, &self.shared)
            && !shared.serving.borrow().workers.contains(&message.to.queue)
        {
            // The message is of a job that continues after its definition was replaced.
            shared.serving.send_modify(|serving| {
                serving.workers.insert(message.to.queue.clone());
            });
        }
        // Sending fails only once the bus is closed. The message is journaled as unconfirmed then,
        // and the next start sends it.
        let _ = self.outbox.send(Order::Publish(Box::new(message)));
    }

    /// Withdraws the message unless it is on its way to the broker.
    fn withdraw(&mut self, _: &Arc<str>, id: &str, _: Over) {
        // What a closed bus has not sent, the next start does not send either.
        let _ = self.outbox.send(Order::Withdraw(id.to_owned()));
    }

    fn unconfirmed(&self) -> usize {
        self.unconfirmed.get()
    }

    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueLook>> {
        match self.shared.clone() {
            Some(shared) => Box::pin(inspect::inspect(shared, queues)),
            None => {
                let unknown = QueueLook::Unknown("the bus is not connected".to_owned());
                Box::pin(std::future::ready(vec![unknown; queues.len()]))
            }
        }
    }

    fn look_for(&mut self, queues: Vec<Arc<str>>) {
        // Sending fails only once the bus is closed. The next start checks the queues.
        let _ = self.looks_for.send(queues);
    }

    fn depths(&mut self) -> LocalBoxFuture<'static, Result<Vec<QueueDepth>, String>> {
        match self.shared.clone() {
            Some(shared) => Box::pin(inspect::depths(shared)),
            None => Box::pin(std::future::ready(Err("the bus is not connected".to_owned()))),
        }
    }

    fn serve(&mut self, served: Served) {
        if let Some(shared) = &self.shared {
            // Running jobs, and jobs that are retried, still use the queues of earlier definitions.
            shared.serving.send_modify(|serving| {
                serving.workers.extend(served.workers);
                serving.calls = served.calls;
                serving.declared = served.declared;
            });
        }
    }

    /// Waits until the open deliveries are settled, then publishes the messages that follow
    /// from them. Does not wait for a broker that is not connected.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        let (loops, phase) = (self.loops.take(), self.phase.clone());
        Box::pin(async move {
            // If the caller drops this future at its deadline, that also aborts the tasks.
            let Some(mut loops) = loops else { return };
            phase.send_replace(Phase::EndConsuming);
            // An error means that the task panicked; it has ended in any case.
            let _ = (&mut loops.consumer).await;
            phase.send_replace(Phase::EndPublishing);
            let _ = (&mut loops.publisher).await;
        })
    }
}

/// The tasks of the bus; they are aborted on drop.
struct Loops {
    consumer: actix_rt::task::JoinHandle<()>,
    publisher: actix_rt::task::JoinHandle<()>,
    /// Aborted with the others: what it has not quarantined is redelivered.
    aside: actix_rt::task::JoinHandle<()>,
}

impl Drop for Loops {
    fn drop(&mut self) {
        self.aside.abort();
        self.consumer.abort();
        self.publisher.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::Connector;
    use super::settings::tests::settings;

    #[test]
    fn settings_are_shown_without_the_password() {
        let shown = format!("{:?} {:?}", settings(), Connector::new(settings()));
        assert!(shown.contains("amqp://***@host:5672/v") && !shown.contains("secret"), "{shown}");
    }
}
