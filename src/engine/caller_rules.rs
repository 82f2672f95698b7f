//! Decides inputs about callers (docs/reference/worker-protocol.md). For its callers, a workflow
//! acts as a worker: they join a job, and get an answer when it ends.

use super::caller::Caller;
use super::entry::{CallerEntry, Entry};
use super::input::Rejected;
use super::job::Job;

impl Job {
    /// Returns the caller at `index`, in the order in which callers joined.
    pub fn caller(&self, index: u32) -> Option<&Caller> {
        self.callers.get(index)
    }

    /// Returns whether this caller waits for an answer.
    pub fn is_caller_waiting(&self, caller: &Caller) -> bool {
        self.callers.find_index(caller).is_some_and(|index| self.callers.is_waiting(index))
    }

    /// Returns whether the caller may join: it has joined before, or the job has fewer than
    /// `callers_max` callers.
    pub fn can_join(&self, caller: &Caller, callers_max: usize) -> bool {
        self.callers.len() < callers_max || self.callers.find_index(caller).is_some()
    }

    /// Returns whether the step called `name` waits for the reply to `attempt`, whose message was
    /// sent to `queue`. It verifies that the step is the sender of a call.
    pub fn is_awaiting_reply(&self, name: &str, attempt: u32, queue: &str) -> bool {
        let Some(step) = self.graph().find_index(name).filter(|_| self.accepts_replies()) else {
            return false;
        };
        self.is_awaited(step)
            && self.step(step).attempt == attempt
            && *self.graph().step(step).queue == *queue
    }

    /// Decides whether a caller joins. A child job has no callers: its parent waits for it.
    pub(super) fn decide_caller_joined(&self, caller: Caller) -> Result<Vec<Entry>, Rejected> {
        if self.origin.parent.is_some() {
            return Err(Rejected::NotRunning);
        }
        if self.is_caller_waiting(&caller) {
            return Err(Rejected::Duplicate);
        }
        Ok(vec![Entry::Caller(CallerEntry::Joined(caller))])
    }

    /// Decides what follows when the broker confirms the answer to the caller at index `caller`.
    /// `end`: the number of the answered end, which is how often the job had ended before.
    pub(super) fn decide_caller_answered(
        &self,
        caller: u32,
        end: u32,
    ) -> Result<Vec<Entry>, Rejected> {
        // If the job was reopened after that end, its next end must still be answered.
        if self.callers.is_waiting(caller) && end == self.earlier_ends && self.state.is_ended() {
            Ok(vec![Entry::Caller(CallerEntry::Answered(caller))])
        } else {
            Err(Rejected::Void)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Context, Decision, Definition, Effect, Graph, Input, JobId, JobState, Limits, Message,
        Operation, Origin, Recorded, Reply, Sender, Step, Timestamp,
    };
    use std::sync::Arc;

    const LIMITS: Limits = Limits {
        step_message_bytes_max: 1000,
        reply_bytes_max: 1000,
        depth_max: 3,
        window: 3,
        window_bytes: 1 << 26,
    };

    fn context() -> Context<'static> {
        Context { now: Timestamp(1), limits: &LIMITS, pauses: None, spare: None }
    }

    fn caller(reply_to: &str) -> Caller {
        Caller { reply_to: reply_to.into(), bus: None, correlation_id: None, attempt: None }
    }

    fn create_job() -> Job {
        let definition = Definition::new(
            "w",
            vec![Graph::new("w".to_owned(), None, vec![Step::with_name("only")])],
        );
        let id = JobId::from_call(&[]);
        let origin = Origin::for_root_job(id, Arc::new(definition), Timestamp(0));
        Job::create_for_caller(origin, Message::default(), Some(caller("first")), &context()).0
    }

    fn handle_input(job: &mut Job, input: Input) -> Decision {
        job.handle_input(input, &context()).expect("the input is accepted")
    }

    fn reply(job: &mut Job, reply: Reply) -> Decision {
        handle_input(
            job,
            Input::Reply { step: "only".to_owned(), attempt: None, reply, from: Sender::Unknown },
        )
    }

    /// Returns the answers of a decision: the caller's index, and the number of the end.
    fn answers(decision: &Decision) -> Vec<(u32, u32)> {
        let effects = decision.effects.iter();
        effects
            .filter_map(|effect| {
                if let Effect::AnswerCaller { caller, end } = effect {
                    Some((*caller, *end))
                } else {
                    None
                }
            })
            .collect()
    }

    #[test]
    fn a_job_is_closed_once_its_callers_are_answered() {
        let mut job = create_job();
        assert!(handle_input(&mut job, Input::CallerJoined(caller("second"))).effects.is_empty());
        assert!(
            job.handle_input(Input::CallerJoined(caller("second")), &context()).is_err(),
            "the caller waits already"
        );
        let ended = reply(&mut job, Reply::Result("{}".into()));
        assert_eq!((answers(&ended), ended.closed), (vec![(0, 0), (1, 0)], false));
        assert_eq!(job.open_effects().len(), 2, "as after a restart");
        assert!(!handle_input(&mut job, Input::CallerAnswered { caller: 1, end: 0 }).closed);
        assert!(job.handle_input(Input::CallerAnswered { caller: 1, end: 0 }, &context()).is_err());
        assert!(handle_input(&mut job, Input::CallerAnswered { caller: 0, end: 0 }).closed);
        assert!(job.open_effects().is_empty());
        // A caller that joins again after the end is answered again.
        let rejoined = handle_input(&mut job, Input::CallerJoined(caller("first")));
        assert_eq!((answers(&rejoined), rejoined.closed), (vec![(0, 0)], false));
        assert!(handle_input(&mut job, Input::CallerAnswered { caller: 0, end: 0 }).closed);
    }

    #[test]
    fn a_second_end_is_answered_again_and_the_answer_to_the_first_does_not_count_for_it() {
        let mut job = create_job();
        assert_eq!(answers(&reply(&mut job, Reply::Error("{}".into()))), [(0, 0)]);
        assert!(answers(&handle_input(&mut job, Input::from_request(Operation::Retry))).is_empty());
        assert!(job.handle_input(Input::CallerAnswered { caller: 0, end: 0 }, &context()).is_err());
        assert_eq!(answers(&reply(&mut job, Reply::Result("{}".into()))), [(0, 1)]);
        assert!(job.handle_input(Input::CallerAnswered { caller: 0, end: 0 }, &context()).is_err());
        assert!(handle_input(&mut job, Input::CallerAnswered { caller: 0, end: 1 }).closed);
        assert_eq!(job.state(), JobState::Completed);
    }

    #[test]
    fn the_time_in_which_a_job_had_ended_does_not_count() {
        let mut job = create_job();
        assert_eq!(job.going_on_since(Timestamp(5)), Timestamp(5));
        reply(&mut job, Reply::Error("{}".into()));
        assert_eq!(job.going_on_since(Timestamp(5)), Timestamp(5));
        let later = Context { now: Timestamp(70), ..context() };
        let retried = job.handle_input(Input::from_request(Operation::Retry), &later);
        retried.expect("the job has failed");
        assert_eq!(job.going_on_since(Timestamp(5)), Timestamp(70));
        assert_eq!(job.going_on_since(Timestamp(71)), Timestamp(71), "it began later");
    }

    #[test]
    fn only_the_caller_that_joins_after_the_end_is_answered_and_callers_can_be_limited() {
        let mut job = create_job();
        assert_eq!(answers(&reply(&mut job, Reply::Result("{}".into()))), [(0, 0)]);
        for index in 1..100 {
            assert_eq!(
                answers(&handle_input(
                    &mut job,
                    Input::CallerJoined(caller(&format!("caller {index}")))
                )),
                [(index, 0)]
            );
        }
        assert_eq!(job.open_effects().len(), 100);
        assert!(
            job.can_join(&caller("new"), 101)
                && !job.can_join(&caller("new"), 100)
                && job.can_join(&caller("first"), 100)
        );
    }

    /// This test takes minutes if each operation on a caller searches all callers.
    #[test]
    fn operations_on_a_caller_take_the_same_time_with_many_callers() {
        const CALLER_COUNT: u32 = 100_000;
        let mut job = create_job();
        let joined_rows: Vec<Recorded> = (1..CALLER_COUNT)
            .map(|index| {
                handle_input(&mut job, Input::CallerJoined(caller(&index.to_string()))).recorded
            })
            .collect();
        let ended = reply(&mut job, Reply::Result("{}".into()));
        assert_eq!(answers(&ended).len(), CALLER_COUNT as usize);
        let recovered =
            joined_rows.iter().chain([&ended.recorded]).fold(create_job(), |mut job, row| {
                job.apply(row);
                job
            });
        assert_eq!(recovered.open_effects().len(), CALLER_COUNT as usize, "as after a restart");
        for index in 0..CALLER_COUNT {
            assert_eq!(
                handle_input(&mut job, Input::CallerAnswered { caller: index, end: 0 }).closed,
                index + 1 == CALLER_COUNT
            );
        }
    }

    #[test]
    fn a_step_awaits_only_the_reply_to_its_own_message() {
        let mut job = create_job();
        assert!(job.is_awaiting_reply("only", 1, "only"));
        for (step, attempt, queue) in
            [("other", 1, "only"), ("only", 2, "only"), ("only", 1, "other")]
        {
            assert!(!job.is_awaiting_reply(step, attempt, queue), "{step} {attempt} {queue}");
        }
        reply(&mut job, Reply::Result("{}".into()));
        assert!(!job.is_awaiting_reply("only", 1, "only"));
    }
}
