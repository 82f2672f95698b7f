//! Handles calls: each starts a job, joins one, or is refused. While the manager accepts no jobs,
//! calls wait in the backlog.

use super::Router;
use super::job_limits::ClaimRefusal;
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
use std::time::Duration;

/// The delay before waiting calls are tried again, and before a call of a workflow that is not
/// loaded returns to its queue.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The reason that is logged for calls that wait, whatever prevents the start of their jobs.
const NO_JOBS_REASON: &str = "the manager takes no jobs now";

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
            // A reload has removed the workflow. Dropping the call requeues it: it waits in its
            // queue until the workflow is loaded again.
            tracing::warn!(
                workflow,
                "a call of a workflow that is no longer loaded goes back to its queue"
            );
            ctx.run_later(RETRY_DELAY, move |_, _| drop(delivery));
            return;
        };
        let Some(call) = Call::from_delivery(definition, bus, delivery, &self.env.call_env) else {
            return;
        };
        self.handle_call(call, ctx);
    }

    /// Handles a call. It waits behind the calls in the backlog, unless a step has sent it.
    pub(super) fn handle_call(&mut self, call: Call, ctx: &mut Context<Self>) {
        let Some(call) = self.reject_own_reply_queue(call) else { return };
        let unhandled = match call.source {
            CallSource::Step => self.try_start_call(call),
            CallSource::External | CallSource::Unverified(..) if self.call_backlog.is_empty() => {
                self.try_start_call(call)
            }
            CallSource::Unverified(..) => self.verify_source(call),
            CallSource::External => Some(call),
        };
        if let Some(call) = unhandled {
            self.queue_call(call, ctx);
        }
    }

    /// Returns the call if it may be handled. A call whose `reply_to` is the manager's own reply
    /// queue may only come from a step, so the claimed job must verify it first; then this returns
    /// `None`. If no such job takes input, the call is refused, without a message to its caller,
    /// because that would be sent to the manager's own reply queue.
    fn reject_own_reply_queue(&mut self, call: Call) -> Option<Call> {
        let env = self.env.clone();
        let uses_own_reply_queue = |caller: &Caller| {
            let bus = env.buses.bus_of_caller(&call.definition, caller).name;
            env.buses.reply_queue(&bus) == Some(&*caller.reply_to)
        };
        if !call.caller.as_ref().is_some_and(uses_own_reply_queue) || call.is_from_step() {
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
            .send_refusal(&CallRefusal { kind: "own_reply_queue", reason }, &self.env.call_env);
        None
    }

    /// Adds a call to the backlog, until the manager accepts jobs.
    pub(super) fn queue_call(&mut self, call: Call, ctx: &mut Context<Self>) {
        self.call_backlog.push(call);
        self.schedule_retry(ctx);
    }

    /// Adds a call to the backlog, and logs the reason.
    pub(super) fn queue_call_with_reason(
        &mut self,
        call: Call,
        reason: &str,
        ctx: &mut Context<Self>,
    ) {
        self.log_waiting_call(&call, reason);
        self.queue_call(call, ctx);
    }

    /// Schedules a retry of the calls in the backlog, unless it is scheduled or there are none.
    fn schedule_retry(&mut self, ctx: &mut Context<Self>) {
        if !self.call_backlog.mark_retry_scheduled() {
            return;
        }
        ctx.run_later(RETRY_DELAY, |router, ctx| {
            let calls = router.call_backlog.take_for_retry();
            if router.env.health.is_stopping() {
                // Dropping the calls requeues them, for the next start.
                return;
            }
            let mut is_blocked = false;
            for call in calls {
                // Calls keep their order: once a call must wait, those behind it wait too.
                if is_blocked && !call.ack.is_stale() && matches!(call.source, CallSource::External)
                {
                    router.call_backlog.push(call);
                } else if let Some(call) = router.try_start_call(call) {
                    is_blocked = true;
                    router.call_backlog.push(call);
                }
            }
            router.schedule_retry(ctx);
        });
    }

    /// Passes the call to the job under its id. If there is none, has the archive look up the id,
    /// and the job is started after that. Drops a stale call. Returns the call if it must wait,
    /// because the manager accepts no job now.
    fn try_start_call(&mut self, call: Call) -> Option<Call> {
        if call.ack.is_stale() {
            // The connection of the call was lost: the broker delivers it again.
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
            // `None`: the job that checks the call sends it to the router again.
            let call = self.verify_source(call)?;
            self.log_waiting_call(&call, NO_JOBS_REASON);
            return Some(call);
        }
        if !env.health.can_accept() {
            self.log_waiting_call(&call, NO_JOBS_REASON);
            return Some(call);
        }
        self.handle_request(id, PendingRequest::Call(call));
        None
    }

    /// Starts the job of a call, or joins the call to the job that has its id, after a lookup of
    /// the id. An ended job is reopened to answer the caller.
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
            LookupResult::Creation(Some(ref creation)) => {
                if let Some(call) = call.check_conflict(creation, &env.call_env) {
                    if call.caller.is_some() {
                        return RequestOutcome::LookUp(PendingRequest::Call(call), Lookup::Job);
                    }
                    call.ack.ack();
                }
            }
            LookupResult::Job(Some(recovered)) => {
                let Some(call) = call.check_conflict(&recovered.job, &env.call_env) else {
                    return RequestOutcome::KeepResult(LookupResult::Job(Some(recovered)));
                };
                match self.check_reopen(&recovered) {
                    None => {
                        self.reopen(*recovered);
                        // If the job was deleted concurrently, dropping the call requeues it.
                        drop(self.send_to_running(call.id, PendingRequest::Call(call)));
                        return RequestOutcome::DropResult;
                    }
                    Some(RequestError::Conflict(reason)) => {
                        call.refuse(&CallRefusal { kind: "conflict", reason }, &env.call_env)
                    }
                    Some(_) => self.queue_call(call, ctx),
                }
                return RequestOutcome::KeepResult(LookupResult::Job(Some(recovered)));
            }
            LookupResult::Child(_) => {
                return RequestOutcome::LookUp(PendingRequest::Call(call), Lookup::Creation);
            }
        }
        RequestOutcome::KeepResult(result)
    }

    /// Starts the job of a call, or queues the call if the manager accepts no job now.
    fn start_job_of_call(&mut self, call: Call, ctx: &mut Context<Self>) {
        let env = &self.env;
        let is_full = env.routes.root_count() >= env.limits.jobs_running_max
            || self.check_memory(call.message_bytes()).is_some();
        if !env.health.can_accept() || is_full && !call.is_from_step() {
            return self.queue_call_with_reason(call, NO_JOBS_REASON, ctx);
        }
        let root = Origin::for_root_job(call.id, call.definition.clone(), clock::now());
        let origin = Origin { depth: call.depth, trace: call.trace.clone(), ..root };
        let place = match self.check_claim(&origin, &call.message) {
            Ok(place) => place,
            Err(refusal) => {
                let (kind, reason) = match refusal {
                    ClaimRefusal::Key(reason) => ("limit_key", reason),
                    ClaimRefusal::Held { reason, .. } => ("no_place", reason),
                };
                return call.refuse(&CallRefusal { kind, reason }, &self.env.call_env);
            }
        };
        let Call { id, message, caller, ack, .. } = call;
        let (number, origin) = (self.take_job_number(), Arc::new(origin));
        let start = JobStart::New {
            origin: origin.clone(),
            message,
            caller,
            outgoing: vec![Outgoing::Ack(ack)],
        };
        self.spawn(SpawnRequest { id, number, root: number, parent: None, start });
        if let Some(place) = place {
            self.reserve(number, &origin, place, ctx);
        }
    }

    /// Sends an unverified call to the job that it claims to come from, which verifies it. A
    /// passivated job is activated for that. If there is no such job, returns the call as an
    /// external one. Any other call is returned unchanged.
    fn verify_source(&mut self, call: Call) -> Option<Call> {
        let CallSource::Unverified(correlation_id, _) = &call.source else { return Some(call) };
        let claimed_job = correlation_id.job;
        if let Some(job) = self.env.routes.find(claimed_job) {
            job.send(JobInput::VerifyCall(call));
            return None;
        }
        match self.stash_if_passivated(claimed_job, RouterInput::CallVerified(call)) {
            Some(RouterInput::CallVerified(call)) => {
                Some(Call { source: CallSource::External, ..call })
            }
            Some(_) | None => None,
        }
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
