//! Decides operations of clients on a job (docs/reference/http-api-operations.md): when each is
//! refused, and what it causes.

use super::entry::{Entry, JobEntry};
use super::id::StepIndex;
use super::input::{Context, Limits, Operation, OperationError, OperationRequest, Rejected, Reply};
use super::job::Job;
use super::reply::{Author, check_manual_reply};
use super::state::{JobState, StepState};
use super::time::Timestamp;

impl Job {
    /// Returns why `operation` is refused; `None`: it is allowed.
    pub fn check_operation(
        &self,
        operation: &Operation,
        limits: &Limits,
    ) -> Option<OperationError> {
        let (id, state) = (self.origin.id, self.state.as_str());
        let conflict = |text: String| Some(OperationError::Conflict(text));
        if let Operation::Rerun { step, .. }
        | Operation::Redispatch { step }
        | Operation::Reply { step, .. } = operation
            && self.graph().find_index(step).is_none()
        {
            let names: Vec<&str> = self.graph().steps.iter().map(|step| &*step.name).collect();
            return Some(OperationError::UnknownStep(format!(
                "job {id} has no step \"{step}\"; its steps are {}",
                names.join(", ")
            )));
        }
        let is_child = self.origin.parent.is_some();
        match operation {
            Operation::Cancel { .. } if self.state.is_ended() => conflict(format!(
                "job {id} is {state}: only a running or paused job can be cancelled"
            )),
            Operation::Cancel { .. } => None,
            Operation::Reply { step, reply } => self.check_reply(step, reply, limits),
            Operation::Pause | Operation::Resume | Operation::Retry | Operation::Rerun { .. }
                if is_child =>
            {
                let (verb, root) = (operation.as_str(), self.origin.root);
                conflict(format!(
                    "job {id} is a child job: {verb} the job {root} that it belongs to, which \
                     reaches its child jobs"
                ))
            }
            Operation::Pause if self.state != JobState::Running => {
                conflict(format!("job {id} is {state}: only a running job can be paused"))
            }
            Operation::Resume if self.state != JobState::Paused => {
                conflict(format!("job {id} is {state}: only a paused job can be resumed"))
            }
            Operation::Retry if self.state != JobState::Failed => {
                conflict(format!("job {id} is {state}: only a failed job can be retried"))
            }
            Operation::Rerun { .. } if !self.state.is_ended() => conflict(format!(
                "job {id} is {state}: only an ended job can be rerun; cancel it first"
            )),
            Operation::Rerun { step, only_failed_items } => {
                self.check_rerun(step, *only_failed_items, limits)
            }
            Operation::Redispatch { step } => self.check_redispatch(step),
            Operation::Pause | Operation::Resume | Operation::Retry => None,
        }
    }

    /// Returns why a rerun from this step is refused; `None`: it is allowed.
    fn check_rerun(
        &self,
        step: &str,
        only_failed_items: bool,
        limits: &Limits,
    ) -> Option<OperationError> {
        let (id, index) = (self.origin.id, self.graph().find_index(step)?);
        let objection = if self.steps[index.as_usize()].state == StepState::Waiting {
            format!("step \"{step}\" of job {id} has not started: there is nothing to rerun")
        } else if !only_failed_items {
            return None;
        } else if self.has_failed_items_of(index) {
            let (condition, is) = match self.state_after_items(index, limits) {
                StepState::Skipped => ("when", "false"),
                StepState::Cancelled => ("cancelWhen", "true"),
                StepState::Waiting
                | StepState::Running
                | StepState::Completed
                | StepState::Failed => return None,
            };
            format!(
                "the `{condition}` of step \"{step}\" of job {id} is {is} now: the step would end \
                 at once, and the results of its other items would be lost. Rerun the step that \
                 the condition reads, if it is to give another result"
            )
        } else if self.graph().step(index).task.is_none() {
            format!(
                "step \"{step}\" of job {id} runs no child jobs, so that it has no items: rerun it \
                 without items=failed"
            )
        } else if !self.has_settled_items(index) {
            format!(
                "step \"{step}\" of job {id} is {}: the failed items of a completed or failed step \
                 can run again alone; rerun it without items=failed, or retry a failed job",
                self.step_state(index).as_str()
            )
        } else {
            format!(
                "no item of step \"{step}\" of job {id} has failed: there is nothing to run again; \
                 without items=failed all its items are"
            )
        };
        Some(OperationError::Conflict(objection))
    }

    /// Returns the state that a step would have at once if its failed items ran again alone. Its
    /// conditions may read what came after it, and end it.
    fn state_after_items(&self, step: StepIndex, limits: &Limits) -> StepState {
        let now = self.ended.unwrap_or(Timestamp(0));
        let ctx = Context { now, limits, pauses: None, spare: None };
        let (deadline, only_failed_items) = (None, true);
        let rerun = JobEntry::Rerun { step, deadline, only_failed_items };
        self.with_entry(Entry::Job(rerun), &ctx).step(step).state
    }

    /// Returns why sending the message of this step again is refused; `None`: it is allowed.
    fn check_redispatch(&self, step: &str) -> Option<OperationError> {
        let (id, index) = (self.origin.id, self.graph().find_index(step)?);
        let (definition, run) = (self.graph().step(index), &self.steps[index.as_usize()]);
        let objection = if !self.accepts_replies() {
            format!("job {id} is {}: its steps take no replies", self.state.as_str())
        } else if definition.task.is_some() {
            format!(
                "step \"{step}\" of job {id} runs child jobs: redispatch their steps, by the child \
                 job's id or by their queue"
            )
        } else if definition.external {
            format!(
                "step \"{step}\" of job {id} is external: it has no message, a call completes it"
            )
        } else if run.state != StepState::Running {
            format!(
                "step \"{step}\" of job {id} is {}: only a running step's message can be sent \
                 again",
                run.state.as_str()
            )
        } else if !run.has_active_attempt() {
            format!(
                "no attempt of step \"{step}\" of job {id} is running: the next one follows by \
                 itself"
            )
        } else if run.lease.is_some() && !run.confirmed {
            format!(
                "a worker has leased the message of step \"{step}\" of job {id}: it is leased \
                 again when its lease expires, or when the worker returns it (nack with \
                 requeue=true)"
            )
        } else if !run.confirmed {
            format!(
                "the message of step \"{step}\" of job {id} is still with the manager, which sends \
                 it by itself: no broker has confirmed it"
            )
        } else {
            return None;
        };
        Some(OperationError::Conflict(objection))
    }

    /// Returns why a manual reply is refused; `None`: it is accepted. An invalid reply of a worker
    /// fails its attempt, but a manual one is refused, because a person can correct it.
    fn check_reply(&self, step: &str, reply: &Reply, limits: &Limits) -> Option<OperationError> {
        let (id, index) = (self.origin.id, self.graph().find_index(step)?);
        let run = &self.steps[index.as_usize()];
        let objection = if !self.accepts_replies() {
            format!("job {id} is {}: its steps take no replies", self.state.as_str())
        } else if self.graph().step(index).task.is_some() {
            format!("step \"{step}\" of job {id} runs child jobs: complete their steps")
        } else if run.state != StepState::Running {
            format!(
                "step \"{step}\" of job {id} is {}: only a running step can be completed",
                run.state.as_str()
            )
        } else if !run.has_active_attempt() && !matches!(reply, Reply::Result(_)) {
            format!(
                "no attempt of step \"{step}\" of job {id} is running: it waits for its next one"
            )
        } else {
            let fault = check_manual_reply(self.graph().step(index), reply, limits)?;
            return Some(OperationError::Invalid(format!(
                "nothing was changed: {fault} (step \"{step}\" of job {id})"
            )));
        };
        Some(OperationError::Conflict(objection))
    }

    /// Decides what a request for an operation causes. Its first entry records the request itself.
    pub(super) fn decide_request(
        &self,
        request: OperationRequest,
        ctx: &Context<'_>,
    ) -> Result<Vec<Entry>, Rejected> {
        let OperationRequest { operation, reason, principal } = request;
        let step = operation.step().and_then(|step| self.graph().find_index(step));
        let outcome = self.decide_operation(&operation, principal.as_deref(), ctx)?;
        let recorded_request =
            JobEntry::Asked { operation: operation.as_str().into(), step, reason, by: principal };
        Ok([Entry::Job(recorded_request)].into_iter().chain(outcome).collect())
    }

    /// Decides what an operation causes.
    ///
    /// # Errors
    ///
    /// Returns an error if the operation is refused, or changes nothing.
    fn decide_operation(
        &self,
        operation: &Operation,
        principal: Option<&str>,
        ctx: &Context<'_>,
    ) -> Result<Vec<Entry>, Rejected> {
        match self.check_operation(operation, ctx.limits) {
            None => {}
            Some(OperationError::UnknownStep(_)) => return Err(Rejected::UnknownStep),
            Some(OperationError::Conflict(_) | OperationError::Invalid(_)) => {
                return Err(Rejected::Void);
            }
        }
        let deadline = || self.new_deadline(ctx);
        // A job that begins anew claims its place anew.
        let reopen = |entry: JobEntry| {
            let claim = self.claim_job_place();
            Ok([Entry::Job(entry)].into_iter().chain(claim).collect())
        };
        let entry = match operation {
            Operation::Cancel { reason } => {
                Entry::Job(JobEntry::Cancelled { reason: reason.clone(), by_parent: false })
            }
            Operation::Pause => Entry::Job(JobEntry::Paused),
            Operation::Resume => Entry::Job(JobEntry::Resumed),
            Operation::Retry => {
                let round = self.round + 1;
                return reopen(JobEntry::Retried { round, deadline: deadline() });
            }
            Operation::Rerun { step, only_failed_items } => {
                let (step, deadline) = (self.find_step(step)?, deadline());
                let only_failed_items = *only_failed_items;
                return reopen(JobEntry::Rerun { step, deadline, only_failed_items });
            }
            Operation::Redispatch { step } => {
                let step = self.find_step(step)?;
                Entry::Step(step, self.resend_entry(step))
            }
            Operation::Reply { step, reply } => {
                return self.decide_attempt_reply(
                    self.find_step(step)?,
                    None,
                    reply,
                    Author::Operator(principal),
                    ctx,
                );
            }
        };
        Ok(vec![entry])
    }

    fn find_step(&self, name: &str) -> Result<StepIndex, Rejected> {
        self.graph().find_index(name).ok_or(Rejected::UnknownStep)
    }
}
