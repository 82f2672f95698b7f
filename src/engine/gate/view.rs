//! What the gate shows: its limits, who holds and who waits, and for what a step waits.

use super::class::EntranceId;
use super::lobby::Outsider;
use super::{Gate, OPEN_LIMIT, Slot};
use crate::id::{JobId, StepIndex};
use crate::limit::LimitSetting;
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A limit, with the keys that are in use.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitView {
    /// The full name.
    pub name: Arc<str>,
    /// What it allows.
    pub setting: LimitSetting,
    /// Its keys, those with the most waiting steps first, up to the limit that was asked for.
    pub places: Vec<PlaceView>,
    /// How many steps hold a place of any key.
    pub held: usize,
    /// How many steps wait for a place of any key.
    pub waiting: usize,
}

/// How many steps hold and wait for a limit, of all keys together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitCount {
    /// The full name.
    pub name: Arc<str>,
    /// How many steps hold a place.
    pub held: usize,
    /// How many steps wait for a place.
    pub waiting: usize,
}

/// A key of a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaceView {
    /// The key; empty if the limit has none.
    pub key: Arc<str>,
    /// How many steps hold it.
    pub held: u32,
    /// How many steps wait for it.
    pub waiting: usize,
    /// When the rate allows the next message; `None`: now, or there is no rate.
    pub next: Option<Timestamp>,
}

/// For what a step waits.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitView {
    /// The full name of the limit that has no room.
    pub limit: Arc<str>,
    /// The key; empty if the limit has none.
    pub key: Arc<str>,
    /// What the limit allows.
    pub setting: LimitSetting,
    /// How many steps that claim the same are before it.
    pub before: usize,
    /// How many steps hold the place.
    pub held: u32,
    /// When the rate allows the next message; `None`: now, or there is no rate.
    pub next: Option<Timestamp>,
    /// How many keys of the limit may be in use at once, if the step waits until one is free.
    pub keys_max: Option<usize>,
}

impl Gate {
    /// Returns all limits, each with at most `places_max` of its keys.
    pub fn view(&self, places_max: usize, now: Timestamp) -> Vec<LimitView> {
        let view_limit = |index: usize| {
            let limit = &self.limits[index];
            let indices = limit.places.iter();
            let mut places: Vec<PlaceView> =
                indices.filter_map(|index| self.view_place(*index, now)).collect();
            let LimitCount { name, held, waiting } = self.count_limit(index);
            places.sort_by(|a, b| b.waiting.cmp(&a.waiting).then_with(|| a.key.cmp(&b.key)));
            places.truncate(places_max);
            LimitView { name, setting: limit.setting, places, held, waiting }
        };
        let mut limits: Vec<LimitView> = self.named_limits().map(view_limit).collect();
        limits.sort_by(|a, b| a.name.cmp(&b.name));
        limits
    }

    /// Returns a limit with the keys after `after`, in the order of their text, at most
    /// `places_max` of them, and whether there are more; `None`: the gate does not know it.
    pub fn view_page(
        &self,
        limit: &str,
        after: Option<&str>,
        places_max: usize,
        now: Timestamp,
    ) -> Option<(LimitView, bool)> {
        let index = *self.limit_indices.get(limit)?;
        let limit = &self.limits[index];
        let LimitCount { name, held, waiting } = self.count_limit(index);
        let mut page = Vec::new();
        for index in &limit.places {
            let Some(place) = self.places[*index].as_ref() else { continue };
            if after.is_none_or(|after| *place.key > *after) {
                page.push((place.key.clone(), *index));
            }
        }
        let has_more = page.len() > places_max;
        if has_more && places_max > 0 {
            page.select_nth_unstable(places_max - 1);
        }
        page.truncate(places_max);
        page.sort_unstable();
        let places = page.iter().filter_map(|(_, index)| self.view_place(*index, now)).collect();
        Some((LimitView { name, setting: limit.setting, places, held, waiting }, has_more))
    }

    /// Counts who holds and who waits, for each limit.
    pub fn count(&self) -> Vec<LimitCount> {
        self.named_limits().map(|index| self.count_limit(index)).collect()
    }

    /// Counts the steps that wait in each paused entrance. It looks at all steps that wait or hold
    /// places.
    pub fn count_held_back(&self) -> BTreeMap<EntranceId, usize> {
        let mut counts = BTreeMap::new();
        let waiting = self.slots.iter().filter(|slot| slot.waits).map(|slot| slot.entrance);
        for entrance in waiting.chain(self.lobby.entrances()) {
            if self.paused_entrances.contains(&entrance) {
                *counts.entry(entrance).or_default() += 1;
            }
        }
        counts
    }

    /// Returns the limits that files have.
    fn named_limits(&self) -> impl Iterator<Item = usize> {
        (0..self.limits.len()).filter(|index| *self.limits[*index].name != *OPEN_LIMIT)
    }

    fn count_limit(&self, index: usize) -> LimitCount {
        let limit = &self.limits[index];
        let taken = limit.unsettled() as usize;
        let outside = self.lobby.count(index);
        let places = || limit.places.iter().filter_map(|index| self.places[*index].as_ref());
        LimitCount {
            name: limit.name.clone(),
            held: taken + places().map(|place| place.held as usize).sum::<usize>(),
            waiting: outside + places().map(|place| place.waiting).sum::<usize>(),
        }
    }

    /// Returns for the place of which limit a step waits; `None`: for none.
    pub fn view_wait(&self, job: i64, step: StepIndex, now: Timestamp) -> Option<WaitView> {
        if let Some(outsider) = self.lobby.get((job, step)) {
            return self.view_outsider(outsider);
        }
        let slot = self.slots.get((job, step)).filter(|slot| self.is_in_line(slot))?;
        let class = self.class(slot.class());
        let (index, _) = class.parked.as_ref()?;
        let place = self.view_place(*index, now)?;
        let limit = &self.limits[self.places[*index].as_ref()?.limit];
        Some(WaitView {
            limit: limit.name.clone(),
            key: place.key,
            setting: limit.setting,
            before: class.queue.count_before(slot.rank()),
            held: place.held,
            next: place.next,
            keys_max: None,
        })
    }

    fn view_outsider(&self, outsider: &Outsider) -> Option<WaitView> {
        if self.paused_entrances.contains(&outsider.claimant.entrance) {
            return None;
        }
        let place = outsider.full_place();
        let limit = &self.limits[place.limit];
        Some(WaitView {
            limit: limit.name.clone(),
            key: place.key.clone(),
            setting: limit.setting,
            before: self.lobby.count_before(outsider),
            held: 0,
            next: None,
            keys_max: self.keys_max,
        })
    }

    /// Returns whether a step or a job holds its places.
    pub fn holds(&self, job: i64, step: StepIndex) -> bool {
        self.slots.get((job, step)).is_some_and(|slot| slot.holds)
    }

    /// Returns how many hold a place. `limit`: its full name. `key`: empty if it has none.
    pub fn held(&self, limit: &str, key: &str) -> u32 {
        let Some(limit_index) = self.limit_indices.get(limit) else { return 0 };
        let taken = if key.is_empty() { self.limits[*limit_index].unsettled() } else { 0 };
        let place = self.find_place(limit, key).and_then(|index| self.places[index].as_ref());
        taken + place.map_or(0, |place| place.held)
    }

    /// Returns a job that holds a place, or a step of which does; `None`: nobody holds it.
    pub fn find_holder(&self, limit: &str, key: &str) -> Option<JobId> {
        let place = self.find_place(limit, key)?;
        let claims =
            |slot: &Slot| self.class(slot.class()).place_indices().any(|index| index == place);
        self.slots.iter().find(|slot| slot.holds && claims(slot)).map(|slot| slot.id)
    }

    fn find_place(&self, limit: &str, key: &str) -> Option<usize> {
        let limit = self.limit_indices.get(limit)?;
        self.place_indices.get(&(*limit, key.into())).copied()
    }

    fn view_place(&self, index: usize, now: Timestamp) -> Option<PlaceView> {
        let place = self.places[index].as_ref()?;
        let rate = self.limits[place.limit].setting.rate;
        let next = rate.map(|rate| place.sending_time(&rate, 0)).filter(|time| *time > now);
        let taken = if place.key.is_empty() { self.limits[place.limit].unsettled() } else { 0 };
        let (key, held, waiting) = (place.key.clone(), place.held + taken, place.waiting);
        Some(PlaceView { key, held, waiting, next })
    }
}
