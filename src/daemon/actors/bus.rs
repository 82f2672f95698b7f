//! The bus actor: one for each bus. It owns a [`Bus`] and passes publications to it. The events of
//! the bus do not pass through the actor: [`event_sink`] converts them into inputs of the router
//! and of jobs, on the bus's own thread.

use super::bus_env::BusEnv;
use super::inputs::{BusInput, JobInput, JournalInput, RouterInput};
use super::loss_watch::LossSettings;
use super::mailbox::{Envelope, MailboxActor};
use super::messages::ConfirmTarget;
use super::{loss_watch, queue_watch};
use actix::{Actor, AsyncContext, Context, Handler, WrapFuture};
use base::clock;
use base::web_address::is_url;
use bus::{
    Address, Bus, BusEvent, BusKey, BusNotice, BusState, ConfirmToken, Delivery, EventSink,
    RemainingLease, TopicOffset,
};
use engine::{CorrelationId, Definition, Input, JobId, Lease, Millis};
use journal::StoredOffset;
use std::sync::Arc;
use std::time::Duration;

/// The actor of a bus.
pub struct BusActor {
    bus: Box<dyn Bus>,
    key: BusKey,
    env: Arc<BusEnv>,
    watches: Watches,
}

/// How the queues of a bus are watched.
pub struct Watches {
    /// Whether the bus is checked for missing queues.
    pub(super) has_queue_watch: bool,
    /// How lost messages are detected; `None`: the broker does not report the depths of queues.
    pub(super) loss_watch: Option<LossSettings>,
}

/// How often the gauge of unconfirmed messages is updated.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

impl BusActor {
    /// Creates the actor of a bus.
    pub fn new(bus: Box<dyn Bus>, key: BusKey, env: Arc<BusEnv>, watches: Watches) -> BusActor {
        BusActor { bus, key, env, watches }
    }

    fn handle_input(&mut self, input: BusInput, ctx: &mut Context<Self>) {
        match input {
            BusInput::Publish(publications) => {
                publications.into_iter().for_each(|publication| self.bus.publish(publication));
            }
            BusInput::Withdraw(queue, id, end) => self.bus.withdraw(&queue, &id, end),
            BusInput::Serve(served) => self.bus.set_served(served),
            BusInput::Inspect(queues, answer) => {
                let statuses = self.bus.inspect(queues);
                // An error means that the receiver was dropped.
                let send_answer = async move { drop(answer.send(statuses.await)) };
                ctx.spawn(send_answer.into_actor(self));
            }
            BusInput::DeclareMissing(queues) => self.bus.ensure_queues(queues),
            BusInput::Depths(answer) => {
                let depths = self.bus.poll_depths();
                let send_answer = async move { drop(answer.send(depths.await)) };
                ctx.spawn(send_answer.into_actor(self));
            }
            BusInput::SetConsuming(is_consuming) => self.bus.set_consuming(is_consuming),
            BusInput::Close(mut answer) => {
                let close = self.bus.close();
                let close_until_dropped = async move {
                    tokio::select! {
                        () = close => { let _ = answer.send(()); }
                        () = answer.closed() => {}
                    }
                };
                ctx.spawn(close_until_dropped.into_actor(self));
            }
        }
    }
}

/// Returns the sink to which a bus reports its events. It runs on the thread of the bus.
#[allow(clippy::too_many_lines, reason = "one match over the events")]
pub fn event_sink(env: &Arc<BusEnv>, key: &BusKey) -> EventSink {
    let (env, key) = (env.clone(), key.clone());
    Arc::new(move |event| match event {
        BusEvent::Reply(delivery) => {
            env.router.send(RouterInput::ReplyDelivered(with_attempt(delivery)))
        }
        BusEvent::Call { queue, delivery } => {
            let delivery = with_attempt(delivery);
            let (workflow, bus) = (workflow_of_queue(&queue, &key.vhost), key.name.clone());
            env.router.send(RouterInput::CallDelivered { workflow, bus, delivery });
        }
        BusEvent::Confirmed(confirm_token) => notify_confirmed(&env, confirm_token),
        BusEvent::Leased { confirm_token, lease } => notify_leased(&env, confirm_token, lease),
        BusEvent::HandedOver(confirm_token) => notify_begun(&env, confirm_token),
        BusEvent::Unroutable(confirm_token) => {
            if let Some(ConfirmTarget::JobEnd { job, .. } | ConfirmTarget::Refusal { job, .. }) =
                confirm_token.downcast_ref()
            {
                report_unroutable(&env, &key, *job);
            }
            notify_confirmed(&env, confirm_token);
        }
        BusEvent::Unreadable { queue, reason, correlation_id, bytes, is_quarantined } => {
            let outcome = if is_quarantined { "kept" } else { "dropped" };
            env.metrics
                .messages_unreadable
                .with_label_values(&[&*key.name, &*key.vhost, &*queue, outcome])
                .inc();
            if env.log_limiter.may_log("unreadable") {
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
        BusEvent::QueueMissing { queue, journaled } => {
            let queue = Address { bus: key.clone(), queue };
            env.router.send(RouterInput::QueueMissing { queue, handled: journaled });
        }
        BusEvent::State(state) => {
            let metrics = &env.metrics;
            metrics
                .bus_connected
                .with_label_values(&[&*key.name, &*key.vhost])
                .set(i64::from(!matches!(state, BusState::Disconnected { .. })));
            metrics.bus_blocked.with_label_values(&[&*key.name, &*key.vhost]).set(i64::from(
                matches!(state, BusState::Blocked { .. } | BusState::Unresponsive { .. }),
            ));
            env.health.set_bus(&key, state);
        }
        BusEvent::OffsetReached(TopicOffset { topic, partition, offset }) => {
            let reached = StoredOffset { bus: key.name.clone(), topic, partition, offset };
            env.journal.send(JournalInput::StoreOffset(reached));
        }
        BusEvent::Fatal(reason) => env.fatal.report(reason),
        BusEvent::EndpointCalled { queue, outcome, duration } => {
            // The URL of an endpoint is not a metric label, because it may contain a secret.
            let service = if is_url(&queue) { "address" } else { &*queue };
            env.metrics
                .service_calls
                .with_label_values(&[&*key.name, service, outcome.as_str()])
                .observe(duration.as_secs_f64());
        }
        BusEvent::Notice(notice) => {
            let kind = match notice {
                BusNotice::Returned => "returned",
                BusNotice::Nacked => "refused",
                BusNotice::Resent => "resent",
                BusNotice::NotDelivered => "not_delivered",
                BusNotice::CallAborted => "broken_off",
            };
            env.metrics.bus_notices.with_label_values(&[&*key.name, &*key.vhost, kind]).inc();
        }
    })
}

/// Notifies the sender of a message that nothing is left to send: the broker has confirmed the
/// message, or the queue does not exist. If the message refuses a call, the call is acknowledged.
fn notify_confirmed(env: &BusEnv, confirm_token: ConfirmToken) {
    // Every token of the manager has this payload.
    let Some(target) = confirm_token.downcast() else { return };
    let (job, created, input) = match target {
        ConfirmTarget::Step { job, created, step, attempt, dispatch } => {
            let dispatch = Some(dispatch);
            (job, created, Input::Confirmed { step, attempt, dispatch })
        }
        ConfirmTarget::JobEnd { job, created, caller, end } => {
            (job, created, Input::CallerAnswered { caller, end })
        }
        ConfirmTarget::Refusal { ack, .. } => return ack.ack(),
    };
    send_to_job(env, job, JobInput::MessageUpdate { job_created: created, input });
}

/// Sends an input to a job. If the job has no route, it may be passivated, so the input is sent to
/// the router.
fn send_to_job(env: &BusEnv, id: JobId, input: JobInput) {
    match env.routes.find(id) {
        Some(job) => job.send(input),
        None => env.router.send(RouterInput::ForwardToJob(id, Box::new(input))),
    }
}

/// Notifies a job that a worker has leased its message.
fn notify_leased(env: &BusEnv, confirm_token: ConfirmToken, lease: RemainingLease) {
    let Some(ConfirmTarget::Step { job, created, step, attempt, .. }) = confirm_token.downcast()
    else {
        return;
    };
    let until = clock::now().plus(Millis::from_duration(lease.remaining));
    let lease = Lease { delivery: lease.delivery, until };
    let input = Input::Leased { step, attempt, lease };
    send_to_job(env, job, JobInput::MessageUpdate { job_created: created, input });
}

/// Notifies a job that a worker has begun to process its message.
fn notify_begun(env: &BusEnv, confirm_token: ConfirmToken) {
    let Some(ConfirmTarget::Step { job, created, step, attempt, .. }) = confirm_token.downcast()
    else {
        return;
    };
    send_to_job(
        env,
        job,
        JobInput::MessageUpdate { job_created: created, input: Input::Begun { step, attempt } },
    );
}

/// Returns the full name of the workflow to which a workflow queue belongs.
fn workflow_of_queue(queue: &str, vhost: &str) -> Arc<str> {
    let name = queue.strip_prefix(Definition::WORKFLOW_QUEUE_PREFIX).unwrap_or(queue);
    if vhost.is_empty() { name.into() } else { format!("{vhost}/{name}").into() }
}

/// Adds the number of the attempt to a dead letter that has lost its headers. The manager has sent
/// the message, so the number is in its id.
fn with_attempt(mut delivery: Delivery) -> Delivery {
    if delivery.dead_letter.is_some() && delivery.attempt.is_none() {
        delivery.attempt = delivery.message_id.as_deref().and_then(parse_attempt);
    }
    delivery
}

/// Parses the number of the attempt in the id of a step message, `<UUID>:<step>:<attempt>`.
fn parse_attempt(message_id: &str) -> Option<u32> {
    let (correlation_id, attempt) = message_id.rsplit_once(':')?;
    correlation_id.parse::<CorrelationId>().ok()?;
    attempt.bytes().all(|byte| byte.is_ascii_digit()).then(|| attempt.parse().ok())?
}

/// Reports that the reply queue of a caller does not exist, so that the reply is dropped.
fn report_unroutable(env: &BusEnv, bus: &BusKey, job: JobId) {
    env.metrics.bus_notices.with_label_values(&[&*bus.name, &*bus.vhost, "unanswerable"]).inc();
    if env.log_limiter.may_log("unanswerable") {
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
                .env
                .metrics
                .bus_unconfirmed
                .with_label_values(&[&*actor.key.name, &*actor.key.vhost])
                .set(unconfirmed);
        });
        if self.watches.has_queue_watch {
            ctx.spawn(queue_watch::watch(self.env.clone(), self.key.clone()).into_actor(self));
        }
        if let Some(settings) = self.watches.loss_watch.take() {
            let watch = loss_watch::watch(self.env.clone(), self.key.clone(), settings);
            ctx.spawn(watch.into_actor(self));
        }
    }
}

impl MailboxActor for BusActor {
    type Input = BusInput;
    const KIND: &'static str = "bus";
}

impl Handler<Envelope<BusInput>> for BusActor {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<BusInput>, ctx: &mut Self::Context) {
        envelope.handle(|input| self.handle_input(input, ctx));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attempt_is_parsed_from_the_id_of_a_step_message() {
        let id = "f557697b-f911-401c-86b7-6d9b62f1f2bb";
        assert_eq!(parse_attempt(&format!("{id}:split:12")), Some(12));
        for invalid in [
            "",
            ":",
            "split:1",
            &format!("{id}:1"),
            &format!("{id}:split"),
            &format!("{id}:split:x"),
            &format!("{id}:split:"),
        ] {
            assert_eq!(parse_attempt(invalid), None, "{invalid:?}");
        }
    }

    #[test]
    fn the_workflow_follows_from_the_name_of_its_workflow_queue() {
        assert_eq!(&*workflow_of_queue("workflow.chain", ""), "chain");
        assert_eq!(&*workflow_of_queue("workflow.chain", "v"), "v/chain");
    }
}
