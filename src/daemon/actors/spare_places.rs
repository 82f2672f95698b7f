//! The spare places of limits, as jobs take them. The gate hands them out, and a job that decides
//! takes one; with the demands of its decision the gate is told what became of it.

use super::inputs::{RouterInput, TakenPlace, TakenPlaces};
use super::mailbox::Mailbox;
use engine::{SparePlaces, SpareSource};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The spare places of all limits, by their full names. All jobs share them. Only the router adds
/// limits.
#[derive(Default)]
pub struct SpareTable(RwLock<HashMap<Arc<str>, Arc<SparePlaces>>>);

impl SpareTable {
    /// Adds a limit.
    pub(super) fn add(&self, limit: Arc<str>, places: Arc<SparePlaces>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(limit, places);
    }

    /// Takes a place of a limit. Returns its full name; `None`: there is none to spare.
    fn take(&self, limit: &str) -> Option<Arc<str>> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (name, places) = table.get_key_value(limit)?;
        places.take().then(|| name.clone())
    }
}

/// From where one decision takes spare places.
pub(super) struct DecisionSpare<'a> {
    table: &'a SpareTable,
    router: &'a Mailbox<RouterInput>,
    taken: RefCell<TakenPlaces>,
}

impl<'a> DecisionSpare<'a> {
    pub(super) fn new(table: &'a SpareTable, router: &'a Mailbox<RouterInput>) -> Self {
        DecisionSpare { table, router, taken: RefCell::default() }
    }

    /// Returns whether the decision has taken any.
    pub(super) fn has_taken(&self) -> bool {
        !self.taken.borrow().is_empty()
    }

    /// Returns what the decision has taken.
    pub(super) fn into_taken(self) -> TakenPlaces {
        self.taken.into_inner()
    }
}

impl SpareSource for DecisionSpare<'_> {
    fn take(&self, limit: &str) -> bool {
        let Some(limit) = self.table.take(limit) else { return false };
        self.taken.borrow_mut().push(TakenPlace::new(limit, self.router.clone()));
        true
    }
}
