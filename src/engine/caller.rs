//! The callers of a job. They requested it by a message on its workflow's queue, and get an answer
//! when it ends (docs/reference/worker-protocol.md).

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// A caller of a job: where the answer goes when the job ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    /// The queue to which the answer is sent.
    pub reply_to: Arc<str>,
    /// The bus of the call and of the answer; `None`: the bus of the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<Arc<str>>,
    /// The correlation id of the call, which the answer repeats; `None`: the call had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<Arc<str>>,
    /// The caller's attempt, which the answer repeats; `None`: the call had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

/// The callers of a job, in the order in which they joined. Each operation on one caller takes
/// O(1).
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Callers {
    /// `None` until the first caller joins: most jobs have no callers, and need no memory for them.
    list: Option<Box<CallerList>>,
}

/// The callers of a job that has at least one.
#[derive(Clone, Debug, Default, PartialEq)]
struct CallerList {
    entries: Vec<CallerState>,
    /// The index of each caller in `entries`.
    indices: HashMap<Caller, u32>,
    /// The number of callers that wait for an answer.
    waiting_count: usize,
}

/// A caller, and whether it still waits for an answer.
#[derive(Clone, Debug, PartialEq)]
struct CallerState {
    caller: Caller,
    /// Whether the broker has confirmed the answer to the latest end of the job.
    is_answered: bool,
}

impl Callers {
    /// Returns the number of callers.
    pub(super) fn len(&self) -> usize {
        self.entries().len()
    }

    /// Returns the caller at `index`, in the order in which they joined.
    pub(super) fn get(&self, index: u32) -> Option<&Caller> {
        Some(&self.entries().get(usize::try_from(index).ok()?)?.caller)
    }

    /// Returns the index of a caller; `None`: it has not joined.
    pub(super) fn find_index(&self, caller: &Caller) -> Option<u32> {
        self.list.as_ref()?.indices.get(caller).copied()
    }

    /// Returns whether the caller at `index` still waits for the answer to the latest end.
    pub(super) fn is_waiting(&self, index: u32) -> bool {
        self.entries().get(index as usize).is_some_and(|entry| !entry.is_answered)
    }

    /// Returns the indices of the callers that still wait for the answer to the latest end.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> + '_ {
        let indices = 0..u32::try_from(self.len()).unwrap_or(u32::MAX);
        indices.filter(|index| self.is_waiting(*index))
    }

    /// Returns whether any caller still waits for the answer to the latest end.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting_count() > 0
    }

    /// Returns whether the answer to the latest end is confirmed for any caller.
    pub(super) fn has_answered(&self) -> bool {
        self.waiting_count() < self.len()
    }

    fn entries(&self) -> &[CallerState] {
        self.list.as_ref().map_or(&[], |list| &list.entries)
    }

    fn waiting_count(&self) -> usize {
        self.list.as_ref().map_or(0, |list| list.waiting_count)
    }

    /// Adds a caller. A caller that has joined before waits for an answer again.
    pub(super) fn join(&mut self, caller: &Caller) {
        self.list.get_or_insert_default().join(caller);
    }

    /// Marks the answer to the caller at `index` as confirmed.
    pub(super) fn mark_answered(&mut self, index: u32) {
        if let Some(list) = &mut self.list {
            list.mark_answered(index);
        }
    }

    /// Makes all callers wait again: the job was reopened, and they get an answer to its next end
    /// too.
    pub(super) fn mark_all_waiting(&mut self) {
        if let Some(list) = &mut self.list {
            list.mark_all_waiting();
        }
    }
}

impl CallerList {
    fn join(&mut self, caller: &Caller) {
        let next_index = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let index = *self.indices.entry(caller.clone()).or_insert(next_index);
        match self.entries.get_mut(index as usize) {
            Some(entry) => {
                let was_answered = std::mem::take(&mut entry.is_answered);
                self.waiting_count += usize::from(was_answered);
            }
            None => {
                self.entries.push(CallerState { caller: caller.clone(), is_answered: false });
                self.waiting_count += 1;
            }
        }
    }

    fn mark_answered(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize)
            && !std::mem::replace(&mut entry.is_answered, true)
        {
            self.waiting_count -= 1;
        }
    }

    fn mark_all_waiting(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.is_answered = false);
        self.waiting_count = self.entries.len();
    }
}
