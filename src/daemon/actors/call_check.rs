//! Checks messages on the queues of workflows. Each is parsed as a [`Call`], or refused with a
//! reason.

use super::buses::Buses;
use super::call::{Call, CallSource};
use super::client_response::{CreateResponse, ExistingJob, RequestError};
use super::inputs::Outgoing;
use super::log_limiter::KeyedRateLimiter;
use super::manager_core::ManagerCore;
use super::messages::{CallerReply, ConfirmTarget, caller_reply};
use super::outbox::Outbox;
use crate::settings::LimitSettings;
use crate::telemetry::Metrics;
use base::clock;
use bus::{Acknowledger, Body, Delivery};
use bytes::Bytes;
use engine::{Caller, CorrelationId, Definition, Job, JobId, Message};
use std::sync::Arc;

/// The environment of the checks.
pub(super) struct CallEnv {
    outbox: Arc<Outbox>,
    buses: Arc<Buses>,
    limits: LimitSettings,
    metrics: Metrics,
    log_limiter: Arc<KeyedRateLimiter>,
}

impl CallEnv {
    pub(super) fn new(core: &ManagerCore, outbox: &Arc<Outbox>) -> CallEnv {
        CallEnv {
            outbox: outbox.clone(),
            buses: core.buses.clone(),
            limits: core.settings.limits.clone(),
            metrics: core.metrics.clone(),
            log_limiter: core.log_limiter.clone(),
        }
    }
}

/// The reason why a call is refused.
pub(super) struct CallRefusal {
    /// The kind of the refusal, as a metric label.
    pub kind: &'static str,
    /// The reason, as the caller receives it.
    pub reason: String,
}

/// A refused call.
pub(super) struct RefusedCall {
    pub(super) definition: Arc<Definition>,
    pub(super) id: JobId,
    pub(super) caller: Option<Caller>,
    pub(super) ack: Acknowledger,
}

impl RefusedCall {
    /// Sends the refusal to the caller. The call is acknowledged once the broker has confirmed the
    /// refusal, or at once if no caller waits for it.
    pub(super) fn send_refusal(self, refusal: &CallRefusal, env: &CallEnv) {
        let RefusedCall { definition, id, caller, ack } = self;
        let workflow = definition.full_name();
        env.metrics.calls_refused.with_label_values(&[&*workflow, refusal.kind]).inc();
        if env.log_limiter.may_log(refusal.kind) {
            let reply_to = caller.as_ref().map(|caller| &*caller.reply_to);
            tracing::warn!(
                job = %id,
                workflow,
                reply_to,
                reason = refusal.reason,
                "a call is refused (logged once a minute per kind)"
            );
        }
        let Some(caller) = caller else { return ack.ack() };
        let content = CallerReply {
            workflow,
            job: id,
            result: Err(Body::from_reason(&refusal.reason, false)),
            confirm_target: ConfirmTarget::Refusal { job: id, ack },
        };
        let bus = env.buses.bus_of_caller(&definition, &caller);
        Outgoing::Publish(caller_reply(content, &caller, bus, clock::now())).send(&env.outbox);
    }
}

impl Call {
    /// Refuses the call.
    pub(super) fn refuse(self, refusal: &CallRefusal, env: &CallEnv) {
        let Call { definition, id, caller, ack, .. } = self;
        RefusedCall { definition, id, caller, ack }.send_refusal(refusal, env);
    }

    /// Checks whether the call may join the job with its id. Returns the caller that joins, if the
    /// call has one, and the acknowledger of the call. Returns `None` if the call was refused,
    /// because it asks for another job or too many callers wait.
    pub(super) fn check_join(
        self,
        job: &Job,
        env: &CallEnv,
    ) -> Option<(Option<Caller>, Acknowledger)> {
        let call = self.check_conflict(job, env)?;
        let callers_max = env.limits.callers_max;
        if call.caller.as_ref().is_some_and(|caller| !job.can_join(caller, callers_max)) {
            let reason = format!(
                "{callers_max} callers wait for job {} already (setting limits.callers_max)",
                call.id
            );
            call.refuse(&CallRefusal { kind: "too_many_callers", reason }, env);
            return None;
        }
        Some((call.caller, call.ack))
    }

    /// Returns the call if it asks for the same job as the existing one with its id. Otherwise
    /// refuses the call and returns `None`.
    pub(super) fn check_conflict<'a>(
        self,
        existing: impl Into<ExistingJob<'a>>,
        env: &CallEnv,
    ) -> Option<Call> {
        if let Err(RequestError::Conflict(reason)) = CreateResponse::from_existing(
            self.id,
            existing,
            &self.definition.full_name(),
            &self.message,
        ) {
            self.refuse(&CallRefusal { kind: "conflict", reason }, env);
            return None;
        }
        Some(self)
    }

    /// Parses a delivery from a workflow's queue on `bus`. Returns `None` if the call was refused.
    pub(super) fn from_delivery(
        definition: Arc<Definition>,
        bus: &Arc<str>,
        delivery: Delivery,
        env: &CallEnv,
    ) -> Option<Call> {
        let (id, caller, source) = (
            job_id_from(&definition, &delivery),
            caller_from(bus, &delivery),
            source_from(&delivery, env.buses.reply_queue(bus)),
        );
        // Without the header, no job is above the job of this call.
        let depth = delivery.depth.map_or(0, |sender_depth| sender_depth.saturating_add(1));
        let limits = &env.limits;
        let message = parse_message(&delivery.body, limits.step_message_bytes_max)
            .and_then(|message| check_depth(depth, limits.depth_max, message));
        let trace = delivery.trace.clone().map(Arc::new);
        let ack = delivery.into_acknowledger();
        match message {
            Ok(message) => {
                Some(Call { definition, id, message, caller, depth, trace, source, ack })
            }
            Err(refusal) => {
                RefusedCall { definition, id, caller, ack }.send_refusal(&refusal, env);
                None
            }
        }
    }
}

/// Returns the caller that waits for the reply; `None`: the message has no `reply_to`.
fn caller_from(bus: &Arc<str>, delivery: &Delivery) -> Option<Caller> {
    let reply_to = delivery.reply_to.as_deref().filter(|queue| !queue.is_empty())?;
    Some(Caller {
        reply_to: reply_to.into(),
        bus: Some(bus.clone()),
        correlation_id: delivery.correlation_id.as_deref().map(Into::into),
        attempt: delivery.attempt,
    })
}

/// Returns the source that the message claims. It claims to be sent by a step if it names a step
/// and this manager's reply queue, and has the id of that step's message. Because the job's id
/// follows from the message's id, an attempt starts at most one job.
fn source_from(delivery: &Delivery, own_reply_queue: Option<&str>) -> CallSource {
    let claimed_source = || {
        let (correlation_id, message_id) =
            (delivery.correlation_id.as_deref()?, delivery.message_id.as_deref()?);
        let sender: CorrelationId = correlation_id.parse().ok()?;
        let attempt: u32 = message_id.rsplit_once(':')?.1.parse().ok()?;
        // Only the canonical form counts: the id of the job is derived from the text.
        let is_canonical =
            correlation_id == sender.to_string() && message_id == format!("{sender}:{attempt}");
        let replies_to_manager =
            delivery.reply_to.is_some() && delivery.reply_to.as_deref() == own_reply_queue;
        let is_same_attempt = delivery.attempt.is_none_or(|header| header == attempt);
        (is_canonical && replies_to_manager && is_same_attempt)
            .then_some(CallSource::Unverified(sender, attempt))
    };
    claimed_source().unwrap_or(CallSource::External)
}

/// Returns the message, or refuses it if its job would be nested too deep.
fn check_depth(depth: u16, depth_max: u16, message: Message) -> Result<Message, CallRefusal> {
    if depth <= depth_max {
        return Ok(message);
    }
    let reason = format!(
        "calls and child jobs would nest deeper than {depth_max} levels (setting \
         limits.depth_max): does the recursion end?"
    );
    Err(CallRefusal { kind: "too_deep", reason })
}

/// Returns the id of the job that a message asks for: its `message_id`, if that is a UUID.
/// Otherwise the id is derived from what identifies the message, so that a redelivery starts no
/// second job. If nothing identifies the message, the id is new.
fn job_id_from(definition: &Definition, delivery: &Delivery) -> JobId {
    let or_empty = |property: &Option<String>| property.clone().unwrap_or_default();
    let (name, message_id) = (definition.full_name(), or_empty(&delivery.message_id));
    let correlation_id = or_empty(&delivery.correlation_id);
    let reply_to = or_empty(&delivery.reply_to);
    // Only the hyphenated form is parsed. For a message id in another form of a UUID, the job's id
    // is derived, as it was in earlier versions: a redelivery must find the same job.
    if let Some(id) = JobId::parse_hyphenated(&message_id) {
        return id;
    }
    // A message without an id is identified by its correlation id, its reply queue and its body.
    let body: &[u8] = if message_id.is_empty() { &delivery.body } else { &[] };
    if message_id.is_empty() && (correlation_id.is_empty() || reply_to.is_empty()) {
        return clock::new_id();
    }
    JobId::from_call(&[
        name.as_bytes(),
        message_id.as_bytes(),
        correlation_id.as_bytes(),
        reply_to.as_bytes(),
        body,
    ])
}

/// Parses the message of a call, or refuses it if it is too large or malformed.
fn parse_message(body: &Bytes, bytes_max: usize) -> Result<Message, CallRefusal> {
    if body.len() > bytes_max {
        let bytes = body.len();
        let reason = format!(
            "the message has {bytes} bytes, the limit is {bytes_max} (setting \
             limits.step_message_bytes_max)"
        );
        return Err(CallRefusal { kind: "call_too_large", reason });
    }
    Message::parse(body).map_err(|error| CallRefusal {
        kind: "malformed_call",
        reason: format!("the message is not a JSON object: {error}"),
    })
}
