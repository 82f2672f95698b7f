//! The tables of the gate: its limits, places and classes by their keys, and where classes are
//! parked.

use super::Gate;
use super::class::{Class, ClassKey, Park};
use super::place::{Limit, Place};
use super::sorted::SortedSet;
use crate::time::Timestamp;
use std::cmp::Reverse;
use std::sync::Arc;

impl Gate {
    pub(super) fn place_mut(&mut self, index: usize) -> &mut Place {
        self.places[index].as_mut().expect("a place of a class exists")
    }

    /// Returns the limit with this full name, which is created if it is new.
    pub(super) fn limit_index(&mut self, name: &Arc<str>) -> usize {
        if let Some(index) = self.limit_indices.get(name) {
            return *index;
        }
        self.limits.push(Limit::new(name.clone()));
        self.limit_indices.insert(name.clone(), self.limits.len() - 1);
        self.limits.len() - 1
    }

    /// Returns the place of a limit with this key, which is created if it is new.
    pub(super) fn place_index(&mut self, limit: usize, key: &Arc<str>) -> usize {
        if let Some(open_place) = self.limits[limit].open_place.filter(|_| key.is_empty()) {
            return open_place;
        }
        let place_key = (limit, key.clone());
        if let Some(index) = self.place_indices.get(&place_key) {
            return *index;
        }
        let place = Place::new(limit, key.clone());
        let index = match self.free_places.pop() {
            Some(index) => {
                self.places[index] = Some(place);
                index
            }
            None => {
                self.places.push(Some(place));
                self.places.len() - 1
            }
        };
        self.limits[limit].places.insert(index);
        if key.is_empty() {
            self.limits[limit].open_place = Some(index);
        }
        self.place_indices.insert(place_key, index);
        index
    }

    /// Removes a place that nobody uses. While its rate is still in use, it is kept until then.
    pub(super) fn remove_place_if_unused(&mut self, index: usize, now: Timestamp) {
        let Some(place) = &self.places[index] else { return };
        if place.classes > 0 || self.reserved.contains(&index) {
            return;
        }
        if place.arrival > now {
            self.due.insert((place.arrival, index));
            return;
        }
        let Some(place) = self.places[index].take() else { return };
        self.limits[place.limit].places.remove(&index);
        if place.key.is_empty() {
            self.limits[place.limit].open_place = None;
        }
        self.place_indices.remove(&(place.limit, place.key));
        self.free_places.push(index);
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
        for (index, _) in &key.places {
            let place = self.place_mut(*index);
            place.classes += 1;
            if place.classes == 1 && !place.key.is_empty() {
                let (limit, key) = (place.limit, place.key.clone());
                self.limits[limit].keys_used += 1;
                self.lobby.call(limit, &key);
            }
        }
        let class = Class {
            key: key.clone(),
            queue: SortedSet::default(),
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
        for index in class.place_indices() {
            let place = self.place_mut(index);
            place.classes -= 1;
            if place.classes == 0 && !place.key.is_empty() {
                let limit = place.limit;
                self.limits[limit].keys_used -= 1;
                self.lobby.open(limit);
            }
            // The place may be unused now.
            self.dirty.insert(index);
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
        let park = Park { is_resend: Reverse(state.key.is_resend), turn, rank, class };
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
