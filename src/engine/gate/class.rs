//! The classes of the gate: the steps that claim the same places, in their order.

use super::{Gate, Park, Slot, SlotKey};
use crate::id::StepIndex;
use crate::time::Timestamp;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What tells a class from others: its places, each with the value of `fair`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClassKey {
    pub(super) places: Vec<(usize, Option<Arc<str>>)>,
    /// Whether its steps hold their places already, and only wait for rates.
    pub(super) is_resend: bool,
}

/// The order of steps: a higher priority first, then who began to wait first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    priority: Reverse<u8>,
    since: Timestamp,
    pub(super) job: i64,
    pub(super) step: StepIndex,
}

impl Rank {
    pub(super) fn of((job, step): SlotKey, slot: &Slot) -> Rank {
        Rank { priority: Reverse(slot.priority), since: slot.since, job, step }
    }
}

/// Steps that claim the same places.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) key: ClassKey,
    /// The steps that wait.
    pub(super) queue: BTreeSet<Rank>,
    /// How many steps have it as their class.
    pub(super) members: usize,
    /// The place where it is parked, and how; `None`: nobody waits in it.
    pub(super) parked: Option<(usize, Park)>,
    /// How often it was turned away since its last admission.
    pub(super) turns_away: u32,
    /// The rank with which it is among the impatient; `None`: it is not.
    pub(super) impatient: Option<Rank>,
}

impl Class {
    pub(super) fn place_indices(&self) -> impl Iterator<Item = usize> + '_ {
        self.key.places.iter().map(|(place, _)| *place)
    }

    /// Returns the value of `fair` at a place; `None`: the limit has none.
    fn fair_at(&self, place: usize) -> Option<&Arc<str>> {
        self.key.places.iter().find(|(other, _)| *other == place)?.1.as_ref()
    }
}

impl Gate {
    pub(super) fn class(&self, index: usize) -> &Class {
        self.classes[index].as_ref().expect("a class that has members exists")
    }

    pub(super) fn class_mut(&mut self, index: usize) -> &mut Class {
        self.classes[index].as_mut().expect("a class that has members exists")
    }

    /// Returns the class with this key, which is created if it is new.
    pub(super) fn class_index(&mut self, key: ClassKey) -> usize {
        if let Some(index) = self.class_indices.get(&key) {
            return *index;
        }
        for (place, _) in &key.places {
            self.place_mut(*place).classes += 1;
        }
        let class = Class {
            key: key.clone(),
            queue: BTreeSet::new(),
            members: 0,
            parked: None,
            turns_away: 0,
            impatient: None,
        };
        let index = match self.free_classes.pop() {
            Some(index) => {
                self.classes[index] = Some(class);
                index
            }
            None => {
                self.classes.push(Some(class));
                self.classes.len() - 1
            }
        };
        self.class_indices.insert(key, index);
        index
    }

    /// Removes a member of a class, and the class with its last member.
    pub(super) fn drop_member(&mut self, index: usize) {
        let class = self.class_mut(index);
        class.members -= 1;
        if class.members > 0 {
            return;
        }
        self.unpark(index);
        self.calm(index);
        let Some(class) = self.classes[index].take() else { return };
        self.class_indices.remove(&class.key);
        self.free_classes.push(index);
        for place in class.place_indices() {
            self.place_mut(place).classes -= 1;
            // The place may be unused now.
            self.dirty.insert(place);
        }
    }

    /// Parks a class at a place, in the order of its first step.
    pub(super) fn park(&mut self, class: usize, place: usize) {
        let state = self.class(class);
        let Some(rank) = state.queue.first().copied() else { return };
        let turn = match (state.fair_at(place), &self.places[place]) {
            (Some(fair), Some(place)) => place.turn_of(fair),
            (Some(_) | None, _) => 0,
        };
        let park = Park { turn, rank, class };
        self.place_mut(place).parked.insert(park.clone());
        self.class_mut(class).parked = Some((place, park));
    }

    pub(super) fn unpark(&mut self, class: usize) {
        if let Some((place, park)) = self.class_mut(class).parked.take() {
            self.place_mut(place).parked.remove(&park);
        }
    }

    /// Parks a class anew where it is parked, after its first step has changed.
    pub(super) fn park_again(&mut self, class: usize) {
        if let Some((place, _)) = self.class(class).parked.clone() {
            self.unpark(class);
            self.park(class, place);
        }
    }
}
