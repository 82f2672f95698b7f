//! The registry of buses: one for each virtual host that a workflow runs in. A reload may bring
//! more.

use super::mail::BusInput;
use super::mailbox::Mailbox;
use crate::bus::{Address, BusKey};
use crate::engine::Definition;
use crate::settings::BusKind;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The buses of a process, by their keys.
pub struct Buses {
    /// The name of the bus on which all workflows run.
    name: Arc<str>,
    started: RwLock<BTreeMap<BusKey, Mailbox<BusInput>>>,
}

impl Buses {
    /// No bus yet; workflows run on buses of this kind.
    pub fn new(kind: BusKind) -> Buses {
        Buses { name: kind.name().into(), started: RwLock::default() }
    }

    /// The bus of a virtual host.
    pub fn of_vhost(&self, vhost: &str) -> BusKey {
        BusKey { bus: self.name.clone(), vhost: vhost.into() }
    }

    /// The bus that a workflow runs on.
    pub fn of(&self, definition: &Definition) -> BusKey {
        self.of_vhost(&definition.vhost)
    }

    /// A queue of the bus that a workflow runs on.
    pub fn address(&self, definition: &Definition, queue: &Arc<str>) -> Address {
        Address { bus: self.of(definition), queue: queue.clone() }
    }

    /// Whether a workflow runs on this bus.
    pub fn carries(&self, key: &BusKey, definition: &Definition) -> bool {
        key.bus == self.name && *key.vhost == *definition.vhost
    }

    /// The mailbox of a bus, if it was started.
    pub fn find(&self, key: &BusKey) -> Option<Mailbox<BusInput>> {
        self.started.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// The mailboxes of all buses that were started.
    pub fn all(&self) -> Vec<(BusKey, Mailbox<BusInput>)> {
        let started = self.started.read().unwrap_or_else(PoisonError::into_inner);
        started.iter().map(|(key, bus)| (key.clone(), bus.clone())).collect()
    }

    /// Adds a bus that was started.
    pub fn add(&self, key: BusKey, bus: Mailbox<BusInput>) {
        self.started.write().unwrap_or_else(PoisonError::into_inner).insert(key, bus);
    }
}
