//! The registry of buses: one for each bus and virtual host that a workflow uses. A reload may
//! bring more.

use super::inputs::BusInput;
use super::mailbox::Mailbox;
use crate::settings::{BusKind, Settings};
use bus::{Address, BusKey};
use engine::{Caller, Definition, Step};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// The buses of a process, by their keys.
pub struct Buses {
    /// The bus of all workflows and steps that name none.
    default_bus: Arc<str>,
    /// The kinds of the buses in the settings, by their names.
    kinds: BTreeMap<Arc<str>, BusKind>,
    /// The reply queues of the buses that have one, by the names of the buses.
    reply_queues: BTreeMap<Arc<str>, String>,
    /// How long replies are read first after a connection, by the names of the buses.
    replies_first: BTreeMap<Arc<str>, Duration>,
    started: RwLock<BTreeMap<BusKey, Mailbox<BusInput>>>,
}

impl Buses {
    /// Creates the registry without any bus; those that workflows may name are in the settings.
    pub fn new(settings: &Settings) -> Buses {
        let kinds: BTreeMap<Arc<str>, BusKind> =
            settings.bus_kinds().into_iter().map(|(name, kind)| (name.into(), kind)).collect();
        let reply_queue =
            |name: &Arc<str>| Some((name.clone(), settings.reply_queue(name)?.to_owned()));
        let replies_first = |name: &Arc<str>| (name.clone(), settings.replies_first(name));
        Buses {
            default_bus: settings.default_bus().into(),
            reply_queues: kinds.keys().filter_map(reply_queue).collect(),
            replies_first: kinds.keys().map(replies_first).collect(),
            kinds,
            started: RwLock::default(),
        }
    }

    /// Returns the kind of a bus; `None`: the settings have no such bus.
    pub fn kind(&self, key: &BusKey) -> Option<BusKind> {
        self.kinds.get(&key.name).copied()
    }

    /// Returns whether the settings have a bus of this name.
    pub fn is_known(&self, bus: &str) -> bool {
        self.kinds.contains_key(bus)
    }

    /// Returns the reply queue of a bus, if it has one.
    pub fn reply_queue(&self, bus: &str) -> Option<&str> {
        self.reply_queues.get(bus).map(String::as_str)
    }

    /// Returns how long a step whose timeout has passed waits for a reply once its bus is connected
    /// again.
    pub fn replies_first(&self, bus: &str) -> Duration {
        self.replies_first.get(bus).copied().unwrap_or_default()
    }

    fn has_vhosts(&self, bus: &str) -> bool {
        self.kinds.get(bus).is_none_or(|kind| kind.capabilities().has_vhosts)
    }

    /// Returns the key of a bus in a virtual host, if the bus has any. Without a name it is the
    /// default bus.
    pub fn resolve(&self, bus: Option<&Arc<str>>, vhost: &str) -> BusKey {
        let bus = bus.unwrap_or(&self.default_bus).clone();
        let vhost = if self.has_vhosts(&bus) { vhost } else { "" };
        BusKey { name: bus, vhost: vhost.into() }
    }

    /// Returns the bus on which a workflow takes calls.
    pub fn bus_of_workflow(&self, definition: &Definition) -> BusKey {
        self.resolve(definition.bus.as_ref(), &definition.vhost)
    }

    /// Returns the bus to which a step of a workflow sends.
    pub fn bus_of_step(&self, definition: &Definition, step: &Step) -> BusKey {
        self.resolve(step.bus.as_ref(), &definition.vhost)
    }

    /// Returns the bus on which a caller of a workflow waits.
    pub fn bus_of_caller(&self, definition: &Definition, caller: &Caller) -> BusKey {
        self.resolve(caller.bus.as_ref().or(definition.bus.as_ref()), &definition.vhost)
    }

    /// Returns the queue to which a step of a workflow sends.
    pub fn address(&self, definition: &Definition, step: &Step) -> Address {
        Address { bus: self.bus_of_step(definition, step), queue: step.queue.clone() }
    }

    /// Returns whether a step of a workflow sends to this bus.
    pub fn is_bus_of_step(&self, key: &BusKey, definition: &Definition, step: &Step) -> bool {
        let bus = step.bus.as_ref().unwrap_or(&self.default_bus);
        key.name == *bus && (*key.vhost == *definition.vhost || !self.has_vhosts(bus))
    }

    /// Finds a bus of a workflow that was not started.
    pub fn find_missing(&self, definition: &Definition) -> Option<BusKey> {
        let used = definition.sending_steps().map(|step| self.bus_of_step(definition, step));
        std::iter::once(self.bus_of_workflow(definition))
            .chain(used)
            .find(|bus| self.find(bus).is_none())
    }

    /// Finds the mailbox of a bus, if the bus was started.
    pub fn find(&self, key: &BusKey) -> Option<Mailbox<BusInput>> {
        self.started.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Returns the mailboxes of all buses that were started.
    pub fn all(&self) -> Vec<(BusKey, Mailbox<BusInput>)> {
        let started = self.started.read().unwrap_or_else(PoisonError::into_inner);
        started.iter().map(|(key, bus)| (key.clone(), bus.clone())).collect()
    }

    /// Adds a bus that was started.
    pub fn add(&self, key: BusKey, bus: Mailbox<BusInput>) {
        self.started.write().unwrap_or_else(PoisonError::into_inner).insert(key, bus);
    }
}
