//! Decides what follows from a job's state alone: conditions cancel steps, ready steps and child
//! jobs start, and the job completes.

use super::conditions::PendingConditions;
use super::entry::{Entry, Failure, FanOutEntry, JobEntry, StepEntry};
use super::fanout::ListValue;
use super::id::StepIndex;
use super::input::Context;
use super::job::Job;
use super::json::Message;
use super::limit::ClaimedPlace;
use super::time::Timestamp;

impl Job {
    /// Decides the entries that follow next; `None`: the job waits for an input, or has ended. The
    /// conditions that it evaluates are no longer pending.
    pub(super) fn decide_next(
        &self,
        pending: &mut PendingConditions,
        ctx: &Context<'_>,
    ) -> Option<Vec<Entry>> {
        if !self.is_under_way() {
            return None;
        }
        if let Some(step) = self.take_step_to_cancel(pending) {
            return Some(vec![Entry::Step(step, StepEntry::Cancelled)]);
        }
        if let Some(step) = self.ready.front() {
            return Some(self.start_step(*step, pending, ctx));
        }
        for step in
            self.active_fan_outs.iter().filter(|step| self.step(**step).has_active_attempt())
        {
            let fan_out = self.step(*step).fan_out.as_ref()?;
            if fan_out.have_all_ended() {
                return Some(vec![Entry::FanOut(*step, FanOutEntry::Completed)]);
            }
            let name = &self.graph().step(*step).name;
            if let Some(entry) = fan_out.decide_start(self.origin.id, name, ctx) {
                return Some(vec![Entry::FanOut(*step, entry)]);
            }
        }
        (self.steps_left == 0).then(|| vec![Entry::Job(JobEntry::Completed)])
    }

    /// Returns the deadline of a job that starts now, or is reopened now; `None`: it has no
    /// deadline. A child job never has one: it expires with its root job. The deadline of a job
    /// that begins later counts from then on.
    pub(super) fn new_deadline(&self, ctx: &Context<'_>) -> Option<Timestamp> {
        if self.origin.parent.is_some() {
            return None;
        }
        let start = self.origin.starts_at.map_or(ctx.now, |time| time.max(ctx.now));
        start.after(self.origin.definition.deadline)
    }

    /// Decides to start a step whose dependencies are done, or to skip it because its `when` is
    /// false, or to fail it because its `when` cannot be evaluated.
    fn start_step(
        &self,
        step: StepIndex,
        pending: &mut PendingConditions,
        ctx: &Context<'_>,
    ) -> Vec<Entry> {
        match self.evaluate_when(step, pending) {
            None | Some(Ok(true)) => self.start_attempt(step, ctx),
            Some(Ok(false)) => vec![Entry::Step(step, StepEntry::Skipped)],
            Some(Err(reason)) => self.fail_step(step, Failure::new(reason)),
        }
    }

    /// Decides to start the next attempt of a step, or to fail the step if it cannot start.
    pub(super) fn start_attempt(&self, step: StepIndex, ctx: &Context<'_>) -> Vec<Entry> {
        let definition = self.graph().step(step);
        let pauses = ctx.pauses.filter(|pauses| !pauses.is_empty());
        let is_paused =
            pauses.is_some_and(|pauses| pauses.cover(&self.origin.definition, definition));
        if !definition.has_queue() {
            return if is_paused { self.claim_step(step) } else { self.begin_attempt(step, ctx) };
        }
        let bytes_max = ctx.limits.step_message_bytes_max;
        let bytes = self.step_input(step).encoded_len();
        if bytes > bytes_max {
            let reason = format!(
                "its step message would have {bytes} bytes, the limit is {bytes_max} (setting \
                 limits.step_message_bytes_max): pass large data by reference"
            );
            return self.fail_step(step, Failure::new(reason));
        }
        if is_paused {
            self.claim_step(step)
        } else if definition.limits.is_empty() {
            self.begin_attempt(step, ctx)
        } else {
            self.claim_and_begin(step, ctx)
        }
    }

    /// Decides that the next attempt of a step claims its places. If it claims just one that there
    /// is to spare, it begins at once.
    fn claim_and_begin(&self, step: StepIndex, ctx: &Context<'_>) -> Vec<Entry> {
        let mut entries = self.claim_step(step);
        if let [Entry::Step(_, StepEntry::Claimed { places })] = &entries[..]
            && let [ClaimedPlace { limit, key: None, fair: None }] = &places[..]
            && let Some(spare) = ctx.spare
            && spare.take(&self.origin.definition.full_limit_name(limit))
        {
            entries.extend(self.begin_attempt(step, ctx));
        }
        entries
    }

    /// Decides that the next attempt of a step waits at the gate, or fails the step if a key of its
    /// limits has no value.
    fn claim_step(&self, step: StepIndex) -> Vec<Entry> {
        match self.claim_places(step) {
            Ok(places) => vec![Entry::Step(step, StepEntry::Claimed { places })],
            Err(reason) => self.fail_step(step, Failure::new(reason)),
        }
    }

    /// Decides to begin the next attempt of a step that nothing keeps back.
    pub(super) fn begin_attempt(&self, step: StepIndex, ctx: &Context<'_>) -> Vec<Entry> {
        let definition = self.graph().step(step);
        let attempt = self.step(step).attempt + 1;
        let deadline = ctx.after(definition.timeout);
        if self.step(step).fan_out.is_some() {
            return vec![Entry::FanOut(step, FanOutEntry::Restarted { attempt, deadline })];
        }
        if definition.task.is_some() {
            return self.start_fan_out(step, &self.step_input(step), deadline, ctx);
        }
        // The timeout of an attempt with a message starts when workers can receive the message.
        let deadline = deadline.filter(|_| definition.external);
        vec![Entry::Step(step, StepEntry::Started { attempt, deadline })]
    }

    /// Decides to start a fan-out over the list in `input`. A missing list is taken as empty, with
    /// a warning. The step fails if the value is not a list, or the child jobs would nest too
    /// deeply.
    fn start_fan_out(
        &self,
        step: StepIndex,
        input: &Message,
        deadline: Option<Timestamp>,
        ctx: &Context<'_>,
    ) -> Vec<Entry> {
        let Some(keys) = self.task_keys(step) else {
            unreachable!("a step with a task fans out over a list: the definition was validated")
        };
        let key = &keys.list_key;
        let (item_count, warning) = match ListValue::from_input(input, keys) {
            ListValue::Items(elements) => (elements.count(), None),
            ListValue::Missing => {
                (0, Some(format!("the input has no list under \"{key}\": taken as empty").into()))
            }
            ListValue::NotAList(kind) => {
                let reason = format!("the input has {kind} under \"{key}\", expected a list");
                return self.fail_step(step, Failure::new(reason));
            }
        };
        let depth_max = ctx.limits.depth_max;
        if item_count > 0 && self.origin.depth >= depth_max {
            let reason = format!(
                "child jobs would nest deeper than {depth_max} levels (setting limits.depth_max): \
                 does the recursion end?"
            );
            return self.fail_step(step, Failure::new(reason));
        }
        let entry = FanOutEntry::Started { items: item_count, warning, deadline };
        vec![Entry::FanOut(step, entry)]
    }
}
