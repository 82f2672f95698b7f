//! The registry of a process's lease queues.

use super::Desk;
use crate::bus::BusKey;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// The lease queues of a process, by bus. Each belongs to its bus and ends with it.
#[derive(Default)]
pub struct Desks(RwLock<BTreeMap<BusKey, Weak<Desk>>>);

impl Desks {
    /// Registers the lease queue of a bus.
    pub(in crate::bus) fn add(&self, bus: BusKey, desk: &Arc<Desk>) {
        let desk = Arc::downgrade(desk);
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(bus, desk);
    }

    /// Returns the lease queue of a bus, if the bus still runs.
    pub fn of(&self, bus: &BusKey) -> Option<Arc<Desk>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(bus)?.upgrade()
    }
}
