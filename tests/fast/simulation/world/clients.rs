//! What people and clients do: they retry, resume, pause, rerun and send again.

use super::{Turn, World};
use crate::simulation::oracle;
use workflow_manager::engine::{Definition, Job, JobId, JobState, Operation, StepIndex, StepState};
use workflow_manager::journal::JobRecords;

/// Reasons that pass: a worker's, and that of a child job whose own id another list has brought
/// again meanwhile.
const PASSING: [&str; 2] = ["not today", "its id belongs to another job by now"];

/// Whether a retry may help: a step of the job, or of its child jobs, has failed for a reason that
/// passes.
pub(super) fn helps(job: &Job) -> bool {
    job.reason().is_some_and(|reason| PASSING.iter().any(|passing| reason.contains(passing)))
}

/// A client pauses for so long before it has the same job retried again: it may have been refused.
const RETRIED_AGAIN_AFTER_NS: i64 = 5_000_000_000;

impl World {
    pub(super) fn is_to_be_retried(&self, id: JobId) -> bool {
        let request = &self.requests[&id];
        request.retries_left > 0
            && !request.ended_by_client
            && self
                .find_committed(id)
                .is_some_and(|found| found.job.state() == JobState::Failed && helps(&found.job))
    }

    /// A person completes an external step, resumes what is paused, or has a failed job retried.
    pub(super) fn act_as_person(&mut self) -> Option<Turn> {
        // While there is no memory a retry is refused, again and again: others must get on.
        if self.rng.bool()
            && let Some(turn) = self.complete_by_hand()
        {
            return Some(turn);
        }
        for id in self.requests.keys().copied().collect::<Vec<_>>() {
            let Some(found) = self.find_committed(id) else { continue };
            if found.job.state() == JobState::Paused {
                self.note(|| format!("{id} is resumed"));
                return Some(Turn::Operate(id, Operation::Resume));
            }
            if self.is_to_be_retried(id) && self.ran_ns >= self.requests[&id].retried_again_ns {
                self.note(|| format!("{id} is retried"));
                let again_ns = self.ran_ns + RETRIED_AGAIN_AFTER_NS;
                let request = self.requests.get_mut(&id)?;
                request.retries_left -= 1;
                request.retried_again_ns = again_ns;
                return Some(Turn::Operate(id, Operation::Retry));
            }
        }
        if let Some(turn) = self.rerun() {
            return Some(turn);
        }
        self.complete_by_hand()
    }

    /// A person completes an external step.
    fn complete_by_hand(&mut self) -> Option<Turn> {
        let (id, step) = self.external_step()?;
        self.note(|| format!("{id}:{step} is completed by hand"));
        let reply = workflow_manager::engine::Reply::Result(oracle::by_hand(&step).into());
        Some(Turn::Operate(id, Operation::Reply { step, reply }))
    }

    /// A client has a completed job rerun from some step. Its workers answer as before, except
    /// those that fail only at their first attempt.
    fn rerun(&mut self) -> Option<Turn> {
        let is_steady = |definition: &Definition| {
            !definition
                .graphs
                .iter()
                .flat_map(|graph| &graph.steps)
                .any(|step| *step.queue == *"flaky")
        };
        let candidates = self.requests.iter().filter(|(_, request)| {
            !request.was_rerun && !request.ended_by_client && is_steady(&request.definition)
        });
        let id = candidates.map(|(id, _)| *id).find(|id| {
            self.find_committed(*id).is_some_and(|found| found.job.state() == JobState::Completed)
        })?;
        let request = self.requests.get_mut(&id)?;
        request.was_rerun = true;
        let steps = &request.definition.graph().steps;
        if self.rng.u32(0..4) > 0 {
            return None;
        }
        let index = self.rng.usize(0..steps.len());
        let step = steps[index].name.to_string();
        let found = self.find_committed(id)?;
        let job = &found.job;
        let index = StepIndex(u16::try_from(index).ok()?);
        let has_failed_items = job.step_state(index) == StepState::Completed
            && job.item_counts(index).is_some_and(|counts| counts.completed < counts.items);
        let only_failed_items = has_failed_items && self.rng.bool();
        let what = if only_failed_items { "the failed items of " } else { "" };
        self.note(|| format!("{id} is rerun from {what}{step}"));
        Some(Turn::Operate(id, Operation::Rerun { step, only_failed_items }))
    }

    /// A client has the message of a step sent once more, as if it were lost.
    pub(super) fn redispatch(&mut self) -> Option<Turn> {
        let running = self.journal.reader.load_running_jobs(0, 1_000).ok()?;
        let (_, id) = running.get(self.rng.usize(0..running.len().max(1)))?;
        let found = self.find_committed(*id)?;
        let step = found.job.confirmed_steps().next()?;
        let name = found.job.graph().step(step).name.to_string();
        self.note(|| format!("{id}:{name} is dispatched again"));
        self.redispatched.insert((*id, step.0));
        Some(Turn::Operate(*id, Operation::Redispatch { step: name }))
    }

    /// An external step that runs.
    fn external_step(&self) -> Option<(JobId, String)> {
        let running = self.journal.reader.load_running_jobs(0, 1_000).ok()?;
        running.into_iter().find_map(|(_, id)| {
            let found = self.find_committed(id)?;
            let (step, _) = found.job.steps().find(|(step, run)| {
                step.external && *step.name != *oracle::NEVER && run.state == StepState::Running
            })?;
            Some((id, step.name.to_string()))
        })
    }

    /// A client pauses its job, or has it retried, at any time.
    pub(super) fn act_as_client(&mut self) -> Option<Turn> {
        let id = self.pick_request()?;
        if self.rng.bool() {
            self.note(|| format!("{id} is paused"));
            return Some(Turn::Operate(id, Operation::Pause));
        }
        self.act_as_person()
    }

    pub(super) fn pick_request(&mut self) -> Option<JobId> {
        let known: Vec<JobId> = self
            .requests
            .iter()
            .filter(|(_, request)| request.is_answered && !request.ended_by_client)
            .map(|(id, _)| *id)
            .collect();
        known.get(self.rng.usize(0..known.len().max(1))).copied()
    }
}
