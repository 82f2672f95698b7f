//! The router: it sends each reply to the job that its correlation id names, admits new jobs, and
//! starts and stops job actors.

mod broadcast;
mod call_backlog;
mod calls;
mod children;
mod env;
mod gate;
mod gate_keeper;
mod job_claims;
mod job_limits;
mod lifecycle;
mod lookups;
mod operations;
mod passivated_trees;
mod passivation;
mod pending_requests;

pub(super) use env::RouterEnv;

use super::inputs::{CommitBarrier, JobInput, JournalInput, RouterInput};
use super::mailbox::{Envelope, MailboxActor};
use super::reply_log::body_excerpt;
use super::routes::RouteTable;
use actix::{Actor, Context, Handler};
use base::{clock, faults};
use bus::{Address, Delivery, Rejection};
use call_backlog::CallBacklog;
use engine::text::shorten;
use engine::{Control, CorrelationId, Input, JobId, RateMark, Reply};
use gate_keeper::GateKeeper;
use job_claims::JobClaims;
use journal::{JobNumber, JobNumbers};
use passivated_trees::PassivatedTrees;
use pending_requests::{PendingLookups, PendingRequest};
use std::sync::Arc;
use tokio::sync::oneshot;

/// How many characters of a rejected correlation id are logged.
const CORRELATION_ID_LOGGED_CHARS_MAX: usize = 100;

/// The router. A manager has one.
pub struct Router {
    env: Arc<RouterEnv>,
    route_table: RouteTable,
    call_backlog: CallBacklog,
    numbers: JobNumbers,
    /// The requests that wait for the archive.
    lookups: PendingLookups,
    passivated: PassivatedTrees,
    gate: GateKeeper,
    job_claims: JobClaims,
}

impl Router {
    /// Creates the router. It is the only writer of the route table, and numbers the jobs.
    /// `marks`: how far the rates of limits are used up. `controls`: what operators have changed.
    pub(super) fn new(
        env: RouterEnv,
        route_table: RouteTable,
        numbers: JobNumbers,
        (marks, controls): (Vec<RateMark>, Vec<Control>),
    ) -> Router {
        let gate = GateKeeper::new(marks, controls, env.limits.keys_max, env.spare_places.clone());
        env.pauses.replace(gate.pauses(&env.buses));
        Router {
            env: Arc::new(env),
            route_table,
            call_backlog: CallBacklog::default(),
            numbers,
            lookups: PendingLookups::default(),
            passivated: PassivatedTrees::default(),
            gate,
            job_claims: JobClaims::default(),
        }
    }

    /// Returns the number for a new job. Each number is used once.
    fn take_job_number(&mut self) -> JobNumber {
        self.numbers.take(clock::now())
    }

    fn handle_input(&mut self, input: RouterInput, ctx: &mut Context<Self>) {
        match input {
            RouterInput::Recovered(jobs, passivated) => {
                self.restore_gate(&jobs, &passivated);
                jobs.into_iter().for_each(|recovered| self.start_recovered(recovered));
                self.add_passivated_at_start(passivated, ctx);
                self.notify_if_memory_short();
                self.displace_everywhere();
                self.advance_gate(ctx);
            }
            RouterInput::Demands(demands) => self.handle_demands(demands, ctx),
            RouterInput::PlaceUnused(limit) => self.settle_unused(&limit, ctx),
            RouterInput::LimitsChanged => self.reload_limits(ctx),
            RouterInput::ChangeControl(change) => self.change_control(*change, ctx),
            // An error means that the receiver was dropped.
            RouterInput::ListControls(answer) => drop(answer.send(self.gate.controls())),
            RouterInput::CountHeldBack(answer) => drop(answer.send(self.gate.count_held_back())),
            RouterInput::InspectGate(inspect) => inspect(self.gate.gate()),
            RouterInput::StopJobs(requests) => {
                requests.into_iter().for_each(|request| self.stop_if_idle(request, ctx))
            }
            RouterInput::Passivate(request) => self.passivate(*request, ctx),
            RouterInput::ActivateNext => self.activate_next(ctx),
            RouterInput::Activated(root_number, recovered_jobs) => {
                self.handle_activated(root_number, recovered_jobs, ctx)
            }
            RouterInput::MemoryShort => self.notify_if_memory_short(),
            RouterInput::ReplyDelivered(delivery) => self.handle_reply(delivery),
            RouterInput::CallDelivered { workflow, bus, delivery } => {
                self.handle_call_delivery(&workflow, &bus, delivery, ctx)
            }
            RouterInput::CallVerified(call) => self.handle_call(call, ctx),
            RouterInput::Create(job) => self.handle_create(job, ctx),
            RouterInput::StartChild(child) => self.start_child(child),
            RouterInput::InputForJob(id, input) => {
                self.send_to_job(id, JobInput::Engine { input, ack: None })
            }
            RouterInput::ForwardToJob(id, input) => self.send_to_job(id, *input),
            RouterInput::Activate(id, answer) => {
                if let Some(RouterInput::Activate(_, answer)) =
                    self.stash_if_passivated(id, RouterInput::Activate(id, answer))
                {
                    // An error means that the receiver was dropped.
                    let _ = answer.send(());
                }
            }
            RouterInput::OrderChild(child_order) => {
                self.handle_request(child_order.id, PendingRequest::Order(child_order))
            }
            RouterInput::Operate(id, operation, answer) => {
                self.handle_request(id, PendingRequest::Operate(operation, answer))
            }
            RouterInput::Cancel(id, principal, answer) => {
                self.handle_request(id, PendingRequest::Cancel(principal, answer))
            }
            RouterInput::Erase(id, answer) => {
                self.handle_request(id, PendingRequest::Erase(answer))
            }
            RouterInput::LookupFinished(id, result) => self.handle_lookup_result(id, result, ctx),
            RouterInput::Redispatch(bulk, answer) => {
                let queue = bulk.queue.clone();
                let make_input = move |latch| JobInput::Redispatch { bulk: bulk.clone(), latch };
                // An error means that the receiver was dropped.
                let on_completion = |_: &Router| {
                    let _ = answer.send(());
                };
                self.broadcast(&queue, make_input, on_completion, ctx);
            }
            // An error means that the receiver was dropped.
            RouterInput::Barrier(answer) => drop(answer.send(())),
            RouterInput::LivenessProbe(answer) => {
                faults::hit("router::round");
                self.env.journal.send(JournalInput::LivenessProbe(answer));
            }
            RouterInput::QueueMissing { queue, handled } => {
                self.handle_queue_missing(&queue, handled, ctx)
            }
        }
    }

    /// Notifies every job that a queue is missing. The journal answers `handled` after their
    /// commits, and the bus declares the queue only then. If it did so earlier, a crash in between
    /// could leave an empty queue whose messages the journal still has as confirmed, so that they
    /// would not be sent again.
    fn handle_queue_missing(
        &mut self,
        queue: &Address,
        handled: oneshot::Sender<()>,
        ctx: &mut Context<Self>,
    ) {
        tracing::info!(
            bus = %queue.bus,
            queue = %queue.queue,
            "the queue is not there: it is declared, and running steps that waited in it are \
             dispatched again"
        );
        let missing_queue = queue.clone();
        let make_input =
            move |latch| JobInput::QueueMissing { queue: missing_queue.clone(), latch };
        let on_completion = |router: &Router| {
            let barrier = CommitBarrier::Answer(handled);
            router.env.journal.send(JournalInput::CommitBarrier(barrier));
        };
        self.broadcast(queue, make_input, on_completion, ctx);
    }

    /// Sends an input to a job, if it takes input. A passivated job is activated first.
    fn send_to_job(&mut self, id: JobId, input: JobInput) {
        if let Some(job) = self.env.routes.find(id) {
            return job.send(input);
        }
        // If the job has ended, the input is dropped.
        let _ = self.stash_if_passivated(id, RouterInput::ForwardToJob(id, Box::new(input)));
    }

    /// Sends a reply to its job, or rejects it. Dead-lettered step messages also count as replies.
    fn handle_reply(&mut self, delivery: Delivery) {
        let Some(correlation_id) = &delivery.correlation_id else {
            return self.reject(delivery, Rejection::NoCorrelationId);
        };
        let Ok(CorrelationId { job: id, step }) = correlation_id.parse() else {
            return self.reject(delivery, Rejection::MalformedCorrelationId);
        };
        let Some(job) = self.env.routes.find(id) else {
            if let Some(RouterInput::ReplyDelivered(delivery)) =
                self.stash_if_passivated(id, RouterInput::ReplyDelivered(delivery))
            {
                self.reject(delivery, Rejection::UnknownJob);
            }
            return;
        };
        let reply = match (&delivery.dead_letter, delivery.kind.as_deref()) {
            (Some(dead_letter), _) => Reply::DeadLettered {
                queue: dead_letter.queue.clone(),
                reason: dead_letter.reason.clone(),
            },
            (None, Some("error")) => Reply::Error(delivery.body.clone()),
            (None, Some("progress")) => Reply::Progress(delivery.body.clone()),
            (None, None | Some("result")) => Reply::Result(delivery.body.clone()),
            (None, Some(kind)) => {
                self.log_unknown_kind(kind, correlation_id);
                Reply::Result(delivery.body.clone())
            }
        };
        let (attempt, from) = (delivery.attempt, delivery.sender.clone());
        let input = Input::Reply { step, attempt, reply, from };
        job.send(JobInput::Engine { input, ack: Some(delivery.into_acknowledger()) });
    }

    /// Logs a reply of an unknown type, so that someone notices a worker which sends `Error`
    /// instead of `error`.
    fn log_unknown_kind(&self, kind: &str, correlation_id: &str) {
        if self.env.log_limiter.may_log("unknown_type") {
            let (kind, correlation_id) = (shorten(kind), shorten(correlation_id));
            tracing::warn!(
                kind,
                correlation_id,
                "a reply of a type that is not known counts as a result; known are result, error \
                 and progress (logged once a minute)"
            );
        }
    }

    /// Counts and logs a reply that changes nothing, and has it acknowledged. Before the next
    /// commit nobody knows whether another process has replaced this one, which then has the job.
    fn reject(&self, delivery: Delivery, rejection: Rejection) {
        let reason = rejection.label();
        self.env.metrics.replies_rejected.with_label_values(&[reason]).inc();
        if self.env.log_limiter.may_log(reason) {
            let correlation_id: String = delivery
                .correlation_id
                .iter()
                .flat_map(|text| text.chars())
                .take(CORRELATION_ID_LOGGED_CHARS_MAX)
                .collect();
            let (kind, value) =
                (delivery.kind.as_deref().map(shorten), body_excerpt(&delivery.body));
            tracing::warn!(
                reason,
                correlation_id,
                kind,
                value,
                bytes = delivery.body.len(),
                "a reply that changes nothing (logged once a minute per reason)"
            );
        }
        let mut acknowledger = delivery.into_acknowledger();
        acknowledger.set_rejection(rejection);
        let barrier = CommitBarrier::AckRejected(acknowledger);
        self.env.journal.send(JournalInput::CommitBarrier(barrier));
    }
}

impl Actor for Router {
    type Context = Context<Self>;
}

impl MailboxActor for Router {
    type Input = RouterInput;
    const KIND: &'static str = "router";
}

impl Handler<Envelope<RouterInput>> for Router {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<RouterInput>, ctx: &mut Self::Context) {
        envelope.handle(|input| self.handle_input(input, ctx));
    }
}
