//! The registry of buses: one for each bus and virtual host that a workflow uses. A reload can add
//! buses.

use super::inputs::BusInput;
use super::mailbox::Mailbox;
use crate::settings::{BusKind, Settings};
use bus::{Address, BusKey};
use engine::{Caller, Definition, Demand, Step};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// The buses of a process, by their keys.
pub struct Buses {
    /// The name of the bus of workflows and steps that name no bus.
    default_bus: Arc<str>,
    /// The kinds of the buses in the settings, by their names.
    kinds: BTreeMap<Arc<str>, BusKind>,
    /// The reply queues of the buses that have one, by the names of the buses.
    reply_queues: BTreeMap<Arc<str>, String>,
    /// How long timeouts are suspended after a bus has connected, so that replies are read first,
    /// by the names of the buses.
    replies_first: BTreeMap<Arc<str>, Duration>,
    /// The mailboxes of the buses that were started.
    mailboxes: RwLock<BTreeMap<BusKey, Mailbox<BusInput>>>,
}

impl Buses {
    /// Creates the registry of the buses in the settings. None of them is started.
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
            mailboxes: RwLock::default(),
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

    /// Returns the reply queue of a bus; `None`: the bus has none.
    pub fn reply_queue(&self, bus: &str) -> Option<&str> {
        self.reply_queues.get(bus).map(String::as_str)
    }

    /// Returns how long timeouts are suspended after a bus has connected, so that its replies are
    /// read first.
    pub fn replies_first(&self, bus: &str) -> Duration {
        self.replies_first.get(bus).copied().unwrap_or_default()
    }

    /// Returns the name of the bus of workflows and steps that name no bus.
    pub(super) fn default_bus(&self) -> &Arc<str> {
        &self.default_bus
    }

    /// Returns whether a bus has virtual hosts. A bus that the settings do not have may have them.
    pub(super) fn has_vhosts(&self, bus: &str) -> bool {
        self.kinds.get(bus).is_none_or(|kind| kind.capabilities().has_vhosts)
    }

    /// Returns the key of the bus with a name, or of the default bus for `None`. The virtual host
    /// is part of the key only if the bus has virtual hosts.
    pub fn resolve(&self, bus: Option<&Arc<str>>, vhost: &str) -> BusKey {
        let bus = bus.unwrap_or(&self.default_bus).clone();
        let vhost = if self.has_vhosts(&bus) { vhost } else { "" };
        BusKey { name: bus, vhost: vhost.into() }
    }

    /// Returns the bus that has the queue of a workflow.
    pub fn bus_of_workflow(&self, definition: &Definition) -> BusKey {
        self.resolve(definition.bus.as_ref(), &definition.vhost)
    }

    /// Returns the bus to which a step of a workflow sends its messages.
    pub fn bus_of_step(&self, definition: &Definition, step: &Step) -> BusKey {
        self.resolve(step.bus.as_ref(), &definition.vhost)
    }

    /// Returns the bus with the reply queue of a caller. A caller that names no bus is on the bus
    /// of the workflow.
    pub fn bus_of_caller(&self, definition: &Definition, caller: &Caller) -> BusKey {
        self.resolve(caller.bus.as_ref().or(definition.bus.as_ref()), &definition.vhost)
    }

    /// Returns the queue to which a step of a workflow sends its messages.
    pub fn address(&self, definition: &Definition, step: &Step) -> Address {
        Address { bus: self.bus_of_step(definition, step), queue: step.queue.clone() }
    }

    /// Returns the queue to which a step of a workflow sends its messages; `None`: it sends none.
    pub(super) fn find_address(&self, definition: &Definition, step: &Step) -> Option<Address> {
        step.has_queue().then(|| self.address(definition, step))
    }

    /// Returns what a step wants of the gate after a restart or a panic.
    pub(super) fn restored_demand(
        &self,
        definition: &Definition,
        step: &Step,
        demand: Demand,
    ) -> Demand {
        if self.keeps_messages(definition, step) { demand.without_resending() } else { demand }
    }

    /// Returns whether the messages of a step stay in this process until a worker has them.
    pub(super) fn keeps_messages(&self, definition: &Definition, step: &Step) -> bool {
        self.kind(&self.bus_of_step(definition, step)) == Some(BusKind::Embedded)
    }

    /// Returns whether a step of a workflow sends its messages to this bus.
    pub fn is_bus_of_step(&self, key: &BusKey, definition: &Definition, step: &Step) -> bool {
        let bus = step.bus.as_ref().unwrap_or(&self.default_bus);
        key.name == *bus && (*key.vhost == *definition.vhost || !self.has_vhosts(bus))
    }

    /// Finds a bus that the workflow needs and that was not started; `None`: all are started.
    pub fn find_missing(&self, definition: &Definition) -> Option<BusKey> {
        let step_buses = definition.sending_steps().map(|step| self.bus_of_step(definition, step));
        std::iter::once(self.bus_of_workflow(definition))
            .chain(step_buses)
            .find(|bus| self.find(bus).is_none())
    }

    /// Finds the mailbox of a bus; `None`: the bus was not started.
    pub fn find(&self, key: &BusKey) -> Option<Mailbox<BusInput>> {
        self.mailboxes.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Returns the mailboxes of all buses that were started.
    pub fn all(&self) -> Vec<(BusKey, Mailbox<BusInput>)> {
        let mailboxes = self.mailboxes.read().unwrap_or_else(PoisonError::into_inner);
        mailboxes.iter().map(|(key, mailbox)| (key.clone(), mailbox.clone())).collect()
    }

    /// Adds a bus that was started.
    pub fn add(&self, key: BusKey, mailbox: Mailbox<BusInput>) {
        self.mailboxes.write().unwrap_or_else(PoisonError::into_inner).insert(key, mailbox);
    }
}
