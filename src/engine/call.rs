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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Context, Decision, Definition, Graph, Input, JobId, JobState, Limits, Message, Operation, Origin, Reply, Step, Timestamp};

    const LIMITS: Limits = Limits { step_message_bytes_max: 1000, reply_bytes_max: 1000, depth_max: 3, window: 3 };

    fn context() -> Context<'static> {
        Context { now: Timestamp(1), limits: &LIMITS, claims: &|_| true }
    }

    fn caller(reply_to: &str) -> Caller {
        Caller { reply_to: reply_to.into(), correlation_id: None, attempt: None }
    }

    fn created() -> Job {
        let definition = Definition::new("w", vec![Graph::new("w".to_owned(), None, vec![Step::named("only")])]);
        let id = JobId::of_call(&[]);
        let origin = Origin { id, definition: Arc::new(definition), graph: 0, parent: None, root: id, depth: 0, created: Timestamp(0) };
        Job::create_for(origin, Message::default(), Some(caller("first")), &context()).0
    }

    fn take(job: &mut Job, input: Input) -> Decision {
        job.take(input, &context()).expect("taken")
    }

    fn reply(job: &mut Job, reply: Reply) -> Decision {
        take(job, Input::Reply { step: "only".to_owned(), attempt: None, reply })
    }

    fn answers(decision: &Decision) -> Vec<(u32, u32)> {
        let answers = decision.effects.iter();
        answers.filter_map(|effect| if let Effect::AnswerCaller { caller, end } = effect { Some((*caller, *end)) } else { None }).collect()
    }

    #[test]
    fn a_job_is_closed_once_its_callers_are_answered() {
        let mut job = created();
        assert!(take(&mut job, Input::Called(caller("second"))).effects.is_empty());
        assert!(job.take(Input::Called(caller("second")), &context()).is_err(), "it is owed already");
        let ended = reply(&mut job, Reply::Result("{}".into()));
        assert_eq!((answers(&ended), ended.closed), (vec![(0, 0), (1, 0)], false));
        assert_eq!(job.open_effects().len(), 2, "as after a restart");
        assert!(!take(&mut job, Input::Answered { caller: 1, end: 0 }).closed);
        assert!(job.take(Input::Answered { caller: 1, end: 0 }, &context()).is_err());
        assert!(take(&mut job, Input::Answered { caller: 0, end: 0 }).closed);
        assert!(job.open_effects().is_empty());
        // Asked once more, after the end: answered once more.
        let asked = take(&mut job, Input::Called(caller("first")));
        assert_eq!((answers(&asked), asked.closed), (vec![(0, 0)], false));
        assert!(take(&mut job, Input::Answered { caller: 0, end: 0 }).closed);
    }

    #[test]
    fn a_second_end_is_answered_again_and_the_answer_to_the_first_does_not_count_for_it() {
        let mut job = created();
        assert_eq!(answers(&reply(&mut job, Reply::Error("{}".into()))), [(0, 0)]);
        assert!(answers(&take(&mut job, Input::Operate(Operation::Retry))).is_empty());
        assert!(job.take(Input::Answered { caller: 0, end: 0 }, &context()).is_err());
        assert_eq!(answers(&reply(&mut job, Reply::Result("{}".into()))), [(0, 1)]);
        assert!(job.take(Input::Answered { caller: 0, end: 0 }, &context()).is_err());
        assert!(take(&mut job, Input::Answered { caller: 0, end: 1 }).closed);
        assert_eq!(job.state(), JobState::Completed);
    }
}
