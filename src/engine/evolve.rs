//! Applies entries to a job: the only code that changes it.

use super::entry::{
    CallerEntry, Entry, Failure, FanOutEntry, JobEntry, Progress, Recorded, StepEntry,
};
use super::fanout::FanOut;
use super::id::StepIndex;
use super::job::Job;
use super::json::Message;
use super::limit::{ClaimState, ClaimedPlace, JobClaim, StepClaim, share_places};
use super::reply::reported_status;
use super::state::{JobState, StepState};
use super::step::{StepRun, StepTimer};
use super::time::Timestamp;
use super::trace::TraceContext;
use super::value_bytes::result_bytes;
use std::collections::VecDeque;
use std::sync::Arc;

impl Job {
    /// Applies all entries of a row of the journal, in order.
    pub fn apply(&mut self, row: &Recorded) {
        row.entries.iter().for_each(|entry| self.evolve(entry, row.at));
    }

    /// Applies one entry, which was decided at `time`.
    pub fn evolve(&mut self, entry: &Entry, time: Timestamp) {
        self.entry_count += 1;
        if entry.job_state().is_some() {
            self.state_entry = self.entry_count;
        }
        match entry {
            Entry::Job(entry) => self.evolve_job(entry, time),
            Entry::Step(step, entry) => self.evolve_step(*step, entry, time),
            Entry::FanOut(step, entry) => self.evolve_fan_out(*step, entry, time),
            Entry::Caller(CallerEntry::Joined(caller)) => self.callers.join(caller),
            Entry::Caller(CallerEntry::Answered(caller)) => self.callers.mark_answered(*caller),
        }
        if cfg!(debug_assertions) {
            self.assert_invariants();
        }
    }

    fn evolve_job(&mut self, entry: &JobEntry, time: Timestamp) {
        match entry {
            JobEntry::Created { message, deadline, trace, trace_state, starts_at, slot } => {
                if let Some(message) = message {
                    self.message = message.clone();
                    self.value_bytes = self.count_value_bytes();
                }
                self.deadline = *deadline;
                self.begins_at = *starts_at;
                self.origin.starts_at = *starts_at;
                self.origin.slot = slot.clone();
                let state = trace_state.clone();
                self.origin.trace = trace.map(|parent| Arc::new(TraceContext { parent, state }));
            }
            JobEntry::Begun => {
                self.begins_at = None;
                self.change_job_claim(ClaimState::Waiting, Some(time));
            }
            JobEntry::Claimed { place } => self.claim_place(place, time),
            JobEntry::Admitted => self.change_job_claim(ClaimState::Holding, None),
            JobEntry::Completed => self.end_job(JobState::Completed, time, None),
            JobEntry::Failed { reason, expired, step } => {
                self.is_expired = *expired;
                self.failed_step = *step;
                self.end_job(JobState::Failed, time, Some(reason.clone()));
            }
            JobEntry::Paused => self.state = JobState::Paused,
            JobEntry::Resumed => self.state = JobState::Running,
            JobEntry::Retried { round, deadline } => {
                self.round = *round;
                self.reopen(time, *deadline, &[]);
            }
            JobEntry::Rerun { step, deadline, only_failed_items } => {
                let mut rerun_steps = self.with_dependents(*step);
                if *only_failed_items {
                    rerun_steps.retain(|other| other != step);
                    self.reopen_items(*step);
                }
                self.reopen(time, *deadline, &rerun_steps);
            }
            JobEntry::Cancelled { reason, .. } => {
                self.end_job(JobState::Cancelled, time, Some(reason.clone()))
            }
            JobEntry::ToldAgain | JobEntry::Asked { .. } => {}
        }
    }

    /// Applies that the job claims a place. What it claims at its creation counts from then.
    fn claim_place(&mut self, place: &ClaimedPlace, time: Timestamp) {
        let is_new = self.entry_count == StepClaim::TICKET_OF_NEW_JOB;
        let since = if is_new { self.origin.created } else { time };
        let is_delayed = self.begins_at.is_some();
        let state = if is_delayed { ClaimState::Delayed } else { ClaimState::Waiting };
        let (ticket, places) = (self.entry_count, [place.clone()].into());
        let claim = StepClaim { ticket, since, places, state };
        self.claim = Some(Box::new(JobClaim { made: since, claim }));
    }

    /// Changes the state of the job's claim, if it has one. `since`: when it began to wait, if that
    /// changes.
    fn change_job_claim(&mut self, state: ClaimState, since: Option<Timestamp>) {
        if let Some(JobClaim { claim, .. }) = self.claim.as_deref_mut() {
            (claim.ticket, claim.state) = (self.entry_count, state);
            claim.since = since.unwrap_or(claim.since);
        }
    }

    fn evolve_step(&mut self, step: StepIndex, entry: &StepEntry, time: Timestamp) {
        match entry {
            StepEntry::Claimed { places } => {
                self.remove_from_ready(step);
                let ticket = self.entry_count;
                self.add_claimant(step);
                let (graph, limits) = (self.graph(), &self.graph().step(step).limits);
                let places = share_places(graph.keyless_places(step), limits, places);
                let run = &mut self.steps[step.as_usize()];
                run.state = StepState::Running;
                run.timer = None;
                let (since, state) = (time, ClaimState::Waiting);
                run.claim = Some(Box::new(StepClaim { ticket, since, places, state }));
            }
            StepEntry::ResendClaimed => {
                let ticket = self.entry_count;
                let run = &mut self.steps[step.as_usize()];
                run.confirmed = false;
                run.lease = None;
                if let Some(claim) = &mut run.claim {
                    (claim.ticket, claim.state) = (ticket, ClaimState::Resending);
                }
                self.set_timeout_pending(step);
            }
            StepEntry::Started { attempt, deadline } => {
                self.mark_running(step, *attempt, time, *deadline);
                self.mark_dispatched(step, time);
                if deadline.is_none() {
                    self.set_timeout_pending(step);
                }
                self.awaited_replies += u32::from(self.is_awaited(step));
            }
            StepEntry::Confirmed => {
                self.steps[step.as_usize()].confirmed = true;
                self.start_timeout(step, time);
            }
            StepEntry::Leased(lease) => {
                self.steps[step.as_usize()].lease = Some(Box::new(*lease));
                match lease.delivery {
                    // Withdrawn before any worker received the message.
                    0 => self.set_timeout_pending(step),
                    _ => self.start_timeout(step, time),
                }
            }
            StepEntry::Begun => self.start_timeout(step, time),
            StepEntry::Unconfirmed => {
                self.mark_dispatched(step, time);
                self.set_timeout_pending(step);
            }
            StepEntry::Completed(output) => self.end_completed_step(step, time, output.clone()),
            StepEntry::Progressed { progress, deadline } => {
                let run = &mut self.steps[step.as_usize()];
                run.set_timeout_at(*deadline);
                if progress.status.is_some() {
                    run.status.clone_from(&progress.status);
                }
                if *progress != Progress::default() {
                    run.progress.get_or_insert_default().merge(progress);
                }
            }
            StepEntry::AttemptFailed { failure, retry_at, .. } => {
                self.awaited_replies -= u32::from(self.is_awaited(step));
                let run = &mut self.steps[step.as_usize()];
                run.failure = Some(Box::new(failure.clone()));
                run.timer = Some(StepTimer::Retry(*retry_at));
                run.claim = None;
            }
            StepEntry::Skipped => self.end_step(step, StepState::Skipped, time),
            StepEntry::Cancelled => self.end_step(step, StepState::Cancelled, time),
            StepEntry::Failed(failure) => self.end_failed_step(step, time, failure),
        }
    }

    fn evolve_fan_out(&mut self, step: StepIndex, entry: &FanOutEntry, time: Timestamp) {
        match entry {
            FanOutEntry::Started { warning, deadline, .. } => {
                let input = self.step_input(step);
                let keys = self.task_keys(step).cloned();
                let reruns = self.steps[step.as_usize()].reruns;
                let attempt = self.steps[step.as_usize()].attempt + 1;
                let run = self.mark_running(step, attempt, time, *deadline);
                run.claim = None;
                run.warning = warning.clone();
                run.fan_out = keys.map(|keys| Box::new(FanOut::new(keys, input, reruns)));
                self.active_fan_outs.push(step);
            }
            FanOutEntry::Restarted { attempt, deadline } => {
                self.mark_running(step, *attempt, time, *deadline).claim = None;
                self.update_fan_out(step, FanOut::mark_restarted);
                if !self.active_fan_outs.contains(&step) {
                    self.active_fan_outs.push(step);
                }
            }
            FanOutEntry::ChildrenStarted { from, count, own_ids } => {
                self.update_fan_out(step, |fan_out| fan_out.mark_started(*from, *count, own_ids));
            }
            FanOutEntry::ChildStarted { index, id } => {
                self.update_fan_out(step, |fan_out| fan_out.mark_started_again(*index, *id));
            }
            FanOutEntry::ChildCompleted { index, item, others } => {
                self.value_bytes += result_bytes(item.as_ref(), others);
                self.update_fan_out(step, |fan_out| {
                    fan_out.mark_completed(*index, item.as_ref(), others);
                });
            }
            FanOutEntry::ChildFailed { index } => {
                let is_cut_off = self.state.is_ended();
                self.update_fan_out(step, |fan_out| fan_out.mark_failed(*index, is_cut_off));
            }
            FanOutEntry::Completed => {
                let run = &mut self.steps[step.as_usize()];
                let fan_out = run.fan_out.as_mut().expect("a completed fan-out was started");
                let output = fan_out.output();
                self.value_bytes -= fan_out.gathered_bytes();
                fan_out.free();
                self.end_completed_step(step, time, output);
            }
        }
    }

    /// Applies `change` to the fan-out of a step, if it has one.
    fn update_fan_out(&mut self, step: StepIndex, change: impl FnOnce(&mut FanOut)) {
        if let Some(fan_out) = &mut self.steps[step.as_usize()].fan_out {
            change(fan_out);
        }
    }

    /// Notes that a step claims places, and forgets the steps that have no claim any more.
    fn add_claimant(&mut self, step: StepIndex) {
        let steps = &self.steps;
        self.claimants.retain(|other| steps[other.as_usize()].claim.is_some());
        if let Err(position) = self.claimants.binary_search(&step) {
            self.claimants.insert(position, step);
        }
    }

    /// Marks the step's message as dispatched by the entry that is being applied.
    fn mark_dispatched(&mut self, step: StepIndex, time: Timestamp) {
        let run = &mut self.steps[step.as_usize()];
        run.confirmed = false;
        run.lease = None;
        run.dispatch = self.entry_count;
        run.sent = Some(time);
        if let Some(claim) = &mut run.claim {
            (claim.ticket, claim.state) = (self.entry_count, ClaimState::Holding);
        }
    }

    /// Starts the timeout of the running attempt, unless it has started: workers can receive its
    /// message from now on.
    fn start_timeout(&mut self, step: StepIndex, time: Timestamp) {
        let timeout = self.graph().step(step).timeout;
        let run = &mut self.steps[step.as_usize()];
        if run.is_timeout_pending() {
            run.set_timeout_at(time.after(timeout));
        }
    }

    /// Makes the timeout of the running attempt wait until workers can receive its message. For a
    /// step without a message it does nothing.
    fn set_timeout_pending(&mut self, step: StepIndex) {
        let definition = &self.origin.definition;
        let definition = definition.graphs[usize::from(self.origin.graph)].step(step);
        if definition.has_queue() {
            self.steps[step.as_usize()].set_timeout_pending(definition);
        }
    }

    /// Marks an attempt of a step as running. `deadline`: when it times out; `None`: it does not,
    /// or its timeout starts later.
    fn mark_running(
        &mut self,
        step: StepIndex,
        attempt: u32,
        time: Timestamp,
        deadline: Option<Timestamp>,
    ) -> &mut StepRun {
        self.remove_from_ready(step);
        let run = &mut self.steps[step.as_usize()];
        run.state = StepState::Running;
        run.attempt = attempt;
        run.set_timeout_at(deadline);
        run.started.get_or_insert(time);
        run.attempt_started = Some(time);
        run
    }

    /// Removes a step from the ready steps.
    fn remove_from_ready(&mut self, step: StepIndex) {
        if let Some(position) = self.ready.iter().position(|ready| *ready == step) {
            self.ready.remove(position);
        }
    }

    /// Ends the step as completed, with its output.
    fn end_completed_step(&mut self, step: StepIndex, time: Timestamp, output: Message) {
        // A worker's reply with a status that is not allowed fails its attempt. The gathered output
        // of child jobs is no reply: with such a status the step reports none.
        let status = reported_status(self.graph().step(step), &output).unwrap_or(None);
        let run = &mut self.steps[step.as_usize()];
        let previous_bytes = run.output.as_ref().map_or(0, Message::encoded_len);
        self.value_bytes = self.value_bytes + output.encoded_len() - previous_bytes;
        run.output = Some(output);
        run.status = status;
        run.failure = None;
        self.end_step(step, StepState::Completed, time);
    }

    /// Ends the step as failed, with the failure of its last attempt.
    fn end_failed_step(&mut self, step: StepIndex, time: Timestamp, failure: &Failure) {
        let run = &mut self.steps[step.as_usize()];
        run.failure = Some(Box::new(failure.clone()));
        run.started.get_or_insert(time);
        self.end_step(step, StepState::Failed, time);
    }

    /// Ends the step. If it counts as done, the steps that waited only for it become ready.
    fn end_step(&mut self, step: StepIndex, state: StepState, time: Timestamp) {
        self.remove_from_ready(step);
        self.active_fan_outs.retain(|other| *other != step);
        self.awaited_replies -= u32::from(self.is_awaited(step));
        let run = &mut self.steps[step.as_usize()];
        run.state = state;
        run.ended = Some(time);
        run.timer = None;
        run.claim = None;
        if !self.is_done(step) {
            return;
        }
        self.steps_left -= 1;
        let definition = self.origin.definition.clone();
        for dependent in definition.graphs[usize::from(self.origin.graph)].dependents(step) {
            let run = &mut self.steps[dependent.as_usize()];
            run.dependencies_left -= 1;
            if run.dependencies_left == 0 && run.state == StepState::Waiting {
                self.ready.push_back(*dependent);
            }
        }
    }

    /// Ends the job in this state. `reason`: why it failed or was cancelled.
    fn end_job(&mut self, state: JobState, time: Timestamp, reason: Option<Arc<str>>) {
        self.state = state;
        self.claim = None;
        self.ended = Some(time);
        self.reason = reason;
    }

    /// Reopens an ended job. The steps in `rerun_steps` start from the beginning. Failed steps, and
    /// running steps that the end of the job interrupted, start again and keep the results of their
    /// child jobs.
    fn reopen(&mut self, time: Timestamp, deadline: Option<Timestamp>, rerun_steps: &[StepIndex]) {
        let was_cut_off = self.is_expired || self.state == JobState::Cancelled;
        for step in self.graph().indices() {
            let has_children = self.steps[step.as_usize()].fan_out.is_some();
            let must_start_again = match self.steps[step.as_usize()].state {
                StepState::Failed => !self.is_done(step),
                // When a job fails, its child jobs are halted. Messages of steps stay valid.
                StepState::Running => {
                    was_cut_off || (has_children && self.state == JobState::Failed)
                }
                StepState::Waiting
                | StepState::Completed
                | StepState::Skipped
                | StepState::Cancelled => false,
            };
            let run = &mut self.steps[step.as_usize()];
            if rerun_steps.contains(&step) {
                run.reset();
                run.started = None;
                run.last_undone_attempt = run.attempt;
                run.reruns += u32::from(run.fan_out.take().is_some());
            } else if must_start_again {
                run.reset();
            } else if run.has_active_attempt() && !run.is_timeout_pending() {
                // The timeout may have passed after the end of the job: it starts again.
                let definition = &self.origin.definition;
                let graph = &definition.graphs[usize::from(self.origin.graph)];
                run.set_timeout_at(time.after(graph.step(step).timeout));
            }
        }
        self.state = JobState::Running;
        self.ended = None;
        self.reason = None;
        self.is_expired = false;
        self.failed_step = None;
        self.deadline = deadline;
        self.earlier_ends += 1;
        self.reopened = Some(time);
        self.callers.mark_all_waiting();
        self.recount();
    }

    /// Makes an ended fan-out step start again, as a retry does: it keeps the results of its child
    /// jobs.
    fn reopen_items(&mut self, step: StepIndex) {
        let run = &mut self.steps[step.as_usize()];
        if let (Some(fan_out), Some(output)) = (&mut run.fan_out, &run.output) {
            fan_out.reopen(output);
        }
        run.reset();
    }

    /// Returns a step and all steps that depend on it, directly or indirectly (breadth-first).
    fn with_dependents(&self, step: StepIndex) -> Vec<StepIndex> {
        let mut steps = vec![step];
        let mut position = 0;
        while position < steps.len() {
            for dependent in self.graph().dependents(steps[position]) {
                if !steps.contains(dependent) {
                    steps.push(*dependent);
                }
            }
            position += 1;
        }
        steps
    }

    /// Recomputes the counters and lists that are derived from the states of the steps.
    fn recount(&mut self) {
        self.value_bytes = self.count_value_bytes();
        let to_u32 = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let steps: Vec<StepIndex> = self.graph().indices().collect();
        for step in &steps {
            let open_dependencies = self
                .graph()
                .step(*step)
                .step_dependencies()
                .iter()
                .filter(|dependency| !self.is_done(**dependency))
                .count();
            self.steps[step.as_usize()].dependencies_left =
                u16::try_from(open_dependencies).unwrap_or(u16::MAX);
        }
        let has_state =
            |step: &StepIndex, state: StepState| self.steps[step.as_usize()].state == state;
        self.steps_left = to_u32(steps.iter().filter(|step| !self.is_done(**step)).count());
        self.awaited_replies = to_u32(steps.iter().filter(|step| self.is_awaited(**step)).count());
        let ready = steps.iter().filter(|step| {
            has_state(step, StepState::Waiting)
                && self.steps[step.as_usize()].dependencies_left == 0
        });
        self.ready = ready.copied().collect::<VecDeque<_>>();
        let active_fan_outs = steps.iter().filter(|step| {
            has_state(step, StepState::Running) && self.steps[step.as_usize()].fan_out.is_some()
        });
        self.active_fan_outs = active_fan_outs.copied().collect();
    }
}
