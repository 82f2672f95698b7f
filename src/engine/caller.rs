//! The callers of a job: those who asked for it by a message on its workflow's queue, and wait for
//! its end (docs/worker-protocol.md).

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// A caller that waits for a job's end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    /// The queue that the answer goes to.
    pub reply_to: Arc<str>,
    /// The bus of its call and of the answer; `None`: that of the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<Arc<str>>,
    /// The correlation id, which the answer carries back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<Arc<str>>,
    /// The attempt that the answer is for, if the caller named one. The answer carries it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

/// The callers of a job, in the order in which they came. Adding one costs the same, however many
/// there are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Callers {
    /// `None` until the first caller comes: most jobs have none, and need no memory for them.
    list: Option<Box<CallerList>>,
}

/// All callers of a job that has some.
#[derive(Clone, Debug, Default, PartialEq)]
struct CallerList {
    list: Vec<ListedCaller>,
    numbers: HashMap<Caller, u32>,
    /// How many wait for an answer to the last end.
    waiting: usize,
}

/// A caller of a job, and whether it still waits.
#[derive(Clone, Debug, PartialEq)]
struct ListedCaller {
    caller: Caller,
    /// Whether the broker has taken the answer to the last end.
    is_answered: bool,
}

impl Callers {
    /// Returns how many callers there are.
    pub(super) fn len(&self) -> usize {
        self.entries().len()
    }

    /// Returns the caller of this number.
    pub(super) fn get(&self, number: u32) -> Option<&Caller> {
        Some(&self.entries().get(usize::try_from(number).ok()?)?.caller)
    }

    /// Returns the number of a caller.
    pub(super) fn number_of(&self, caller: &Caller) -> Option<u32> {
        self.list.as_ref()?.numbers.get(caller).copied()
    }

    /// Returns whether the caller of this number still waits for the answer to the last end.
    pub(super) fn is_waiting(&self, number: u32) -> bool {
        self.entries().get(number as usize).is_some_and(|waiting| !waiting.is_answered)
    }

    /// Returns the numbers of all callers that still wait for the answer to the last end.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> + '_ {
        let numbers = 0..u32::try_from(self.len()).unwrap_or(u32::MAX);
        numbers.filter(|number| self.is_waiting(*number))
    }

    /// Returns whether any caller still waits for the answer to the last end.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting_count() > 0
    }

    /// Returns whether any caller has had its answer.
    pub(super) fn has_answered(&self) -> bool {
        self.waiting_count() < self.len()
    }

    fn entries(&self) -> &[ListedCaller] {
        self.list.as_ref().map_or(&[], |known| &known.list)
    }

    fn waiting_count(&self) -> usize {
        self.list.as_ref().map_or(0, |known| known.waiting)
    }

    pub(super) fn join(&mut self, caller: &Caller) {
        self.list.get_or_insert_default().join(caller);
    }

    pub(super) fn mark_answered(&mut self, number: u32) {
        if let Some(known) = &mut self.list {
            known.mark_answered(number);
        }
    }

    /// Makes all callers wait again: the job goes on after an end, and they get an answer to the
    /// next end too.
    pub(super) fn mark_all_waiting(&mut self) {
        if let Some(known) = &mut self.list {
            known.mark_all_waiting();
        }
    }
}

impl CallerList {
    fn join(&mut self, caller: &Caller) {
        let next = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(caller.clone()).or_insert(next);
        match self.list.get_mut(number as usize) {
            Some(waiting) => self.waiting += usize::from(std::mem::take(&mut waiting.is_answered)),
            None => {
                self.list.push(ListedCaller { caller: caller.clone(), is_answered: false });
                self.waiting += 1;
            }
        }
    }

    fn mark_answered(&mut self, number: u32) {
        if let Some(waiting) = self.list.get_mut(number as usize)
            && !std::mem::replace(&mut waiting.is_answered, true)
        {
            self.waiting -= 1;
        }
    }

    fn mark_all_waiting(&mut self) {
        self.list.iter_mut().for_each(|waiting| waiting.is_answered = false);
        self.waiting = self.list.len();
    }
}
