//! Calls: each starts a job, joins one, or is refused. While the manager takes no jobs, calls wait.

use super::Router;
use super::pending_requests::{PendingRequest, RequestOutcome};
use crate::actors::call::{Call, CallSource};
use crate::actors::call_check::{CallRefusal, RefusedCall};
use crate::actors::client_response::RequestError;
use crate::actors::inputs::{JobInput, Lookup, LookupResult, Outgoing, RouterInput};
use crate::actors::job::{JobStart, SpawnRequest};
use actix::{AsyncContext, Context};
use base::clock;
use bus::Delivery;
use engine::text::quote;
use engine::{Caller, Origin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The pause before calls that wait are tried again.
const RETRY_DELAY: Duration = Duration::from_millis(500);

impl Router {
    /// Handles a message on the queue of a workflow.
    pub(super) fn handle_call_delivery(
        &mut self,
        workflow: &str,
        bus: &Arc<str>,
        delivery: Delivery,
        ctx: &mut Context<Self>,
    ) {
        let Some(definition) = self.env.definitions.current().get(workflow).cloned() else {
            // A reload has removed the workflow. The call goes back to its queue, and waits there
            // until the workflow is loaded again.
            tracing::warn!(
                workflow,
                "a call of a workflow that is no longer loaded goes back to its queue"
            );
            ctx.run_later(RETRY_DELAY, move |_, _| drop(delivery));
            return;
        };
        let Some(call) = Call::from_delivery(definition, bus, delivery, &self.env.calls) else {
            return;
        };
        self.handle_call(call, ctx);
    }

    /// Handles a call, in its turn.
    pub(super) fn handle_call(&mut self, call: Call, ctx: &mut Context<Self>) {
        let Some(call) = self.reject_own_reply_queue(call) else { return };
        let waiting = match call.source {
            CallSource::Step => self.try_start_call(call),
            CallSource::External | CallSource::Unverified(..) if self.call_backlog.is_empty() => {
                self.try_start_call(call)
            }
            CallSource::Unverified(..) => self.verify_source(call),
            CallSource::External => Some(call),
        };
        if let Some(call) = waiting {
            self.queue_call(call, ctx);
        }
    }

    /// Returns the call, unless it asks for an answer into our own reply queue. That queue is for
    /// our own steps, so the job of the step checks the call first. If the call is refused, nobody
    /// is notified: the refusal would go into that queue.
    fn reject_own_reply_queue(&mut self, call: Call) -> Option<Call> {
        let env = self.env.clone();
        let is_ours = |caller: &Caller| {
            let bus = env.buses.bus_of_caller(&call.definition, caller).name;
            env.buses.reply_queue(&bus) == Some(&*caller.reply_to)
        };
        if !call.caller.as_ref().is_some_and(is_ours) || call.is_from_step() {
            return Some(call);
        }
        let Call { definition, id, caller, ack, .. } = self.verify_source(call)?;
        let correlation_id = caller.and_then(|caller| caller.correlation_id).unwrap_or_default();
        let reason = format!(
            "reply_to is the manager's own reply queue, and the correlation id {} names no step \
             that runs and asks for {}",
            quote(&correlation_id),
            definition.name
        );
        RefusedCall { definition, id, caller: None, ack }
            .send_refusal(&CallRefusal { kind: "own_reply_queue", reason }, &self.env.calls);
        None
    }

    /// Queues a call until a job can be taken.
    pub(super) fn queue_call(&mut self, call: Call, ctx: &mut Context<Self>) {
        self.call_backlog.push(call);
        self.schedule_retry(ctx);
    }

    /// Queues a call until a job can be taken, and logs why.
    pub(super) fn queue_call_with_reason(
        &mut self,
        call: Call,
        reason: &str,
        ctx: &mut Context<Self>,
    ) {
        self.log_waiting_call(&call, reason);
        self.queue_call(call, ctx);
    }

    fn schedule_retry(&mut self, ctx: &mut Context<Self>) {
        if !self.call_backlog.must_schedule_retry() {
            return;
        }
        ctx.run_later(RETRY_DELAY, |router, ctx| {
            let calls = router.call_backlog.take_for_retry();
            if router.env.health.stopping.load(Ordering::Relaxed) {
                // They go back to their queues, for the next start.
                return;
            }
            let mut is_full = false;
            for call in calls {
                if is_full && !call.ack.is_stale() && matches!(call.source, CallSource::External) {
                    router.call_backlog.push(call);
                } else if let Some(returned) = router.try_start_call(call) {
                    is_full = true;
                    router.call_backlog.push(returned);
                }
            }
            router.schedule_retry(ctx);
        });
    }

    /// Joins the job under the id, or looks the id up in the archive. Returns the call if no job
    /// can be taken now.
    fn try_start_call(&mut self, call: Call) -> Option<Call> {
        if call.ack.is_stale() {
            // Its connection was lost meanwhile: the broker delivers it again.
            return None;
        }
        let (env, id) = (self.env.clone(), call.id);
        if let Some(job) = env.routes.find(id) {
            job.send(JobInput::Call(call));
            return None;
        }
        if env.routes.is_passivated(id) {
            self.handle_request(id, PendingRequest::Call(call));
            return None;
        }
        let job_count = env.routes.root_count() + self.lookups.call_count();
        let is_full = job_count >= env.limits.jobs_running_max
            || self.check_memory(call.message_bytes()).is_some();
        if env.health.can_accept() && is_full && !call.is_from_step() {
            match self.verify_source(call) {
                Some(call) => return self.log_and_return(call, "the manager takes no jobs now"),
                // The call comes back once the job has checked it.
                None => return None,
            }
        }
        if !env.health.can_accept() {
            return self.log_and_return(call, "the manager takes no jobs now");
        }
        self.handle_request(id, PendingRequest::Call(call));
        None
    }

    /// Starts the job of a call, or sends the caller the end of the job that has its id.
    pub(super) fn start_or_join_call(
        &mut self,
        call: Call,
        result: LookupResult,
        ctx: &mut Context<Self>,
    ) -> RequestOutcome {
        let env = self.env.clone();
        match result {
            LookupResult::Creation(None) | LookupResult::Job(None) => {
                self.start_job_of_call(call, ctx)
            }
            LookupResult::Creation(Some(ref earlier)) => {
                if let Some(call) = call.check_conflict(earlier, &env.calls) {
                    if call.caller.is_some() {
                        return RequestOutcome::LookUp(PendingRequest::Call(call), Lookup::Job);
                    }
                    call.ack.ack();
                }
            }
            LookupResult::Job(Some(found)) => {
                let Some(call) = call.check_conflict(&found.job, &env.calls) else {
                    return RequestOutcome::KeepResult(LookupResult::Job(Some(found)));
                };
                match self.check_reopen(&found) {
                    None => {
                        self.reopen(*found);
                        // The job was deleted at this moment: the call goes back to its queue.
                        drop(self.send_to_running(call.id, PendingRequest::Call(call)));
                        return RequestOutcome::DropResult;
                    }
                    Some(RequestError::Conflict(reason)) => {
                        call.refuse(&CallRefusal { kind: "conflict", reason }, &env.calls)
                    }
                    Some(_) => self.queue_call(call, ctx),
                }
                return RequestOutcome::KeepResult(LookupResult::Job(Some(found)));
            }
            LookupResult::Child(_) => {
                return RequestOutcome::LookUp(PendingRequest::Call(call), Lookup::Creation);
            }
        }
        RequestOutcome::KeepResult(result)
    }

    fn start_job_of_call(&mut self, call: Call, ctx: &mut Context<Self>) {
        let env = &self.env;
        let is_full = env.routes.root_count() >= env.limits.jobs_running_max
            || self.check_memory(call.message_bytes()).is_some();
        if !env.health.can_accept() || is_full && !call.is_from_step() {
            return self.queue_call_with_reason(call, "the manager takes no jobs now", ctx);
        }
        let Call { id, definition, message, caller, depth, trace, ack, .. } = call;
        let origin = Origin { depth, trace, ..Origin::for_root_job(id, definition, clock::now()) };
        let number = self.take_job_number();
        let start = JobStart::New {
            origin: Arc::new(origin),
            message,
            caller,
            outgoing: vec![Outgoing::Ack(ack)],
        };
        self.spawn(SpawnRequest { id, number, root: number, parent: None, start });
    }

    /// Sends the call to the job whose step it names, which checks it. Returns the call if there is
    /// no such job.
    fn verify_source(&mut self, call: Call) -> Option<Call> {
        let CallSource::Unverified(sender, _) = &call.source else { return Some(call) };
        let sender = sender.job;
        if let Some(job) = self.env.routes.find(sender) {
            job.send(JobInput::VerifyCall(call));
            return None;
        }
        match self.stash_if_passivated(sender, RouterInput::CallVerified(call)) {
            Some(RouterInput::CallVerified(call)) => {
                Some(Call { source: CallSource::External, ..call })
            }
            Some(_) | None => None,
        }
    }

    fn log_and_return(&self, call: Call, reason: &str) -> Option<Call> {
        self.log_waiting_call(&call, reason);
        Some(call)
    }

    fn log_waiting_call(&self, call: &Call, reason: &str) {
        if self.env.log_limiter.may_log("calls_kept") {
            tracing::warn!(
                workflow = call.definition.full_name(),
                reason,
                "calls wait (logged once a minute)"
            );
        }
    }
}
