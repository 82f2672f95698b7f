//! Which places the gate hands out in advance: those of limits without rate and key, as long as
//! nobody waits for one. What is handed out counts as taken until the gate is told what became of
//! it, so no more steps than allowed hold places.

use super::Gate;
use super::place::Limit;
use crate::spare::SparePlaces;
use std::sync::Arc;

impl Gate {
    /// Returns the spare places of a limit, given by its full name.
    pub fn spare_places(&mut self, limit: &Arc<str>) -> Arc<SparePlaces> {
        let index = self.limit_index(limit);
        self.limits[index].spare.clone()
    }

    /// Notes that what follows from the taking of a spare place is known: the demands of the
    /// decision are told next, or there is no decision.
    pub fn settle(&mut self, limit: &str) {
        let Some(index) = self.limit_indices.get(limit).copied() else { return };
        let limit = &mut self.limits[index];
        limit.lent = limit.lent.saturating_sub(1);
        self.dirty.extend(limit.open_place);
        self.lendable.insert(index);
    }

    /// Takes the spare places of a limit back. They may be handed out again by the next
    /// [`advance`](Gate::advance).
    pub(super) fn take_back(&mut self, limit: usize) {
        let limit_state = &mut self.limits[limit];
        limit_state.lent = limit_state.lent.saturating_sub(limit_state.spare.take_back());
        self.lendable.insert(limit);
    }

    /// Takes back what is lent of a limit that has no room for it.
    pub(super) fn take_back_excess(&mut self, limit: usize, held: u32) {
        let Limit { setting, lent, .. } = &self.limits[limit];
        if setting.concurrency.is_some_and(|max| held.saturating_add(*lent) > max) {
            self.take_back(limit);
        }
    }

    /// Hands out the places of the limits that may have some to spare.
    pub(super) fn lend(&mut self) {
        while let Some(index) = self.lendable.pop_first() {
            let limit = &mut self.limits[index];
            let place = limit.open_place.and_then(|place| self.places[place].as_ref());
            let (held, waiting) = place.map_or((0, 0), |place| (place.held, place.waiting));
            let is_plain = limit.setting.rate.is_none() && !limit.setting.is_paused;
            let Some(max) = limit.setting.concurrency.filter(|_| is_plain && waiting == 0) else {
                continue;
            };
            let count = max.saturating_sub(held).saturating_sub(limit.lent);
            if count > 0 {
                limit.lent += count;
                limit.spare.add(count);
            }
        }
    }
}

impl Limit {
    /// Returns how many spare places were taken, and not told to the gate yet.
    pub(super) fn unsettled(&self) -> u32 {
        self.lent.saturating_sub(self.spare.count())
    }
}
