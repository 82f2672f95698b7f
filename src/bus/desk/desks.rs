//! Where the desks of a process are found.

use super::Desk;
use crate::bus::BusKey;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// The desks of a process, by their buses. Each is its bus's, and ends with it.
#[derive(Default)]
pub struct Desks(RwLock<BTreeMap<BusKey, Weak<Desk>>>);

impl Desks {
    /// Makes a desk known.
    pub(in crate::bus) fn add(&self, bus: BusKey, desk: &Arc<Desk>) {
        let desk = Arc::downgrade(desk);
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(bus, desk);
    }

    /// The desk of a bus.
    pub fn of(&self, bus: &BusKey) -> Option<Arc<Desk>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(bus)?.upgrade()
    }
}
