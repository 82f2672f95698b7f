//! What an entry does: the only place that changes a job.

use super::entry::{Entry, Failure, JobState, Timestamp};
use super::fanout::FanOut;
use super::id::StepIndex;
use super::job::{Job, Touched};
use super::json::Message;
use super::step::{StepRun, StepState, reported_status};
use std::collections::VecDeque;
use std::sync::Arc;

impl Job {
    /// Applies one entry.
    pub fn evolve(&mut self, entry: &Entry) {
        self.length += 1;
        if entry.job_state().is_some() {
            self.turned = self.length;
        }
        match entry {
            Entry::JobCreated { message, deadline } => {
                if let Some(message) = message {
                    self.message = message.clone();
                }
                self.deadline = *deadline;
            }
            Entry::StepStarted { step, attempt, at, deadline } => {
                let dispatch = self.length;
                let run = self.start(*step, *attempt, *at, *deadline);
                run.confirmed = false;
                run.dispatch = dispatch;
                run.sent = Some(*at);
                self.awaited += u32::from(self.is_awaited(*step));
            }
            Entry::StepConfirmed { step } => self.steps[step.at()].confirmed = true,
            Entry::StepUnconfirmed { step, at } => {
                let dispatch = self.length;
                let run = &mut self.steps[step.at()];
                run.confirmed = false;
                run.dispatch = dispatch;
                run.sent = *at;
            }
            Entry::StepCompleted { step, at, output } => self.complete(*step, *at, output.clone()),
            Entry::StepProgressed { step, progress, deadline, .. } => {
                let run = &mut self.steps[step.at()];
                run.deadline = *deadline;
                if progress.status.is_some() {
                    run.status.clone_from(&progress.status);
                }
                run.progress = Some(progress.clone());
            }
            Entry::AttemptFailed { step, failure, retry_at, .. } => {
                self.awaited -= u32::from(self.is_awaited(*step));
                let run = &mut self.steps[step.at()];
                run.failure = Some(failure.clone());
                run.deadline = None;
                run.retry_at = Some(*retry_at);
            }
            Entry::StepSkipped { step, at } => self.settle(*step, StepState::Skipped, *at),
            Entry::StepCancelled { step, at } => self.settle(*step, StepState::Cancelled, *at),
            Entry::StepFailed { step, at, failure } => self.settle_failed(*step, *at, failure),
            Entry::FanOutStarted { step, at, warning, deadline, .. } => {
                let input = self.input_of(*step);
                let reruns = self.steps[step.at()].reruns;
                let fan_out = self
                    .task_keys(*step)
                    .cloned()
                    .map(|keys| Box::new(FanOut::new(keys, input, reruns)));
                let attempt = self.steps[step.at()].attempt + 1;
                let run = self.start(*step, attempt, *at, *deadline);
                run.warning = warning.clone();
                run.fan_out = fan_out;
                self.fanning_out.push(*step);
            }
            Entry::FanOutRestarted { step, attempt, at, deadline } => {
                let run = self.start(*step, *attempt, *at, *deadline);
                if let Some(fan_out) = &mut run.fan_out {
                    fan_out.on_restarted();
                }
                if !self.fanning_out.contains(step) {
                    self.fanning_out.push(*step);
                }
            }
            Entry::ChildrenStarted { step, from, count, own_ids } => {
                if let Some(fan_out) = &mut self.steps[step.at()].fan_out {
                    fan_out.on_started(*from, *count, own_ids);
                }
            }
            Entry::ChildCompleted { step, index, item, others } => {
                if let Some(fan_out) = &mut self.steps[step.at()].fan_out {
                    fan_out.on_completed(*index, item.as_ref(), others);
                }
            }
            Entry::ChildFailed { step, index } => {
                if let Some(fan_out) = &mut self.steps[step.at()].fan_out {
                    fan_out.on_failed(*index);
                }
            }
            Entry::FanOutCompleted { step, at } => {
                let output = self.steps[step.at()].fan_out.as_mut().map(|fan_out| {
                    let output = fan_out.output();
                    fan_out.release();
                    output
                });
                self.complete(*step, *at, output.unwrap_or_default());
            }
            Entry::JobCompleted { at } => self.end(JobState::Completed, *at, None),
            Entry::JobFailed { at, reason, expired, step } => {
                self.expired = *expired;
                self.failed_by = *step;
                self.end(JobState::Failed, *at, Some(reason.clone()));
            }
            Entry::JobPaused { .. } => self.state = JobState::Paused,
            Entry::JobResumed { .. } => self.state = JobState::Running,
            Entry::JobRetried { at, round, deadline } => {
                self.round = *round;
                self.go_on(*at, *deadline, &[]);
            }
            Entry::JobRerun { at, step, deadline } => {
                let anew = self.with_dependents(*step);
                self.go_on(*at, *deadline, &anew);
            }
            Entry::JobCancelled { at, reason } => {
                self.end(JobState::Cancelled, *at, Some(reason.clone()))
            }
            Entry::CallerJoined { caller } => self.caller_joined(caller),
            Entry::CallerAnswered { caller } => self.caller_answered(*caller),
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    fn start(
        &mut self,
        step: StepIndex,
        attempt: u32,
        at: Timestamp,
        deadline: Option<Timestamp>,
    ) -> &mut StepRun {
        self.leave_ready(step);
        let run = &mut self.steps[step.at()];
        run.state = StepState::Running;
        run.attempt = attempt;
        run.deadline = deadline;
        run.retry_at = None;
        run.started.get_or_insert(at);
        run.attempt_started = Some(at);
        run
    }

    fn leave_ready(&mut self, step: StepIndex) {
        if let Some(at) = self.ready.iter().position(|ready| *ready == step) {
            self.ready.remove(at);
        }
    }

    fn complete(&mut self, step: StepIndex, at: Timestamp, output: Message) {
        let status = reported_status(self.graph().step(step), &output).unwrap_or_default();
        let run = &mut self.steps[step.at()];
        run.output = Some(output);
        run.status = status;
        run.failure = None;
        self.settle(step, StepState::Completed, at);
    }

    fn settle_failed(&mut self, step: StepIndex, at: Timestamp, failure: &Failure) {
        let run = &mut self.steps[step.at()];
        run.failure = Some(failure.clone());
        run.started.get_or_insert(at);
        self.settle(step, StepState::Failed, at);
    }

    /// The step is over; if it counts as done, those that wait for it alone are ready.
    fn settle(&mut self, step: StepIndex, state: StepState, at: Timestamp) {
        self.leave_ready(step);
        self.fanning_out.retain(|other| *other != step);
        self.awaited -= u32::from(self.is_awaited(step));
        let run = &mut self.steps[step.at()];
        run.state = state;
        run.ended = Some(at);
        run.deadline = None;
        run.retry_at = None;
        if !self.is_done(step) {
            return;
        }
        self.steps_left -= 1;
        let definition = self.origin.definition.clone();
        for dependent in definition.graphs[usize::from(self.origin.graph)].dependents(step) {
            let run = &mut self.steps[dependent.at()];
            run.waits_for -= 1;
            if run.waits_for == 0 && run.state == StepState::Waiting {
                self.ready.push_back(*dependent);
            }
        }
    }

    fn end(&mut self, state: JobState, at: Timestamp, reason: Option<Arc<str>>) {
        self.state = state;
        self.ended = Some(at);
        self.reason = reason;
    }

    /// An ended job goes on: the steps `anew` begin from nothing, those that failed begin again and
    /// keep what their child jobs gave, and so do those whose replies were not waited for.
    fn go_on(&mut self, at: Timestamp, deadline: Option<Timestamp>, anew: &[StepIndex]) {
        let was_cut_off = self.expired || self.state == JobState::Cancelled;
        for step in self.graph().indices() {
            let has_children = self.steps[step.at()].fan_out.is_some();
            let begins_again = match self.steps[step.at()].state {
                StepState::Failed => !self.is_done(step),
                // The child jobs of a failed job were halted.
                StepState::Running => {
                    was_cut_off || (has_children && self.state == JobState::Failed)
                }
                StepState::Waiting
                | StepState::Completed
                | StepState::Skipped
                | StepState::Cancelled => false,
            };
            let run = &mut self.steps[step.at()];
            if anew.contains(&step) {
                run.reset();
                run.started = None;
                run.attempts_undone = run.attempt;
                run.reruns += u32::from(run.fan_out.take().is_some());
            } else if begins_again {
                run.reset();
            } else if run.is_under_way() {
                // Nobody may have looked at its time since the job ended.
                run.deadline = at.after(
                    self.origin.definition.graphs[usize::from(self.origin.graph)]
                        .step(step)
                        .timeout,
                );
            }
        }
        self.state = JobState::Running;
        self.ended = None;
        self.reason = None;
        self.expired = false;
        self.failed_by = None;
        self.deadline = deadline;
        self.owe_again();
        self.count_anew();
    }

    fn with_dependents(&self, step: StepIndex) -> Vec<StepIndex> {
        let mut found = vec![step];
        let mut at = 0;
        while at < found.len() {
            for dependent in self.graph().dependents(found[at]) {
                if !found.contains(dependent) {
                    found.push(*dependent);
                }
            }
            at += 1;
        }
        found
    }

    /// What follows from the states of the steps.
    fn count_anew(&mut self) {
        let count = |matching: usize| u32::try_from(matching).unwrap_or(u32::MAX);
        let steps: Vec<StepIndex> = self.graph().indices().collect();
        for step in &steps {
            let waits_for = self
                .graph()
                .step(*step)
                .depended_on()
                .iter()
                .filter(|on| !self.is_done(**on))
                .count();
            self.steps[step.at()].waits_for = u16::try_from(waits_for).unwrap_or(u16::MAX);
        }
        let is = |step: &StepIndex, state: StepState| self.steps[step.at()].state == state;
        self.steps_left = count(steps.iter().filter(|step| !self.is_done(**step)).count());
        self.awaited = count(steps.iter().filter(|step| self.is_awaited(**step)).count());
        let ready = steps
            .iter()
            .filter(|step| is(step, StepState::Waiting) && self.steps[step.at()].waits_for == 0);
        self.ready = ready.copied().collect::<VecDeque<_>>();
        let fanning_out = steps
            .iter()
            .filter(|step| is(step, StepState::Running) && self.steps[step.at()].fan_out.is_some());
        self.fanning_out = fanning_out.copied().collect();
    }
}

impl Entry {
    /// The state that it gives the job.
    pub fn job_state(&self) -> Option<JobState> {
        match self {
            Entry::JobCreated { .. }
            | Entry::JobResumed { .. }
            | Entry::JobRetried { .. }
            | Entry::JobRerun { .. } => Some(JobState::Running),
            Entry::JobPaused { .. } => Some(JobState::Paused),
            Entry::JobCompleted { .. } => Some(JobState::Completed),
            Entry::JobFailed { .. } => Some(JobState::Failed),
            Entry::JobCancelled { .. } => Some(JobState::Cancelled),
            Entry::StepStarted { .. }
            | Entry::StepConfirmed { .. }
            | Entry::StepUnconfirmed { .. }
            | Entry::StepCompleted { .. }
            | Entry::StepProgressed { .. }
            | Entry::AttemptFailed { .. }
            | Entry::StepSkipped { .. }
            | Entry::StepCancelled { .. }
            | Entry::StepFailed { .. }
            | Entry::FanOutStarted { .. }
            | Entry::FanOutRestarted { .. }
            | Entry::ChildrenStarted { .. }
            | Entry::ChildCompleted { .. }
            | Entry::ChildFailed { .. }
            | Entry::CallerJoined { .. }
            | Entry::CallerAnswered { .. }
            | Entry::FanOutCompleted { .. } => None,
        }
    }

    /// Why it ended the job, if it did.
    pub fn into_reason(self) -> Option<Arc<str>> {
        if let Entry::JobFailed { reason, .. } | Entry::JobCancelled { reason, .. } = self {
            Some(reason)
        } else {
            None
        }
    }

    /// Which steps' states, statuses or outputs it may change.
    pub(super) fn touched(&self) -> Touched {
        match self {
            Entry::StepStarted { step, .. }
            | Entry::StepCompleted { step, .. }
            | Entry::StepProgressed { step, .. }
            | Entry::StepSkipped { step, .. }
            | Entry::StepCancelled { step, .. }
            | Entry::StepFailed { step, .. }
            | Entry::FanOutStarted { step, .. }
            | Entry::FanOutRestarted { step, .. }
            | Entry::FanOutCompleted { step, .. } => Touched::Step(*step),
            Entry::JobCreated { .. }
            | Entry::JobFailed { .. }
            | Entry::JobResumed { .. }
            | Entry::JobRetried { .. }
            | Entry::JobRerun { .. }
            | Entry::JobCancelled { .. } => Touched::Every,
            Entry::StepConfirmed { .. }
            | Entry::StepUnconfirmed { .. }
            | Entry::AttemptFailed { .. }
            | Entry::ChildrenStarted { .. }
            | Entry::ChildCompleted { .. }
            | Entry::ChildFailed { .. }
            | Entry::JobPaused { .. }
            | Entry::JobCompleted { .. }
            | Entry::CallerJoined { .. }
            | Entry::CallerAnswered { .. } => Touched::Nothing,
        }
    }

    /// When the entry changed a status or the job's state; none if it changed neither, or with the
    /// job's creation.
    pub fn changed_at(&self) -> Option<Timestamp> {
        match self {
            Entry::StepStarted { at, .. }
            | Entry::StepCompleted { at, .. }
            | Entry::StepProgressed { at, .. }
            | Entry::StepSkipped { at, .. }
            | Entry::StepCancelled { at, .. }
            | Entry::StepFailed { at, .. }
            | Entry::FanOutStarted { at, .. }
            | Entry::FanOutRestarted { at, .. }
            | Entry::FanOutCompleted { at, .. }
            | Entry::JobCompleted { at }
            | Entry::JobFailed { at, .. }
            | Entry::JobPaused { at }
            | Entry::JobResumed { at }
            | Entry::JobRetried { at, .. }
            | Entry::JobRerun { at, .. }
            | Entry::JobCancelled { at, .. } => Some(*at),
            Entry::JobCreated { .. }
            | Entry::StepConfirmed { .. }
            | Entry::StepUnconfirmed { .. }
            | Entry::AttemptFailed { .. }
            | Entry::ChildrenStarted { .. }
            | Entry::ChildCompleted { .. }
            | Entry::ChildFailed { .. }
            | Entry::CallerJoined { .. }
            | Entry::CallerAnswered { .. } => None,
        }
    }
}
