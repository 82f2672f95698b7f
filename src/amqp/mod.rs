//! The bus over AMQP 0-9-1, for RabbitMQ. The only other user of lapin is `cli`, which tests
//! brokers and workers.
//!
//! It runs three tasks on the arbiter on which [`Connector::connect`] was called:
//!
//! - The `publisher` publishes step messages and waits for confirms.
//! - The `consumer` receives deliveries and settles them.
//! - The `quarantine` moves unreadable messages to a separate queue. [`wire`] keeps such messages
//!   from breaking the connection.
//!
//! Each task has its own connection, so that a broker that blocks publishers cannot block the acks.
//! Each reconnects indefinitely.

mod acks;
mod addresses;
mod backlog;
mod call_budget;
mod connection;
mod consumer;
mod credentials;
mod delivery_pacer;
mod inspect;
mod management;
mod message_properties;
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

pub use addresses::BrokerAddresses;
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
    addresses: BrokerAddresses,
    management: Option<ManagementApi>,
}

impl Connector {
    /// Validates the settings, without connecting.
    ///
    /// # Errors
    ///
    /// Returns an error if an address or the name of the reply queue is invalid.
    pub fn new(settings: AmqpSettings) -> Result<Connector, AmqpError> {
        let addresses = BrokerAddresses::parse(&settings)?;
        let management = ManagementApi::from_settings(&settings)?;
        Ok(Connector { settings, addresses, management })
    }

    /// Opens a connection to the first address of the broker that answers, and closes it again.
    ///
    /// # Errors
    ///
    /// Returns the reason of the last address, as a sentence for the user, if none can be reached.
    pub async fn probe(&self) -> Result<(), String> {
        let mut problem = String::new();
        for address in self.addresses.iter() {
            match address.open("probe").await {
                Ok(connection) => {
                    connection::close(&connection).await;
                    return Ok(());
                }
                Err(reason) => problem = reason,
            }
        }
        Err(problem)
    }

    /// Starts to connect in the background. The bus reports its events to `sink`. Must be called on
    /// an arbiter.
    pub fn connect(self, sink: EventSink) -> AmqpBus {
        let (command_sender, commands) = mpsc::unbounded_channel();
        let (recheck_sender, recheck_requests) = mpsc::unbounded_channel();
        let (phase_sender, phases) = watch::channel(ShutdownPhase::Open);
        let unconfirmed = Rc::new(Cell::new(0));
        let state_reporter = Rc::new(StateReporter::new(sink.clone()));
        let active_queues =
            watch::channel(ActiveQueues::from_served(self.settings.served.clone())).0;
        let (quarantine_sender, quarantine_requests) = mpsc::unbounded_channel();
        let state = Rc::new(AmqpState {
            delivery_budget: DeliveryBudget::new(self.settings.replies_bytes_max),
            quarantine_budget: QuarantineBudget::new(self.settings.replies_bytes_max),
            policy_lock: PolicyLock::default(),
            settings: self.settings,
            addresses: self.addresses,
            management: self.management,
            sink,
            state_reporter,
            active_queues,
            is_consuming: watch::channel(true).0,
            known_properties: KnownProperties::default(),
            full_queues: RefCell::default(),
            quarantine_sender,
        });
        let publisher = run_reporting_panic(
            state.sink.clone(),
            publisher::run(
                state.clone(),
                commands,
                recheck_requests,
                unconfirmed.clone(),
                phases.clone(),
            ),
        );
        let consumer =
            run_reporting_panic(state.sink.clone(), consumer::run(state.clone(), phases));
        let quarantine = run_reporting_panic(
            state.sink.clone(),
            quarantine::run(state.clone(), quarantine_requests),
        );
        let tasks = BusTasks {
            consumer: actix_rt::spawn(consumer),
            publisher: actix_rt::spawn(publisher),
            quarantine: actix_rt::spawn(quarantine),
        };
        AmqpBus {
            command_sender,
            recheck_sender,
            unconfirmed,
            phase_sender,
            tasks: Some(tasks),
            state,
        }
    }
}

/// The bus over AMQP. Dropping it aborts its tasks; [`Bus::close`] shuts them down gracefully.
pub struct AmqpBus {
    command_sender: mpsc::UnboundedSender<PublisherCommand>,
    /// Sends requests to check queues on which steps wait.
    recheck_sender: mpsc::UnboundedSender<Vec<Arc<str>>>,
    /// The number of messages that the broker has not confirmed yet, sent or not. It is shared with
    /// the publisher.
    unconfirmed: Rc<Cell<usize>>,
    phase_sender: watch::Sender<ShutdownPhase>,
    /// `None` once the bus is being closed.
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
            // The message belongs to a job whose definition has been replaced.
            active_queues.send_modify(|active_queues| {
                active_queues.worker_queues.insert(message.address.queue.clone());
            });
        }
        // Sending fails only once the bus is closed. Then the message is still unconfirmed in the
        // journal, and the next start sends it.
        let _ = self.command_sender.send(PublisherCommand::Publish(Box::new(message)));
    }

    /// Withdraws the message. If it was sent to the broker, it can only be kept from being sent
    /// again.
    fn withdraw(&mut self, _: &Arc<str>, id: &str, _: AttemptEnd) {
        // Sending fails only once the bus is closed. The next start does not send the message,
        // because its attempt has ended.
        let _ = self.command_sender.send(PublisherCommand::Withdraw(id.to_owned()));
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
        // Running and retried jobs still use the worker queues of earlier definitions.
        self.state.active_queues.send_modify(|active_queues| {
            active_queues.worker_queues.extend(served.worker_queues);
            active_queues.workflow_queues = served.workflow_queues;
            active_queues.declarations = served.declarations;
        });
    }

    fn set_consuming(&mut self, is_consuming: bool) {
        self.state.is_consuming.send_replace(is_consuming);
    }

    /// Waits a few seconds until unsettled deliveries are settled, then publishes the messages that
    /// result from them. Does not wait for a broker that is disconnected.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        let (tasks, phase_sender) = (self.tasks.take(), self.phase_sender.clone());
        Box::pin(async move {
            // Dropping this future aborts the tasks.
            let Some(mut tasks) = tasks else { return };
            phase_sender.send_replace(ShutdownPhase::StopConsuming);
            // An error means that the task panicked; it has ended either way.
            let _ = (&mut tasks.consumer).await;
            phase_sender.send_replace(ShutdownPhase::StopPublishing);
            let _ = (&mut tasks.publisher).await;
        })
    }
}

/// The tasks of the bus. Dropping them aborts them.
struct BusTasks {
    consumer: actix_rt::task::JoinHandle<()>,
    publisher: actix_rt::task::JoinHandle<()>,
    /// Needs no graceful shutdown, because messages that it has not quarantined are redelivered.
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
