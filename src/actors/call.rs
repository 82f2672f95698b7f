//! Calls: messages on the workflows' queues, each of which asks for a job (SPEC §4). The router's
//! part.
//!
//! A call is acknowledged when its job, with its caller, is committed; one that is refused, when
//! the broker has the refusal. While the manager takes no jobs a call waits here, unacknowledged:
//! the prefetch bounds how many, the rest wait in the broker.

use super::clock;
use super::job::{self, JobInput, Spawn, Start};
use super::outbox::{Answer, Known, Outgoing, promised};
use super::router::{Errand, Router};
use super::shared::Shared;
use crate::bus::{Acknowledge, BusMessage, CallerAnswer, Delivery, Receipt};
use crate::engine::words::quoted;
use crate::engine::{Caller, CorrelationId, Definition, Job, JobId, Message, Origin};
use crate::times;
use actix::{AsyncContext, Context};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The pause before calls that wait are tried again.
const TRIED_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// A message that asks for a job.
pub struct Call {
    definition: Arc<Definition>,
    id: JobId,
    message: Message,
    /// Who is to be told its end; none: nobody waits for it.
    caller: Option<Caller>,
    /// How many levels of calls and child jobs are above its job.
    depth: u16,
    asker: Asker,
    ack: Acknowledge,
}

/// Who sends a call, as far as is known.
enum Asker {
    /// Anybody.
    Stranger,
    /// By what the message says, this attempt of a step; its job has not been asked.
    Claimed(CorrelationId, u32),
    /// A step of a job, which waits for the answer. It does not wait for others to end: its own job
    /// may be what they wait for.
    Step,
}

/// Why a call gets no job.
pub struct Refusal {
    /// The reason as a metric label.
    pub kind: &'static str,
    /// The reason for the caller, in one sentence.
    pub reason: String,
}

/// Who is refused.
pub(super) struct Refused {
    pub(super) definition: Arc<Definition>,
    pub(super) id: JobId,
    pub(super) caller: Option<Caller>,
    pub(super) ack: Acknowledge,
}

impl Refused {
    /// Tells the caller; the message is acknowledged once the broker has that, or at once where
    /// nobody waits.
    pub(super) fn tell(self, refusal: &Refusal, shared: &Shared) {
        let Refused { definition, id, caller, ack } = self;
        let workflow = definition.full_name();
        shared.metrics.calls_refused.with_label_values(&[&*workflow, refusal.kind]).inc();
        if shared.throttle.may_log(refusal.kind) {
            let reply_to = caller.as_ref().map(|caller| &*caller.reply_to);
            tracing::warn!(job = %id, workflow, reply_to, reason = refusal.reason, "a call is refused (logged once a minute per kind)");
        }
        let Some(caller) = caller else { return ack.ack() };
        let answer = CallerAnswer {
            caller,
            workflow: workflow.into(),
            job: id,
            is_error: true,
            timestamp_s: times::seconds(clock::now()),
            body: CallerAnswer::error(&refusal.reason, false),
            receipt: Receipt::Refusal(ack),
        };
        Outgoing::Send(definition.vhost.as_str().into(), BusMessage::Answer(answer))
            .release(shared);
    }
}

impl Call {
    pub(super) fn refuse(self, refusal: &Refusal, shared: &Shared) {
        let Call { definition, id, caller, ack, .. } = self;
        Refused { definition, id, caller, ack }.tell(refusal, shared);
    }

    /// The caller, to be told the end of the job that has its id; none: it asks for another job, or
    /// too many ask, and is refused.
    pub(super) fn join(self, job: &Job, shared: &Shared) -> Option<(Option<Caller>, Acknowledge)> {
        let call = self.unless_conflict(job, shared)?;
        let callers_max = shared.settings.limits.callers_max;
        if call.caller.as_ref().is_some_and(|caller| !job.has_room_for(caller, callers_max)) {
            let reason = format!(
                "{callers_max} callers wait for job {} already (setting limits.callers_max)",
                call.id
            );
            call.refuse(&Refusal { kind: "too_many_callers", reason }, shared);
            return None;
        }
        Some((call.caller, call.ack))
    }

    /// Itself, if it asks for the job that is `known` under its id; it is refused otherwise.
    fn unless_conflict<'a>(self, known: impl Into<Known<'a>>, shared: &Shared) -> Option<Call> {
        if let Answer::Conflict(reason) =
            Answer::again(self.id, known, &self.definition.full_name(), &self.message)
        {
            self.refuse(&Refusal { kind: "conflict", reason }, shared);
            return None;
        }
        Some(self)
    }

    /// Asks the job of the step that says it has sent it.
    pub(super) fn vouched_by(self, job: &Job) -> Call {
        let asker = match &self.asker {
            Asker::Claimed(place, attempt)
                if job.awaits(
                    &place.step,
                    *attempt,
                    &Definition::call_queue(&self.definition.name),
                ) =>
            {
                Asker::Step
            }
            Asker::Claimed(..) | Asker::Stranger | Asker::Step => Asker::Stranger,
        };
        Call { asker, ..self }
    }

    fn is_of_step(&self) -> bool {
        matches!(self.asker, Asker::Step)
    }

    /// Reads a message of a workflow's queue.
    fn read(definition: Arc<Definition>, delivery: Delivery, shared: &Shared) -> Option<Call> {
        let (id, caller, asker) = (
            id_of(&definition, &delivery),
            caller_of(&delivery),
            asker_of(&delivery, shared.own_reply_queue()),
        );
        // Nobody is above one who says nothing of it.
        let depth = delivery.depth.map_or(0, |above| above.saturating_add(1));
        let limits = &shared.settings.limits;
        let message = message_of(&delivery.body, limits.step_message_bytes_max)
            .and_then(|message| not_too_deep(depth, limits.depth_max, message));
        let ack = delivery.into_settlement();
        match message {
            Ok(message) => Some(Call { definition, id, message, caller, depth, asker, ack }),
            Err(refusal) => {
                Refused { definition, id, caller, ack }.tell(&refusal, shared);
                None
            }
        }
    }
}

fn caller_of(delivery: &Delivery) -> Option<Caller> {
    let reply_to = delivery.reply_to.as_deref().filter(|queue| !queue.is_empty())?;
    Some(Caller {
        reply_to: reply_to.into(),
        correlation_id: delivery.correlation_id.as_deref().map(Into::into),
        attempt: delivery.attempt,
    })
}

/// Whether the message is that of a step: it names one, this manager's reply queue, and has the id
/// of the step's message. So a step that runs stands for one job at most.
fn asker_of(delivery: &Delivery, own_reply_queue: &str) -> Asker {
    let claimed = || {
        let (correlation_id, message_id) =
            (delivery.correlation_id.as_deref()?, delivery.message_id.as_deref()?);
        let place: CorrelationId = correlation_id.parse().ok()?;
        let attempt: u32 = message_id.rsplit_once(':')?.1.parse().ok()?;
        // Spelt in one way alone: what is spelt otherwise would ask for another job.
        let is_of_step =
            correlation_id == place.to_string() && message_id == format!("{place}:{attempt}");
        let is_ours = delivery.reply_to.as_deref() == Some(own_reply_queue)
            && delivery.attempt.is_none_or(|told| told == attempt);
        (is_of_step && is_ours).then_some(Asker::Claimed(place, attempt))
    };
    claimed().unwrap_or(Asker::Stranger)
}

fn not_too_deep(depth: u16, depth_max: u16, message: Message) -> Result<Message, Refusal> {
    if depth <= depth_max {
        return Ok(message);
    }
    let reason = format!(
        "calls and child jobs would nest deeper than {depth_max} levels (setting limits.depth_max): does the recursion end?"
    );
    Err(Refusal { kind: "too_deep", reason })
}

/// The id of the job that a message asks for: its `message_id`, where that is a UUID. Else it
/// follows from what tells the message from others, so that one that is delivered again starts no
/// second job; where nothing does, it is a new one.
fn id_of(definition: &Definition, delivery: &Delivery) -> JobId {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (name, message_id) = (definition.full_name(), text(&delivery.message_id));
    let (correlation_id, reply_to) = (text(&delivery.correlation_id), text(&delivery.reply_to));
    // In its hyphenated form alone: what other spellings have stood for must stay.
    if let Some(id) = JobId::hyphenated(&message_id) {
        return id;
    }
    // A message without an id is told from others by all that its answer depends on.
    let body: &[u8] = if message_id.is_empty() { &delivery.body } else { &[] };
    if message_id.is_empty() && (correlation_id.is_empty() || reply_to.is_empty()) {
        return clock::new_id();
    }
    JobId::of_call(&[
        name.as_bytes(),
        message_id.as_bytes(),
        correlation_id.as_bytes(),
        reply_to.as_bytes(),
        body,
    ])
}

fn message_of(body: &Bytes, bytes_max: usize) -> Result<Message, Refusal> {
    if body.len() > bytes_max {
        let bytes = body.len();
        let reason = format!(
            "the message has {bytes} bytes, the limit is {bytes_max} (setting limits.step_message_bytes_max)"
        );
        return Err(Refusal { kind: "call_too_large", reason });
    }
    Message::parse(body).map_err(|error| Refusal {
        kind: "malformed_call",
        reason: format!("the message is no JSON object: {error}"),
    })
}

impl Router {
    /// A message came in on the queue of a workflow.
    pub(super) fn called(&mut self, workflow: &str, delivery: Delivery, ctx: &mut Context<Self>) {
        let Some(definition) = self.shared.definitions().get(workflow).cloned() else {
            // A reload has taken the workflow away. Back to its queue, where it waits for the
            // workflow to be loaded again.
            tracing::warn!(
                workflow,
                "a call of a workflow that is no longer loaded goes back to its queue"
            );
            ctx.run_later(TRIED_AGAIN_AFTER, move |_, _| drop(delivery));
            return;
        };
        let Some(call) = Call::read(definition, delivery, &self.shared) else { return };
        self.take_call(call, ctx);
    }

    /// Takes a call, in its turn.
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

    /// Itself, unless it is to be answered into our own reply queue: that is for our own steps,
    /// whose jobs are asked first. Nobody is told of the refusal, for the same reason.
    fn unless_answered_here(&self, call: Call) -> Option<Call> {
        let reply_to = call.caller.as_ref().map(|caller| &*caller.reply_to);
        if reply_to != Some(self.shared.own_reply_queue()) || call.is_of_step() {
            return Some(call);
        }
        let Call { definition, id, caller, ack, .. } = self.ask_claimed(call)?;
        let place = caller.and_then(|caller| caller.correlation_id).unwrap_or_default();
        let reason = format!(
            "reply_to is the manager's own reply queue, and the correlation id {} names no step that runs and asks for {}",
            quoted(&place),
            definition.name
        );
        Refused { definition, id, caller: None, ack }
            .tell(&Refusal { kind: "own_reply_queue", reason }, &self.shared);
        None
    }

    /// Keeps a call until a job can be taken.
    pub(super) fn keep_call(&mut self, call: Call, ctx: &mut Context<Self>) {
        self.waiting.push_back(call);
        self.try_again_later(ctx);
    }

    fn try_again_later(&mut self, ctx: &mut Context<Self>) {
        if self.waiting.is_empty() || self.is_waiting {
            return;
        }
        self.is_waiting = true;
        ctx.run_later(TRIED_AGAIN_AFTER, |router, ctx| {
            router.is_waiting = false;
            if router.shared.health.stopping.load(Ordering::Relaxed) {
                // Back to their queues, for the next start.
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

    /// Starts the job, or joins the one that there is; gives the call back if no job can be taken
    /// now.
    fn start_call(&mut self, call: Call) -> Option<Call> {
        if call.ack.is_void() {
            // Its connection was lost meanwhile: it comes again.
            return None;
        }
        let (shared, id) = (self.shared.clone(), call.id);
        let shared = &shared;
        if let Some(job) = shared.routes.find(id) {
            job.post(JobInput::Called(call));
            return None;
        }
        if shared.routes.has(id) {
            call.refuse(&Refusal { kind: "conflict", reason: promised(id) }, shared);
            return None;
        }
        let is_full = shared.routes.roots() >= shared.settings.limits.jobs_running_max;
        if shared.health.accepts() && is_full && !call.is_of_step() {
            match self.ask_claimed(call) {
                Some(call) => return self.kept(call, "the manager takes no jobs now"),
                // It comes back, with what the job says.
                None => return None,
            }
        }
        if !shared.health.accepts() {
            return self.kept(call, "the manager takes no jobs now");
        }
        let earlier = match shared.reader.creation(id) {
            Ok(earlier) => earlier,
            Err(error) => return self.kept(call, &error.to_string()),
        };
        if let Some(earlier) = earlier {
            let call = call.unless_conflict(&earlier, shared)?;
            if call.caller.is_none() {
                call.ack.ack();
            } else {
                self.revive(earlier.number, Errand::Call(call));
            }
            return None;
        }
        let Call { definition, message, caller, depth, ack, .. } = call;
        let origin = Origin {
            id,
            definition,
            graph: 0,
            parent: None,
            root: id,
            depth,
            created: clock::now(),
        };
        let number = shared.take_number();
        let start = Start::New {
            origin: Arc::new(origin),
            message,
            caller,
            release: vec![Outgoing::Ack(ack)],
        };
        job::spawn(shared, Spawn { id, number, root: number, parent: None, start });
        None
    }

    /// Has the job asked whose step the call says it is from; gives it back if there is none.
    fn ask_claimed(&self, call: Call) -> Option<Call> {
        let Asker::Claimed(place, _) = &call.asker else { return Some(call) };
        match self.shared.routes.find(place.job) {
            Some(job) => {
                job.post(JobInput::Vouch(call));
                None
            }
            None => Some(Call { asker: Asker::Stranger, ..call }),
        }
    }

    fn kept(&self, call: Call, reason: &str) -> Option<Call> {
        if self.shared.throttle.may_log("calls_kept") {
            tracing::warn!(
                workflow = call.definition.full_name(),
                reason,
                "calls wait (logged once a minute)"
            );
        }
        Some(call)
    }
}
