//! Which buses the settings ask for, and how each is made and started.

use super::bus::{BusActor, event_sink};
use super::mail::{BusInput, Definitions};
use super::mailbox::{Kind, Mailbox, Owner};
use super::ways::Ways;
use crate::bus::amqp::{AmqpSettings, Connector, TopicConnector};
use crate::bus::embedded::{EmbeddedBus, Workers};
use crate::bus::topic::TopicMaker;
use crate::bus::{Bus, BusKey, BusState, EventSink, Served};
use crate::engine::Definition;
use crate::journal::JournalError;
use crate::settings::{BusKind, Settings};
use actix::{Actor, ArbiterHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The bus.
    #[error("{0}")]
    Bus(String),
    /// A fault in the definitions that only shows when all of them are loaded.
    #[error("{0}")]
    Definitions(String),
}

/// Makes a bus, on the thread that it will run on.
pub type BusMaker = Box<dyn FnOnce(EventSink) -> Box<dyn Bus> + Send>;

/// What a bus is started with.
#[derive(Default)]
pub struct Opening {
    /// Its queues.
    pub served: Served,
    /// Whether a reload has brought it.
    pub joins: bool,
}

/// Chooses the transport of a bus.
pub type Transport =
    Arc<dyn Fn(&Settings, &BusKey, Opening) -> Result<BusMaker, StartError> + Send + Sync>;

/// The transports of the settings; `workers` are those of this process, on the embedded bus.
pub fn transport(workers: Workers) -> Transport {
    Arc::new(move |settings, key, opening| make(settings, key, opening, workers.clone()))
}

fn make(
    settings: &Settings,
    key: &BusKey,
    opening: Opening,
    workers: Workers,
) -> Result<BusMaker, StartError> {
    match settings.bus() {
        BusKind::Embedded => {
            Ok(Box::new(move |sink| Box::new(EmbeddedBus::new(workers, opening.served, sink))))
        }
        BusKind::Amqp => {
            let connector = Connector::new(amqp_settings(settings, &key.vhost, opening))
                .map_err(|error| StartError::Bus(error.to_string()))?;
            Ok(Box::new(move |sink| Box::new(connector.connect(sink))))
        }
    }
}

/// The topic for events, if there is to be one: an exchange in the virtual host of the broker's
/// address.
pub(super) fn topic(settings: &Settings) -> Result<Option<TopicMaker>, StartError> {
    let events = &settings.events;
    if events.exchange.is_empty() {
        return Ok(None);
    }
    let connector = TopicConnector::new(
        amqp_settings(settings, "", Opening::default()),
        events.exchange.clone(),
        events.exchange_buffer_max,
    );
    let connector = connector.map_err(|error| StartError::Bus(error.to_string()))?;
    Ok(Some(Box::new(move |sink| Box::new(connector.connect(sink)))))
}

/// The virtual hosts of the `used` definitions, with their queues. A loaded workflow has a queue of
/// its own, besides those of its steps.
pub(super) fn queues_by_vhost<'a>(
    loaded: &Definitions,
    used: impl Iterator<Item = &'a Arc<Definition>>,
) -> BTreeMap<String, Served> {
    let mut steps: BTreeMap<String, BTreeSet<Arc<str>>> = BTreeMap::new();
    let mut seen: BTreeSet<*const Definition> = BTreeSet::new();
    for definition in used {
        if seen.insert(Arc::as_ptr(definition)) {
            steps.entry(definition.vhost.clone()).or_default().extend(definition.queues());
        }
    }
    let of_vhost = |(vhost, workers): (String, BTreeSet<Arc<str>>)| {
        let calls = loaded
            .values()
            .filter(|definition| definition.vhost == vhost)
            .map(|definition| Definition::call_queue(&definition.name).into());
        let served = Served { workers: workers.into_iter().collect(), calls: calls.collect() };
        (vhost, served)
    };
    steps.into_iter().map(of_vhost).collect()
}

/// The bus's side of its gate.
pub(super) type Wait = std::sync::mpsc::Receiver<()>;

pub(super) fn start_bus(
    ways: &Arc<Ways>,
    key: &BusKey,
    maker: BusMaker,
    arbiter: &ArbiterHandle,
    wait: Option<Wait>,
) -> Mailbox<BusInput> {
    ways.common.health.set_bus(key, BusState::Disconnected { reason: String::new() });
    let (owned, key) = (ways.clone(), key.clone());
    let address = BusActor::start_in_arbiter(arbiter, move |_| {
        if let Some(wait) = wait {
            // An error means that the gate is open.
            let _ = wait.recv();
        }
        let sink = event_sink(&owned, &key);
        BusActor::new(maker(sink), key, owned)
    });
    Mailbox::new(address, usize::MAX, Kind::new(&ways.common.metrics, BusActor::KIND))
}

fn amqp_settings(settings: &Settings, vhost: &str, opening: Opening) -> AmqpSettings {
    let section = &settings.amqp;
    AmqpSettings {
        server: section.server.0.clone(),
        vhost: (!vhost.is_empty()).then(|| vhost.to_owned()),
        management: section.management.0.clone(),
        reply_queue: section.reply_queue.clone(),
        reply_queue_type: section.reply_queue_type,
        unreadable: section.unreadable,
        prefetch: section.prefetch,
        linger: section.linger.0,
        replies_bytes_max: section.replies_bytes_max,
        unconfirmed_max: section.unconfirmed_max,
        unconfirmed_bytes_max: section.unconfirmed_bytes_max,
        reconnect_min: section.reconnect_min.0,
        reconnect_max: section.reconnect_max.0,
        heartbeat: section.heartbeat.0,
        served: opening.served,
        joins: opening.joins,
    }
}
