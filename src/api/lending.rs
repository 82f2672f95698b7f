//! Leases for workers, whichever way they come: over HTTP ([`super::worker`]) or over gRPC
//! ([`super::grpc`]). Both agree here on which queues exist, what a receipt is, which durations are
//! allowed, and how a message is settled.

use super::live;
use super::problem::Problem;
use super::query::ReplyType;
use super::reads;
use super::redispatch::known;
use crate::actors::door;
use crate::actors::ways::Ways;
use crate::bus::desk::{Borrower, Desk, Line, Loan, NotCommitted, NotLent, Said, Told, reply_path};
use crate::bus::{Address, BusKey, ERROR};
use crate::clock;
use crate::engine::words::quoted;
use crate::engine::{CorrelationId, Job, JobId, JobState, Sender, StepState, Timestamp};
use crate::settings::BusKind;
use crate::times::Time;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a worker waits for a message, unless it asks for another time.
pub(super) const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The longest time that a worker can wait. Proxies close connections that are silent for a minute.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(50);

pub(super) const LEASE_MIN: Duration = Duration::from_secs(1);
pub(super) use crate::bus::desk::LEASE_MAX;

/// The longest delay before a message that was returned to its queue is leased again.
pub(super) const DELAY_MAX: Duration = Duration::from_secs(60 * 60);

/// The longest name of a worker, in characters.
const WORKER_CHARS_MAX: usize = 100;

/// The most messages of one response.
pub(super) const MESSAGES_MAX: u32 = 100;

/// The bodies of the messages in one response have at most this many bytes in total. The first
/// message is always included.
const MESSAGES_BYTES_MAX: usize = 4 << 20;

/// A message that has waited longer than this, or was leased before, is checked before it is
/// leased: its attempt may be over.
const FRESH: Duration = Duration::from_secs(1);

/// The longest text that is parsed as a receipt, in bytes. Names and ids are far shorter.
#[cfg(feature = "grpc")]
pub(super) const RECEIPT_BYTES_MAX: usize = 4096;

/// A worker's request for messages.
pub(super) struct Asked {
    pub(super) queue: String,
    /// The virtual host of the queue. Empty: that of workflows without one.
    pub(super) vhost: String,
    /// How the messages are leased.
    pub(super) borrower: Borrower,
    /// How long the worker waits for the first message.
    pub(super) wait: Duration,
    pub(super) max: u32,
    /// How the worker is connected, for messages to it: "over HTTP" or "over gRPC".
    pub(super) way: &'static str,
}

/// Leases the next messages of a queue, as soon as there are any. Returns an empty list if none
/// came in time.
pub(super) async fn receive(ways: &Ways, asked: Asked) -> Result<Vec<Loan>, Problem> {
    let Asked { queue, vhost, borrower, wait, max, way } = asked;
    let (queue, desk) = queue_of(ways, &queue, &vhost, way).await?;
    let Some(_place) = ways.common.rooms.waiters.take(1) else {
        let limit = ways.common.settings.http.waiters_max;
        if ways.common.throttle.may_log("waiters") {
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
    let until = clock::ticks() + wait;
    let (mut loans, mut bytes, mut until) = (Vec::new(), 0, until);
    while loans.len() < max as usize && bytes < MESSAGES_BYTES_MAX {
        let Some(loan) = next(ways, &desk, &queue, &borrower, until).await else { break };
        bytes += loan.body.len();
        loans.push(NotGiven { desk: &desk, loan: Some(loan) });
        until = clock::ticks();
    }
    Ok(loans.iter_mut().filter_map(|not_given| not_given.loan.take()).collect())
}

/// Finds a queue of a loaded workflow or of a job under way, and the lease queue that has its
/// messages.
pub(super) async fn queue_of(
    ways: &Ways,
    name: &str,
    vhost: &str,
    way: &str,
) -> Result<(Arc<str>, Arc<Desk>), Problem> {
    let address = Address { bus: own_bus(ways, vhost), queue: name.into() };
    known(ways, &address, |other| {
        let unset = match other == BusKind::Amqp.name() {
            true => ", or start the manager without amqp.server (AMQP_SERVER)",
            false => "",
        };
        Problem::conflict(format!(
            "queue {} is on the bus \"{other}\": its workers take their messages there, not {way}. \
             To have it here, give the step `bus: embedded`{unset}",
            quoted(name)
        ))
    })
    .await?;
    Ok((address.queue, desk_of(ways, vhost)?))
}

/// Leases the next message whose attempt is not over.
pub(super) async fn next(
    ways: &Ways,
    desk: &Desk,
    queue: &Arc<str>,
    borrower: &Borrower,
    until: Instant,
) -> Option<Loan> {
    loop {
        let loan = desk.receive(queue, borrower, until).await?;
        if loan.waited < FRESH && loan.delivery == 1 {
            return Some(loan);
        }
        let mut not_given = NotGiven { desk, loan: Some(loan) };
        let is_over = match &not_given.loan {
            Some(loan) => over(ways, &loan.id).await.is_some(),
            None => false,
        };
        let loan = not_given.loan.take()?;
        if !is_over {
            return Some(loan);
        }
        desk.forget(queue, &loan.id);
    }
}

/// Returns a leased message to its queue on drop, as if it had not been leased. It guards messages
/// that are being checked, or that wait for others of the same response, in case the worker
/// disconnects meanwhile.
struct NotGiven<'d> {
    desk: &'d Desk,
    loan: Option<Loan>,
}

impl Drop for NotGiven<'_> {
    fn drop(&mut self) {
        if let Some(loan) = self.loan.take() {
            // An error means that the message waits already, or that its attempt is over.
            let _ = self.desk.take_back(&loan.id, loan.delivery, None);
        }
    }
}

/// Identifies one delivery of a message.
#[derive(Clone, Debug)]
pub(super) struct Receipt {
    pub(super) queue: Arc<str>,
    /// The virtual host of the queue.
    pub(super) vhost: String,
    /// The message id.
    pub(super) id: String,
    /// The number of the delivery, from 1.
    pub(super) delivery: u32,
    message: MessageId,
}

impl Receipt {
    /// Checks the parts of a receipt: queue, message id, number of the delivery.
    pub(super) fn new(
        (queue, id, number): (String, String, String),
        vhost: Option<String>,
    ) -> Result<Receipt, Problem> {
        let delivery = delivery(&number)?;
        let message = MessageId::parse(&id)?;
        let (queue, vhost) = (queue.into(), vhost.unwrap_or_default());
        Ok(Receipt { queue, vhost, id, delivery, message })
    }

    /// Parses what [`Receipt::format`] has written.
    #[cfg(feature = "grpc")]
    pub(super) fn parse(text: &str) -> Result<Receipt, Problem> {
        let wrong = || {
            Problem::malformed(format!(
                "the receipt is {}, expected the one of the message, unchanged",
                quoted(text)
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
    pub(super) async fn is_of_its_queue(&self, ways: &Ways, bus: &BusKey) -> bool {
        let Receipt { queue, id, message, .. } = self;
        if ways.desks.of(bus).is_some_and(|desk| desk.has_in(queue, id)) {
            return true;
        }
        let job = message.of.job;
        if !ways.routes.is_live(job) {
            door::routed(ways).await;
        }
        door::wake(ways, job).await;
        let step = message.of.step.clone();
        let found = live::look(ways, job, move |job| {
            let index = job.graph().index_of(&step)?;
            Some((job.definition().clone(), job.graph().step(index).clone()))
        });
        match found.await.flatten() {
            Some((definition, step)) => {
                let own = Address { bus: bus.clone(), queue: queue.clone() };
                ways.buses.address(&definition, &step) == own
            }
            // An unknown message changes nothing, whatever is done with it.
            None => true,
        }
    }

    /// Formats the receipt of a leased message: the path to which a reply over HTTP is sent.
    pub(super) fn text(queue: &str, vhost: &str, loan: &Loan) -> String {
        let vhost = (!vhost.is_empty()).then_some(("vhost", vhost));
        reply_path(queue, &loan.id, loan.delivery, vhost)
    }
}

/// Takes a reply; answered once what follows from it is committed. `line`: of a worker that stays.
pub(super) async fn reply(
    desk: &Desk,
    receipt: Receipt,
    kind: ReplyType,
    (from, line): (Sender, Option<Line>),
    body: Bytes,
) -> Result<Told, NotCommitted> {
    let Receipt { queue, id, delivery, message, .. } = receipt;
    let kind = match kind {
        ReplyType::Result => None,
        ReplyType::Error => Some(ERROR),
        ReplyType::Progress => Some("progress"),
    };
    let correlation_id = message.of.to_string();
    let attempt = Some(message.attempt);
    desk.reply(Said { queue, id, delivery, correlation_id, attempt, kind, from, body, line }).await
}

/// Extends the lease of a message, and returns when it ends. `session` is the session of a worker
/// over gRPC.
pub(super) async fn extend(
    ways: &Ways,
    receipt: &Receipt,
    lease: Option<Duration>,
    line: Option<&Line>,
) -> Result<Instant, Problem> {
    let Receipt { queue, vhost, id, delivery, .. } = receipt;
    let desk = desk_of(ways, vhost)?;
    if let Some(why) = over(ways, id).await {
        desk.forget(queue, id);
        let problem = Problem::gone(format!("{why}: the attempt is over, stop working on it"));
        return Err(problem.because(why));
    }
    let ask = || desk.extend(queue, id, *delivery, lease, line);
    let extended = match ask() {
        Err(NotLent::NotThere) => {
            // After a start the message may still be on its way to the bus, which answers once it
            // is there.
            door::inspect(ways, &own_bus(ways, vhost), Vec::new()).await;
            ask()
        }
        known => known,
    };
    extended.map_err(not_lent)
}

/// Refuses a message: its attempt fails, or, with a pause, it goes back to its queue after that.
pub(super) async fn nack(
    desk: &Desk,
    receipt: &Receipt,
    requeue: Option<Duration>,
    from: Sender,
) -> Result<Result<Told, NotCommitted>, Problem> {
    let Receipt { id, delivery, .. } = receipt;
    match requeue {
        Some(pause) => {
            desk.give_back(id, *delivery, pause, None).map_err(not_lent)?;
            Ok(Ok(Told::default()))
        }
        None => desk.refuse(id, *delivery, from).await.map_err(not_lent),
    }
}

/// Returns the key of the embedded bus in a virtual host.
pub(super) fn own_bus(ways: &Ways, vhost: &str) -> BusKey {
    ways.buses.named(Some(&BusKind::Embedded.name().into()), vhost)
}

/// Finds the lease queue of the embedded bus in a virtual host.
pub(super) fn desk_of(ways: &Ways, vhost: &str) -> Result<Arc<Desk>, Problem> {
    let bus = own_bus(ways, vhost);
    ways.desks.of(&bus).ok_or_else(|| {
        if ways.buses.find(&bus).is_some() {
            return Problem::overloaded("the manager is starting: ask again".to_owned());
        }
        let place = match vhost {
            "" => String::new(),
            vhost => format!(" in the virtual host {}", quoted(vhost)),
        };
        Problem::not_found(format!("no loaded workflow uses the embedded bus{place}"))
    })
}

/// Finds out why the attempt of a message is over. Returns `None` if it is not.
pub(super) async fn over(ways: &Ways, id: &str) -> Option<&'static str> {
    let MessageId { of, attempt } = MessageId::parse(id).ok()?;
    let (job, step) = (of.job, of.step);
    if !ways.routes.is_live(job) {
        // After a start the router may not have taken over the jobs of the journal yet.
        door::routed(ways).await;
    }
    door::wake(ways, job).await;
    let of_step = step.clone();
    let told = live::look(ways, job, move |job| over_in(job, &of_step, attempt));
    match told.await {
        Some(told) => told,
        None => Some(over_in_ended(ways, job, step, attempt).await),
    }
}

/// Finds out why the attempt is over, for a job that is no longer under way.
async fn over_in_ended(ways: &Ways, job: JobId, step: String, attempt: u32) -> &'static str {
    let told =
        reads::job(&ways.common, job, move |found, _| Ok(over_in(&found.job, &step, attempt)));
    // A job that is gone was settled before. If it cannot be read now, its attempt is over all the
    // same.
    told.await.ok().and_then(|(why, _)| why).unwrap_or("settled")
}

/// Finds out why the attempt is over. Returns `None` if it is not.
fn over_in(job: &Job, step: &str, attempt: u32) -> Option<&'static str> {
    let Some(index) = job.graph().index_of(step) else { return Some("unknown step") };
    let run = job.step(index);
    match (job.state(), job.step_state(index)) {
        (JobState::Cancelled, _) | (_, StepState::Cancelled) => Some("cancelled"),
        (_, StepState::Completed | StepState::Failed | StepState::Skipped) => Some("settled"),
        (_, StepState::Waiting) => Some("cancelled"),
        (_, StepState::Running) if run.attempt != attempt || !run.is_under_way() => {
            Some("timed out")
        }
        (_, StepState::Running) => None,
    }
}

fn not_lent(why: NotLent) -> Problem {
    let why = match why {
        NotLent::ToAnother => "another worker has the message",
        NotLent::NotThere => "this delivery is not yours any more",
    };
    Problem::gone(format!(
        "lease expired: {why}; a reply to it counts all the same, if it is the first"
    ))
    .because("lease expired")
}

/// A parsed message id.
#[derive(Clone, Debug)]
struct MessageId {
    of: CorrelationId,
    attempt: u32,
}

impl MessageId {
    fn parse(text: &str) -> Result<MessageId, Problem> {
        let wrong = || {
            Problem::malformed(format!(
                "the message's id is {}, expected <job UUID>:<step name>:<attempt>: pass on the \
                 Reply-To of the message",
                quoted(text)
            ))
        };
        let (of, attempt) = text.rsplit_once(':').ok_or_else(wrong)?;
        let (of, attempt) = (of.parse().map_err(|_| wrong())?, attempt.parse());
        Ok(MessageId { of, attempt: attempt.map_err(|_| wrong())? })
    }
}

fn delivery(text: &str) -> Result<u32, Problem> {
    text.parse().map_err(|_| {
        Problem::malformed(format!(
            "the delivery is {}, expected its number: pass on the Reply-To of the message",
            quoted(text)
        ))
    })
}

/// Checks the name that a worker gives itself.
pub(super) fn named(name: &str) -> Result<Arc<str>, Problem> {
    let length = name.chars().count();
    if !(1..=WORKER_CHARS_MAX).contains(&length) {
        return Err(Problem::malformed(format!(
            "worker has {length} characters, expected a name of 1 to {WORKER_CHARS_MAX}"
        )));
    }
    Ok(name.into())
}

/// Checks that a duration is within its bounds. `original` renders it as the worker wrote it.
pub(super) fn within(
    key: &str,
    span: Option<Duration>,
    shown: impl FnOnce() -> String,
    (min, max): (Duration, Duration),
) -> Result<Duration, Problem> {
    span.filter(|span| (min..=max).contains(span)).ok_or_else(|| {
        let known = humantime::format_duration;
        Problem::malformed(format!(
            "{key} is {}, expected a time from {} to {}, such as 30s",
            shown(),
            known(min),
            known(max)
        ))
    })
}

/// Converts the end of a lease to the wall clock; the result is never later than the end.
pub(super) fn until(end: Instant) -> Time {
    // In this order: time that passes between the two readings makes the result earlier.
    let now = clock::now();
    let left = end.saturating_duration_since(clock::ticks());
    let left_ns = i64::try_from(left.as_nanos()).unwrap_or(i64::MAX);
    Time(Timestamp(now.0.saturating_add(left_ns)))
}
