//! Creates the buses of the settings, with the queues that the definitions need, and starts their
//! actors.

use super::bus::{BusActor, Watches, event_sink};
use super::bus_env::BusEnv;
use super::buses::Buses;
use super::inputs::Definitions;
use super::loss_watch::LossSettings;
use super::mailbox::{ActorMetrics, MailboxActor, new_mailbox};
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use crate::settings::{BusKind, EndpointSettings, KafkaSection, PushSection, Settings};
use actix::ArbiterHandle;
use amqp::{AmqpError, AmqpSettings, Connector, TopicConnector};
use base::web_address::is_url;
use bus::LeaseQueues;
use bus::embedded::{EmbeddedBus, EmbeddedConfig, Workers};
use bus::event_topic::EventTopicFactory;
use bus::lease_queue::LeasePolicy;
use bus::push::{
    BackoffSettings, Endpoint, EndpointClient, EndpointClientSettings, PushBus, PushConfig,
};
use bus::{Address, Bus, BusKey, BusState, EventSink, ServedQueues, TopicOffset};
use engine::{Definition, QueueDeclaration};
use journal::{JournalError, Records, StoredOffset};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Why a manager does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal cannot be opened or read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A bus cannot be started.
    #[error("{0}")]
    Bus(String),
    /// Traces cannot be sent.
    #[error("{0}")]
    Traces(String),
    /// The webhook cannot be called.
    #[error("{0}")]
    Webhook(String),
    /// A setting is invalid.
    #[error("{0}")]
    Settings(String),
}

/// Creates a bus. It is called on the thread on which the bus runs.
pub type BusFactory = Box<dyn FnOnce(EventSink) -> Box<dyn Bus> + Send>;

/// The options of a new bus.
#[derive(Default)]
pub struct BusOptions {
    /// The queues that the bus serves.
    pub served: ServedQueues,
    /// Whether a reload has added the bus.
    pub is_added_by_reload: bool,
    /// The stored offsets: how far the topics of the bus were read and written before.
    pub offsets: Vec<TopicOffset>,
}

/// Returns the factory of the bus with a key. Tests provide buses of their own.
pub type BusProvider =
    Arc<dyn Fn(&Settings, &BusKey, BusOptions) -> Result<BusFactory, StartError> + Send + Sync>;

/// The gate of a bus. The bus is created when the gate is dropped, so that no delivery arrives
/// before the recovered jobs, the workflows and the bus itself can be found.
pub(super) type StartGate = std::sync::mpsc::Sender<()>;

/// The other end of a gate, on which the thread of the bus waits.
pub(super) type StartGateReceiver = std::sync::mpsc::Receiver<()>;

/// Creates and starts buses.
pub(super) struct BusStarter {
    bus_provider: BusProvider,
    settings: Arc<Settings>,
    reader: Arc<dyn Records>,
    env: Arc<BusEnv>,
}

impl BusStarter {
    pub(super) fn new(
        core: &ManagerCore,
        mailboxes: &Mailboxes,
        bus_provider: BusProvider,
    ) -> BusStarter {
        BusStarter {
            bus_provider,
            settings: core.settings.clone(),
            reader: core.reader.clone(),
            env: Arc::new(BusEnv::new(core, mailboxes)),
        }
    }

    /// Returns the factory of a bus that serves these queues, and resumes at its stored offsets.
    ///
    /// # Errors
    ///
    /// Returns an error if the journal cannot read the offsets, or if the settings have no such
    /// bus.
    pub(super) fn load_factory(
        &self,
        key: &BusKey,
        served: ServedQueues,
        is_added_by_reload: bool,
    ) -> Result<BusFactory, StartError> {
        let to_topic_offset = |stored: StoredOffset| {
            let StoredOffset { topic, partition, offset, .. } = stored;
            TopicOffset { topic, partition, offset }
        };
        let stored_offsets = self.reader.load_offsets(&key.name)?;
        let offsets = stored_offsets.into_iter().map(to_topic_offset).collect();
        let options = BusOptions { served, is_added_by_reload, offsets };
        (self.bus_provider)(&self.settings, key, options)
    }

    /// Starts the actor of a bus on the thread of `arbiter`, and registers its mailbox. The bus is
    /// created when its gate opens, or at once if there is none.
    pub(super) fn start(
        &self,
        key: BusKey,
        create_bus: BusFactory,
        arbiter: &ArbiterHandle,
        gate: Option<StartGateReceiver>,
    ) {
        self.env.health.set_bus(&key, BusState::Disconnected { reason: String::new() });
        let metrics = ActorMetrics::new(&self.env.metrics, BusActor::KIND);
        let (mailbox, inbox) = new_mailbox::<BusActor>(usize::MAX, metrics);
        let (env, watches, bus_key) = (self.env.clone(), self.watches(&key), key.clone());
        inbox.start_in(arbiter, move || {
            if let Some(gate) = gate {
                // An error means that the sender was dropped: the gate is open.
                let _ = gate.recv();
            }
            let sink = event_sink(&env, &bus_key);
            BusActor::new(create_bus(sink), bus_key, env, watches)
        });
        self.env.buses.add(key, mailbox);
    }

    /// Returns how the queues of a bus are watched, which only AMQP buses need.
    fn watches(&self, key: &BusKey) -> Watches {
        let amqp = self.settings.amqp_bus(&key.name);
        let loss_watch =
            amqp.filter(|amqp| !amqp.management.0.is_empty()).map(|amqp| LossSettings {
                lost_after: amqp.lost_after.0,
                reply_queue: amqp.reply_queue.clone(),
                must_redispatch: amqp.redispatch_lost,
            });
        Watches { has_queue_watch: amqp.is_some(), loss_watch }
    }
}

/// Returns the provider of the buses in the settings. `workers` are the workers of this process,
/// which the embedded bus runs. Lease queues are registered in `lease_queues`.
pub fn settings_bus_provider(workers: Workers, lease_queues: Arc<LeaseQueues>) -> BusProvider {
    Arc::new(move |settings, key, options| {
        bus_factory(settings, key, options, (workers.clone(), lease_queues.clone()))
    })
}

/// Returns the factory of a bus of the settings, by its kind.
fn bus_factory(
    settings: &Settings,
    key: &BusKey,
    options: BusOptions,
    (workers, lease_queues): (Workers, Arc<LeaseQueues>),
) -> Result<BusFactory, StartError> {
    if let Some(section) = settings.amqp_bus(&key.name) {
        let BusOptions { served, is_added_by_reload, .. } = options;
        // Over a database, a manager that was cut off may consume for some seconds after a
        // takeover.
        let waits = is_added_by_reload || !settings.journal.url.0.is_empty();
        let amqp = AmqpSettings::from_section(section, &key.vhost, served, waits)
            .with_authorities(settings.authorities().map_err(StartError::Bus)?);
        let connector =
            Connector::new(amqp).map_err(|error| amqp_settings_error(&key.name, &error))?;
        return Ok(Box::new(move |sink| Box::new(connector.connect(sink))));
    }
    if let Some(section) = settings.kafka_bus(&key.name) {
        return kafka_bus_factory(section, key, options);
    }
    if let Some(config) = push_config(settings, key, &lease_queues)? {
        return Ok(Box::new(move |sink| Box::new(PushBus::new(config, sink))));
    }
    if *key.name != *BusKind::Embedded.name() {
        return Err(StartError::Bus(format!("the settings have no bus \"{}\"", key.name)));
    }
    let section = &settings.embedded;
    let policy = LeasePolicy {
        lease: section.lease.0,
        deliveries_max: section.deliveries_max,
        reports_leases: true,
    };
    let config = EmbeddedConfig { key: key.clone(), workers, policy, lease_queues };
    Ok(Box::new(move |sink| Box::new(EmbeddedBus::new(config, options.served, sink))))
}

/// Renders an error in the settings of an AMQP bus, with the key of the setting.
fn amqp_settings_error(bus: &str, error: &AmqpError) -> StartError {
    StartError::Bus(if bus == BusKind::Amqp.name() {
        format!("amqp.{error}")
    } else {
        format!("buses.{bus}.{error}")
    })
}

#[cfg(feature = "kafka")]
fn kafka_bus_factory(
    section: &KafkaSection,
    key: &BusKey,
    options: BusOptions,
) -> Result<BusFactory, StartError> {
    use kafka::{Connector, KafkaBus};
    let BusOptions { served, offsets, .. } = options;
    let connector = Connector::new(section.clone(), served, offsets);
    let connector = connector.map_err(|error| {
        StartError::Bus(format!("the bus \"{}\" over Kafka: {error}", key.name))
    })?;
    Ok(Box::new(move |sink| Box::new(KafkaBus::connect(connector, sink))))
}

/// Returns an error. This is only a safeguard: a build without Kafka refuses settings with a Kafka
/// bus when it reads them.
#[cfg(not(feature = "kafka"))]
fn kafka_bus_factory(
    _: &KafkaSection,
    key: &BusKey,
    _: BusOptions,
) -> Result<BusFactory, StartError> {
    Err(StartError::Bus(format!("this build has no Kafka, which the bus \"{}\" needs", key.name)))
}

/// Returns the configuration of a push bus; `None`: the bus is of another kind.
fn push_config(
    settings: &Settings,
    key: &BusKey,
    lease_queues: &Arc<LeaseQueues>,
) -> Result<Option<PushConfig>, StartError> {
    let Some(endpoints) = settings.push_bus(&key.name) else { return Ok(None) };
    let section = &settings.push;
    let backoff = BackoffSettings {
        min: section.retry_min.0,
        max: section.retry_max.0,
        retry_after_max: section.retry_after_max.0,
    };
    let (endpoints, push) = (endpoints.clone(), section.clone());
    // On the bus `push`, a queue can be the URL of an endpoint that the settings do not name.
    let accepts_urls = *key.name == *BusKind::Push.name();
    let find_endpoint = move |queue: &str| match endpoints.get(queue) {
        Some(settings) => Some(to_endpoint(settings, &push)),
        None => (accepts_urls && is_url(queue))
            .then(|| to_endpoint(&EndpointSettings::from_url(queue), &push)),
    };
    Ok(Some(PushConfig {
        key: key.clone(),
        client: service_client(settings, key.clone()).map_err(StartError::Bus)?,
        backoff,
        calls_max: section.calls_max,
        endpoints: Box::new(find_endpoint),
        lease_queues: lease_queues.clone(),
    }))
}

/// Creates the client that calls the endpoints of a push bus.
///
/// # Errors
///
/// Returns an error if these settings allow no calls.
pub fn service_client(settings: &Settings, key: BusKey) -> Result<EndpointClient, String> {
    EndpointClient::new(EndpointClientSettings {
        key,
        networks: Arc::new(settings.push.networks()?),
        connect_timeout: settings.push.connect_timeout.0,
        reply_bytes_max: settings.limits.reply_bytes_max,
        public_url: settings.http.public_url.clone(),
        authorities: settings.authorities()?,
    })
}

/// Converts the settings of an endpoint. What they leave out follows from the section of push
/// buses.
fn to_endpoint(settings: &EndpointSettings, push: &PushSection) -> Endpoint {
    let headers = settings.headers.iter().map(|(name, value)| (name.clone(), value.0.clone()));
    Endpoint {
        url: settings.url.0.clone(),
        concurrency: settings.concurrency(push),
        timeout: settings.timeout(push),
        headers: headers.collect(),
        secret: settings.secret.0.clone(),
    }
}

/// Returns the factory of the topic for events: an exchange on an AMQP bus, in the virtual host of
/// its URL. `None`: the settings have no exchange.
pub(super) fn event_topic_factory(
    settings: &Settings,
) -> Result<Option<EventTopicFactory>, StartError> {
    let Some((bus, section)) = settings.exchange_bus().map_err(StartError::Bus)? else {
        return Ok(None);
    };
    let connector = TopicConnector::new(
        AmqpSettings::from_section(section, "", ServedQueues::default(), false)
            .with_authorities(settings.authorities().map_err(StartError::Bus)?),
        settings.events.exchange.clone(),
        settings.events.exchange_buffer_max,
    );
    let connector = connector.map_err(|error| amqp_settings_error(bus, &error))?;
    Ok(Some(Box::new(move |sink| Box::new(connector.connect(sink)))))
}

/// Returns the buses that `used_definitions` need, each with the queues that it serves: the queues
/// of their steps, and a workflow queue for each loaded workflow.
pub(super) fn queues_by_bus<'a>(
    buses: &Buses,
    loaded: &Definitions,
    used_definitions: impl Iterator<Item = &'a Arc<Definition>>,
) -> BTreeMap<BusKey, ServedQueues> {
    let mut worker_queues: BTreeMap<BusKey, BTreeSet<Arc<str>>> = BTreeMap::new();
    let mut reply_timeouts: BTreeMap<BusKey, BTreeMap<Arc<str>, Duration>> = BTreeMap::new();
    let mut declarations: BTreeMap<BusKey, BTreeMap<Arc<str>, QueueDeclaration>> = BTreeMap::new();
    let mut declare = |Address { bus, queue }: Address, declaration: &QueueDeclaration| {
        if !declaration.is_default() {
            declarations.entry(bus).or_default().insert(queue, declaration.clone());
        }
    };
    let mut loaded_queues: BTreeSet<Address> = BTreeSet::new();
    for definition in loaded.values() {
        let queue = Definition::workflow_queue(&definition.name).into();
        declare(Address { bus: buses.bus_of_workflow(definition), queue }, &definition.queue);
        for step in definition.sending_steps() {
            declare(buses.address(definition, step), &step.declared);
            loaded_queues.insert(buses.address(definition, step));
        }
    }
    // Many jobs share a definition: each is visited once.
    let mut visited: BTreeSet<*const Definition> = BTreeSet::new();
    for definition in used_definitions.filter(|definition| visited.insert(Arc::as_ptr(definition)))
    {
        worker_queues.entry(buses.bus_of_workflow(definition)).or_default();
        for step in definition.sending_steps() {
            let bus = buses.bus_of_step(definition, step);
            if let Some(timeout) = step.timeout {
                let timeout = Duration::from_millis(timeout.0);
                let bus_timeouts = reply_timeouts.entry(bus.clone()).or_default();
                let longest_timeout = bus_timeouts.entry(step.queue.clone()).or_default();
                *longest_timeout = timeout.max(*longest_timeout);
            }
            // The declarations of loaded workflows override those of other definitions, even if
            // they are empty.
            let address = Address { bus: bus.clone(), queue: step.queue.clone() };
            if !loaded_queues.contains(&address) {
                declare(address, &step.declared);
            }
            worker_queues.entry(bus).or_default().insert(step.queue.clone());
        }
    }
    let served_by_bus = |(bus, queues): (BusKey, BTreeSet<Arc<str>>)| {
        let workflow_queues = loaded
            .values()
            .filter(|definition| buses.bus_of_workflow(definition) == bus)
            .map(|definition| Definition::workflow_queue(&definition.name).into());
        let served = ServedQueues {
            worker_queues: queues.into_iter().collect(),
            workflow_queues: workflow_queues.collect(),
            reply_timeouts: reply_timeouts.remove(&bus).unwrap_or_default(),
            declarations: declarations.remove(&bus).unwrap_or_default(),
        };
        (bus, served)
    };
    worker_queues.into_iter().map(served_by_bus).collect()
}
