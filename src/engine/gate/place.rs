//! The places of the gate: limits with a key.

use super::class::Rank;
use super::{Gate, LimitSetting};
use crate::limit::Rate;
use crate::time::Timestamp;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// From this number on, the turns of values that nobody uses are forgotten.
const TURNS_KEPT: usize = 64;

/// A limit.
#[derive(Debug)]
pub(super) struct Limit {
    /// The full name.
    pub(super) name: Arc<str>,
    pub(super) setting: LimitSetting,
    /// Its places.
    pub(super) places: BTreeSet<usize>,
}

/// A class that is parked at a place. Its order there: the turns of `fair`, then the rank of the
/// first step of the class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Park {
    pub(super) turn: u64,
    pub(super) rank: Rank,
    pub(super) class: usize,
}

/// A limit with a key.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) limit: usize,
    pub(super) key: Arc<str>,
    /// The theoretical arrival time of the next message (GCRA).
    pub(super) arrival: Timestamp,
    /// How many steps hold it.
    pub(super) held: u32,
    /// How many steps claim it and wait, whatever for.
    pub(super) waiting: usize,
    pub(super) parked: BTreeSet<Park>,
    /// How many classes have it.
    pub(super) classes: usize,
    /// The turn of each value of `fair`. Values whose turn has passed are left out.
    turns: HashMap<Arc<str>, u64>,
    /// The turn that was taken last.
    last_turn: u64,
    /// From how many turns on they are swept.
    sweep_at: usize,
}

impl Place {
    /// Returns when a message may be sent, with `ahead` nanoseconds more in use.
    pub(super) fn sending_time(&self, rate: &Rate, ahead: i64) -> Timestamp {
        let used = self.arrival.0.saturating_add(ahead);
        Timestamp(used.saturating_sub(rate.tolerance_ns()))
    }

    /// Returns the next turn of a value of `fair`.
    pub(super) fn turn_of(&self, fair: &str) -> u64 {
        self.turns.get(fair).copied().unwrap_or(0).max(self.last_turn)
    }

    /// Takes the turn of a value of `fair`.
    pub(super) fn take_turn(&mut self, fair: &Arc<str>) {
        let turn = self.turn_of(fair);
        self.last_turn = turn;
        self.turns.insert(fair.clone(), turn + 1);
        if self.turns.len() >= self.sweep_at.max(TURNS_KEPT) {
            self.turns.retain(|_, next| *next > turn);
            self.sweep_at = self.turns.len() * 2;
        }
    }
}

impl Gate {
    pub(super) fn place_mut(&mut self, index: usize) -> &mut Place {
        self.places[index].as_mut().expect("a place of a class exists")
    }

    /// Returns the limit with this full name, which is created if it is new.
    pub(super) fn limit_index(&mut self, name: &Arc<str>) -> usize {
        if let Some(index) = self.limit_indices.get(name) {
            return *index;
        }
        let (setting, places) = (LimitSetting::default(), BTreeSet::new());
        self.limits.push(Limit { name: name.clone(), setting, places });
        self.limit_indices.insert(name.clone(), self.limits.len() - 1);
        self.limits.len() - 1
    }

    /// Returns the place of a limit with this key, which is created if it is new.
    pub(super) fn place_index(&mut self, limit: usize, key: &Arc<str>) -> usize {
        let place_key = (limit, key.clone());
        if let Some(index) = self.place_indices.get(&place_key) {
            return *index;
        }
        let place = Place {
            limit,
            key: key.clone(),
            arrival: Timestamp(i64::MIN),
            held: 0,
            waiting: 0,
            parked: BTreeSet::new(),
            classes: 0,
            turns: HashMap::new(),
            last_turn: 0,
            sweep_at: 0,
        };
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
        self.place_indices.remove(&(place.limit, place.key));
        self.free_places.push(index);
    }
}
