//! The registry of the lease queues of a process.

use crate::key::BusKey;
use crate::lease_queue::LeaseQueue;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// The lease queues of a process, one [`LeaseQueue`] for each bus that has any. A bus owns its
/// lease queue, so the registry has only weak references.
#[derive(Default)]
pub struct LeaseQueues(RwLock<BTreeMap<BusKey, Weak<LeaseQueue>>>);

impl LeaseQueues {
    /// Registers the lease queue of a bus.
    pub(crate) fn add(&self, bus: BusKey, lease_queue: &Arc<LeaseQueue>) {
        let lease_queue = Arc::downgrade(lease_queue);
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(bus, lease_queue);
    }

    /// Returns the lease queue of a bus; `None` if the bus has none, or no longer exists.
    pub fn find(&self, bus: &BusKey) -> Option<Arc<LeaseQueue>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(bus)?.upgrade()
    }
}
