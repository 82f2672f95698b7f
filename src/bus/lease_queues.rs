//! The registry of a process's lease queues.

use crate::key::BusKey;
use crate::lease_queue::LeaseQueue;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// The lease queues of a process, by bus. Each belongs to its bus and ends with it.
#[derive(Default)]
pub struct LeaseQueues(RwLock<BTreeMap<BusKey, Weak<LeaseQueue>>>);

impl LeaseQueues {
    /// Registers the lease queue of a bus.
    pub(crate) fn add(&self, bus: BusKey, lease_queue: &Arc<LeaseQueue>) {
        let weak = Arc::downgrade(lease_queue);
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(bus, weak);
    }

    /// Returns the lease queue of a bus, if the bus still runs.
    pub fn find(&self, bus: &BusKey) -> Option<Arc<LeaseQueue>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(bus)?.upgrade()
    }
}
