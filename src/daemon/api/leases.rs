//! Leases messages to workers, and settles them. HTTP ([`super::worker`]) and gRPC (the crate
//! `grpc`) share this code. It knows which queues exist, the format of receipts, the bounds of
//! durations, and how a message is settled.

use super::active_jobs;
use super::attempts::{AttemptStatus, MessageId, find_attempt_status};
use super::problem::Problem;
use super::query::ReplyType;
use super::reads;
use super::redispatch::check_queue_is_known;
use crate::api::state::ApiState;
use crate::settings::BusKind;
use actix_web::ResponseError;
use actix_web::http::StatusCode;
use base::clock;
use base::times::Rfc3339Time;
use bus::lease_queue::{
    LeaseQueue, LeasedMessage, NotCommitted, NotLeased, ReceiveOptions, ReplyOutcome,
    RevocationSender, WorkerReply, reply_path,
};
use bus::{Address, BusKey, ERROR_KIND};
use bytes::Bytes;
use engine::text::quote;
use engine::{Job, Sender, Timestamp};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub use super::openapi::parameters::MESSAGES_MAX;
pub use bus::lease_queue::LEASE_MAX;

/// How long a worker waits for a message by default.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The longest time that a worker can wait. It is below a minute, because proxies often close
/// connections that are silent for a minute.
pub const WAIT_MAX: Duration = Duration::from_secs(50);

/// The shortest lease that a worker can ask for.
pub const LEASE_MIN: Duration = Duration::from_secs(1);

/// The longest delay before a message that was returned to its queue is leased again.
pub const DELAY_MAX: Duration = Duration::from_secs(60 * 60);

/// The longest name of a worker, in characters.
const WORKER_CHARS_MAX: usize = 100;

/// The most bytes that the bodies of one response have together. The last message may exceed it.
const MESSAGES_BYTES_MAX: usize = 4 << 20;

/// How long a message may wait and still be leased without a check that its attempt has not ended.
/// A message that was leased before is always checked.
const UNCHECKED_AGE_MAX: Duration = Duration::from_secs(1);

/// The longest text that is parsed as a receipt, in bytes. Names and ids are far shorter.
pub const RECEIPT_BYTES_MAX: usize = 4096;

/// A worker's request for messages.
pub struct LeaseRequest {
    /// The queue.
    pub queue: String,
    /// The virtual host of the queue. Empty: the virtual host of workflows that name none.
    pub vhost: String,
    /// How the messages are leased.
    pub options: ReceiveOptions,
    /// How long the worker waits for the first message.
    pub wait: Duration,
    /// The largest number of messages, at least 1.
    pub max: u32,
    /// How the worker is connected, for error messages: "over HTTP" or "over gRPC".
    pub transport: &'static str,
}

/// Leases the next messages of a queue. Waits for the first one for at most `wait`, and then adds
/// those that are available at once. Returns an empty list if none arrives in time.
///
/// # Errors
///
/// Returns a problem if the queue is unknown or on another bus, if too many workers wait, or while
/// the manager is starting.
pub async fn receive(
    api: &Arc<ApiState>,
    request: LeaseRequest,
) -> Result<Vec<LeasedMessage>, Problem> {
    let LeaseRequest { queue, vhost, options, wait, max, transport } = request;
    check_in_touch(api)?;
    let (queue, lease_queue) = find_queue(api, &queue, &vhost, transport).await?;
    let Some(_permit) = api.budgets.waiters.try_acquire(1) else {
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
    let mut deadline = clock::timer_now() + wait;
    let (mut guards, mut bytes) = (Vec::new(), 0);
    while guards.len() < max as usize && bytes < MESSAGES_BYTES_MAX {
        let Some(message) = receive_next(api, &lease_queue, &queue, &options, deadline).await
        else {
            if guards.is_empty() {
                check_in_touch(api)?;
            }
            break;
        };
        bytes += message.body.len();
        guards.push(ReturnOnDrop { lease_queue: &lease_queue, message: Some(message) });
        // Only the first message is waited for.
        deadline = clock::timer_now();
    }
    Ok(guards.iter_mut().filter_map(|guard| guard.message.take()).collect())
}

/// Checks that no other process can be active. Otherwise that one lends the messages.
///
/// # Errors
///
/// Returns a 503 if one can.
pub fn check_in_touch(api: &ApiState) -> Result<(), Problem> {
    match api.health.out_of_touch() {
        Some(reason) => Err(Problem::overloaded(reason.to_owned())),
        None => Ok(()),
    }
}

/// Finds a queue of a loaded workflow or of an active job. Returns its name, and the lease queue
/// that holds its messages.
///
/// # Errors
///
/// Returns a problem if the queue is unknown or on another bus, or the manager is starting.
pub async fn find_queue(
    api: &Arc<ApiState>,
    name: &str,
    vhost: &str,
    transport: &str,
) -> Result<(Arc<str>, Arc<LeaseQueue>), Problem> {
    let address = Address { bus: embedded_bus(api, vhost), queue: name.into() };
    check_queue_is_known(api, &address, |other_bus| {
        let amqp_hint = if other_bus == BusKind::Amqp.name() {
            ", or start the manager without amqp.server (AMQP_SERVER)"
        } else {
            ""
        };
        Problem::conflict(format!(
            "queue {} is on the bus \"{other_bus}\": its workers take their messages there, not \
             {transport}. To have it here, give the step `bus: embedded`{amqp_hint}",
            quote(name)
        ))
    })
    .await?;
    Ok((address.queue, find_lease_queue(api, vhost)?))
}

/// Leases the next message whose attempt is not known to have ended. Removes messages whose
/// attempts have ended. Returns `None` if no message arrives before the deadline.
pub async fn receive_next(
    api: &Arc<ApiState>,
    lease_queue: &LeaseQueue,
    queue: &Arc<str>,
    options: &ReceiveOptions,
    deadline: Instant,
) -> Option<LeasedMessage> {
    loop {
        let message = lease_queue.receive(queue, options, deadline).await?;
        if message.waited < UNCHECKED_AGE_MAX && message.delivery == 1 {
            return Some(message);
        }
        let mut guard = ReturnOnDrop { lease_queue, message: Some(message) };
        let status = match &guard.message {
            Some(message) => find_attempt_status(api, &message.id).await,
            None => AttemptStatus::Unknown,
        };
        let message = guard.message.take()?;
        match status {
            AttemptStatus::Active | AttemptStatus::Unknown => return Some(message),
            AttemptStatus::Ended(_) => lease_queue.remove(queue, &message.id),
        }
    }
}

/// A guard that returns a leased message to its queue when it is dropped, as if the message had not
/// been leased. It is needed while a message is checked, or waits for further messages of the same
/// response: if the worker disconnects meanwhile, the future of its request is dropped.
struct ReturnOnDrop<'d> {
    lease_queue: &'d LeaseQueue,
    /// `None`: the message was taken out, and stays leased.
    message: Option<LeasedMessage>,
}

impl Drop for ReturnOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(message) = self.message.take() {
            // An error means that the message is already back in its queue, or its attempt has
            // ended.
            let _ = self.lease_queue.release(&message.id, message.delivery, None);
        }
    }
}

/// The parts of the path of a message (`/api/queue/{queue}/message/{message}/{delivery}`), decoded,
/// and not yet checked.
#[derive(Deserialize)]
pub(super) struct MessagePath {
    queue: String,
    /// The message id.
    message: String,
    /// The number of the delivery.
    delivery: String,
}

/// A receipt: it identifies one delivery of a message.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The queue.
    pub queue: Arc<str>,
    /// The virtual host of the queue; empty: the virtual host of workflows that name none.
    pub vhost: String,
    /// The message id, as text.
    pub id: String,
    /// The number of the delivery, from 1.
    pub delivery: u32,
    /// The parsed `id`.
    message_id: MessageId,
}

impl Receipt {
    /// Makes a receipt of the parts of a path. Returns a 400 if the message id or the number of the
    /// delivery is malformed.
    pub(super) fn new(path: MessagePath, vhost: Option<String>) -> Result<Receipt, Problem> {
        let MessagePath { queue, message, delivery } = path;
        Ok(Receipt {
            delivery: parse_delivery(&delivery)?,
            message_id: MessageId::parse(&message)?,
            queue: queue.into(),
            vhost: vhost.unwrap_or_default(),
            id: message,
        })
    }

    /// Parses a receipt that [`Receipt::format`] has formatted.
    ///
    /// # Errors
    ///
    /// Returns a 400 if the text is not such a receipt.
    pub fn parse(text: &str) -> Result<Receipt, Problem> {
        let invalid_receipt = || {
            Problem::malformed(format!(
                "the receipt is {}, expected the one of the message, unchanged",
                quote(text)
            ))
        };
        if text.len() > RECEIPT_BYTES_MAX {
            return Err(invalid_receipt());
        }
        let (path, query) =
            text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)));
        let parts: Vec<&str> = path.split('/').collect();
        let ["", "api", "queue", queue, "message", id, delivery, "reply"] = parts[..] else {
            return Err(invalid_receipt());
        };
        let decode = |part: &str| {
            percent_encoding::percent_decode_str(part)
                .decode_utf8()
                .map(String::from)
                .map_err(|_| invalid_receipt())
        };
        let vhost = query.map(|query| query.strip_prefix("vhost=").ok_or_else(invalid_receipt));
        let vhost = vhost.transpose()?.map(decode).transpose()?;
        let path = MessagePath {
            queue: decode(queue)?,
            message: decode(id)?,
            delivery: decode(delivery)?,
        };
        Receipt::new(path, vhost)
    }

    /// Returns whether the message belongs to the queue that the receipt names. A message of an
    /// unknown job or step counts as belonging: settling it has no effect.
    ///
    /// # Errors
    ///
    /// Returns a problem, most often a 503, if this cannot be determined now.
    pub(super) async fn is_in_its_queue(
        &self,
        api: &Arc<ApiState>,
        bus: &BusKey,
    ) -> Result<bool, Problem> {
        let Receipt { queue, id, message_id, .. } = self;
        if api
            .active()?
            .lease_queues()
            .find(bus)
            .is_some_and(|lease_queue| lease_queue.has_message_in(queue, id))
        {
            return Ok(true);
        }
        let job = message_id.correlation_id.job;
        active_jobs::activate_job(api, job).await;
        let step = message_id.correlation_id.step.clone();
        // The definition of a job never changes, so it need not be committed.
        let find_step = move |job: &Job| {
            let index = job.graph().find_index(&step)?;
            Some((job.definition().clone(), job.graph().step(index).clone()))
        };
        let inspection = active_jobs::inspect_uncommitted(api, job, find_step.clone());
        let found = match inspection.await {
            Some((found, _)) => found,
            None => {
                let read = reads::with_job(api, job, move |stored, _| Ok(find_step(&stored.job)));
                match read.await {
                    Ok((found, _)) => found,
                    Err(problem) if problem.status_code() == StatusCode::NOT_FOUND => None,
                    Err(problem) => return Err(problem),
                }
            }
        };
        let address = Address { bus: bus.clone(), queue: queue.clone() };
        Ok(found.is_none_or(|(definition, step)| api.buses.address(&definition, &step) == address))
    }

    /// Formats the receipt of a leased message, which is the path to which a reply over HTTP is
    /// sent.
    pub fn format(queue: &str, vhost: &str, message: &LeasedMessage) -> String {
        let vhost = (!vhost.is_empty()).then_some(("vhost", vhost));
        reply_path(queue, &message.id, message.delivery, vhost)
    }
}

/// Handles a worker's reply. Returns its outcome once everything that follows from it is committed.
/// `revocations` is the channel of a gRPC session, and `None` over HTTP.
///
/// # Errors
///
/// Returns an error if the reply was not committed. The worker may send it again.
pub async fn handle_reply(
    lease_queue: &LeaseQueue,
    receipt: Receipt,
    reply_type: ReplyType,
    (sender, revocations): (Sender, Option<RevocationSender>),
    body: Bytes,
) -> Result<ReplyOutcome, NotCommitted> {
    let Receipt { queue, id, delivery, message_id, .. } = receipt;
    let kind = match reply_type {
        ReplyType::Result => None,
        ReplyType::Error => Some(ERROR_KIND),
        ReplyType::Progress => Some("progress"),
    };
    let correlation_id = Some(message_id.correlation_id.to_string());
    let attempt = Some(message_id.attempt);
    lease_queue
        .reply(WorkerReply {
            queue,
            id,
            delivery,
            correlation_id,
            attempt,
            kind,
            sender,
            body,
            revocations,
        })
        .await
}

/// Returns the 503 for a reply that was not committed.
pub(super) fn not_committed() -> Problem {
    Problem::overloaded("the reply was not committed: send it again".to_owned())
}

/// Extends the lease of a message. Returns when the lease ends. `revocations` is the channel of a
/// gRPC session, and `None` over HTTP.
///
/// # Errors
///
/// Returns a 410 if the attempt has ended, or another worker has the message, or a 503 if this
/// cannot be determined now.
pub async fn extend_lease(
    api: &Arc<ApiState>,
    receipt: &Receipt,
    lease: Option<Duration>,
    revocations: Option<&RevocationSender>,
) -> Result<Instant, Problem> {
    let Receipt { queue, vhost, id, delivery, .. } = receipt;
    let lease_queue = find_lease_queue(api, vhost)?;
    let status = find_attempt_status(api, id).await;
    if let AttemptStatus::Ended(reason) = status {
        let reason = reason.as_str();
        lease_queue.remove(queue, id);
        let problem = Problem::gone(format!("{reason}: the attempt is over, stop working on it"));
        return Err(problem.with_reason(reason));
    }
    let try_extend = || lease_queue.extend(queue, id, *delivery, lease, revocations);
    let result = match try_extend() {
        Err(NotLeased::NotFound) => {
            wait_for_message(api, vhost, status).await?;
            try_extend()
        }
        result => result,
    };
    result.map_err(to_gone_problem)
}

/// Waits until the message of an attempt is in its lease queue, if it will be: after a start it may
/// still be in the mailbox of its bus.
///
/// # Errors
///
/// Returns a 503 if it cannot be determined now whether the message will be there.
async fn wait_for_message(
    api: &Arc<ApiState>,
    vhost: &str,
    status: AttemptStatus,
) -> Result<(), Problem> {
    let reason = match status {
        AttemptStatus::Ended(_) => return Ok(()),
        AttemptStatus::Unknown => "the attempt cannot be looked up now",
        AttemptStatus::Active if api.active()?.wait_for_bus(&embedded_bus(api, vhost)).await => {
            return Ok(());
        }
        AttemptStatus::Active => "the bus does not answer",
    };
    Err(Problem::overloaded(format!(
        "{reason}, so whether the message is still leased is unknown: ask again"
    )))
}

/// Rejects a leased message. The message is requeued after `requeue_delay`. Without a delay, its
/// attempt fails.
///
/// # Errors
///
/// Returns a 410 if the worker no longer has the message, or a 503 if this cannot be determined
/// now. The inner error means that the failure was not committed.
pub async fn nack(
    api: &Arc<ApiState>,
    lease_queue: &LeaseQueue,
    receipt: &Receipt,
    requeue_delay: Option<Duration>,
    sender: Sender,
) -> Result<Result<ReplyOutcome, NotCommitted>, Problem> {
    let Receipt { vhost, id, delivery, .. } = receipt;
    let try_nack = async || match requeue_delay {
        Some(delay) => lease_queue
            .requeue_after(id, *delivery, delay, None)
            .map(|_| Ok(ReplyOutcome::default())),
        None => lease_queue.reject(id, *delivery, sender.clone()).await,
    };
    let result = match try_nack().await {
        Err(NotLeased::NotFound) => {
            wait_for_message(api, vhost, find_attempt_status(api, id).await).await?;
            try_nack().await
        }
        result => result,
    };
    result.map_err(to_gone_problem)
}

/// Returns the key of the embedded bus in a virtual host.
pub fn embedded_bus(api: &Arc<ApiState>, vhost: &str) -> BusKey {
    api.buses.resolve(Some(&BusKind::Embedded.name().into()), vhost)
}

/// Finds the lease queue of the embedded bus in a virtual host.
///
/// # Errors
///
/// Returns a 503 while the manager is starting, or a 404 if no loaded workflow uses that bus.
pub fn find_lease_queue(api: &Arc<ApiState>, vhost: &str) -> Result<Arc<LeaseQueue>, Problem> {
    let bus = embedded_bus(api, vhost);
    api.active()?.lease_queues().find(&bus).ok_or_else(|| {
        if api.buses.find(&bus).is_some() {
            return Problem::overloaded("the manager is starting: ask again".to_owned());
        }
        let suffix = match vhost {
            "" => String::new(),
            vhost => format!(" in the virtual host {}", quote(vhost)),
        };
        Problem::not_found(format!("no loaded workflow uses the embedded bus{suffix}"))
    })
}

/// Converts the error to the 410 for a worker that no longer has a message.
fn to_gone_problem(error: NotLeased) -> Problem {
    let cause = match error {
        NotLeased::ToAnother => "another worker has the message",
        NotLeased::NotFound => "this delivery is not yours any more",
    };
    Problem::gone(format!(
        "lease expired: {cause}; a reply to it counts all the same, if it is the first"
    ))
    .with_reason("lease expired")
}

/// Parses the number of a delivery.
fn parse_delivery(text: &str) -> Result<u32, Problem> {
    text.parse().map_err(|_| {
        Problem::malformed(format!(
            "the delivery is {}, expected its number: pass on the Reply-To of the message",
            quote(text)
        ))
    })
}

/// Parses the name that a worker gives itself.
///
/// # Errors
///
/// Returns a 400 if the name is empty or too long.
pub fn parse_worker_name(name: &str) -> Result<Arc<str>, Problem> {
    let length = name.chars().count();
    if !(1..=WORKER_CHARS_MAX).contains(&length) {
        return Err(Problem::malformed(format!(
            "worker has {length} characters, expected a name of 1 to {WORKER_CHARS_MAX}"
        )));
    }
    Ok(name.into())
}

/// Checks that a duration could be parsed, and is within its bounds. `format_original` formats it
/// as the worker wrote it.
///
/// # Errors
///
/// Returns a 400 if the duration is `None` or out of bounds.
pub fn check_bounds(
    key: &str,
    duration: Option<Duration>,
    format_original: impl FnOnce() -> String,
    (min, max): (Duration, Duration),
) -> Result<Duration, Problem> {
    duration.filter(|duration| (min..=max).contains(duration)).ok_or_else(|| {
        let format = humantime::format_duration;
        Problem::malformed(format!(
            "{key} is {}, expected a time from {} to {}, such as 30s",
            format_original(),
            format(min),
            format(max)
        ))
    })
}

/// Converts the end of a lease to the wall clock. The result is never later than the end.
pub fn to_wall_clock(end: Instant) -> Rfc3339Time {
    // The wall clock is read first, so that time that passes between the two readings makes the
    // result earlier, never later.
    let now = clock::now();
    let remaining = end.saturating_duration_since(clock::timer_now());
    let remaining_ns = i64::try_from(remaining.as_nanos()).unwrap_or(i64::MAX);
    Rfc3339Time(Timestamp(now.0.saturating_add(remaining_ns)))
}
