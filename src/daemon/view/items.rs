//! Views of the items of a fan-out step: counts, states and times.

use engine::{FanOutKeys, ItemCounts, ItemState, Timestamp, Tolerate};
use serde::Serialize;
use utoipa::ToSchema;

/// How many items are in each state.
#[derive(Serialize, ToSchema)]
#[schema(as = Items)]
pub struct ItemsView {
    items: u32,
    /// Items whose child jobs have not started.
    waiting: u32,
    running: u32,
    completed: u32,
    failed: u32,
    /// Items whose child jobs were running when the step or the job ended.
    cancelled: u32,
    /// How many child jobs may run at once.
    window: u32,
    /// How many items may fail before the step fails, as the workflow file says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    tolerate: Option<String>,
    /// How many items may fail before the step fails, as a number.
    tolerated: u32,
}

impl ItemsView {
    /// Creates the view of a fan-out step. `default_window` is for tasks without `maxConcurrency`.
    pub fn new(keys: &FanOutKeys, counts: ItemCounts, default_window: u32) -> ItemsView {
        let ItemCounts { items, waiting, running, completed, failed, cancelled } = counts;
        let tolerate = keys.tolerate;
        ItemsView {
            items,
            waiting,
            running,
            completed,
            failed,
            cancelled,
            window: keys.max_concurrency.unwrap_or(default_window),
            tolerate: (tolerate != Tolerate::default()).then(|| tolerate.to_string()),
            tolerated: tolerate.failures_max(items),
        }
    }
}

/// The size of an item's state in an [`ItemMap`], in bits.
const BITS_PER_ITEM: usize = 2;

/// How many items share a byte of an [`ItemMap`].
const ITEMS_PER_BYTE: usize = 8 / BITS_PER_ITEM;

/// The states of items in two bits each: four items per byte, the first in the lowest bits. 0 is
/// waiting, 1 running (or cancelled, once the step or the job has ended), 2 completed, 3 failed.
pub struct ItemMap(Vec<u8>);

impl ItemMap {
    /// Returns the size of a map of `items` items, in bytes.
    pub(crate) fn byte_len(items: u32) -> usize {
        (items as usize).div_ceil(ITEMS_PER_BYTE)
    }

    /// Creates a map of waiting items.
    pub fn new(items: u32) -> ItemMap {
        ItemMap(vec![0; ItemMap::byte_len(items)])
    }

    /// Sets the state of an item that is still waiting in the map. Ignores an item beyond its end.
    pub fn set(&mut self, item: u32, state: ItemState) {
        let index = item as usize;
        if let Some(byte) = self.0.get_mut(index / ITEMS_PER_BYTE) {
            *byte |= to_bits(state) << (BITS_PER_ITEM * (index % ITEMS_PER_BYTE));
        }
    }

    /// Returns the state of an item; waiting beyond the end of the map.
    pub(crate) fn get(&self, item: u32) -> ItemState {
        let index = item as usize;
        let byte = self.0.get(index / ITEMS_PER_BYTE).copied().unwrap_or_default();
        from_bits(byte >> (BITS_PER_ITEM * (index % ITEMS_PER_BYTE)))
    }

    /// Returns the bytes of the map.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl FromIterator<ItemState> for ItemMap {
    fn from_iter<I: IntoIterator<Item = ItemState>>(states: I) -> ItemMap {
        let mut map = ItemMap(Vec::new());
        for (item, state) in (0..).zip(states) {
            map.0.resize(ItemMap::byte_len(item + 1), 0);
            map.set(item, state);
        }
        map
    }
}

/// The number in [`ItemTimes`] for a child job that has not started, or not ended. Each of its
/// bytes is 0xff.
const NEVER: u32 = u32::MAX;

/// The size of a number in [`ItemTimes`], in bytes.
const NUMBER_BYTES: usize = size_of::<u32>();

/// The length of a millisecond, in nanoseconds.
const MILLI_NS: i64 = 1_000_000;

/// The times at which the child jobs of items started and ended: two 32-bit numbers per item,
/// little-endian, in milliseconds since the start of the step.
pub struct ItemTimes {
    /// The start of the step.
    started: Timestamp,
    bytes: Vec<u8>,
}

impl ItemTimes {
    /// Returns the size of the times of `items` items, in bytes. It is also the offset of the item
    /// with this index.
    pub(crate) fn byte_len(items: u32) -> usize {
        items as usize * 2 * NUMBER_BYTES
    }

    /// Creates the times of items that have not started. `started` is the start of the step.
    pub fn new(items: u32, started: Timestamp) -> ItemTimes {
        ItemTimes { started, bytes: vec![NEVER.to_le_bytes()[0]; ItemTimes::byte_len(items)] }
    }

    /// Sets the times of an item. Ignores an item that does not exist. A time before the start of
    /// the step becomes 0, and one that is too large for a number becomes the largest before
    /// [`NEVER`].
    pub fn set(&mut self, item: u32, started: Timestamp, ended: Option<Timestamp>) {
        let offset = ItemTimes::byte_len(item);
        let Some(numbers) = self.bytes.get_mut(offset..offset + 2 * NUMBER_BYTES) else { return };
        let to_millis = |time: Timestamp| {
            let millis = time.0.saturating_sub(self.started.0).max(0) / MILLI_NS;
            u32::try_from(millis).unwrap_or(NEVER).min(NEVER - 1)
        };
        let (start_number, end_number) = numbers.split_at_mut(NUMBER_BYTES);
        start_number.copy_from_slice(&to_millis(started).to_le_bytes());
        end_number.copy_from_slice(&ended.map_or(NEVER, to_millis).to_le_bytes());
    }

    /// Returns the bytes of all numbers.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Returns the [`BITS_PER_ITEM`] bits of a state.
fn to_bits(state: ItemState) -> u8 {
    match state {
        ItemState::Waiting => 0,
        ItemState::Running => 1,
        ItemState::Completed => 2,
        ItemState::Failed => 3,
    }
}

/// Returns the state in the lowest [`BITS_PER_ITEM`] bits.
fn from_bits(bits: u8) -> ItemState {
    match bits & 0b11 {
        0 => ItemState::Waiting,
        1 => ItemState::Running,
        2 => ItemState::Completed,
        _ => ItemState::Failed,
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
        let mut map = ItemMap::new(5);
        for (item, state) in (0..).zip(states) {
            map.set(item, state);
        }
        map.set(8, Failed);
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 8].map(|item| map.get(item)),
            [Running, Completed, Failed, Waiting, Failed, Waiting, Waiting]
        );
        assert_eq!(map.into_bytes(), [0b0011_1001, 0b11]);
        assert_eq!([0, 1, 4, 5].map(ItemMap::byte_len), [0, 1, 1, 2]);
    }

    #[test]
    fn each_item_has_two_numbers_from_the_start_of_the_step_on() {
        let time_at = |millis: i64| Timestamp(1_000 + millis * MILLI_NS);
        let mut times = ItemTimes::new(4, time_at(0));
        times.set(0, time_at(1), Some(time_at(258)));
        times.set(1, time_at(-5), None);
        times.set(3, time_at(7), Some(time_at(1 << 40)));
        times.set(4, time_at(7), None);
        let bytes = times.into_bytes();
        let numbers: Vec<u32> = bytes
            .chunks(NUMBER_BYTES)
            .map(|number| u32::from_le_bytes(number.try_into().expect("four bytes")))
            .collect();
        assert_eq!(numbers, [1, 258, 0, NEVER, NEVER, NEVER, 7, NEVER - 1]);
        assert_eq!(&bytes[4..8], [2, 1, 0, 0], "the lowest byte first");
    }
}
