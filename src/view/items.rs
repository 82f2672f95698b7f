//! The items of a fan-out step.

use crate::engine::{FanOut, ItemState, Job, StepIndex, Tolerate};
use serde::Serialize;
use utoipa::ToSchema;

/// How many items are in which state.
#[derive(Serialize, ToSchema)]
#[schema(as = Items)]
pub struct ItemsView {
    items: u32,
    /// Their child jobs have not started.
    waiting: u32,
    running: u32,
    completed: u32,
    failed: u32,
    /// How many child jobs may be under way at once.
    window: u32,
    /// How many may fail before the step does, as the workflow file says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    tolerate: Option<String>,
    /// The same as a number of items.
    tolerated: u32,
}

impl ItemsView {
    /// The items of a step; `window` is that of steps whose tasks do not say one.
    pub fn of(job: &Job, step: StepIndex, fan_out: &FanOut, window: u32) -> ItemsView {
        let keys = job.task_keys(step);
        let tolerate = keys.map(|keys| keys.tolerate).unwrap_or_default();
        ItemsView {
            items: fan_out.items(),
            waiting: fan_out.items() - fan_out.started(),
            running: fan_out.started() - fan_out.ended(),
            completed: fan_out.ended() - fan_out.failed(),
            failed: fan_out.failed(),
            window: keys.and_then(|keys| keys.max_concurrency).unwrap_or(window),
            tolerate: (tolerate != Tolerate::default()).then(|| tolerate.to_string()),
            tolerated: tolerate.of(fan_out.items()),
        }
    }
}

/// The state of each item in two bits: four items a byte, the first in its lowest bits. 0 is
/// waiting, 1 running, 2 completed, 3 failed.
pub struct ItemMap(Vec<u8>);

/// How many items share a byte.
const ITEMS_A_BYTE: usize = 4;

impl ItemMap {
    /// The size of the map of so many items.
    pub fn bytes_of(items: u32) -> usize {
        (items as usize).div_ceil(ITEMS_A_BYTE)
    }

    /// A map on which all items wait.
    pub fn of(items: u32) -> ItemMap {
        ItemMap(vec![0; ItemMap::bytes_of(items)])
    }

    /// Sets the state of an item that waits; one that is not on the map is left out.
    pub fn set(&mut self, item: u32, state: ItemState) {
        let at = item as usize;
        if let Some(byte) = self.0.get_mut(at / ITEMS_A_BYTE) {
            *byte |= bits(state) << (2 * (at % ITEMS_A_BYTE));
        }
    }

    /// The map.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl FromIterator<ItemState> for ItemMap {
    fn from_iter<I: IntoIterator<Item = ItemState>>(states: I) -> ItemMap {
        let mut map = ItemMap(Vec::new());
        for (item, state) in (0..).zip(states) {
            map.0.resize(ItemMap::bytes_of(item + 1), 0);
            map.set(item, state);
        }
        map
    }
}

fn bits(state: ItemState) -> u8 {
    match state {
        ItemState::Waiting => 0,
        ItemState::Running => 1,
        ItemState::Completed => 2,
        ItemState::Failed => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_items_share_a_byte_and_the_first_has_its_lowest_bits() {
        use ItemState::{Completed, Failed, Running, Waiting};
        let states = [Running, Completed, Failed, Waiting, Failed];
        let collected: ItemMap = states.into_iter().collect();
        assert_eq!(collected.into_bytes(), [0b0011_1001, 0b11]);
        let mut set = ItemMap::of(5);
        for (item, state) in (0..).zip(states) {
            set.set(item, state);
        }
        set.set(8, Failed);
        assert_eq!(set.into_bytes(), [0b0011_1001, 0b11]);
        assert_eq!([0, 1, 4, 5].map(ItemMap::bytes_of), [0, 1, 1, 2]);
    }
}
