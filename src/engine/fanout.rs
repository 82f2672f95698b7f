//! The state of a fan-out step: which items have started, and what their child jobs have returned
//! (docs/reference/workflow-data.md).
//!
//! Applying the end of a child job takes O(n) for the n keys of its result, independent of the
//! number of items.

use super::definition::FanOutKeys;
use super::entry::FanOutEntry;
use super::id::JobId;
use super::input::Context;
use super::json::{Elements, Json, JsonKind, Message, find_item_uuid};
use super::value_bytes::result_bytes;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The state of a fan-out step: its items, and the state and the result of each.
#[derive(Clone, Debug, PartialEq)]
pub struct FanOut {
    /// What the task fans out over.
    keys: FanOutKeys,
    /// The input with which the step started.
    input: Message,
    /// The elements of the list; `None`: the input has no list, or the step has completed.
    elements: Option<Elements>,
    /// The state of each item; empty once the step has completed.
    slots: Vec<Slot>,
    /// Once the step has completed: the indices of the items without a result.
    failed_items: Vec<u32>,
    /// The number of elements of the list.
    item_count: u32,
    /// The index of the next item to start. Items start in order.
    next_index: u32,
    /// The number of child jobs that have ended, in whatever way.
    ended_count: u32,
    /// The number of child jobs that have failed, without those that were cut off.
    failed_count: u32,
    /// The number of child jobs that were cut off (see [`Slot::CutOff`]).
    cut_off_count: u32,
    /// The number of results without the item key.
    without_item_count: u32,
    /// The ids of child jobs that differ from the derived ones, by the item's index.
    recorded_ids: HashMap<u32, JobId>,
    /// How often each child job was retried, by the item's index; a missing entry means never.
    rounds: HashMap<u32, u32>,
    /// The salt from which the ids of child jobs are derived first. It differs for each rerun of
    /// the step, which starts child jobs of its own.
    first_salt: u32,
    /// All ids that `recorded_ids` has ever had. No two items of a list may have the same id: a
    /// late reply to one would count for the other.
    used_ids: HashSet<JobId>,
    /// The output's keys besides the list: the value from the first child that has the key.
    other_values: HashMap<Arc<str>, (KeyOrder, Json)>,
    /// The position of the list in the output; `None`: no result has had the item key.
    list_order: Option<KeyOrder>,
    /// The size of a child's message without its item, in bytes.
    bytes_without_item: u64,
    /// The total size of the messages of active child jobs, in bytes.
    active_bytes: u64,
    /// The total of [`result_bytes`] of the ended child jobs.
    gathered_bytes: usize,
}

/// The state of an item, with its result.
#[derive(Clone, Debug, PartialEq)]
enum Slot {
    /// Its child job has not started.
    NotStarted,
    /// Its child job has started and not ended.
    Active,
    /// Its child job has completed with this item; `None`: the result has no item key.
    Completed(Option<Json>),
    /// Its child job failed, or was cancelled by a client, before this job ended.
    Failed,
    /// Its child job ended without a result after this job had ended, which halts its child jobs.
    CutOff,
}

/// The state of an item, as users see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemState {
    /// Its child job has not started.
    Waiting,
    /// Its child job is active, or was when the step or the job ended.
    Running,
    /// Its child job has completed.
    Completed,
    /// Its child job has failed, or was cancelled by a client.
    Failed,
}

/// The number of items of a fan-out in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ItemCounts {
    /// All items of the list.
    pub items: u32,
    /// Items whose child jobs have not started.
    pub waiting: u32,
    /// Items whose child jobs are active; 0 once the step or the job has ended.
    pub running: u32,
    /// Items whose child jobs have completed.
    pub completed: u32,
    /// Items whose child jobs have failed.
    pub failed: u32,
    /// Items whose child jobs were cut off by the end of the step or of the job.
    pub cancelled: u32,
}

/// The sort key of an output's key. The order of the fields is the order of comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KeyOrder {
    /// The index of the child that returned the key.
    child: u32,
    /// The position of the key in that child's result.
    position: u16,
}

impl KeyOrder {
    /// The order of a key that no child has returned: behind all others.
    const LAST: KeyOrder = KeyOrder { child: u32::MAX, position: 0 };
}

/// The value under the list key of a step's input.
pub(super) enum ListValue {
    /// The elements of a list.
    Items(Elements),
    /// There is no such key, or its value is `null`.
    Missing,
    /// The value is of another kind.
    NotAList(JsonKind),
}

impl ListValue {
    /// Reads the value under the list key of `input`.
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
    /// Starts a fan-out over the list in `input`. `reruns`: how often the step was rerun.
    pub(super) fn new(keys: FanOutKeys, input: Message, reruns: u32) -> FanOut {
        let elements = match ListValue::from_input(&input, &keys) {
            ListValue::Items(elements) => Some(elements),
            ListValue::Missing | ListValue::NotAList(_) => None,
        };
        let item_count = elements.as_ref().map_or(0, Elements::count);
        let bytes_without_item = elements.as_ref().map_or(0, |_| {
            let null_item = Json::null();
            let null_item_bytes = null_item.text().len();
            let message = input.with_replaced(&keys.list_key, &keys.item_key, null_item);
            to_u64(message.encoded_len().saturating_sub(null_item_bytes))
        });
        FanOut {
            keys,
            input,
            elements,
            slots: vec![Slot::NotStarted; item_count as usize],
            failed_items: Vec::new(),
            item_count,
            next_index: 0,
            ended_count: 0,
            failed_count: 0,
            cut_off_count: 0,
            without_item_count: 0,
            recorded_ids: HashMap::new(),
            rounds: HashMap::new(),
            first_salt: reruns.saturating_mul(SALTS_MAX + 1),
            used_ids: HashSet::new(),
            other_values: HashMap::new(),
            list_order: None,
            bytes_without_item,
            active_bytes: 0,
            gathered_bytes: 0,
        }
    }

    /// Returns the number of items.
    pub fn items(&self) -> u32 {
        self.item_count
    }

    /// Returns the number of child jobs that have started.
    pub fn started(&self) -> u32 {
        self.next_index
    }

    /// Returns the total of [`result_bytes`] of the ended child jobs; 0 once the step has
    /// completed.
    pub(super) fn gathered_bytes(&self) -> usize {
        self.gathered_bytes
    }

    /// Returns roughly how much memory the states and ids of the items take, in bytes.
    pub(super) fn bookkeeping_bytes(&self) -> usize {
        let element_bytes = if self.elements.is_some() { size_of::<(u32, u32)>() } else { 0 };
        self.slots.capacity() * (size_of::<Slot>() + element_bytes)
            + self.recorded_ids.capacity() * size_of::<(u32, JobId)>()
            + self.failed_items.capacity() * size_of::<u32>()
            + self.rounds.capacity() * size_of::<(u32, u32)>()
            + self.used_ids.capacity() * size_of::<JobId>()
    }

    /// Returns the number of child jobs that have ended, in whatever way.
    pub fn ended(&self) -> u32 {
        self.ended_count
    }

    /// Returns the number of child jobs that have failed, without those that ended after this job.
    pub fn failed(&self) -> u32 {
        self.failed_count
    }

    /// Returns the number of items in each state. `is_over`: the step, or its job, has ended.
    pub(super) fn counts(&self, is_over: bool) -> ItemCounts {
        let active_count = self.active_count();
        ItemCounts {
            items: self.item_count,
            waiting: self.item_count - self.next_index,
            running: if is_over { 0 } else { active_count },
            completed: self.completed_count(),
            failed: self.failed_count,
            cancelled: self.cut_off_count + if is_over { active_count } else { 0 },
        }
    }

    /// Returns the number of child jobs that have completed.
    fn completed_count(&self) -> u32 {
        self.ended_count - self.failed_count - self.cut_off_count
    }

    /// Returns the number of items whose child jobs have not completed.
    pub(super) fn without_result(&self) -> u32 {
        self.item_count - self.completed_count()
    }

    /// Returns the number of results without the item key; each is `null` in the output's list.
    pub fn without_item(&self) -> u32 {
        self.without_item_count
    }

    /// Returns the state of each item, in order; `None`: the step has completed, and only the
    /// counts are kept.
    pub fn item_states(&self) -> Option<impl Iterator<Item = ItemState>> {
        (self.slots.len() == self.item_count as usize).then(|| {
            self.slots.iter().map(|slot| match slot {
                Slot::NotStarted => ItemState::Waiting,
                Slot::Active | Slot::CutOff => ItemState::Running,
                Slot::Completed(_) => ItemState::Completed,
                Slot::Failed => ItemState::Failed,
            })
        })
    }

    /// Returns the item key: the key of an item in a child job's message and result.
    pub fn item_key(&self) -> &str {
        &self.keys.item_key
    }

    /// Returns the id of the child job at `index`. `job` and `step` are those of the fan-out: the
    /// id is derived from them, unless another one was recorded.
    pub fn child_id(&self, job: JobId, step: &str, index: u32) -> JobId {
        self.recorded_ids
            .get(&index)
            .copied()
            .unwrap_or_else(|| job.derive_child(step, index, self.first_salt))
    }

    /// Returns the message of the child job at `index`, which must have an item
    /// (docs/reference/workflow-data.md).
    pub fn child_message(&self, index: u32) -> Message {
        let element = match &self.elements {
            Some(elements) => elements.get(index),
            // A step that has completed has freed its elements: they are parsed from the input
            // again.
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

    /// Returns the indices of the child jobs that have started and not ended.
    pub fn active_children(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.next_index).filter(|index| self.is_child_active(*index))
    }

    /// Returns the number of child jobs that have started and not ended.
    pub(super) fn active_count(&self) -> u32 {
        self.next_index - self.ended_count
    }

    /// Returns whether the child job at `index` has started and not ended.
    pub(super) fn is_child_active(&self, index: u32) -> bool {
        matches!(self.slots.get(index as usize), Some(Slot::Active))
    }

    /// Returns how often the child job at `index` has been retried.
    pub(super) fn round(&self, index: u32) -> u32 {
        self.rounds.get(&index).copied().unwrap_or(0)
    }

    /// Returns whether the task tolerates fewer failed child jobs than `failed_count`.
    pub(super) fn exceeds_tolerance(&self, failed_count: u32) -> bool {
        failed_count > self.keys.tolerate.failures_max(self.item_count)
    }

    /// Returns the indices of the child jobs that have started and have no result: a restart of the
    /// step retries them.
    fn unfinished_children(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.next_index).filter(|index| {
            let slot = self.slots.get(*index as usize);
            matches!(slot, Some(Slot::Active | Slot::Failed | Slot::CutOff))
        })
    }

    /// Returns whether the child jobs of all items have ended.
    pub(super) fn have_all_ended(&self) -> bool {
        self.ended_count == self.item_count
    }

    /// Decides which items to start now, as many as fit in the window; `None`: none of them, or too
    /// few for a batch. A child job gets the UUID that its item contains, unless an earlier item
    /// has the same one. Conflicts with the ids of other jobs are detected when the child job
    /// starts.
    pub(super) fn decide_start(
        &self,
        job: JobId,
        step: &str,
        ctx: &Context<'_>,
    ) -> Option<FanOutEntry> {
        let window = self.keys.max_concurrency.unwrap_or(ctx.limits.window).max(1);
        let active_count = self.active_count();
        let waiting_count = self.item_count - self.next_index;
        let free_count = window.saturating_sub(active_count).min(waiting_count);
        let count = self.count_that_fit(free_count, ctx.limits.window_bytes);
        // If `window_bytes` is the tighter limit, the effective window is `active_count + count`.
        if count == 0 || count < batch_min(active_count + count).min(waiting_count) {
            return None;
        }
        let own_ids = self.find_item_ids(job, step, count);
        Some(FanOutEntry::ChildrenStarted { from: self.next_index, count, own_ids })
    }

    /// Returns which of the next `count` items contain the id of their child job, by their indices:
    /// an id that is new in this fan-out, and is not the derived one.
    fn find_item_ids(&self, job: JobId, step: &str, count: u32) -> Vec<(u32, JobId)> {
        let mut item_ids = Vec::new();
        // A rerun uses derived ids only: late reports of earlier child jobs must not be mistaken
        // for reports of the new ones.
        let Some(elements) = self.elements.as_ref().filter(|_| self.first_salt == 0) else {
            return item_ids;
        };
        let mut new_ids = HashSet::new();
        for index in self.next_index..self.next_index + count {
            let Some(id) = find_item_uuid(&elements.get(index)) else { continue };
            let derived_id = job.derive_child(step, index, self.first_salt);
            if !self.used_ids.contains(&id) && id != derived_id && new_ids.insert(id) {
                item_ids.push((index, id));
            }
        }
        item_ids
    }

    /// Returns how many of the next `count_max` child jobs fit in `bytes_max` together with the
    /// active ones; at least one if none is active.
    fn count_that_fit(&self, count_max: u32, bytes_max: u64) -> u32 {
        let mut total_bytes = self.active_bytes;
        let fits = |index: &u32| {
            total_bytes = total_bytes.saturating_add(self.message_bytes(*index));
            total_bytes <= bytes_max
        };
        let count = (self.next_index..self.next_index + count_max).take_while(fits).count();
        let is_idle = self.next_index == self.ended_count;
        u32::try_from(count).unwrap_or(u32::MAX).max(u32::from(is_idle).min(count_max))
    }

    /// Returns the size of the message of the child job at `index`, in bytes.
    fn message_bytes(&self, index: u32) -> u64 {
        self.bytes_without_item.saturating_add(
            self.elements.as_ref().map_or(0, |elements| to_u64(elements.element_len(index))),
        )
    }

    /// Decides what a child's result adds to the output: its item, and each other key that no child
    /// earlier in the list has returned so far.
    pub(super) fn decide_completed(&self, index: u32, result: &Message) -> FanOutEntry {
        let mut item = None;
        let mut other_values = Vec::new();
        for (position, (key, value)) in result.iter().enumerate() {
            let position = u16::try_from(position).unwrap_or(u16::MAX);
            if *key == self.keys.item_key {
                item = Some((position, value.clone()));
            } else if *key != self.keys.list_key
                && self.other_values.get(key).is_none_or(|(order, _)| index < order.child)
            {
                other_values.push((position, key.clone(), value.clone()));
            }
        }
        FanOutEntry::ChildCompleted { index, item, others: other_values }
    }

    /// Marks the child jobs `from..from + count` as started. `own_ids`: the ids that differ from
    /// the derived ones, with their items' indices.
    pub(super) fn mark_started(&mut self, from: u32, count: u32, own_ids: &[(u32, JobId)]) {
        for index in from..from + count {
            self.slots[index as usize] = Slot::Active;
            self.active_bytes += self.message_bytes(index);
        }
        self.next_index = from + count;
        self.recorded_ids.extend(own_ids.iter().copied());
        self.used_ids.extend(own_ids.iter().map(|(_, id)| *id));
    }

    /// Records that a child job is started again, with this id.
    pub(super) fn mark_started_again(&mut self, index: u32, id: JobId) {
        self.recorded_ids.insert(index, id);
        self.used_ids.insert(id);
    }

    /// Marks a child job as completed, and keeps what it adds to the output.
    pub(super) fn mark_completed(
        &mut self,
        index: u32,
        item: Option<&(u16, Json)>,
        others: &[(u16, Arc<str>, Json)],
    ) {
        if let Some((position, _)) = item {
            let order = KeyOrder { child: index, position: *position };
            self.list_order = Some(self.list_order.map_or(order, |earlier| earlier.min(order)));
        }
        self.slots[index as usize] = Slot::Completed(item.map(|(_, value)| value.clone()));
        self.gathered_bytes += result_bytes(item, others);
        self.mark_ended(index);
        self.without_item_count += u32::from(item.is_none());
        for (position, key, value) in others {
            let order = KeyOrder { child: index, position: *position };
            self.other_values.insert(key.clone(), (order, value.clone()));
        }
    }

    /// Returns the items whose child jobs the job has ordered to retry.
    pub fn retried_items(&self) -> impl Iterator<Item = u32> + '_ {
        self.rounds.keys().copied()
    }

    /// Marks the started child jobs without a result as active again, and counts a retry of each.
    pub(super) fn mark_restarted(&mut self) {
        let unfinished_children: Vec<u32> = self.unfinished_children().collect();
        for index in unfinished_children {
            let slot = std::mem::replace(&mut self.slots[index as usize], Slot::Active);
            if slot != Slot::Active {
                self.active_bytes += self.message_bytes(index);
                self.ended_count -= 1;
                self.failed_count -= u32::from(slot == Slot::Failed);
                self.cut_off_count -= u32::from(slot == Slot::CutOff);
            }
            *self.rounds.entry(index).or_default() += 1;
        }
    }

    /// Marks a child job as failed; `is_cut_off`: this job had ended before.
    pub(super) fn mark_failed(&mut self, index: u32, is_cut_off: bool) {
        self.slots[index as usize] = if is_cut_off { Slot::CutOff } else { Slot::Failed };
        self.mark_ended(index);
        self.failed_count += u32::from(!is_cut_off);
        self.cut_off_count += u32::from(is_cut_off);
    }

    /// Counts a child job as ended.
    fn mark_ended(&mut self, index: u32) {
        self.ended_count += 1;
        self.active_bytes = self.active_bytes.saturating_sub(self.message_bytes(index));
    }

    /// Returns the gathered output (docs/reference/workflow-data.md); for an empty list, the step's
    /// input. The output's keys are in the order of the first child that has them.
    pub(super) fn output(&self) -> Message {
        if self.item_count == 0 {
            return self.input.clone();
        }
        let items = self.slots.iter().map(|slot| match slot {
            Slot::Completed(item) => item.as_ref(),
            Slot::NotStarted | Slot::Active | Slot::Failed | Slot::CutOff => None,
        });
        let list = (
            self.list_order.unwrap_or(KeyOrder::LAST),
            self.keys.list_key.clone(),
            Json::array(items),
        );
        let mut entries: Vec<(KeyOrder, Arc<str>, Json)> = self
            .other_values
            .iter()
            .map(|(key, (order, value))| (*order, key.clone(), value.clone()))
            .collect();
        entries.push(list);
        entries.sort_by_key(|(order, _, _)| *order);
        entries.into_iter().map(|(_, key, value)| (key, value)).collect()
    }

    /// Returns the id to try after the current one of the child job at `index`; `None`: all ids
    /// that may be tried are taken. The first id may come from the item, all others are derived.
    pub(super) fn next_id(&self, job: JobId, step: &str, index: u32) -> Option<JobId> {
        let salted_id =
            |salt: u32| job.derive_child(step, index, self.first_salt.saturating_add(salt));
        let current_id = self.child_id(job, step, index);
        let current_salt = (0..=SALTS_MAX).find(|salt| salted_id(*salt) == current_id);
        let next_salt = current_salt.map_or(0, |salt| salt + 1);
        (next_salt <= SALTS_MAX).then(|| salted_id(next_salt))
    }

    /// Frees the memory that only a running fan-out needs. The counts, and the ids of the child
    /// jobs, are kept, and so is what [`FanOut::reopen`] needs of items that have failed. The
    /// output shares its values.
    pub(super) fn free(&mut self) {
        let has_result = |slot: &Slot| matches!(slot, Slot::Completed(_));
        let slots = (0..).zip(&self.slots);
        self.failed_items =
            slots.filter(|(_, slot)| !has_result(slot)).map(|(index, _)| index).collect();
        if self.failed_items.is_empty() {
            self.other_values = HashMap::new();
            self.rounds = HashMap::new();
        } else {
            let slots = &self.slots;
            self.rounds.retain(|index, _| !has_result(&slots[*index as usize]));
            self.rounds.shrink_to_fit();
        }
        self.elements = None;
        self.used_ids = HashSet::new();
        self.slots = Vec::new();
        self.active_bytes = 0;
        self.gathered_bytes = 0;
    }

    /// Makes a fan-out that has completed with this output as it was before: the items without a
    /// result have failed, and the others keep theirs.
    pub(super) fn reopen(&mut self, output: &Message) {
        let list = output.get(&self.keys.list_key).and_then(|list| Elements::parse(list).ok());
        let result = |index: u32| {
            list.as_ref().filter(|list| index < list.count()).map(|list| list.get(index))
        };
        self.slots = (0..self.item_count).map(|index| Slot::Completed(result(index))).collect();
        for index in std::mem::take(&mut self.failed_items) {
            self.slots[index as usize] = Slot::Failed;
        }
        if let ListValue::Items(elements) = ListValue::from_input(&self.input, &self.keys) {
            self.elements = Some(elements);
        }
        let item_bytes = self.slots.iter().map(|slot| match slot {
            Slot::Completed(Some(item)) => item.text().len(),
            Slot::Completed(None)
            | Slot::NotStarted
            | Slot::Active
            | Slot::Failed
            | Slot::CutOff => 0,
        });
        let other_values = self.other_values.iter();
        let other_bytes = other_values.map(|(key, (_, value))| key.len() + value.text().len());
        self.gathered_bytes = item_bytes.sum::<usize>() + other_bytes.sum::<usize>();
    }
}

fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// The window from which child jobs are started in batches, to save commits: each batch is one
/// entry.
const BATCH_FROM_WINDOW: u32 = 1_000;

/// The number of batches that fill a window of at least [`BATCH_FROM_WINDOW`].
const BATCHES_PER_WINDOW: u32 = 16;

/// Returns the smallest batch of child jobs that is started in a window of this size.
fn batch_min(window: u32) -> u32 {
    if window < BATCH_FROM_WINDOW { 1 } else { window / BATCHES_PER_WINDOW }
}

/// How many more salts than the first one are tried if the id of a child job is taken. After the
/// last one the child job fails. Ids do not collide by chance: a client must have chosen them.
const SALTS_MAX: u32 = 16;
