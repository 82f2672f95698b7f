//! Leases for workers, whichever way they come: over HTTP ([`super::worker`]) or over gRPC
//! (the crate `grpc`). Both agree here on which queues exist, what a receipt is, which durations
//! are allowed, and how a message is settled.

use super::active_jobs;
use super::problem::Problem;
use super::query::ReplyType;
use super::reads;
use super::redispatch::check_known;
use crate::api::state::ApiState;
use crate::settings::BusKind;
use base::clock;
use base::times::Rfc3339Time;
use bus::lease_queue::{
    LeaseQueue, LeasedMessage, NotCommitted, NotLeased, ReceiveOptions, ReplyOutcome,
    RevocationSender, WorkerReply, reply_path,
};
use bus::{Address, BusKey, ERROR_KIND};
use bytes::Bytes;
use engine::text::quote;
use engine::{CorrelationId, Job, JobId, JobState, Sender, StepState, Timestamp};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a worker waits for a message, unless it asks for another time.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The longest time that a worker can wait. Proxies close connections that are silent for a minute.
pub const WAIT_MAX: Duration = Duration::from_secs(50);

/// The shortest lease that a worker can ask for.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
pub use bus::lease_queue::LEASE_MAX;

/// The longest delay before a message that was returned to its queue is leased again.
pub const DELAY_MAX: Duration = Duration::from_secs(60 * 60);

/// The longest name of a worker, in characters.
const WORKER_CHARS_MAX: usize = 100;

/// The most messages of one response.
pub const MESSAGES_MAX: u32 = 100;

/// The bodies of the messages in one response have at most this many bytes in total. The first
/// message is always included.
const MESSAGES_BYTES_MAX: usize = 4 << 20;

/// A message that has waited longer than this, or was leased before, is checked before it is
/// leased: its attempt may be over.
const UNCHECKED_AGE_MAX: Duration = Duration::from_secs(1);

/// The longest text that is parsed as a receipt, in bytes. Names and ids are far shorter.
pub const RECEIPT_BYTES_MAX: usize = 4096;

/// A worker's request for messages.
pub struct LeaseRequest {
    /// The queue.
    pub queue: String,
    /// The virtual host of the queue. Empty: that of workflows without one.
    pub vhost: String,
    /// How the messages are leased.
    pub options: ReceiveOptions,
    /// How long the worker waits for the first message.
    pub wait: Duration,
    /// The most messages.
    pub max: u32,
    /// How the worker is connected, for messages to it: "over HTTP" or "over gRPC".
    pub transport: &'static str,
}

/// Leases the next messages of a queue, as soon as there are any. Returns an empty list if none
/// came in time.
pub async fn receive(
    api: &Arc<ApiState>,
    request: LeaseRequest,
) -> Result<Vec<LeasedMessage>, Problem> {
    let LeaseRequest { queue, vhost, options, wait, max, transport } = request;
    let (queue, lease_queue) = find_queue(api, &queue, &vhost, transport).await?;
    let Some(_place) = api.budgets.waiters.try_acquire(1) else {
        let limit = api.settings.http.waiters_max;
        if api.log_limiter.may_log("waiters") {
            tracing::warn!(
                limit,
                "workers are refused: as many wait for messages as may (setting http.waiters_max; \
                 logged once a minute)"
            );
        }
        return Err(Problem::overloaded(format!(
            "{limit} workers wait for messages (setting http.waiters_max)"
        )));
    };
    let until = clock::timer_now() + wait;
    let (mut messages, mut bytes, mut until) = (Vec::new(), 0, until);
    while messages.len() < max as usize && bytes < MESSAGES_BYTES_MAX {
        let Some(message) = receive_next(api, &lease_queue, &queue, &options, until).await else {
            break;
        };
        bytes += message.body.len();
        messages.push(ReturnOnDrop { lease_queue: &lease_queue, message: Some(message) });
        until = clock::timer_now();
    }
    Ok(messages.iter_mut().filter_map(|not_given| not_given.message.take()).collect())
}

/// Finds a queue of a loaded workflow or of a job under way, and the lease queue that has its
/// messages.
pub async fn find_queue(
    api: &Arc<ApiState>,
    name: &str,
    vhost: &str,
    transport: &str,
) -> Result<(Arc<str>, Arc<LeaseQueue>), Problem> {
    let address = Address { bus: embedded_bus(api, vhost), queue: name.into() };
    check_known(api, &address, |other| {
        let unset = match other == BusKind::Amqp.name() {
            true => ", or start the manager without amqp.server (AMQP_SERVER)",
            false => "",
        };
        Problem::conflict(format!(
            "queue {} is on the bus \"{other}\": its workers take their messages there, not \
             {transport}. To have it here, give the step `bus: embedded`{unset}",
            quote(name)
        ))
    })
    .await?;
    Ok((address.queue, find_lease_queue(api, vhost)?))
}

/// Leases the next message whose attempt is not over.
pub async fn receive_next(
    api: &Arc<ApiState>,
    lease_queue: &LeaseQueue,
    queue: &Arc<str>,
    options: &ReceiveOptions,
    until: Instant,
) -> Option<LeasedMessage> {
    loop {
        let message = lease_queue.receive(queue, options, until).await?;
        if message.waited < UNCHECKED_AGE_MAX && message.delivery == 1 {
            return Some(message);
        }
        let mut guard = ReturnOnDrop { lease_queue, message: Some(message) };
        let is_over = match &guard.message {
            Some(message) => find_attempt_end(api, &message.id).await.is_some(),
            None => false,
        };
        let message = guard.message.take()?;
        if !is_over {
            return Some(message);
        }
        lease_queue.remove(queue, &message.id);
    }
}

/// Returns a leased message to its queue on drop, as if it had not been leased. It guards messages
/// that are being checked, or that wait for others of the same response, in case the worker
/// disconnects meanwhile.
struct ReturnOnDrop<'d> {
    lease_queue: &'d LeaseQueue,
    message: Option<LeasedMessage>,
}

impl Drop for ReturnOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(message) = self.message.take() {
            // An error means that the message waits already, or that its attempt is over.
            let _ = self.lease_queue.release(&message.id, message.delivery, None);
        }
    }
}

/// Identifies one delivery of a message.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The queue.
    pub queue: Arc<str>,
    /// The virtual host of the queue.
    pub vhost: String,
    /// The message id.
    pub id: String,
    /// The number of the delivery, from 1.
    pub delivery: u32,
    message: MessageId,
}

impl Receipt {
    /// Checks the parts of a receipt: queue, message id, number of the delivery.
    pub(super) fn new(
        (queue, id, number): (String, String, String),
        vhost: Option<String>,
    ) -> Result<Receipt, Problem> {
        let delivery = parse_delivery(&number)?;
        let message = MessageId::parse(&id)?;
        let (queue, vhost) = (queue.into(), vhost.unwrap_or_default());
        Ok(Receipt { queue, vhost, id, delivery, message })
    }

    /// Parses what [`Receipt::format`] has written.
    pub fn parse(text: &str) -> Result<Receipt, Problem> {
        let wrong = || {
            Problem::malformed(format!(
                "the receipt is {}, expected the one of the message, unchanged",
                quote(text)
            ))
        };
        if text.len() > RECEIPT_BYTES_MAX {
            return Err(wrong());
        }
        let (path, query) =
            text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)));
        let parts: Vec<&str> = path.split('/').collect();
        let ["", "api", "queue", queue, "message", id, number, "reply"] = parts[..] else {
            return Err(wrong());
        };
        let plain = |part: &str| {
            percent_encoding::percent_decode_str(part)
                .decode_utf8()
                .map(String::from)
                .map_err(|_| wrong())
        };
        let vhost = query.map(|query| query.strip_prefix("vhost=").ok_or_else(wrong));
        let vhost = vhost.transpose()?.map(plain).transpose()?;
        Receipt::new((plain(queue)?, plain(id)?, plain(number)?), vhost)
    }

    /// Returns whether the message belongs to the queue that the receipt names. Messages that
    /// nobody knows count as belonging.
    pub(super) async fn is_in_its_queue(&self, api: &Arc<ApiState>, bus: &BusKey) -> bool {
        let Receipt { queue, id, message, .. } = self;
        if api
            .manager
            .lease_queues()
            .find(bus)
            .is_some_and(|lease_queue| lease_queue.has_message_in(queue, id))
        {
            return true;
        }
        let job = message.correlation_id.job;
        if !api.manager.routes().is_under_way(job) {
            api.manager.wait_for_router().await;
        }
        api.manager.activate(job).await;
        let step = message.correlation_id.step.clone();
        let found = active_jobs::inspect_job(api, job, move |job| {
            let index = job.graph().find_index(&step)?;
            Some((job.definition().clone(), job.graph().step(index).clone()))
        });
        match found.await.flatten() {
            Some((definition, step)) => {
                let own = Address { bus: bus.clone(), queue: queue.clone() };
                api.manager.buses().address(&definition, &step) == own
            }
            // An unknown message changes nothing, whatever is done with it.
            None => true,
        }
    }

    /// Formats the receipt of a leased message: the path to which a reply over HTTP is sent.
    pub fn format(queue: &str, vhost: &str, message: &LeasedMessage) -> String {
        let vhost = (!vhost.is_empty()).then_some(("vhost", vhost));
        reply_path(queue, &message.id, message.delivery, vhost)
    }
}

/// Takes a reply; answered once what follows from it is committed. `line`: of a worker that stays.
pub async fn handle_reply(
    lease_queue: &LeaseQueue,
    receipt: Receipt,
    kind: ReplyType,
    (from, session): (Sender, Option<RevocationSender>),
    body: Bytes,
) -> Result<ReplyOutcome, NotCommitted> {
    let Receipt { queue, id, delivery, message, .. } = receipt;
    let kind = match kind {
        ReplyType::Result => None,
        ReplyType::Error => Some(ERROR_KIND),
        ReplyType::Progress => Some("progress"),
    };
    let correlation_id = Some(message.correlation_id.to_string());
    let attempt = Some(message.attempt);
    lease_queue
        .reply(WorkerReply {
            queue,
            id,
            delivery,
            correlation_id,
            attempt,
            kind,
            sender: from,
            body,
            revocations: session,
        })
        .await
}

/// Extends the lease of a message, and returns when it ends. `session` is the session of a worker
/// over gRPC.
pub async fn extend_lease(
    api: &Arc<ApiState>,
    receipt: &Receipt,
    lease: Option<Duration>,
    session: Option<&RevocationSender>,
) -> Result<Instant, Problem> {
    let Receipt { queue, vhost, id, delivery, .. } = receipt;
    let lease_queue = find_lease_queue(api, vhost)?;
    if let Some(why) = find_attempt_end(api, id).await {
        lease_queue.remove(queue, id);
        let problem = Problem::gone(format!("{why}: the attempt is over, stop working on it"));
        return Err(problem.with_reason(why));
    }
    let try_extend = || lease_queue.extend(queue, id, *delivery, lease, session);
    let extended = match try_extend() {
        Err(NotLeased::NotFound) => {
            // After a start the message may still be on its way to the bus, which answers once it
            // is there.
            api.manager.inspect_queues(&embedded_bus(api, vhost), Vec::new()).await;
            try_extend()
        }
        known => known,
    };
    extended.map_err(lease_problem)
}

/// Refuses a message: its attempt fails, or, with a pause, it goes back to its queue after that.
pub async fn nack(
    lease_queue: &LeaseQueue,
    receipt: &Receipt,
    requeue: Option<Duration>,
    from: Sender,
) -> Result<Result<ReplyOutcome, NotCommitted>, Problem> {
    let Receipt { id, delivery, .. } = receipt;
    match requeue {
        Some(pause) => {
            lease_queue.requeue_after(id, *delivery, pause, None).map_err(lease_problem)?;
            Ok(Ok(ReplyOutcome::default()))
        }
        None => lease_queue.reject(id, *delivery, from).await.map_err(lease_problem),
    }
}

/// Returns the key of the embedded bus in a virtual host.
pub fn embedded_bus(api: &Arc<ApiState>, vhost: &str) -> BusKey {
    api.manager.buses().resolve(Some(&BusKind::Embedded.name().into()), vhost)
}

/// Finds the lease queue of the embedded bus in a virtual host.
pub fn find_lease_queue(api: &Arc<ApiState>, vhost: &str) -> Result<Arc<LeaseQueue>, Problem> {
    let bus = embedded_bus(api, vhost);
    api.manager.lease_queues().find(&bus).ok_or_else(|| {
        if api.manager.buses().find(&bus).is_some() {
            return Problem::overloaded("the manager is starting: ask again".to_owned());
        }
        let suffix = match vhost {
            "" => String::new(),
            vhost => format!(" in the virtual host {}", quote(vhost)),
        };
        Problem::not_found(format!("no loaded workflow uses the embedded bus{suffix}"))
    })
}

/// Finds out why the attempt of a message is over. Returns `None` if it is not.
pub async fn find_attempt_end(api: &Arc<ApiState>, id: &str) -> Option<&'static str> {
    let MessageId { correlation_id: of, attempt } = MessageId::parse(id).ok()?;
    let (job, step) = (of.job, of.step);
    if !api.manager.routes().is_under_way(job) {
        // After a start the router may not have taken over the jobs of the journal yet.
        api.manager.wait_for_router().await;
    }
    api.manager.activate(job).await;
    let of_step = step.clone();
    let found =
        active_jobs::inspect_job(api, job, move |job| find_attempt_end_in(job, &of_step, attempt));
    match found.await {
        Some(end) => end,
        None => Some(find_attempt_end_in_ended(api, job, step, attempt).await),
    }
}

/// Finds out why the attempt is over, for a job that is no longer under way.
async fn find_attempt_end_in_ended(
    api: &Arc<ApiState>,
    job: JobId,
    step: String,
    attempt: u32,
) -> &'static str {
    let found = reads::with_job(api, job, move |found, _| {
        Ok(find_attempt_end_in(&found.job, &step, attempt))
    });
    // A job that is gone was settled before. If it cannot be read now, its attempt is over all the
    // same.
    found.await.ok().and_then(|(why, _)| why).unwrap_or("settled")
}

/// Finds out why the attempt is over. Returns `None` if it is not.
fn find_attempt_end_in(job: &Job, step: &str, attempt: u32) -> Option<&'static str> {
    let Some(index) = job.graph().find_index(step) else { return Some("unknown step") };
    let run = job.step(index);
    match (job.state(), job.step_state(index)) {
        (JobState::Cancelled, _) | (_, StepState::Cancelled) => Some("cancelled"),
        (_, StepState::Completed | StepState::Failed | StepState::Skipped) => Some("settled"),
        (_, StepState::Waiting) => Some("cancelled"),
        (_, StepState::Running) if run.attempt != attempt || !run.has_active_attempt() => {
            Some("timed out")
        }
        (_, StepState::Running) => None,
    }
}

fn lease_problem(why: NotLeased) -> Problem {
    let why = match why {
        NotLeased::ToAnother => "another worker has the message",
        NotLeased::NotFound => "this delivery is not yours any more",
    };
    Problem::gone(format!(
        "lease expired: {why}; a reply to it counts all the same, if it is the first"
    ))
    .with_reason("lease expired")
}

/// A parsed message id.
#[derive(Clone, Debug)]
struct MessageId {
    correlation_id: CorrelationId,
    attempt: u32,
}

impl MessageId {
    fn parse(text: &str) -> Result<MessageId, Problem> {
        let wrong = || {
            Problem::malformed(format!(
                "the message's id is {}, expected <job UUID>:<step name>:<attempt>: pass on the \
                 Reply-To of the message",
                quote(text)
            ))
        };
        let (of, attempt) = text.rsplit_once(':').ok_or_else(wrong)?;
        let (of, attempt) = (of.parse().map_err(|_| wrong())?, attempt.parse());
        Ok(MessageId { correlation_id: of, attempt: attempt.map_err(|_| wrong())? })
    }
}

fn parse_delivery(text: &str) -> Result<u32, Problem> {
    text.parse().map_err(|_| {
        Problem::malformed(format!(
            "the delivery is {}, expected its number: pass on the Reply-To of the message",
            quote(text)
        ))
    })
}

/// Checks the name that a worker gives itself.
pub fn parse_worker_name(name: &str) -> Result<Arc<str>, Problem> {
    let length = name.chars().count();
    if !(1..=WORKER_CHARS_MAX).contains(&length) {
        return Err(Problem::malformed(format!(
            "worker has {length} characters, expected a name of 1 to {WORKER_CHARS_MAX}"
        )));
    }
    Ok(name.into())
}

/// Checks that a duration is within its bounds. `original` renders it as the worker wrote it.
pub fn check_bounds(
    key: &str,
    span: Option<Duration>,
    original: impl FnOnce() -> String,
    (min, max): (Duration, Duration),
) -> Result<Duration, Problem> {
    span.filter(|span| (min..=max).contains(span)).ok_or_else(|| {
        let format = humantime::format_duration;
        Problem::malformed(format!(
            "{key} is {}, expected a time from {} to {}, such as 30s",
            original(),
            format(min),
            format(max)
        ))
    })
}

/// Converts the end of a lease to the wall clock; the result is never later than the end.
pub fn to_wall_clock(end: Instant) -> Rfc3339Time {
    // In this order: time that passes between the two readings makes the result earlier.
    let now = clock::now();
    let left = end.saturating_duration_since(clock::timer_now());
    let left_ns = i64::try_from(left.as_nanos()).unwrap_or(i64::MAX);
    Rfc3339Time(Timestamp(now.0.saturating_add(left_ns)))
}
