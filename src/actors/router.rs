//! The router: finds the job actor for each reply by its correlation id, and admits new jobs.

mod asks;
mod calls;
mod children;
mod families;
mod lives;
mod lookups;
mod operations;
mod resting;
mod rounds;

use super::call::Call;
use super::mail::{JobInput, JournalInput, RouterInput};
use super::mailbox::{Mail, Owner};
use super::reply_log::beginning;
use super::routes::Table;
use super::ways::Ways;
use crate::bus::{Address, Delivery};
use crate::engine::words::shortened;
use crate::engine::{CorrelationId, Input, JobId, Reply};
use crate::faults;
use actix::{Actor, Context, Handler};
use asks::{Ask, LookUps};
use families::Resting;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The router of the process. There is one.
pub struct Router {
    pub(super) ways: Arc<Ways>,
    table: Table,
    /// Calls that wait until the manager takes jobs again, in order.
    pub(super) waiting: VecDeque<Call>,
    /// Whether another try of these calls is scheduled.
    pub(super) is_waiting: bool,
    look_ups: LookUps,
    resting: Resting,
}

impl Router {
    /// Creates the router, which alone writes the route table.
    pub fn new(ways: Arc<Ways>, table: Table) -> Router {
        Router {
            ways,
            table,
            waiting: VecDeque::new(),
            is_waiting: false,
            look_ups: LookUps::default(),
            resting: Resting::default(),
        }
    }

    fn receive(&mut self, input: RouterInput, ctx: &mut Context<Self>) {
        match input {
            RouterInput::Recovered(jobs, at_rest) => {
                jobs.into_iter().for_each(|recovered| self.go_on(recovered));
                self.found_at_rest(at_rest, ctx);
                self.look_for_short_memory();
            }
            RouterInput::Leave(leaving) => {
                leaving.into_iter().for_each(|leave| self.let_go(leave, ctx))
            }
            RouterInput::Rest(rest) => self.rest(*rest, ctx),
            RouterInput::BringBack => self.bring_back(ctx),
            RouterInput::BroughtBack(number, found) => self.brought_back(number, found, ctx),
            RouterInput::Short => self.look_for_short_memory(),
            RouterInput::Delivered(delivery) => self.deliver(delivery),
            RouterInput::Called { workflow, bus, delivery } => {
                self.called(&workflow, &bus, delivery, ctx)
            }
            RouterInput::Vouched(call) => self.take_call(call, ctx),
            RouterInput::Create(job) => self.create(job),
            RouterInput::StartChild(child) => self.start_child(child),
            RouterInput::ToJob(id, input) => self.tell(id, JobInput::Take { input, ack: None }),
            RouterInput::ForJob(id, input) => self.tell(id, *input),
            RouterInput::Wake(id, answer) => {
                if let Some(RouterInput::Wake(_, answer)) =
                    self.unless_at_rest(id, RouterInput::Wake(id, answer))
                {
                    // Whoever asked may have gone.
                    let _ = answer.send(());
                }
            }
            RouterInput::ToChild(to_child) => self.ask(to_child.id, Ask::Order(to_child)),
            RouterInput::Operate(id, operation, answer) => {
                self.ask(id, Ask::Operate(operation, answer))
            }
            RouterInput::Cancel(id, by, answer) => self.ask(id, Ask::Cancel(by, answer)),
            RouterInput::Erase(id, answer) => self.ask(id, Ask::Erase(answer)),
            RouterInput::Found(id, found) => self.found(id, found, ctx),
            RouterInput::Redispatch(bulk, answer) => {
                let queue = bulk.queue.clone();
                let tell = move |done| JobInput::Redispatch { bulk: bulk.clone(), done };
                // The receiver may have gone.
                let then = |_: &Router| {
                    let _ = answer.send(());
                };
                self.tell_all(&queue, tell, then, ctx);
            }
            // The receiver may have gone.
            RouterInput::CatchUp(answer) => drop(answer.send(())),
            RouterInput::Round(answer) => {
                faults::hit("router::round");
                self.ways.mailboxes().journal.post(JournalInput::Round(answer));
            }
            RouterInput::QueueMissing { queue, taken } => self.queue_missing(&queue, taken, ctx),
        }
    }

    /// Notifies every job, then waits for the journal. A job may have decided already that a
    /// message is unconfirmed, while the commit of that is still under way. If the queue were
    /// declared before the commit and the process crashed, the journal would still have the message
    /// as confirmed, and nobody would send it again.
    fn queue_missing(
        &mut self,
        queue: &Address,
        taken: oneshot::Sender<()>,
        ctx: &mut Context<Self>,
    ) {
        tracing::info!(
            bus = %queue.bus,
            queue = %queue.queue,
            "the queue is not there: it is declared, and running steps that waited in it are \
             dispatched again"
        );
        let (queue, address) = (queue.clone(), queue.clone());
        let tell = move |done| JobInput::QueueMissing { queue: queue.clone(), done };
        let then = |router: &Router| {
            router.ways.mailboxes().journal.post(JournalInput::Committed(taken));
        };
        self.tell_all(&address, tell, then, ctx);
    }

    /// Sends an input to a job, if it takes input; a passivated job is activated for it.
    fn tell(&mut self, id: JobId, input: JobInput) {
        if let Some(job) = self.ways.routes.find(id) {
            return job.post(input);
        }
        // No passivated job has the id either: the job has ended, and needs no input.
        let _ = self.unless_at_rest(id, RouterInput::ForJob(id, Box::new(input)));
    }

    fn deliver(&mut self, delivery: Delivery) {
        let Some(text) = &delivery.correlation_id else {
            return self.reject(delivery, "no_correlation_id");
        };
        let Ok(CorrelationId { job, step }) = text.parse() else {
            return self.reject(delivery, "malformed_correlation_id");
        };
        let Some(job) = self.ways.routes.find(job) else {
            if let Some(RouterInput::Delivered(delivery)) =
                self.unless_at_rest(job, RouterInput::Delivered(delivery))
            {
                self.reject(delivery, "unknown_job");
            }
            return;
        };
        let reply = match (&delivery.dead_letter, delivery.kind.as_deref()) {
            (Some(dead), _) => {
                Reply::DeadLettered { queue: dead.queue.clone(), reason: dead.reason.clone() }
            }
            (None, Some("error")) => Reply::Error(delivery.body.clone()),
            (None, Some("progress")) => Reply::Progress(delivery.body.clone()),
            (None, None | Some("result")) => Reply::Result(delivery.body.clone()),
            (None, Some(kind)) => {
                self.log_unknown_kind(kind, text);
                Reply::Result(delivery.body.clone())
            }
        };
        let (attempt, from) = (delivery.attempt, delivery.from.clone());
        let input = Input::Reply { step, attempt, reply, from };
        job.post(JobInput::Take { input, ack: Some(delivery.into_settlement()) });
    }

    /// Logs a reply of an unknown type: a worker that sends `Error` instead of `error` should show.
    fn log_unknown_kind(&self, kind: &str, correlation_id: &str) {
        if self.ways.common.throttle.may_log("unknown_type") {
            let (kind, correlation_id) = (shortened(kind), shortened(correlation_id));
            tracing::warn!(
                kind,
                correlation_id,
                "a reply of a type that is not known counts as a result; known are result, error \
                 and progress (logged once a minute)"
            );
        }
    }

    fn reject(&self, delivery: Delivery, reason: &'static str) {
        self.ways.common.metrics.rejected.with_label_values(&[reason]).inc();
        if self.ways.common.throttle.may_log(reason) {
            let correlation_id: String =
                delivery.correlation_id.iter().flat_map(|text| text.chars()).take(100).collect();
            let (kind, value) =
                (delivery.kind.as_deref().map(shortened), beginning(&delivery.body));
            tracing::warn!(
                reason,
                correlation_id,
                kind,
                value,
                bytes = delivery.body.len(),
                "a reply that changes nothing (logged once a minute per reason)"
            );
        }
        delivery.ack_unused(reason);
    }
}

impl Actor for Router {
    type Context = Context<Self>;
}

impl Owner for Router {
    type Input = RouterInput;
    const KIND: &'static str = "router";
}

impl Handler<Mail<RouterInput>> for Router {
    type Result = ();

    fn handle(&mut self, mail: Mail<RouterInput>, ctx: &mut Self::Context) {
        mail.handle(|input| self.receive(input, ctx));
    }
}
