//! A workflow as a worker (SPEC §4): who asked for a job by a message on its workflow's queue, and is to be told its end.

use super::decide::Consequence;
use super::entry::{Effect, Entry};
use super::input::Rejected;
use super::job::Job;
use crate::faults;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Who waits for a job's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// The queue that the answer goes to.
    pub reply_to: Arc<str>,
    /// Given back with the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<Arc<str>>,
    /// The attempt that the answer is for, if the caller told it; given back with the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

/// A caller of a job.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Waiting {
    pub(super) caller: Caller,
    /// The broker has taken the answer to the last end.
    pub(super) is_answered: bool,
}

impl Job {
    /// The caller of that number.
    pub fn caller(&self, number: u32) -> Option<&Caller> {
        Some(&self.callers.get(usize::try_from(number).ok()?)?.caller)
    }

    /// Whether this very caller is to be told the job's end.
    pub fn owes(&self, caller: &Caller) -> bool {
        self.callers.iter().any(|waiting| !waiting.is_answered && waiting.caller == *caller)
    }

    pub(super) fn owes_an_answer(&self) -> bool {
        self.callers.iter().any(|waiting| !waiting.is_answered)
    }

    /// What the callers of an ended job are told that have not been answered.
    pub(super) fn answers(&self) -> impl Iterator<Item = Effect> + '_ {
        let callers = self.callers.iter().enumerate().filter(|(_, waiting)| self.state.is_ended() && !waiting.is_answered);
        callers.map(|(number, _)| Effect::AnswerCaller { caller: u32::try_from(number).unwrap_or(u32::MAX), end: self.ends })
    }

    pub(super) fn open_answers(&self) -> Vec<Effect> {
        if faults::planted("caller forgotten after a restart") { Vec::new() } else { self.answers().collect() }
    }

    pub(super) fn decide_called(&self, caller: Caller) -> Result<Consequence, Rejected> {
        if self.origin.parent.is_some() {
            return Err(Rejected::NotRunning);
        }
        if self.owes(&caller) {
            return Err(Rejected::Duplicate);
        }
        Ok(Consequence::of(Entry::CallerJoined { caller }))
    }

    pub(super) fn decide_answered(&self, caller: u32, end: u32) -> Result<Consequence, Rejected> {
        let is_owed = self.callers.get(caller as usize).is_some_and(|waiting| !waiting.is_answered);
        // The answer to an end after which the job went on is not the answer to its next one.
        if is_owed && end == self.ends && self.state.is_ended() { Ok(Consequence::of(Entry::CallerAnswered { caller })) } else { Err(Rejected::Void) }
    }

    pub(super) fn caller_joined(&mut self, caller: &Caller) {
        match self.callers.iter_mut().find(|waiting| waiting.caller == *caller) {
            Some(waiting) => waiting.is_answered = false,
            None => self.callers.push(Waiting { caller: caller.clone(), is_answered: false }),
        }
    }

    pub(super) fn caller_answered(&mut self, caller: u32) {
        if let Some(waiting) = self.callers.get_mut(caller as usize) {
            waiting.is_answered = true;
        }
    }

    /// It goes on after an end: its callers are told the next one as well.
    pub(super) fn owe_again(&mut self) {
        self.ends += 1;
        self.callers.iter_mut().for_each(|waiting| waiting.is_answered = false);
    }
}
