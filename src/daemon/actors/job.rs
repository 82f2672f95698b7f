//! The job actor, around [`engine::Job`]: one for each active job and child job. It handles inputs,
//! lets the engine decide, and sends the record with its effects to the journal.
//!
//! Its other tasks are in files of their own:
//!
//! | file | task |
//! |---|---|
//! | `env` | the environment of job actors |
//! | `spawn`, `startup` | the start of an actor, with a new job or with one from the journal |
//! | `lifecycle` | the states of an actor, and how it stops |
//! | `requests` | requests of clients, and calls |
//! | `passivation` | how a job that only waits leaves memory while memory is short |
//! | `bulk_requests`, `waiting_since` | requests to every job: redispatch, waiting steps |
//! | `buses` | which steps wait on which bus, and what follows from a missing queue |
//! | `withdrawals` | the withdrawal of messages whose attempts have ended |
//! | `demands` | what a decision wants of the gate |
//! | `timer` | the timer for what is due next |
//! | `notifications` | the events and notices of a decision |
//! | `reporting` | the metrics and log lines of a decision |
//!
//! How an actor stops:
//!
//! 1. After an input that leaves nothing to do, its lifecycle changes to `Stopping`. With its last
//!    record it asks the journal to be stopped, and says how many inputs it has handled.
//! 2. After the commit, the journal forwards the request to the router.
//! 3. If no more inputs were sent to the job, the router removes it from the route table and closes
//!    its actor.
//! 4. Otherwise an input is still in the mailbox. The actor handles it, and then continues or asks
//!    again.

mod bulk_requests;
mod buses;
mod demands;
mod env;
mod lifecycle;
mod notifications;
mod passivation;
mod reporting;
mod requests;
mod spawn;
mod startup;
mod timer;
mod waiting_since;
mod withdrawals;

pub(super) use env::JobEnv;
pub use spawn::{JobStart, SpawnRequest};

use super::child_budget::ChildPermits;
use super::client_response::{ClientResponse, OperationResponse, RequestError, ResponseSender};
use super::due_timer::DueTimer;
use super::inputs::{
    Append, ChildOrder, Inspection, JobInput, JournalInput, NewChild, Outgoing, PassivateRequest,
    RouterInput, SupervisorInput, TakenPlaces,
};
use super::listed_state::{ListedState, SharedListedState};
use super::mailbox::{Envelope, MailboxActor};
use super::memory::{MemoryShare, job_bytes};
use super::messages::{job_end_message, step_message};
use super::reply_log::LoggedReply;
use super::spare_places::DecisionSpare;
use actix::{Actor, ActorContext, Handler};
use base::clock::SteadyClock;
use base::faults;
use engine::{
    CallerEntry, Context, Decision, Effect, Entry, Input, Job, JobId, JobState, Limits, RateMark,
    Rejected, Reply, StepEntry, Timestamp,
};
use journal::{JobNumber, NewJob, Record};
use lifecycle::Lifecycle;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use waiting_since::WaitingSince;

/// The actor of an active job.
pub struct JobActor {
    env: Arc<JobEnv>,
    pub(super) id: JobId,
    number: JobNumber,
    /// The number of the root job.
    root: JobNumber,
    /// The number of the parent; `None`: the job is a root job.
    pub(super) parent: Option<JobNumber>,
    lifecycle: Lifecycle,
    /// The clock for all times of the job. It does not follow adjustments of the wall clock.
    clock: SteadyClock,
    /// How many inputs the actor has handled: all that were sent to it, except those in its
    /// mailbox.
    inputs_handled: u64,
    /// The state under which the metrics count the job; `None`: they do not count it.
    pub(super) counted_state: Option<JobState>,
    /// When and how the job had ended before the latest decision; `None`: it had not ended.
    pub(super) previous_end: Option<(Timestamp, JobState)>,
    /// The job's share of the memory of jobs.
    memory_share: MemoryShare,
    /// The permits of the job's active child jobs.
    pub(super) child_permits: ChildPermits,
    /// How many inputs the actor had handled when it last asked to be passivated; `None`: it has
    /// not asked.
    inputs_at_passivation_request: Option<u64>,
    timer: DueTimer,
    /// What lists show of the job, for readers of the route table.
    listed_state: SharedListedState,
    /// What was reported of that last; `None`: nothing was reported yet.
    reported_state: Option<ListedState>,
    /// When the job's steps were first seen waiting for replies.
    waiting_since: WaitingSince,
}

/// An operation whose client waits for the response.
struct PendingOperation {
    /// The name of the step; `None`: the operation is on the whole job.
    step: Option<String>,
    response: ResponseSender<OperationResponse>,
}

impl JobActor {
    /// Creates an actor. Its job starts when the actor is started.
    pub(super) fn new(
        env: Arc<JobEnv>,
        request: SpawnRequest,
        listed_state: SharedListedState,
        memory_share: MemoryShare,
    ) -> JobActor {
        let SpawnRequest { id, number, root, parent, start } = request;
        JobActor {
            id,
            number,
            root,
            parent,
            lifecycle: Lifecycle::Starting(start),
            clock: SteadyClock::start(),
            inputs_handled: 0,
            counted_state: None,
            previous_end: None,
            memory_share,
            inputs_at_passivation_request: None,
            child_permits: env.child_budget.no_permits(),
            timer: DueTimer::default(),
            listed_state,
            reported_state: None,
            waiting_since: WaitingSince::default(),
            env,
        }
    }

    /// Returns the limits for the next decision. The window of a fan-out is also limited by the
    /// permits that the child budget can still give.
    fn limits(&self) -> Limits {
        let env = &self.env;
        let window = env.limits.window.min(self.child_permits.max());
        // While the memory limit is exceeded, each fan-out runs one child job at a time.
        let window_bytes = if env.memory.is_exceeded() { 0 } else { env.limits.window_bytes };
        Limits { window, window_bytes, ..env.limits }
    }

    fn update_child_permits(&mut self) {
        if let Some(count) = self.job().map(Job::child_count) {
            self.child_permits.set_count(count);
        }
    }

    /// Returns the job; `None`: it has panicked and is being rebuilt, or the actor has no job (yet
    /// or any more).
    pub(super) fn job(&self) -> Option<&Job> {
        self.lifecycle.job()
    }

    fn handle_input(&mut self, input: JobInput, ctx: &mut actix::Context<Self>) {
        // `Rebuilt` is counted only after the stashed inputs were handled. Until then the count is
        // too low for the router to stop the job.
        let is_rebuild = matches!(input, JobInput::Rebuilt { .. });
        self.inputs_handled += u64::from(!is_rebuild);
        self.handle_in_lifecycle(input, ctx);
        self.inputs_handled += u64::from(is_rebuild);
        self.stop_or_resume();
        self.passivate_if_memory_short();
        self.set_timer(ctx);
    }

    /// Asks to be stopped if nothing is left to do, even if it has asked before the last input.
    /// Otherwise resumes the job if it was stopping.
    fn stop_or_resume(&mut self) {
        if self.lifecycle.must_request_stop(self.inputs_handled) {
            let stop_after = self.begin_stop();
            self.send_behind_commits(Vec::new(), stop_after, None);
        } else {
            self.lifecycle.resume();
        }
    }

    /// Marks the job as stopping. Returns how many inputs the actor has handled, for its request to
    /// be stopped; `None`: there is no job.
    fn begin_stop(&mut self) -> Option<u64> {
        self.lifecycle.begin_stop(self.inputs_handled).then_some(self.inputs_handled)
    }

    fn handle_in_lifecycle(&mut self, input: JobInput, ctx: &mut actix::Context<Self>) {
        match (&mut self.lifecycle, input) {
            (_, JobInput::Close) => {
                self.set_counted_state(None);
                // A stopped actor must not ask to stop again: the job may have another actor by
                // then.
                self.lifecycle = Lifecycle::Stopped;
                ctx.stop();
            }
            (Lifecycle::Broken { stash }, JobInput::Rebuilt { recovered, abandon }) => {
                let stashed = std::mem::take(stash);
                self.handle_rebuilt(*recovered, abandon, stashed);
            }
            (_, input) => self.handle_or_stash(input),
        }
    }

    /// Handles an input of a job that runs, stashes it if the job is being rebuilt, and drops it if
    /// there is no job.
    fn handle_or_stash(&mut self, input: JobInput) {
        match &mut self.lifecycle {
            Lifecycle::Running(_) | Lifecycle::Stopping { .. } => self.handle_running(input),
            Lifecycle::Broken { stash } => stash.push(input),
            Lifecycle::Starting(_) | Lifecycle::Stopped => {}
        }
    }

    fn handle_running(&mut self, input: JobInput) {
        match input {
            JobInput::Engine { input, ack } => {
                self.handle_engine_input(input, ack.map(Outgoing::Ack).into_iter().collect())
            }
            JobInput::MessageUpdate { job_created, input } => {
                if self.job().is_some_and(|job| job.origin().created == job_created) {
                    self.handle_engine_input(input, Vec::new());
                }
            }
            JobInput::CreateDuplicate { workflow, message, response } => {
                self.handle_duplicate_create(&workflow, &message, response)
            }
            JobInput::Call(call) => self.handle_call(call),
            JobInput::VerifyCall(call) => self.verify_call(call),
            JobInput::Cancel(principal, response) => self.handle_cancel(principal, response),
            JobInput::Erase(response) => self.handle_erase(response),
            JobInput::Operate(request, response) => self.handle_operation(request, response),
            JobInput::QueueMissing { queue, latch } => self.handle_queue_missing(&queue, latch),
            JobInput::Redispatch { bulk, latch } => self.redispatch(&bulk, &latch),
            JobInput::RestoreWaitingSince(waiting_since) => {
                self.waiting_since.restore(waiting_since)
            }
            JobInput::CountWaiting(scan) => self.count_waiting(&scan),
            JobInput::ReportWaits { waits, latch } => {
                self.report_waits(&waits);
                drop(latch);
            }
            JobInput::AwaitCommit(latch) => {
                self.send_after_commit(vec![Outgoing::ReleaseLatch(latch)])
            }
            JobInput::Inspect(Inspection { inspect, latch }) => {
                if let Some(job) = self.job() {
                    inspect(job);
                }
                self.send_after_commit(vec![Outgoing::ReleaseLatch(latch)]);
            }
            // `handle_in_lifecycle` has handled `Close`, and `Rebuilt` of a broken job; a running
            // job ignores `Rebuilt`. Passivation is checked after each input.
            JobInput::Rebuilt { .. } | JobInput::PassivateIfWaiting | JobInput::Close => {}
        }
    }

    /// Lets the engine decide, as [`decide`](Self::decide) does, for an input that is not an
    /// operation.
    pub(super) fn handle_engine_input(&mut self, input: Input, outgoing: Vec<Outgoing>) {
        self.decide(input, outgoing, None);
    }

    /// Lets the engine decide. `outgoing` is sent after the commit. If the input is an operation of
    /// a client, `operation` is given, and the response is the state of the job.
    ///
    /// A panic of the engine affects only this job. The supervisor has it rebuilt, and until then
    /// its inputs are stashed. The delivery that caused the panic is requeued.
    fn decide(
        &mut self,
        input: Input,
        mut outgoing: Vec<Outgoing>,
        operation: Option<PendingOperation>,
    ) {
        let (env, now) = (self.env.clone(), self.clock.now());
        let limits = self.limits();
        let Some(job) = self.lifecycle.job_mut() else { return };
        self.previous_end = job.ended().map(|ended| (ended, job.state()));
        let pauses = env.pauses.current();
        let spare = DecisionSpare::new(&env.spare_places, &env.router);
        let context =
            Context { now, limits: &limits, pauses: pauses.as_deref(), spare: Some(&spare) };
        let marks =
            if let Input::Admitted { marks, .. } = &input { marks.clone() } else { Vec::new() };
        let logged_reply = LoggedReply::from_input(&input);
        let is_result = matches!(&input, Input::Reply { reply: Reply::Result(_), .. });
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let comes_again = matches!(input, Input::Reply { .. } | Input::ChildEnded { .. });
            hit_failpoint("job::take", comes_again);
            let decided = env.rules.handle_input(job, input, &context);
            hit_failpoint("job::taken", comes_again && spare.has_taken());
            decided
        }));
        match outcome {
            Ok(Ok(decision)) => {
                if is_result {
                    set_failure(&decision, &mut outgoing);
                }
                outgoing.extend(operation.map(|PendingOperation { step, response }| {
                    Outgoing::Respond(ClientResponse::Operation(
                        response,
                        Ok(OperationResponse::from_job(job, step.as_deref())),
                    ))
                }));
                self.append(decision, None, outgoing, (marks, spare.into_taken()));
            }
            Ok(Err(rejected)) => {
                outgoing.extend(operation.map(|PendingOperation { response, .. }| {
                    let reason = format!("nothing to change: {}", rejected.label());
                    Outgoing::Respond(ClientResponse::Operation(
                        response,
                        Err(RequestError::Conflict(reason)),
                    ))
                }));
                self.reject(rejected, logged_reply, outgoing);
            }
            Err(_) => {
                self.lifecycle = Lifecycle::Broken { stash: Vec::new() };
                env.supervisor.send(SupervisorInput::Panicked { number: self.number, id: self.id });
            }
        }
    }

    /// Handles the rejection of an input by the engine: counts and logs it if the input came in a
    /// delivery, and sends `outgoing`.
    fn reject(
        &mut self,
        rejected: Rejected,
        logged_reply: Option<LoggedReply>,
        mut outgoing: Vec<Outgoing>,
    ) {
        if outgoing.iter().any(|effect| matches!(effect, Outgoing::Ack(_))) {
            self.env.metrics.replies_rejected.with_label_values(&[rejected.label()]).inc();
            if let Some(reply) = logged_reply
                && self.env.log_limiter.may_log(rejected.label())
            {
                reply.log(self.id, rejected);
            }
        }
        // The acknowledgement follows the commit of the decision for which this input is rejected.
        // Before that commit, this delivery may be the last copy of a reply.
        if !outgoing.is_empty() {
            for effect in &mut outgoing {
                if let Outgoing::Ack(ack) = effect {
                    ack.set_rejection(bus::Rejection::ByJob(rejected));
                }
            }
            self.send_after_commit(outgoing);
        }
    }

    fn send_after_commit(&self, outgoing: Vec<Outgoing>) {
        self.send_behind_commits(outgoing, None, None);
    }

    /// Sends effects and requests that must wait for the commit of all earlier decisions.
    fn send_behind_commits(
        &self,
        outgoing: Vec<Outgoing>,
        stop_after: Option<u64>,
        passivate: Option<Box<PassivateRequest>>,
    ) {
        self.env.journal.send(JournalInput::Append(Append {
            id: self.id,
            job: self.number,
            record: None,
            is_urgent: true,
            demands: None,
            outgoing,
            stop_after,
            passivate,
        }));
    }

    /// Sends a decision to the journal, and reports it. `outgoing` is sent after the commit, before
    /// the effects of the decision. `marks`: how far the rates of limits are used up with it.
    /// `taken`: the spare places that it has taken.
    fn append(
        &mut self,
        mut decision: Decision,
        new_job: Option<NewJob>,
        mut outgoing: Vec<Outgoing>,
        (marks, taken): (Vec<RateMark>, TakenPlaces),
    ) {
        let now = decision.recorded.at;
        self.report_decision(&decision.recorded);
        self.report_column_errors(decision.cells.errors);
        self.update_state_gauge();
        self.update_child_permits();
        self.update_memory_share();
        faults::observe("job::decided", || (self.number, self.job().cloned()));
        // These entries only record what became of a message. A decision that has nothing else is
        // committed with a delay (setting `journal.confirm_lag`).
        let is_urgent = !matches!(
            decision.recorded.entries.as_slice(),
            [Entry::Step(_, StepEntry::Confirmed | StepEntry::Leased(_) | StepEntry::Begun)
                | Entry::Caller(CallerEntry::Answered(_))]
        );
        let effects = std::mem::take(&mut decision.effects);
        outgoing.extend(effects.into_iter().filter_map(|effect| self.to_outgoing(effect, now)));
        let demands = self.job_demands(std::mem::take(&mut decision.demands), taken);
        outgoing.extend(self.withdrawals(&decision.recorded));
        let stop_after = if decision.closed { self.begin_stop() } else { None };
        let (notifications, notice) = self.notifications(&decision.recorded);
        outgoing.extend(notifications);
        // This precedes the responses: a client may read the route table as soon as it has its
        // response.
        outgoing.splice(0..0, self.listed_state_update());
        outgoing.extend(self.child_counts_update(&decision.recorded));
        let has_entries = !decision.recorded.entries.is_empty();
        let record =
            Record { notice, marks, ..Record::from_decision(self.number, new_job, decision) };
        self.env.journal.send(JournalInput::Append(Append {
            id: self.id,
            job: self.number,
            record: has_entries.then_some(record),
            is_urgent,
            demands,
            outgoing,
            stop_after,
            passivate: None,
        }));
    }

    /// Updates how many bytes of memory the job holds, and notifies the router if memory has become
    /// short.
    pub(super) fn update_memory_share(&mut self) {
        if let Some(bytes) = self.job().map(job_bytes) {
            self.memory_share.set(bytes);
            if self.env.memory.needs_notification() {
                self.env.router.send(RouterInput::MemoryShort);
            }
        }
    }

    /// Converts an effect of the engine into what is sent after the commit; `None`: there is no
    /// job, or the caller to answer is not known any more.
    fn to_outgoing(&self, effect: Effect, now: Timestamp) -> Option<Outgoing> {
        let job = self.job()?;
        Some(match effect {
            Effect::Dispatch { step, attempt, input } => {
                let bus = self.env.buses.bus_of_step(job.definition(), job.graph().step(step));
                let ratio = self.env.sampling_ratio;
                Outgoing::Publish(step_message(job, bus, step, attempt, input, (now, ratio)))
            }
            Effect::StartChild { origin, message } => Outgoing::StartChild(Box::new(NewChild {
                origin: *origin,
                message,
                parent: self.number,
                root: self.root,
            })),
            Effect::OrderChild { child, parent_item, order } => Outgoing::OrderChild(ChildOrder {
                id: child,
                parent_item,
                parent: self.number,
                order,
            }),
            Effect::NotifyParent(parent, ended) => Outgoing::NotifyParent(parent, ended),
            Effect::AnswerCaller { caller, end } => {
                let bus = self.env.buses.bus_of_caller(job.definition(), job.caller(caller)?);
                let bytes_max = self.env.limits.step_message_bytes_max;
                Outgoing::Publish(job_end_message(job, bus, caller, end, bytes_max, now)?)
            }
        })
    }
}

/// Adds the failure to the acknowledgement of a result, if the decision is that the attempt has
/// failed because of the result. So the worker is notified of the reason.
fn set_failure(decision: &Decision, outgoing: &mut [Outgoing]) {
    // The first entry of a decision is the direct consequence of its input.
    let Some(Entry::Step(_, entry)) = decision.recorded.entries.first() else { return };
    let Some(failure) = entry.failure() else { return };
    for effect in outgoing {
        if let Outgoing::Ack(ack) = effect {
            ack.set_failure(failure.reason.clone());
        }
    }
}

/// Lets tests make a job panic at a point where its input is not lost.
fn hit_failpoint(point: &'static str, comes_again: bool) {
    if comes_again && faults::hit(point).is_some() {
        panic!("failpoint {point}");
    }
}

impl Actor for JobActor {
    type Context = actix::Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if let Lifecycle::Starting(start) =
            std::mem::replace(&mut self.lifecycle, Lifecycle::Stopped)
        {
            self.start_job(start);
            self.set_timer(ctx);
        }
    }
}

impl MailboxActor for JobActor {
    type Input = JobInput;
    const KIND: &'static str = "job";
}

impl Handler<Envelope<JobInput>> for JobActor {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<JobInput>, ctx: &mut Self::Context) {
        envelope.handle(|input| self.handle_input(input, ctx));
    }
}
