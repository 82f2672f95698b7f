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
    known: Option<Box<KnownCallers>>,
}

/// All callers of a job that has some.
#[derive(Clone, Debug, Default, PartialEq)]
struct KnownCallers {
    list: Vec<KnownCaller>,
    numbers: HashMap<Caller, u32>,
    /// How many wait for an answer to the last end.
    owed: usize,
}

/// A caller of a job, and whether it still waits.
#[derive(Clone, Debug, PartialEq)]
struct KnownCaller {
    caller: Caller,
    /// Whether the broker has taken the answer to the last end.
    is_answered: bool,
}

impl Callers {
    /// Returns how many callers there are.
    pub(super) fn len(&self) -> usize {
        self.list().len()
    }

    /// Returns the caller of this number.
    pub(super) fn get(&self, number: u32) -> Option<&Caller> {
        Some(&self.list().get(usize::try_from(number).ok()?)?.caller)
    }

    /// Returns the number of a caller.
    pub(super) fn number(&self, caller: &Caller) -> Option<u32> {
        self.known.as_ref()?.numbers.get(caller).copied()
    }

    /// Returns whether the caller of this number still waits for the answer to the last end.
    pub(super) fn is_owed(&self, number: u32) -> bool {
        self.list().get(number as usize).is_some_and(|waiting| !waiting.is_answered)
    }

    /// Returns the numbers of all callers that still wait for the answer to the last end.
    pub(super) fn owed(&self) -> impl Iterator<Item = u32> + '_ {
        let numbers = 0..u32::try_from(self.len()).unwrap_or(u32::MAX);
        numbers.filter(|number| self.is_owed(*number))
    }

    /// Returns whether any caller still waits for the answer to the last end.
    pub(super) fn is_any_owed(&self) -> bool {
        self.owed_count() > 0
    }

    /// Returns whether any caller has had its answer.
    pub(super) fn is_any_told(&self) -> bool {
        self.owed_count() < self.len()
    }

    fn list(&self) -> &[KnownCaller] {
        self.known.as_ref().map_or(&[], |known| &known.list)
    }

    fn owed_count(&self) -> usize {
        self.known.as_ref().map_or(0, |known| known.owed)
    }

    pub(super) fn join(&mut self, caller: &Caller) {
        self.known.get_or_insert_default().join(caller);
    }

    pub(super) fn answered(&mut self, number: u32) {
        if let Some(known) = &mut self.known {
            known.answered(number);
        }
    }

    /// Makes all callers wait again: the job goes on after an end, and they get an answer to the
    /// next end too.
    pub(super) fn owe_again(&mut self) {
        if let Some(known) = &mut self.known {
            known.owe_again();
        }
    }
}

impl KnownCallers {
    fn join(&mut self, caller: &Caller) {
        let next = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(caller.clone()).or_insert(next);
        match self.list.get_mut(number as usize) {
            Some(waiting) => self.owed += usize::from(std::mem::take(&mut waiting.is_answered)),
            None => {
                self.list.push(KnownCaller { caller: caller.clone(), is_answered: false });
                self.owed += 1;
            }
        }
    }

    fn answered(&mut self, number: u32) {
        if let Some(waiting) = self.list.get_mut(number as usize)
            && !std::mem::replace(&mut waiting.is_answered, true)
        {
            self.owed -= 1;
        }
    }

    fn owe_again(&mut self) {
        self.list.iter_mut().for_each(|waiting| waiting.is_answered = false);
        self.owed = self.list.len();
    }
}
