//! The registry of buses: one for each bus and virtual host that a workflow uses. A reload may
//! bring more.

use super::mail::BusInput;
use super::mailbox::Mailbox;
use crate::bus::{Address, BusKey};
use crate::engine::{Caller, Definition, Step};
use crate::settings::{BusKind, Settings};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The buses of a process, by their keys.
pub struct Buses {
    /// The bus of all workflows and steps that name none.
    default: Arc<str>,
    /// The kinds of the buses in the settings, by their names.
    kinds: BTreeMap<Arc<str>, BusKind>,
    started: RwLock<BTreeMap<BusKey, Mailbox<BusInput>>>,
}

impl Buses {
    /// Creates the registry without any bus; those that workflows may name are in the settings.
    pub fn new(settings: &Settings) -> Buses {
        let kinds = settings.bus_kinds().into_iter().map(|(name, kind)| (name.into(), kind));
        let default = settings.default_bus().into();
        Buses { default, kinds: kinds.collect(), started: RwLock::default() }
    }

    /// Returns the kind of a bus; `None`: the settings have no such bus.
    pub fn kind(&self, key: &BusKey) -> Option<BusKind> {
        self.kinds.get(&key.bus).copied()
    }

    fn has_vhosts(&self, bus: &str) -> bool {
        self.kinds.get(bus).is_none_or(|kind| kind.traits().vhosts)
    }

    /// Returns the key of a bus in a virtual host, if the bus has any. Without a name it is the
    /// default bus.
    pub fn named(&self, bus: Option<&Arc<str>>, vhost: &str) -> BusKey {
        let bus = bus.unwrap_or(&self.default).clone();
        let vhost = if self.has_vhosts(&bus) { vhost } else { "" };
        BusKey { bus, vhost: vhost.into() }
    }

    /// Returns the bus on which a workflow takes calls.
    pub fn of(&self, definition: &Definition) -> BusKey {
        self.named(definition.bus.as_ref(), &definition.vhost)
    }

    /// Returns the bus to which a step of a workflow sends.
    pub fn of_step(&self, definition: &Definition, step: &Step) -> BusKey {
        self.named(step.bus.as_ref(), &definition.vhost)
    }

    /// Returns the bus on which a caller of a workflow waits.
    pub fn of_caller(&self, definition: &Definition, caller: &Caller) -> BusKey {
        self.named(caller.bus.as_ref().or(definition.bus.as_ref()), &definition.vhost)
    }

    /// Returns the queue to which a step of a workflow sends.
    pub fn address(&self, definition: &Definition, step: &Step) -> Address {
        Address { bus: self.of_step(definition, step), queue: step.queue.clone() }
    }

    /// Returns whether a step of a workflow sends to this bus.
    pub fn carries(&self, key: &BusKey, definition: &Definition, step: &Step) -> bool {
        let bus = step.bus.as_ref().unwrap_or(&self.default);
        key.bus == *bus && (*key.vhost == *definition.vhost || !self.has_vhosts(bus))
    }

    /// Finds a bus of a workflow that was not started.
    pub fn missing(&self, definition: &Definition) -> Option<BusKey> {
        let used = definition.sending_steps().map(|step| self.of_step(definition, step));
        std::iter::once(self.of(definition)).chain(used).find(|bus| self.find(bus).is_none())
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
