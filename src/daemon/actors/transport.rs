//! Which buses the settings ask for, and how each is made and started.

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

/// Why a daemon does not start.
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
    /// The definitions have an error that only shows when all of them are loaded.
    #[error("{0}")]
    Definitions(String),
}

/// Makes a bus, on the thread that it will run on.
pub type BusMaker = Box<dyn FnOnce(EventSink) -> Box<dyn Bus> + Send>;

/// The options with which a bus is started.
#[derive(Default)]
pub struct BusOptions {
    /// The queues that it serves.
    pub served: ServedQueues,
    /// Whether a reload has added the bus.
    pub is_added_by_reload: bool,
    /// The offsets to which its topics were read and written.
    pub offsets: Vec<TopicOffset>,
}

/// Returns the maker of a bus.
pub type Transport =
    Arc<dyn Fn(&Settings, &BusKey, BusOptions) -> Result<BusMaker, StartError> + Send + Sync>;

/// Returns the transports of the settings; `workers` are those of this process, on the embedded
/// bus, whose lease queues are registered in `lease_queues`.
pub fn settings_transport(workers: Workers, lease_queues: Arc<LeaseQueues>) -> Transport {
    Arc::new(move |settings, key, options| {
        make_bus(settings, key, options, (workers.clone(), lease_queues.clone()))
    })
}

fn make_bus(
    settings: &Settings,
    key: &BusKey,
    options: BusOptions,
    (workers, lease_queues): (Workers, Arc<LeaseQueues>),
) -> Result<BusMaker, StartError> {
    if let Some(section) = settings.amqp_bus(&key.name) {
        let BusOptions { served, is_added_by_reload, .. } = options;
        let amqp = AmqpSettings::from_section(section, &key.vhost, served, is_added_by_reload)
            .with_authorities(settings.authorities().map_err(StartError::Bus)?);
        let connector =
            Connector::new(amqp).map_err(|error| amqp_settings_error(&key.name, &error))?;
        return Ok(Box::new(move |sink| Box::new(connector.connect(sink))));
    }
    if let Some(section) = settings.kafka_bus(&key.name) {
        return make_kafka_bus(section, key, options);
    }
    if let Some(push) = push_options(settings, key, &lease_queues)? {
        return Ok(Box::new(move |sink| Box::new(PushBus::new(push, sink))));
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

/// Renders what is wrong with the settings of a bus over AMQP, with the key at which it stands.
fn amqp_settings_error(bus: &str, error: &AmqpError) -> StartError {
    StartError::Bus(match bus == BusKind::Amqp.name() {
        true => format!("amqp.{error}"),
        false => format!("buses.{bus}.{error}"),
    })
}

#[cfg(feature = "kafka")]
fn make_kafka_bus(
    section: &KafkaSection,
    key: &BusKey,
    options: BusOptions,
) -> Result<BusMaker, StartError> {
    use kafka::{Connector, KafkaBus};
    let BusOptions { served, offsets, .. } = options;
    let connector = Connector::new(section.clone(), served, offsets);
    let connector = connector
        .map_err(|why| StartError::Bus(format!("the bus \"{}\" over Kafka: {why}", key.name)))?;
    Ok(Box::new(move |sink| Box::new(KafkaBus::connect(connector, sink))))
}

/// Refuses a bus over Kafka. It is only a safeguard: without Kafka in the build, settings with such
/// a bus are refused when they are read.
#[cfg(not(feature = "kafka"))]
fn make_kafka_bus(_: &KafkaSection, key: &BusKey, _: BusOptions) -> Result<BusMaker, StartError> {
    Err(StartError::Bus(format!("this build has no Kafka, which the bus \"{}\" needs", key.name)))
}

/// Returns the options of a bus that calls web services; `None`: the bus is of another kind.
fn push_options(
    settings: &Settings,
    key: &BusKey,
    lease_queues: &Arc<LeaseQueues>,
) -> Result<Option<PushConfig>, StartError> {
    let Some(endpoints) = settings.push_bus(&key.name) else { return Ok(None) };
    let section = &settings.push;
    let pauses = BackoffSettings {
        min: section.retry_min.0,
        max: section.retry_max.0,
        retry_after_max: section.retry_after_max.0,
    };
    let (endpoints, push) = (endpoints.clone(), section.clone());
    let takes_urls = *key.name == *BusKind::Push.name();
    let directory = move |queue: &str| match endpoints.get(queue) {
        Some(named) => Some(endpoint(named, &push)),
        None => (takes_urls && is_url(queue))
            .then(|| endpoint(&EndpointSettings::from_url(queue), &push)),
    };
    Ok(Some(PushConfig {
        key: key.clone(),
        client: service_client(settings, key.clone()).map_err(StartError::Bus)?,
        backoff: pauses,
        calls_max: section.calls_max,
        endpoints: Box::new(directory),
        lease_queues: lease_queues.clone(),
    }))
}

/// Creates the client that calls the web services of a bus.
///
/// # Errors
///
/// These settings allow no calls.
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

fn endpoint(settings: &EndpointSettings, push: &PushSection) -> Endpoint {
    let headers = settings.headers.iter().map(|(name, value)| (name.clone(), value.0.clone()));
    Endpoint {
        url: settings.url.0.clone(),
        concurrency: settings.concurrency(push),
        timeout: settings.timeout(push),
        headers: headers.collect(),
        secret: settings.secret.0.clone(),
    }
}

/// Returns the maker of the topic for events, if there is to be one: an exchange in the virtual
/// host of the address of a bus over AMQP.
pub(super) fn topic_maker(settings: &Settings) -> Result<Option<EventTopicFactory>, StartError> {
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

/// Returns the buses of the `used` definitions, with their queues. A loaded workflow has a queue of
/// its own, besides those of its steps.
pub(super) fn queues_by_bus<'a>(
    buses: &Buses,
    loaded: &Definitions,
    used: impl Iterator<Item = &'a Arc<Definition>>,
) -> BTreeMap<BusKey, ServedQueues> {
    let mut workers: BTreeMap<BusKey, BTreeSet<Arc<str>>> = BTreeMap::new();
    let mut timeouts: BTreeMap<BusKey, BTreeMap<Arc<str>, Duration>> = BTreeMap::new();
    let mut declared: BTreeMap<BusKey, BTreeMap<Arc<str>, QueueDeclaration>> = BTreeMap::new();
    let mut declare = |Address { bus, queue }: Address, declaration: &QueueDeclaration| {
        if !declaration.is_default() {
            declared.entry(bus).or_default().insert(queue, declaration.clone());
        }
    };
    let mut of_loaded: BTreeSet<Address> = BTreeSet::new();
    for definition in loaded.values() {
        let queue = Definition::call_queue(&definition.name).into();
        declare(Address { bus: buses.bus_of_workflow(definition), queue }, &definition.queue);
        for step in definition.sending_steps() {
            declare(buses.address(definition, step), &step.declared);
            of_loaded.insert(buses.address(definition, step));
        }
    }
    let mut seen: BTreeSet<*const Definition> = BTreeSet::new();
    for definition in used.filter(|definition| seen.insert(Arc::as_ptr(definition))) {
        workers.entry(buses.bus_of_workflow(definition)).or_default();
        for step in definition.sending_steps() {
            let bus = buses.bus_of_step(definition, step);
            if let Some(timeout) = step.timeout {
                let timeout = Duration::from_millis(timeout.0);
                let waits = timeouts.entry(bus.clone()).or_default();
                let longest = waits.entry(step.queue.clone()).or_default();
                *longest = timeout.max(*longest);
            }
            // What loaded workflows declare of a queue counts, even if that is nothing.
            let address = Address { bus: bus.clone(), queue: step.queue.clone() };
            if !of_loaded.contains(&address) {
                declare(address, &step.declared);
            }
            workers.entry(bus).or_default().insert(step.queue.clone());
        }
    }
    let mut served_by = |(bus, workers): (BusKey, BTreeSet<Arc<str>>)| {
        let calls = loaded
            .values()
            .filter(|definition| buses.bus_of_workflow(definition) == bus)
            .map(|definition| Definition::call_queue(&definition.name).into());
        let waits = timeouts.remove(&bus).unwrap_or_default();
        let declared = declared.remove(&bus).unwrap_or_default();
        let served = ServedQueues {
            worker_queues: workers.into_iter().collect(),
            call_queues: calls.collect(),
            reply_timeouts: waits,
            declarations: declared,
        };
        (bus, served)
    };
    workers.into_iter().map(&mut served_by).collect()
}

/// Keeps a bus from delivering before all can be found: the recovered jobs in the router's mailbox,
/// the workflows, and the bus itself. It opens when it is dropped.
pub(super) type StartGate = std::sync::mpsc::Sender<()>;

/// The bus's side of its gate.
pub(super) type StartGateReceiver = std::sync::mpsc::Receiver<()>;

/// Makes and starts buses.
pub(super) struct BusStarter {
    transport: Transport,
    settings: Arc<Settings>,
    reader: Arc<dyn Records>,
    env: Arc<BusEnv>,
}

impl BusStarter {
    pub(super) fn new(core: &ManagerCore, mailboxes: &Mailboxes, transport: Transport) -> Self {
        BusStarter {
            transport,
            settings: core.settings.clone(),
            reader: core.reader.clone(),
            env: Arc::new(BusEnv::new(core, mailboxes)),
        }
    }

    /// Returns the maker of a bus with these queues, which goes on at its stored offsets.
    ///
    /// # Errors
    ///
    /// The journal cannot read the offsets, or the settings have no such bus.
    pub(super) fn load(
        &self,
        key: &BusKey,
        served: ServedQueues,
        is_added_by_reload: bool,
    ) -> Result<BusMaker, StartError> {
        let offset_of = |stored: StoredOffset| {
            let StoredOffset { topic, partition, offset, .. } = stored;
            TopicOffset { topic, partition, offset }
        };
        let offsets = self.reader.load_offsets(&key.name)?.into_iter().map(offset_of).collect();
        let options = BusOptions { served, is_added_by_reload, offsets };
        (self.transport)(&self.settings, key, options)
    }

    /// Starts a bus on a thread, and registers it. It takes nothing before its gate is open.
    pub(super) fn start(
        &self,
        key: BusKey,
        maker: BusMaker,
        arbiter: &ArbiterHandle,
        at_gate: Option<StartGateReceiver>,
    ) {
        self.env.health.set_bus(&key, BusState::Disconnected { reason: String::new() });
        let metrics = ActorMetrics::new(&self.env.metrics, BusActor::KIND);
        let (mailbox, inbox) = new_mailbox::<BusActor>(usize::MAX, metrics);
        let (env, watches, bus_key) = (self.env.clone(), self.watches(&key), key.clone());
        inbox.start_in(arbiter, move || {
            if let Some(at_gate) = at_gate {
                // An error means that the gate is open.
                let _ = at_gate.recv();
            }
            let sink = event_sink(&env, &bus_key);
            BusActor::new(maker(sink), bus_key, env, watches)
        });
        self.env.buses.add(key, mailbox);
    }

    fn watches(&self, key: &BusKey) -> Watches {
        let amqp = self.settings.amqp_bus(&key.name);
        let losses = amqp.filter(|amqp| !amqp.management.0.is_empty()).map(|amqp| LossSettings {
            span: amqp.lost_after.0,
            reply_queue: amqp.reply_queue.clone(),
            redispatches: amqp.redispatch_lost,
        });
        Watches { has_queue_watch: amqp.is_some(), losses }
    }
}
