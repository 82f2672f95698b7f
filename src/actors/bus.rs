//! The bus actor: one for each bus. It owns a [`Bus`] and hands it publications. What the bus
//! reports does not pass the actor: [`event_sink`] turns it into inputs of the router and the jobs,
//! on the bus's own thread.

use super::mail::{BusInput, JobInput, JournalInput, RouterInput};
use super::mailbox::{Mail, Owner};
use super::messages::Sent;
use super::ways::Ways;
use super::{loss_watch, queue_watch};
use crate::bus::{
    Address, Bus, BusEvent, BusKey, BusNotice, BusState, Delivery, EventSink, LeaseLeft, Position,
    Receipt,
};
use crate::clock;
use crate::engine::{CorrelationId, Definition, Input, JobId, Lease, Millis};
use crate::journal;
use crate::settings::is_url;
use actix::{Actor, AsyncContext, Context, Handler, WrapFuture};
use std::sync::Arc;
use std::time::Duration;

/// Owns a bus.
pub struct BusActor {
    bus: Box<dyn Bus>,
    key: BusKey,
    ways: Arc<Ways>,
}

/// How often the gauge of unconfirmed messages is updated.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

impl BusActor {
    /// Creates the actor around a bus.
    pub fn new(bus: Box<dyn Bus>, key: BusKey, ways: Arc<Ways>) -> BusActor {
        BusActor { bus, key, ways }
    }

    fn receive(&mut self, input: BusInput, ctx: &mut Context<Self>) {
        match input {
            BusInput::Publish(messages) => {
                messages.into_iter().for_each(|message| self.bus.publish(message));
            }
            BusInput::Withdraw(queue, id, over) => self.bus.withdraw(&queue, &id, over),
            BusInput::Serve(served) => self.bus.serve(served),
            BusInput::Inspect(queues, answer) => {
                let looks = self.bus.inspect(queues);
                // The receiver may have gone.
                let answering = async move { drop(answer.send(looks.await)) };
                ctx.spawn(answering.into_actor(self));
            }
            BusInput::LookFor(queues) => self.bus.look_for(queues),
            BusInput::Depths(answer) => {
                let depths = self.bus.depths();
                let answering = async move { drop(answer.send(depths.await)) };
                ctx.spawn(answering.into_actor(self));
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

/// Returns the sink to which a bus reports its events.
pub fn event_sink(ways: &Arc<Ways>, key: &BusKey) -> EventSink {
    let (ways, key) = (ways.clone(), key.clone());
    Arc::new(move |event| match event {
        BusEvent::Reply(delivery) => {
            ways.mailboxes().router.post(RouterInput::Delivered(with_attempt(delivery)))
        }
        BusEvent::Call { queue, delivery } => {
            let delivery = with_attempt(delivery);
            let (workflow, bus) = (workflow_of(&queue, &key.vhost), key.bus.clone());
            ways.mailboxes().router.post(RouterInput::Called { workflow, bus, delivery });
        }
        BusEvent::Taken(receipt) => taken(&ways, receipt),
        BusEvent::Leased { receipt, lease } => leased(&ways, receipt, lease),
        BusEvent::Begun(receipt) => begun(&ways, receipt),
        BusEvent::Unroutable(receipt) => {
            if let Some(Sent::Answer { job, .. } | Sent::Refusal { job, .. }) = receipt.peek() {
                unroutable(&ways, &key, *job);
            }
            taken(&ways, receipt);
        }
        BusEvent::Unreadable { queue, reason, correlation_id, bytes, is_kept } => {
            let outcome = if is_kept { "kept" } else { "dropped" };
            ways.common
                .metrics
                .unreadable
                .with_label_values(&[&*key.bus, &*key.vhost, &*queue, outcome])
                .inc();
            if ways.common.throttle.may_log("unreadable") {
                let correlation_id = correlation_id.unwrap_or_default();
                tracing::warn!(
                    bus = %key,
                    queue = &*queue,
                    reason,
                    correlation_id,
                    bytes,
                    outcome,
                    "a message that cannot be read (logged once a minute)"
                );
            }
        }
        BusEvent::QueueMissing { queue, taken } => {
            let queue = Address { bus: key.clone(), queue };
            ways.mailboxes().router.post(RouterInput::QueueMissing { queue, taken });
        }
        BusEvent::State(state) => {
            let metrics = &ways.common.metrics;
            metrics
                .bus_connected
                .with_label_values(&[&*key.bus, &*key.vhost])
                .set(i64::from(!matches!(state, BusState::Disconnected { .. })));
            metrics.bus_blocked.with_label_values(&[&*key.bus, &*key.vhost]).set(i64::from(
                matches!(state, BusState::Blocked { .. } | BusState::Silent { .. }),
            ));
            ways.common.health.set_bus(&key, state);
        }
        BusEvent::Reached(Position { topic, partition, offset }) => {
            let position = journal::Position { bus: key.bus.clone(), topic, partition, offset };
            ways.mailboxes().journal.post(JournalInput::Reached(position));
        }
        BusEvent::Refused(reason) => ways.common.fail(reason),
        BusEvent::ServiceCalled { queue, came, took } => {
            // An address may have a secret in it, and stands in a workflow file.
            let service = if is_url(&queue) { "address" } else { &*queue };
            ways.common
                .metrics
                .service_calls
                .with_label_values(&[&*key.bus, service, came.word()])
                .observe(took.as_secs_f64());
        }
        BusEvent::Noted(notice) => {
            let kind = match notice {
                BusNotice::Returned => "returned",
                BusNotice::Refused => "refused",
                BusNotice::Resent => "resent",
                BusNotice::NotDelivered => "not_delivered",
                BusNotice::BrokenOff => "broken_off",
            };
            ways.common
                .metrics
                .bus_notices
                .with_label_values(&[&*key.bus, &*key.vhost, kind])
                .inc();
        }
    })
}

/// Notifies the sender of a message that the broker has it, or that it is gone with its queue.
fn taken(ways: &Ways, receipt: Receipt) {
    // Every message that is sent has such a token.
    let Some(sent) = receipt.open() else { return };
    let (job, created, input) = match sent {
        Sent::Step { job, created, step, attempt, dispatch } => {
            let dispatch = Some(dispatch);
            (job, created, Input::Confirmed { step, attempt, dispatch })
        }
        Sent::Answer { job, created, caller, end } => {
            (job, created, Input::Answered { caller, end })
        }
        Sent::Refusal { ack, .. } => return ack.ack(),
    };
    tell(ways, job, JobInput::OfMessage { created, input });
}

/// Sends an input to a job. A job that takes no input may be passivated: the router knows. An ended
/// job needs no input.
fn tell(ways: &Ways, job: JobId, input: JobInput) {
    match ways.routes.find(job) {
        Some(job) => job.post(input),
        None => ways.mailboxes().router.post(RouterInput::ForJob(job, Box::new(input))),
    }
}

/// Notifies a job how long a worker has the lease of its message.
fn leased(ways: &Ways, receipt: Receipt, lease: LeaseLeft) {
    let Some(Sent::Step { job, created, step, attempt, .. }) = receipt.open() else { return };
    let until = clock::now().after(Some(Millis::of(lease.left)));
    let lease = Lease { delivery: lease.delivery, until: until.unwrap_or_default() };
    let input = Input::Leased { step, attempt, lease };
    tell(ways, job, JobInput::OfMessage { created, input });
}

/// Notifies a job that its message has been handed over.
fn begun(ways: &Ways, receipt: Receipt) {
    let Some(Sent::Step { job, created, step, attempt, .. }) = receipt.open() else { return };
    tell(ways, job, JobInput::OfMessage { created, input: Input::Begun { step, attempt } });
}

/// Returns the full name of the workflow that takes messages on a queue.
fn workflow_of(queue: &str, vhost: &str) -> Arc<str> {
    let name = queue.strip_prefix(Definition::CALL_QUEUE_PREFIX).unwrap_or(queue);
    if vhost.is_empty() { name.into() } else { format!("{vhost}/{name}").into() }
}

/// Adds the attempt to a dead letter that has lost its headers. It is a message of ours, so the
/// attempt stands in its id.
fn with_attempt(delivery: Delivery) -> Delivery {
    let mut delivery = delivery;
    if delivery.dead_letter.is_some() && delivery.attempt.is_none() {
        delivery.attempt = delivery.message_id.as_deref().and_then(attempt_in);
    }
    delivery
}

/// Parses the attempt in the id of a step message, `<UUID>:<step>:<attempt>`.
fn attempt_in(message_id: &str) -> Option<u32> {
    let (correlation_id, attempt) = message_id.rsplit_once(':')?;
    correlation_id.parse::<CorrelationId>().ok()?;
    attempt.bytes().all(|byte| byte.is_ascii_digit()).then(|| attempt.parse().ok())?
}

/// Reports that the queue which a caller named is not there: nobody gets the answer.
fn unroutable(ways: &Ways, bus: &BusKey, job: JobId) {
    ways.common
        .metrics
        .bus_notices
        .with_label_values(&[&*bus.bus, &*bus.vhost, "unanswerable"])
        .inc();
    if ways.common.throttle.may_log("unanswerable") {
        tracing::warn!(
            %job,
            %bus,
            "the queue that a caller waits at is not there: its answer is dropped \
             (logged once a minute)"
        );
    }
}

impl Actor for BusActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(GAUGE_INTERVAL, |actor, _| {
            let unconfirmed = i64::try_from(actor.bus.unconfirmed()).unwrap_or(i64::MAX);
            actor
                .ways
                .common
                .metrics
                .bus_unconfirmed
                .with_label_values(&[&*actor.key.bus, &*actor.key.vhost])
                .set(unconfirmed);
        });
        let amqp = self.ways.common.settings.amqp_bus(&self.key.bus);
        if amqp.is_some() {
            ctx.spawn(queue_watch::watch(self.ways.clone(), self.key.clone()).into_actor(self));
        }
        if amqp.is_some_and(|amqp| !amqp.management.0.is_empty()) {
            ctx.spawn(loss_watch::watch(self.ways.clone(), self.key.clone()).into_actor(self));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_step_message_tells_its_attempt() {
        let id = "f557697b-f911-401c-86b7-6d9b62f1f2bb";
        assert_eq!(attempt_in(&format!("{id}:split:12")), Some(12));
        for other in [
            "",
            ":",
            "split:1",
            &format!("{id}:1"),
            &format!("{id}:split"),
            &format!("{id}:split:x"),
            &format!("{id}:split:"),
        ] {
            assert_eq!(attempt_in(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_name_of_a_queue_tells_the_workflow_that_takes_calls_there() {
        assert_eq!(&*workflow_of("workflow.chain", ""), "chain");
        assert_eq!(&*workflow_of("workflow.chain", "v"), "v/chain");
    }
}
