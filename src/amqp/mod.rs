//! The bus over AMQP 0-9-1, for RabbitMQ. It is the only user of lapin.
//!
//! It runs three tasks, each with its own connection, so that a broker that blocks publishers
//! cannot stop the acks. The `publisher` sends step messages and waits for confirms. The `consumer`
//! takes deliveries and settles them. The `quarantine` moves away messages that cannot be read;
//! [`wire`] makes sure that such a message costs no connection. Each task reconnects by itself,
//! without end. They run on the arbiter on which [`Connector::connect`] was called.

mod acks;
mod backlog;
mod call_budget;
mod connection;
mod consumer;
mod credentials;
mod delivery_pacer;
mod inspect;
mod management;
mod policy;
mod policy_lock;
mod publisher;
mod publisher_connection;
mod quarantine;
mod quarantine_budget;
mod queue_consumer;
mod queue_properties;
mod queues;
mod received;
mod section;
mod settings;
mod state;
mod topic_exchange;
pub mod wire;
mod workflow_queues;

use backlog::PublisherCommand;
use bus::event::run_reporting_panic;
use bus::{
    Addressee, AttemptEnd, Bus, EventSink, Publication, QueueDepth, QueueStatus, ServedQueues,
};
use futures_util::future::LocalBoxFuture;
use policy_lock::PolicyLock;
use quarantine_budget::QuarantineBudget;
use queue_properties::KnownProperties;
use state::{ActiveQueues, AmqpState, ShutdownPhase, StateReporter};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use wire::delivery_budget::DeliveryBudget;

pub use connection::{BrokerAddress, channel_error, close as close_connection};
pub use inspect::queue_status;
pub use management::ManagementApi;
pub use policy::{PolicyStatus, inspect_policy};
pub use queue_properties::QueueProperties;
pub use queues::{QueueCheck, QueueDeclarer, short_string};
pub use received::{parse_dead_letter, parse_number_header};
pub use section::{AmqpSection, ReplyQueueType, UnreadableMessages, quarantine_queue};
pub use settings::{AmqpError, AmqpSettings};
pub use topic_exchange::TopicConnector;

/// Validated settings, ready to connect.
pub struct Connector {
    settings: AmqpSettings,
    address: BrokerAddress,
    management: Option<ManagementApi>,
}

impl Connector {
    /// Validates the settings. It does not connect yet.
    pub fn new(settings: AmqpSettings) -> Result<Connector, AmqpError> {
        let address = BrokerAddress::parse(&settings)?;
        let management = ManagementApi::from_settings(&settings)?;
        Ok(Connector { settings, address, management })
    }

    /// Starts to connect, without waiting for it, and reports to `sink`. Must be called on an
    /// arbiter.
    pub fn connect(self, sink: EventSink) -> AmqpBus {
        let (outbox, inbox) = mpsc::unbounded_channel();
        let (recheck_sender, recheck_requests) = mpsc::unbounded_channel();
        let (phase, phases) = watch::channel(ShutdownPhase::Open);
        let unconfirmed = Rc::new(Cell::new(0));
        let reporter = Rc::new(StateReporter::new(sink.clone()));
        let active_queues =
            watch::channel(ActiveQueues::from_served(self.settings.served.clone())).0;
        let (quarantine, to_quarantine) = mpsc::unbounded_channel();
        let state = Rc::new(AmqpState {
            delivery_budget: DeliveryBudget::new(self.settings.replies_bytes_max),
            quarantine_budget: QuarantineBudget::new(self.settings.replies_bytes_max),
            policy_lock: PolicyLock::default(),
            settings: self.settings,
            address: self.address,
            management: self.management,
            sink,
            state_reporter: reporter,
            active_queues,
            known_properties: KnownProperties::default(),
            full_queues: RefCell::default(),
            quarantine,
        });
        let publisher = run_reporting_panic(
            state.sink.clone(),
            publisher::run(
                state.clone(),
                (inbox, recheck_requests),
                unconfirmed.clone(),
                phases.clone(),
            ),
        );
        let consumer =
            run_reporting_panic(state.sink.clone(), consumer::run(state.clone(), phases));
        let quarantining =
            run_reporting_panic(state.sink.clone(), quarantine::run(state.clone(), to_quarantine));
        let tasks = BusTasks {
            consumer: actix_rt::spawn(consumer),
            publisher: actix_rt::spawn(publisher),
            quarantine: actix_rt::spawn(quarantining),
        };
        AmqpBus { outbox, recheck_sender, unconfirmed, phase, tasks: Some(tasks), state }
    }
}

/// The bus over AMQP. If it is dropped without being closed, its tasks are aborted.
pub struct AmqpBus {
    outbox: mpsc::UnboundedSender<PublisherCommand>,
    /// Requests to check queues on which steps wait.
    recheck_sender: mpsc::UnboundedSender<Vec<Arc<str>>>,
    unconfirmed: Rc<Cell<usize>>,
    phase: watch::Sender<ShutdownPhase>,
    tasks: Option<BusTasks>,
    state: Rc<AmqpState>,
}

impl Bus for AmqpBus {
    fn publish(&mut self, message: Publication) {
        self.unconfirmed.set(self.unconfirmed.get() + 1);
        let active_queues = &self.state.active_queues;
        if message.addressee == Addressee::Worker
            && !active_queues.borrow().worker_queues.contains(&message.address.queue)
        {
            // The message is of a job that continues after its definition was replaced.
            active_queues.send_modify(|active_queues| {
                active_queues.worker_queues.insert(message.address.queue.clone());
            });
        }
        // Sending fails only once the bus is closed. The message is journaled as unconfirmed then,
        // and the next start sends it.
        let _ = self.outbox.send(PublisherCommand::Publish(Box::new(message)));
    }

    /// Withdraws the message unless it is on its way to the broker.
    fn withdraw(&mut self, _: &Arc<str>, id: &str, _: AttemptEnd) {
        // What a closed bus has not sent, the next start does not send either.
        let _ = self.outbox.send(PublisherCommand::Withdraw(id.to_owned()));
    }

    fn unconfirmed(&self) -> usize {
        self.unconfirmed.get()
    }

    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueStatus>> {
        Box::pin(inspect::inspect(self.state.clone(), queues))
    }

    fn ensure_queues(&mut self, queues: Vec<Arc<str>>) {
        // Sending fails only once the bus is closed. The next start checks the queues.
        let _ = self.recheck_sender.send(queues);
    }

    fn poll_depths(&mut self) -> LocalBoxFuture<'static, Result<Vec<QueueDepth>, String>> {
        Box::pin(inspect::fetch_depths(self.state.clone()))
    }

    fn set_served(&mut self, served: ServedQueues) {
        // Running jobs, and jobs that are retried, still use the queues of earlier definitions.
        self.state.active_queues.send_modify(|active_queues| {
            active_queues.worker_queues.extend(served.worker_queues);
            active_queues.call_queues = served.call_queues;
            active_queues.declarations = served.declarations;
        });
    }

    /// Waits until the open deliveries are settled, then publishes the messages that follow
    /// from them. Does not wait for a broker that is not connected.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        let (tasks, phase) = (self.tasks.take(), self.phase.clone());
        Box::pin(async move {
            // If the caller drops this future at its deadline, that also aborts the tasks.
            let Some(mut bus_tasks) = tasks else { return };
            phase.send_replace(ShutdownPhase::StopConsuming);
            // An error means that the task panicked; it has ended in any case.
            let _ = (&mut bus_tasks.consumer).await;
            phase.send_replace(ShutdownPhase::StopPublishing);
            let _ = (&mut bus_tasks.publisher).await;
        })
    }
}

/// The tasks of the bus; they are aborted on drop.
struct BusTasks {
    consumer: actix_rt::task::JoinHandle<()>,
    publisher: actix_rt::task::JoinHandle<()>,
    /// Aborted with the others: what it has not quarantined is redelivered.
    quarantine: actix_rt::task::JoinHandle<()>,
}

impl Drop for BusTasks {
    fn drop(&mut self) {
        self.quarantine.abort();
        self.consumer.abort();
        self.publisher.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::settings::tests::settings;

    #[test]
    fn settings_are_formatted_without_the_password() {
        let formatted = format!("{:?}", settings());
        assert!(
            formatted.contains("amqp://***@host:5672/v") && !formatted.contains("secret"),
            "{formatted}"
        );
    }
}
