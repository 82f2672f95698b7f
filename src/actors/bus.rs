//! The bus actor: one for each virtual host. It owns a [`Bus`], hands it step messages, and turns
//! its events into inputs for the router and the jobs.

use super::job::JobInput;
use super::router::RouterInput;
use super::shared::Shared;
use super::{Mail, Owner, lost};
use crate::bus::{
    Bus, BusEvent, BusMessage, BusState, EventSink, Notice, QueueDepth, QueueLook, Receipt,
};
use crate::engine::{Input, JobId};
use actix::{Actor, AsyncContext, Context, Handler, WrapFuture};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Owns the bus of a virtual host.
pub struct BusActor {
    bus: Box<dyn Bus>,
    vhost: String,
    shared: Arc<Shared>,
}

/// What a bus can be told.
pub enum BusInput {
    /// Publish a message.
    Publish(BusMessage),
    /// Other workflows are loaded: the queues of their steps, and their names.
    Serve(Vec<Arc<str>>, Vec<Arc<str>>),
    /// Look at a queue.
    Inspect(Arc<str>, oneshot::Sender<QueueLook>),
    /// Tell how much each queue holds.
    Depths(oneshot::Sender<Result<Vec<QueueDepth>, String>>),
    /// Stop taking deliveries, wait for confirms until the answer is no longer wanted, close.
    Close(oneshot::Sender<()>),
}

/// How often the number of unconfirmed messages is looked at, for its metric.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

impl BusActor {
    /// The actor around a bus.
    pub fn new(bus: Box<dyn Bus>, vhost: String, shared: Arc<Shared>) -> BusActor {
        BusActor { bus, vhost, shared }
    }

    fn receive(&mut self, input: BusInput, ctx: &mut Context<Self>) {
        match input {
            BusInput::Publish(message) => self.bus.publish(message),
            BusInput::Serve(queues, workflows) => self.bus.serve(queues, workflows),
            BusInput::Inspect(queue, answer) => {
                let look = self.bus.inspect(queue);
                // Whoever asked may have given up.
                let told = async move { drop(answer.send(look.await)) };
                ctx.spawn(told.into_actor(self));
            }
            BusInput::Depths(answer) => {
                let depths = self.bus.depths();
                let told = async move { drop(answer.send(depths.await)) };
                ctx.spawn(told.into_actor(self));
            }
            BusInput::Close(answer) => {
                let closing = self.bus.close();
                let closed = async move {
                    let mut answer = answer;
                    tokio::select! {
                        () = closing => { let _ = answer.send(()); }
                        () = answer.closed() => {}
                    }
                };
                ctx.spawn(closed.into_actor(self));
            }
        }
    }
}

/// Where the bus of `vhost` reports.
pub fn event_sink(shared: &Arc<Shared>, vhost: &str) -> EventSink {
    let (shared, vhost): (_, Arc<str>) = (shared.clone(), vhost.into());
    Arc::new(move |event| match event {
        BusEvent::Delivered(delivery) => {
            shared.wiring().router.post(RouterInput::Delivered(delivery))
        }
        BusEvent::Called { workflow, delivery } => {
            let workflow =
                if vhost.is_empty() { workflow } else { format!("{vhost}/{workflow}").into() };
            shared.wiring().router.post(RouterInput::Called { workflow, delivery });
        }
        BusEvent::Answered { job, receipt, is_unroutable } => {
            if is_unroutable {
                unroutable(&shared, &vhost, job);
            }
            match receipt {
                Receipt::Refusal(ack) => ack.ack(),
                Receipt::Job { caller, end } => {
                    if let Some(job) = shared.routes.find(job) {
                        job.post(JobInput::Take {
                            input: Input::Answered { caller, end },
                            ack: None,
                        });
                    }
                }
            }
        }
        BusEvent::Confirmed { job, step, attempt } => {
            // A job that has ended needs no confirm.
            if let Some(job) = shared.routes.find(job) {
                job.post(JobInput::Take { input: Input::Confirmed { step, attempt }, ack: None });
            }
        }
        BusEvent::Unreadable { queue, reason, correlation_id, bytes, is_kept } => {
            let outcome = if is_kept { "kept" } else { "dropped" };
            shared.metrics.unreadable.with_label_values(&[&*vhost, &*queue, outcome]).inc();
            if shared.throttle.may_log("unreadable") {
                let correlation_id = correlation_id.unwrap_or_default();
                tracing::warn!(
                    vhost = &*vhost,
                    queue = &*queue,
                    reason,
                    correlation_id,
                    bytes,
                    outcome,
                    "a message that cannot be read (logged once a minute)"
                );
            }
        }
        BusEvent::QueueMissing { queue, taken } => shared
            .wiring()
            .router
            .post(RouterInput::QueueMissing { vhost: vhost.clone(), queue, taken }),
        BusEvent::State(state) => {
            let metrics = &shared.metrics;
            metrics
                .bus_connected
                .with_label_values(&[&*vhost])
                .set(i64::from(!matches!(state, BusState::Disconnected { .. })));
            metrics
                .bus_blocked
                .with_label_values(&[&*vhost])
                .set(i64::from(matches!(state, BusState::Blocked { .. })));
            shared.health.set_bus(&vhost, state);
        }
        BusEvent::Refused(reason) => shared.fail(reason),
        BusEvent::Noted(notice) => {
            let kind = match notice {
                Notice::Returned => "returned",
                Notice::Refused => "refused",
                Notice::Resent => "resent",
            };
            shared.metrics.bus_notices.with_label_values(&[&*vhost, kind]).inc();
        }
    })
}

/// The queue that a caller named is not there: nobody can be told.
fn unroutable(shared: &Shared, vhost: &str, job: JobId) {
    shared.metrics.bus_notices.with_label_values(&[vhost, "unanswerable"]).inc();
    if shared.throttle.may_log("unanswerable") {
        tracing::warn!(%job, vhost, "the queue that a caller waits at is not there: its answer is dropped (logged once a minute)");
    }
}

impl Actor for BusActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(GAUGE_INTERVAL, |actor, _| {
            let unconfirmed = i64::try_from(actor.bus.unconfirmed()).unwrap_or(i64::MAX);
            actor
                .shared
                .metrics
                .bus_unconfirmed
                .with_label_values(&[&*actor.vhost])
                .set(unconfirmed);
        });
        let amqp = &self.shared.settings.amqp;
        if !amqp.server.0.is_empty() && !amqp.management.0.is_empty() {
            ctx.spawn(lost::watch(self.shared.clone(), self.vhost.clone()).into_actor(self));
        }
    }
}

impl Owner for BusActor {
    type Input = BusInput;
    const KIND: &'static str = "bus";
}

impl Handler<Mail<BusInput>> for BusActor {
    type Result = ();

    fn handle(&mut self, mail: Mail<BusInput>, ctx: &mut Self::Context) {
        mail.handle(|input| self.receive(input, ctx));
    }
}
