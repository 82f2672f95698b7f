//! A fan-out step under way: which items were started, and what their child jobs returned
//! (docs/workflow-file.md). The work for the end of a child job is O(keys of its result), however
//! many siblings it has.

use super::definition::FanOutKeys;
use super::entry::FanOutEntry;
use super::id::JobId;
use super::input::Context;
use super::json::{Elements, Json, JsonKind, Message, find_item_uuid};
use super::value_bytes::result_bytes;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The items of a fan-out step, with the state and the result of each.
#[derive(Clone, Debug, PartialEq)]
pub struct FanOut {
    keys: FanOutKeys,
    input: Message,
    elements: Option<Elements>,
    slots: Vec<Slot>,
    item_count: u32,
    next_index: u32,
    ended: u32,
    failed: u32,
    /// How many ended with their job, which had failed for another reason.
    cut_off: u32,
    without_item: u32,
    own_ids: HashMap<u32, JobId>,
    /// How often each child job was retried; a child job that is not in the map never was.
    rounds: HashMap<u32, u32>,
    /// The first salt for the ids of child jobs: each rerun of the step has its own child jobs.
    first_salt: u32,
    /// The ids in use. No two items of a list get the same id: a late reply to one would settle the
    /// other.
    used_ids: HashSet<JobId>,
    other_keys: HashMap<Arc<str>, (KeyOrder, Json)>,
    list_order: Option<KeyOrder>,
    /// The size of a child's message without its element.
    shell_bytes: u64,
    /// The total size of the messages of the child jobs under way.
    under_way_bytes: u64,
    /// The size of what ended child jobs have returned.
    gathered_bytes: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Slot {
    NotStarted,
    UnderWay,
    Completed(Option<Json>),
    Failed,
    /// The child job ended with the job.
    CutOff,
}

/// The state of an item, for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemState {
    /// Its child job has not started.
    Waiting,
    /// Its child job is under way; or was, when the step or the job ended.
    Running,
    /// Its child job has completed.
    Completed,
    /// Its child job has failed or was cancelled.
    Failed,
}

/// How many items of a fan-out are in which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ItemCounts {
    /// All items.
    pub items: u32,
    /// Items whose child jobs have not started.
    pub waiting: u32,
    /// Items whose child jobs are under way.
    pub running: u32,
    /// Items whose child jobs have completed.
    pub completed: u32,
    /// Items whose child jobs have failed.
    pub failed: u32,
    /// Items whose child jobs were cut off by the end of the step or of the job.
    pub cancelled: u32,
}

/// Where a key of the output comes from: the child's index, then the key's position in that child's
/// result.
type KeyOrder = (u32, u16);

/// The value that the input has under the list's key.
pub(super) enum ListValue {
    Items(Elements),
    Missing,
    NotAList(JsonKind),
}

impl ListValue {
    pub(super) fn from_input(input: &Message, keys: &FanOutKeys) -> ListValue {
        match input.get(&keys.list_key) {
            None => ListValue::Missing,
            Some(value) if value.kind() == JsonKind::Null => ListValue::Missing,
            Some(value) => match Elements::parse(value) {
                Ok(elements) => ListValue::Items(elements),
                Err(kind) => ListValue::NotAList(kind),
            },
        }
    }
}

impl FanOut {
    pub(super) fn new(keys: FanOutKeys, input: Message, reruns: u32) -> FanOut {
        let elements = match ListValue::from_input(&input, &keys) {
            ListValue::Items(elements) => Some(elements),
            ListValue::Missing | ListValue::NotAList(_) => None,
        };
        let count = elements.as_ref().map_or(0, Elements::count);
        let shell = elements
            .as_ref()
            .map(|_| input.with_replaced(&keys.list_key, &keys.item_key, Json::null()));
        let shell_bytes = shell.map_or(0, |shell| {
            to_u64(shell.encoded_len().saturating_sub(Json::null().text().len()))
        });
        FanOut {
            keys,
            input,
            elements,
            slots: vec![Slot::NotStarted; count as usize],
            item_count: count,
            next_index: 0,
            ended: 0,
            failed: 0,
            cut_off: 0,
            without_item: 0,
            own_ids: HashMap::new(),
            rounds: HashMap::new(),
            first_salt: reruns.saturating_mul(SALTS_MAX + 1),
            used_ids: HashSet::new(),
            other_keys: HashMap::new(),
            list_order: None,
            shell_bytes,
            under_way_bytes: 0,
            gathered_bytes: 0,
        }
    }

    /// Returns the number of items.
    pub fn items(&self) -> u32 {
        self.item_count
    }

    /// Returns how many child jobs were started.
    pub fn started(&self) -> u32 {
        self.next_index
    }

    /// Returns how many bytes ended child jobs have returned, until the output is put together.
    pub(super) fn gathered_bytes(&self) -> usize {
        self.gathered_bytes
    }

    /// Returns how many child jobs have ended.
    pub fn ended(&self) -> u32 {
        self.ended
    }

    /// Returns how many child jobs have failed.
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// Returns how many items are in which state; `is_over`: the step, or its job, has ended.
    pub(super) fn counts(&self, is_over: bool) -> ItemCounts {
        let under_way = self.under_way_count();
        ItemCounts {
            items: self.item_count,
            waiting: self.item_count - self.next_index,
            running: if is_over { 0 } else { under_way },
            completed: self.ended - self.failed - self.cut_off,
            failed: self.failed,
            cancelled: self.cut_off + if is_over { under_way } else { 0 },
        }
    }

    /// Returns how many results came without the singular key; each became `null` in the list.
    pub fn without_item(&self) -> u32 {
        self.without_item
    }

    /// Returns the state of each item, in order. `None`: the step has ended, and keeps only counts.
    pub fn item_states(&self) -> Option<impl Iterator<Item = ItemState>> {
        (self.slots.len() == self.item_count as usize).then(|| {
            self.slots.iter().map(|slot| match slot {
                Slot::NotStarted => ItemState::Waiting,
                Slot::UnderWay | Slot::CutOff => ItemState::Running,
                Slot::Completed(_) => ItemState::Completed,
                Slot::Failed => ItemState::Failed,
            })
        })
    }

    /// Returns the key of the item in a child job's result.
    pub fn item_key(&self) -> &str {
        &self.keys.item_key
    }

    /// Returns the id of the child job at `index`, as recorded when it was started.
    pub fn child_id(&self, job: JobId, step: &str, index: u32) -> JobId {
        self.own_ids
            .get(&index)
            .copied()
            .unwrap_or_else(|| job.derive_child(step, index, self.first_salt))
    }

    /// Returns the message of the child job at `index` (docs/workflow-file.md).
    pub fn child_message(&self, index: u32) -> Message {
        let element = match &self.elements {
            Some(elements) => elements.get(index),
            // A step that has ended has dropped its elements: they are read from the input again.
            None => match ListValue::from_input(&self.input, &self.keys) {
                ListValue::Items(elements) if index < elements.count() => elements.get(index),
                ListValue::Items(_) | ListValue::Missing | ListValue::NotAList(_) => {
                    return self.input.clone();
                }
            },
        };
        self.input.with_replaced(&self.keys.list_key, &self.keys.item_key, element)
    }

    /// Returns the step's input.
    pub fn input(&self) -> &Message {
        &self.input
    }

    /// Returns the indices of the child jobs that were started and have not ended.
    pub fn under_way(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.next_index).filter(|index| self.is_under_way(*index))
    }

    /// Returns how many child jobs were started and have not ended.
    pub(super) fn under_way_count(&self) -> u32 {
        self.next_index - self.ended
    }

    pub(super) fn is_under_way(&self, index: u32) -> bool {
        matches!(self.slots.get(index as usize), Some(Slot::UnderWay))
    }

    /// Returns how often the child job at `index` has been retried.
    pub(super) fn round(&self, index: u32) -> u32 {
        self.rounds.get(&index).copied().unwrap_or(0)
    }

    /// Returns whether so many failed child jobs are more than the task tolerates.
    pub(super) fn exceeds_tolerance(&self, failed: u32) -> bool {
        failed > self.keys.tolerate.failures_max(self.item_count)
    }

    /// Returns the indices of the child jobs that a restart continues: those that were started and
    /// have no result.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.next_index).filter(|index| {
            let slot = self.slots.get(*index as usize);
            matches!(slot, Some(Slot::UnderWay | Slot::Failed | Slot::CutOff))
        })
    }

    pub(super) fn is_all_ended(&self) -> bool {
        self.ended == self.items()
    }

    /// Decides which items to start now: as many as the window has room for. An item's own id is
    /// used, unless an item before it has the same id. Whether another job has the id shows when
    /// the child job starts.
    pub(super) fn decide_start(
        &self,
        job: JobId,
        name: &str,
        ctx: &Context<'_>,
    ) -> Option<FanOutEntry> {
        let window = self.keys.max_concurrency.unwrap_or(ctx.limits.window).max(1);
        let under_way = self.under_way_count();
        let left = self.items() - self.next_index;
        let count = self
            .count_that_fit(window.saturating_sub(under_way).min(left), ctx.limits.window_bytes);
        // The window may allow more child jobs, but have no room for a large message.
        if count == 0 || count < batch_min(under_way + count).min(left) {
            return None;
        }
        let (mut own_ids, mut new_ids) = (Vec::new(), HashSet::new());
        // All ids of a rerun are new: late reports of the earlier child jobs must not be taken for
        // theirs.
        let elements = self.elements.as_ref().filter(|_| self.first_salt == 0);
        for index in elements.iter().flat_map(|_| self.next_index..self.next_index + count) {
            let own_id = elements.and_then(|elements| find_item_uuid(&elements.get(index)));
            let Some(id) = own_id.filter(|id| !self.used_ids.contains(id)) else { continue };
            if id != job.derive_child(name, index, self.first_salt) && new_ids.insert(id) {
                own_ids.push((index, id));
            }
        }
        Some(FanOutEntry::ChildrenStarted { from: self.next_index, count, own_ids })
    }

    /// Returns how many of the next `most` child jobs have room beside those under way; at least
    /// one if none is under way.
    fn count_that_fit(&self, most: u32, bytes_max: u64) -> u32 {
        let mut sum = self.under_way_bytes;
        let fits = |index: &u32| {
            sum = sum.saturating_add(self.message_bytes(*index));
            sum <= bytes_max
        };
        let count = (self.next_index..self.next_index + most).take_while(fits).count();
        let is_idle = self.next_index == self.ended;
        u32::try_from(count).unwrap_or(u32::MAX).max(u32::from(is_idle).min(most))
    }

    /// Returns the size of the message of the child job at `index`.
    fn message_bytes(&self, index: u32) -> u64 {
        self.shell_bytes.saturating_add(
            self.elements.as_ref().map_or(0, |elements| to_u64(elements.element_len(index))),
        )
    }

    /// Decides what a child's result adds: its item, and each other key that no earlier child in
    /// the list has given so far.
    pub(super) fn decide_completed(&self, index: u32, result: &Message) -> FanOutEntry {
        let mut item = None;
        let mut others = Vec::new();
        for (place, (key, value)) in result.iter().enumerate() {
            let place = u16::try_from(place).unwrap_or(u16::MAX);
            if *key == self.keys.item_key {
                item = Some((place, value.clone()));
            } else if *key != self.keys.list_key
                && self.other_keys.get(key).is_none_or(|((first, _), _)| index < *first)
            {
                others.push((place, key.clone(), value.clone()));
            }
        }
        FanOutEntry::ChildCompleted { index, item, others }
    }

    pub(super) fn mark_started(&mut self, from: u32, count: u32, own_ids: &[(u32, JobId)]) {
        for index in from..from + count {
            self.slots[index as usize] = Slot::UnderWay;
            self.under_way_bytes += self.message_bytes(index);
        }
        self.next_index = from + count;
        self.own_ids.extend(own_ids.iter().copied());
        self.used_ids.extend(own_ids.iter().map(|(_, id)| *id));
    }

    pub(super) fn mark_started_again(&mut self, index: u32, id: JobId) {
        self.own_ids.insert(index, id);
        self.used_ids.insert(id);
    }

    pub(super) fn mark_completed(
        &mut self,
        index: u32,
        item: Option<&(u16, Json)>,
        others: &[(u16, Arc<str>, Json)],
    ) {
        if let Some((place, _)) = item {
            let place = (index, *place);
            self.list_order = Some(self.list_order.map_or(place, |earlier| earlier.min(place)));
        }
        self.slots[index as usize] = Slot::Completed(item.map(|(_, value)| value.clone()));
        self.gathered_bytes += result_bytes(item, others);
        self.mark_ended(index);
        self.without_item += u32::from(item.is_none());
        for (place, key, value) in others {
            self.other_keys.insert(key.clone(), ((index, *place), value.clone()));
        }
    }

    /// Marks the child jobs without a result as under way again.
    pub(super) fn mark_restarted(&mut self) {
        let unfinished: Vec<u32> = self.unfinished().collect();
        for index in unfinished {
            let slot = std::mem::replace(&mut self.slots[index as usize], Slot::UnderWay);
            if slot != Slot::UnderWay {
                self.under_way_bytes += self.message_bytes(index);
                self.ended -= 1;
                self.failed -= u32::from(slot == Slot::Failed);
                self.cut_off -= u32::from(slot == Slot::CutOff);
            }
            *self.rounds.entry(index).or_default() += 1;
        }
    }

    /// Marks a child job as failed. `is_cut_off`: the job had ended before.
    pub(super) fn mark_failed(&mut self, index: u32, is_cut_off: bool) {
        self.slots[index as usize] = if is_cut_off { Slot::CutOff } else { Slot::Failed };
        self.mark_ended(index);
        self.failed += u32::from(!is_cut_off);
        self.cut_off += u32::from(is_cut_off);
    }

    fn mark_ended(&mut self, index: u32) {
        self.ended += 1;
        self.under_way_bytes = self.under_way_bytes.saturating_sub(self.message_bytes(index));
    }

    /// Returns the gathered output (docs/workflow-file.md): keys in the order of the first child
    /// that has them.
    pub(super) fn output(&self) -> Message {
        if self.item_count == 0 {
            return self.input.clone();
        }
        let items = self.slots.iter().map(|slot| match slot {
            Slot::Completed(item) => item.as_ref(),
            Slot::NotStarted | Slot::UnderWay | Slot::Failed | Slot::CutOff => None,
        });
        let list = (
            self.list_order.unwrap_or((u32::MAX, 0)),
            self.keys.list_key.clone(),
            Json::array(items),
        );
        let mut keyed: Vec<(KeyOrder, Arc<str>, Json)> = self
            .other_keys
            .iter()
            .map(|(key, (place, value))| (*place, key.clone(), value.clone()))
            .collect();
        keyed.push(list);
        keyed.sort_by_key(|(place, _, _)| *place);
        keyed.into_iter().map(|(_, key, value)| (key, value)).collect()
    }

    /// Returns the id to try next, after the one that the child job at `index` has now.
    pub(super) fn next_id(&self, job: JobId, step: &str, index: u32) -> Option<JobId> {
        let salted =
            |salt: u32| job.derive_child(step, index, self.first_salt.saturating_add(salt));
        let now = self.child_id(job, step, index);
        let tried = (0..=SALTS_MAX).find(|salt| salted(*salt) == now);
        let next = tried.map_or(0, |salt| salt + 1);
        (next <= SALTS_MAX).then(|| salted(next))
    }

    /// Frees what only a running fan-out needs; the ids of the child jobs stay.
    pub(super) fn free(&mut self) {
        self.elements = None;
        self.other_keys = HashMap::new();
        self.used_ids = HashSet::new();
        self.rounds = HashMap::new();
        self.slots = Vec::new();
        self.under_way_bytes = 0;
        self.gathered_bytes = 0;
    }
}

fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// With at least this many under way, child jobs are started in batches: one entry and one commit
/// for many.
const BATCH_FROM_WINDOW: u32 = 1_000;

/// Returns how many must have room before more child jobs are started in a window of this size.
fn batch_min(window: u32) -> u32 {
    if window < BATCH_FROM_WINDOW { 1 } else { window / 16 }
}

/// The highest salt that is tried before a child job fails. Not even one clash comes about by
/// chance.
const SALTS_MAX: u32 = 16;
