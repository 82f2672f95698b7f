//! Which buses the settings ask for, and how each is made.

use super::shared::Definitions;
use super::supervisor::StartError;
use crate::bus::amqp::{AmqpSettings, Connector, TopicConnector};
use crate::bus::embedded::{EmbeddedBus, Workers};
use crate::bus::topic::TopicMaker;
use crate::bus::{Bus, BusKey, EventSink, Served};
use crate::engine::Definition;
use crate::settings::{BusKind, Settings};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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

/// The virtual hosts of `used` definitions and their queues; workflows that are loaded have one
/// each, besides those of their steps.
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
