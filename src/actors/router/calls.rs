//! Calls: each starts a job, joins one, or is refused. While the manager takes no jobs, calls wait.

use super::Router;
use super::asks::{Ask, Handled};
use crate::actors::answer::Refusal;
use crate::actors::call::{Asker, Call};
use crate::actors::call_check::{CallRefusal, RefusedCall};
use crate::actors::job::{Spawn, Start};
use crate::actors::mail::{Finding, JobInput, Outgoing, Question, RouterInput};
use crate::bus::Delivery;
use crate::clock;
use crate::engine::words::quoted;
use crate::engine::{Caller, Origin};
use actix::{AsyncContext, Context};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The pause before calls that wait are tried again.
const TRIED_AGAIN_AFTER: Duration = Duration::from_millis(500);

impl Router {
    /// Handles a message on the queue of a workflow.
    pub(super) fn called(
        &mut self,
        workflow: &str,
        bus: &Arc<str>,
        delivery: Delivery,
        ctx: &mut Context<Self>,
    ) {
        let Some(definition) = self.ways.common.definitions().get(workflow).cloned() else {
            // A reload has removed the workflow. The call goes back to its queue, and waits there
            // until the workflow is loaded again.
            tracing::warn!(
                workflow,
                "a call of a workflow that is no longer loaded goes back to its queue"
            );
            ctx.run_later(TRIED_AGAIN_AFTER, move |_, _| drop(delivery));
            return;
        };
        let Some(call) = Call::read(definition, bus, delivery, &self.ways) else { return };
        self.take_call(call, ctx);
    }

    /// Handles a call, in its turn.
    pub(super) fn take_call(&mut self, call: Call, ctx: &mut Context<Self>) {
        let Some(call) = self.unless_answered_here(call) else { return };
        let kept = match call.asker {
            Asker::Step => self.start_call(call),
            Asker::Stranger | Asker::Claimed(..) if self.waiting.is_empty() => {
                self.start_call(call)
            }
            Asker::Claimed(..) => self.ask_claimed(call),
            Asker::Stranger => Some(call),
        };
        if let Some(call) = kept {
            self.keep_call(call, ctx);
        }
    }

    /// Returns the call, unless it asks for an answer into our own reply queue. That queue is for
    /// our own steps, so the job of the step checks the call first. If the call is refused, nobody
    /// is notified: the refusal would go into that queue.
    fn unless_answered_here(&mut self, call: Call) -> Option<Call> {
        let ways = self.ways.clone();
        let is_ours = |caller: &Caller| {
            let bus = ways.buses.of_caller(&call.definition, caller).bus;
            ways.common.settings.reply_queue(&bus) == Some(&*caller.reply_to)
        };
        if !call.caller.as_ref().is_some_and(is_ours) || call.is_of_step() {
            return Some(call);
        }
        let Call { definition, id, caller, ack, .. } = self.ask_claimed(call)?;
        let correlation_id = caller.and_then(|caller| caller.correlation_id).unwrap_or_default();
        let reason = format!(
            "reply_to is the manager's own reply queue, and the correlation id {} names no step \
             that runs and asks for {}",
            quoted(&correlation_id),
            definition.name
        );
        RefusedCall { definition, id, caller: None, ack }
            .tell(&CallRefusal { kind: "own_reply_queue", reason }, &self.ways);
        None
    }

    /// Queues a call until a job can be taken.
    pub(super) fn keep_call(&mut self, call: Call, ctx: &mut Context<Self>) {
        self.waiting.push_back(call);
        self.try_again_later(ctx);
    }

    /// Queues a call until a job can be taken, and logs why.
    pub(super) fn keep_call_for(&mut self, call: Call, reason: &str, ctx: &mut Context<Self>) {
        self.say_kept(&call, reason);
        self.keep_call(call, ctx);
    }

    fn try_again_later(&mut self, ctx: &mut Context<Self>) {
        if self.waiting.is_empty() || self.is_waiting {
            return;
        }
        self.is_waiting = true;
        ctx.run_later(TRIED_AGAIN_AFTER, |router, ctx| {
            router.is_waiting = false;
            if router.ways.common.health.stopping.load(Ordering::Relaxed) {
                // They go back to their queues, for the next start.
                return router.waiting.clear();
            }
            let mut is_full = false;
            for call in std::mem::take(&mut router.waiting) {
                if is_full && !call.ack.is_void() && matches!(call.asker, Asker::Stranger) {
                    router.waiting.push_back(call);
                } else if let Some(kept) = router.start_call(call) {
                    is_full = true;
                    router.waiting.push_back(kept);
                }
            }
            router.try_again_later(ctx);
        });
    }

    /// Joins the job under the id, or looks the id up in the archive. Returns the call if no job
    /// can be taken now.
    fn start_call(&mut self, call: Call) -> Option<Call> {
        if call.ack.is_void() {
            // Its connection was lost meanwhile: the broker delivers it again.
            return None;
        }
        let (ways, id) = (self.ways.clone(), call.id);
        let ways = &ways;
        if let Some(job) = ways.routes.find(id) {
            job.post(JobInput::Called(call));
            return None;
        }
        if ways.routes.is_at_rest(id) {
            self.ask(id, Ask::Call(call));
            return None;
        }
        let taken = ways.routes.roots() + self.look_ups.calls();
        let is_full = taken >= ways.common.settings.limits.jobs_running_max
            || self.refusal_of_memory(call.bytes()).is_some();
        if ways.common.health.accepts() && is_full && !call.is_of_step() {
            match self.ask_claimed(call) {
                Some(call) => return self.kept(call, "the manager takes no jobs now"),
                // The call comes back once the job has checked it.
                None => return None,
            }
        }
        if !ways.common.health.accepts() {
            return self.kept(call, "the manager takes no jobs now");
        }
        self.ask(id, Ask::Call(call));
        None
    }

    /// Starts the job of a call, or sends the caller the end of the job that has its id.
    pub(super) fn begin_call(
        &mut self,
        call: Call,
        finding: Finding,
        ctx: &mut Context<Self>,
    ) -> Handled {
        let ways = self.ways.clone();
        match finding {
            Finding::Creation(None) | Finding::Job(None) => self.start_job_of_call(call, ctx),
            Finding::Creation(Some(ref earlier)) => {
                if let Some(call) = call.unless_conflict(earlier, &ways) {
                    if call.caller.is_some() {
                        return Handled::LookUp(Ask::Call(call), Question::Job);
                    }
                    call.ack.ack();
                }
            }
            Finding::Job(Some(found)) => {
                let Some(call) = call.unless_conflict(&found.job, &ways) else {
                    return Handled::KeepFinding(Finding::Job(Some(found)));
                };
                match self.refusal_to_revive(&found) {
                    None => {
                        self.revive(*found);
                        // The job was deleted at this moment: the call goes back to its queue.
                        drop(self.to_live(call.id, Ask::Call(call)));
                        return Handled::DropFinding;
                    }
                    Some(Refusal::Conflict(reason)) => {
                        call.refuse(&CallRefusal { kind: "conflict", reason }, &ways)
                    }
                    Some(_) => self.keep_call(call, ctx),
                }
                return Handled::KeepFinding(Finding::Job(Some(found)));
            }
            Finding::Child(_) => return Handled::LookUp(Ask::Call(call), Question::Creation),
        }
        Handled::KeepFinding(finding)
    }

    fn start_job_of_call(&mut self, call: Call, ctx: &mut Context<Self>) {
        let ways = &self.ways;
        let is_full = ways.routes.roots() >= ways.common.settings.limits.jobs_running_max
            || self.refusal_of_memory(call.bytes()).is_some();
        if !ways.common.health.accepts() || is_full && !call.is_of_step() {
            return self.keep_call_for(call, "the manager takes no jobs now", ctx);
        }
        let Call { id, definition, message, caller, depth, trace, ack, .. } = call;
        let origin = Origin { depth, trace, ..Origin::top_level(id, definition, clock::now()) };
        let number = ways.common.take_number();
        let start = Start::New {
            origin: Arc::new(origin),
            message,
            caller,
            release: vec![Outgoing::Ack(ack)],
        };
        self.spawn(Spawn { id, number, root: number, parent: None, start });
    }

    /// Sends the call to the job whose step it names, which checks it. Returns the call if there is
    /// no such job.
    fn ask_claimed(&mut self, call: Call) -> Option<Call> {
        let Asker::Claimed(sender, _) = &call.asker else { return Some(call) };
        let sender = sender.job;
        if let Some(job) = self.ways.routes.find(sender) {
            job.post(JobInput::Vouch(call));
            return None;
        }
        match self.unless_at_rest(sender, RouterInput::Vouched(call)) {
            Some(RouterInput::Vouched(call)) => Some(Call { asker: Asker::Stranger, ..call }),
            Some(_) | None => None,
        }
    }

    fn kept(&self, call: Call, reason: &str) -> Option<Call> {
        self.say_kept(&call, reason);
        Some(call)
    }

    fn say_kept(&self, call: &Call, reason: &str) {
        if self.ways.common.throttle.may_log("calls_kept") {
            tracing::warn!(
                workflow = call.definition.full_name(),
                reason,
                "calls wait (logged once a minute)"
            );
        }
    }
}
