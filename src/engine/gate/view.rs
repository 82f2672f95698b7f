//! What the gate shows: its limits, who holds and who waits, and for what a step waits.

use super::place::Limit;
use super::{Gate, OPEN_LIMIT};
use crate::id::StepIndex;
use crate::limit::LimitSetting;
use crate::time::Timestamp;
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
}

impl Gate {
    /// Returns all limits, each with at most `places_max` of its keys.
    pub fn view(&self, places_max: usize, now: Timestamp) -> Vec<LimitView> {
        let view_limit = |limit: &Limit| {
            let indices = limit.places.iter();
            let mut places: Vec<PlaceView> =
                indices.filter_map(|index| self.view_place(*index, now)).collect();
            let held = places.iter().map(|place| place.held as usize).sum();
            let waiting = places.iter().map(|place| place.waiting).sum();
            places.sort_by(|a, b| b.waiting.cmp(&a.waiting).then_with(|| a.key.cmp(&b.key)));
            places.truncate(places_max);
            let (name, setting) = (limit.name.clone(), limit.setting);
            LimitView { name, setting, places, held, waiting }
        };
        let is_limit = |limit: &&Limit| *limit.name != *OPEN_LIMIT;
        let mut limits: Vec<LimitView> =
            self.limits.iter().filter(is_limit).map(view_limit).collect();
        limits.sort_by(|a, b| a.name.cmp(&b.name));
        limits
    }

    /// Returns for the place of which limit a step waits; `None`: for none.
    pub fn view_wait(&self, job: i64, step: StepIndex, now: Timestamp) -> Option<WaitView> {
        let slot = self.slots.get(&(job, step)).filter(|slot| self.is_in_line(slot))?;
        let class = self.class(slot.class);
        let (index, _) = class.parked.as_ref()?;
        let place = self.view_place(*index, now)?;
        let limit = &self.limits[self.places[*index].as_ref()?.limit];
        let rank = slot.rank((job, step));
        Some(WaitView {
            limit: limit.name.clone(),
            key: place.key,
            setting: limit.setting,
            before: class.queue.range(..rank).count(),
            held: place.held,
            next: place.next,
        })
    }

    fn view_place(&self, index: usize, now: Timestamp) -> Option<PlaceView> {
        let place = self.places[index].as_ref()?;
        let rate = self.limits[place.limit].setting.rate;
        let next = rate.map(|rate| place.sending_time(&rate, 0)).filter(|time| *time > now);
        let (key, held, waiting) = (place.key.clone(), place.held, place.waiting);
        Some(PlaceView { key, held, waiting, next })
    }
}
