//! The door of the gate's [lobby](super::lobby): who is kept out, and who is let in.

use super::Gate;
use super::lobby::{Claimant, WantedPlace};
use std::sync::Arc;

impl Gate {
    /// Creates a gate without limits. `keys_max`: how many keys of each limit may be in use at
    /// once; steps with further ones wait until a key is free.
    pub fn with_keys_max(keys_max: usize) -> Gate {
        Gate { keys_max: Some(keys_max), ..Gate::default() }
    }

    /// Returns whether a step that claims this key of a limit would not wait for a free key.
    pub fn has_room_for_key(&self, limit: &str, key: &str) -> bool {
        let Some(limit) = self.limit_indices.get(limit) else { return true };
        !self.is_full_for(*limit, &key.into(), None)
    }

    /// Keeps a step out if one of its limits has no room for its key. Returns it otherwise.
    pub(super) fn keep_out(
        &mut self,
        claimant: Claimant,
        let_in_at: Option<usize>,
    ) -> Option<Claimant> {
        let is_full = |place: &WantedPlace| self.is_full_for(place.limit, &place.key, let_in_at);
        let is_new = !claimant.demand.holds();
        match claimant.places.iter().position(is_full).filter(|_| is_new) {
            Some(full) => {
                self.lobby.add(claimant, full);
                None
            }
            None => Some(claimant),
        }
    }

    /// Returns whether a limit has no room for a key. `let_in_at`: the limit at which the step is
    /// first in line; at others with a line it must wait.
    fn is_full_for(&self, limit: usize, key: &Arc<str>, let_in_at: Option<usize>) -> bool {
        let Some(keys_max) = self.keys_max else { return false };
        let is_first = let_in_at == Some(limit) || self.lobby.line(limit).next().is_none();
        let has_room = self.limits[limit].keys_used < keys_max && is_first;
        !has_room && !key.is_empty() && !self.is_in_use(limit, key)
    }

    fn is_in_use(&self, limit: usize, key: &Arc<str>) -> bool {
        let index = self.place_indices.get(&(limit, key.clone()));
        let place = index.and_then(|index| self.places[*index].as_ref());
        place.is_some_and(|place| place.classes > 0)
    }

    /// Lets in whom the limits have room for.
    pub(super) fn let_in(&mut self) {
        let Some(keys_max) = self.keys_max else { return };
        loop {
            if let Some((limit, key)) = self.lobby.called.pop() {
                while self.is_in_use(limit, &key)
                    && let Some(claimant) = self.lobby.take_of_key(limit, &key)
                {
                    self.take_in(claimant, limit);
                }
            } else if let Some(limit) = self.lobby.opened.first().copied() {
                let has_room = self.limits[limit].keys_used < keys_max;
                match if has_room { self.lobby.take_first(limit) } else { None } {
                    Some(claimant) => self.take_in(claimant, limit),
                    None => drop(self.lobby.opened.remove(&limit)),
                }
            } else {
                return;
            }
        }
    }

    fn take_in(&mut self, claimant: Claimant, limit: usize) {
        if let Some(claimant) = self.keep_out(claimant, Some(limit)) {
            self.add_slot(&claimant, None);
        }
    }
}
