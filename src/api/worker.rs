//! Workers over HTTP: they take the messages of a queue of the embedded bus, and reply. A message is
//! lent: its body is the step's input, byte for byte, and all else stands in headers, so that a
//! worker can be a loop around any HTTP client.

use super::incoming::Incoming;
use super::live;
use super::problem::Problem;
use super::query::{self, Query, ReplyType};
use super::redispatch::known;
use crate::actors::door;
use crate::actors::ways::Ways;
use crate::bus::desk::{Borrower, Desk, Loan, NotCommitted, NotLent, Said, reply_path};
use crate::bus::{Address, BusKey, ERROR, Header, HeaderValue};
use crate::clock;
use crate::engine::words::quoted;
use crate::engine::{CorrelationId, JobState, StepState, Timestamp};
use crate::settings::BusKind;
use crate::times::Time;
use actix_web::{HttpResponse, HttpResponseBuilder, web};
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// How long a worker waits for a message, unless it says another time.
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// Proxies in between close a connection that is silent for a minute.
const WAIT_MAX: Duration = Duration::from_secs(50);

const LEASE_MIN: Duration = Duration::from_secs(1);
const LEASE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// The longest pause before a message that is given back is lent again.
const DELAY_MAX: Duration = Duration::from_secs(60 * 60);

/// The longest name of a worker, in characters.
const WORKER_CHARS_MAX: usize = 100;

/// The most messages of one answer.
const MESSAGES_MAX: u32 = 100;

/// The bodies of the messages of one answer have no more bytes than this in total; the first is
/// always given.
const MESSAGES_BYTES_MAX: usize = 4 << 20;

/// What waited longer than this, or was lent before, is looked at before it is lent: its attempt may
/// be over.
const FRESH: Duration = Duration::from_secs(1);

/// A message, where several are asked for.
#[derive(Serialize, ToSchema)]
#[schema(as = StepMessage)]
pub(super) struct MessageView {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    correlation_id: Option<Arc<str>>,
    #[schema(value_type = String)]
    message_id: Arc<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow: Option<String>,
    /// The top-level job.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    /// Which delivery of the message it is, from 1.
    delivery: u32,
    /// When the message is given to another worker, unless this one replies or asks for more time.
    lease_until: Time,
    /// Where the reply goes.
    reply_to: String,
    /// The step's input.
    #[schema(value_type = Object)]
    body: Box<RawValue>,
}

/// What became of a reply.
#[derive(Serialize, ToSchema)]
pub(super) struct Taken {
    /// It counts.
    taken: bool,
    /// Why it changed nothing; then it is useless to send it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// How long a worker has a message.
#[derive(Serialize, ToSchema)]
pub(super) struct Extended {
    until: Time,
}

/// `POST /api/queue/{queue}/receive[?vhost=V][&wait=30s][&lease=5m][&max=N][&worker=NAME]`: the next
/// message of the queue, as soon as there is one.
pub(super) async fn receive(
    ways: web::Data<Ways>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [vhost, wait, lease, max, worker] =
        query.of(["vhost", "wait", "lease", "max", "worker"])?;
    let (name, vhost) = (path.into_inner(), vhost.unwrap_or_default());
    let wait = span("wait", wait, Duration::ZERO, WAIT_MAX)?.unwrap_or(WAIT_DEFAULT);
    let lease = span("lease", lease, LEASE_MIN, LEASE_MAX)?;
    let max = max.as_deref().map(most).transpose()?;
    let worker = worker.map(named).transpose()?;
    let borrower = Borrower { lease, worker };
    let address = Address { bus: own_bus(&ways, &vhost), queue: name.as_str().into() };
    known(&ways, &address, |other| {
        Problem::conflict(format!(
            "queue {} is on the bus \"{other}\": its workers take their messages there, not over \
             HTTP",
            quoted(&name)
        ))
    })?;
    let desk = desk_of(&ways, &vhost)?;
    let Some(_place) = ways.common.rooms.waiters.take(1) else {
        let limit = ways.common.settings.http.waiters_max;
        return Err(Problem::overloaded(format!(
            "{limit} workers wait for messages (setting http.waiters_max)"
        )));
    };
    let (queue, until) = (address.queue, clock::ticks() + wait);
    let Some(first) = next(&ways, &desk, &queue, &borrower, until).await else {
        return Ok(match max {
            Some(_) => HttpResponse::Ok().json([(); 0]),
            None => HttpResponse::NoContent().finish(),
        });
    };
    let Some(max) = max else { return Ok(one(&queue, &vhost, first)) };
    let mut loans = vec![first];
    let mut bytes = loans.iter().map(|loan| loan.body.len()).sum::<usize>();
    while loans.len() < max as usize && bytes < MESSAGES_BYTES_MAX {
        let Some(loan) = next(&ways, &desk, &queue, &borrower, clock::ticks()).await else { break };
        bytes += loan.body.len();
        loans.push(loan);
    }
    let views: Result<Vec<MessageView>, Problem> =
        loans.into_iter().map(|loan| MessageView::of(&queue, &vhost, loan)).collect();
    Ok(HttpResponse::Ok().json(views?))
}

/// The next message whose attempt is not over.
async fn next(
    ways: &Ways,
    desk: &Desk,
    queue: &Arc<str>,
    borrower: &Borrower,
    until: tokio::time::Instant,
) -> Option<Loan> {
    loop {
        let loan = desk.receive(queue, borrower, until).await?;
        let is_fresh = loan.waited < FRESH && loan.delivery == 1;
        if is_fresh || over(ways, &loan.id).await.is_none() {
            return Some(loan);
        }
        desk.forget(queue, &loan.id);
    }
}

/// `POST …/message/{message}/{delivery}/reply[?type=result|error|progress][&bus=B]`: answered once
/// what follows from the reply is committed. `bus`: one that calls web services; such a service
/// replies later.
pub(super) async fn reply(
    ways: web::Data<Ways>,
    path: web::Path<(String, String, String)>,
    query: Query,
    incoming: Incoming,
) -> Result<HttpResponse, Problem> {
    let [kind, vhost, bus] = query.of(["type", "vhost", "bus"])?;
    let kind = match query::reply_type(kind.as_deref())? {
        ReplyType::Result => None,
        ReplyType::Error => Some(ERROR),
        ReplyType::Progress => Some("progress"),
    };
    let (queue, id, number) = path.into_inner();
    let number = delivery(&number)?;
    let message = MessageId::parse(&id)?;
    let desk = match bus {
        Some(bus) => pushing_desk(&ways, bus)?,
        None => desk_of(&ways, &vhost.unwrap_or_default())?,
    };
    let body = incoming.read(&ways.common).await?;
    // Its room is kept until the answer.
    let said = Said {
        queue: queue.into(),
        correlation_id: message.of.to_string(),
        attempt: Some(message.attempt),
        id,
        delivery: number,
        kind,
        body: body.bytes().clone(),
    };
    taken(desk.reply(said).await)
}

fn taken(told: Result<Option<&'static str>, NotCommitted>) -> Result<HttpResponse, Problem> {
    match told {
        Ok(reason) => Ok(HttpResponse::Ok().json(Taken { taken: reason.is_none(), reason })),
        Err(NotCommitted) => {
            Err(Problem::overloaded("the reply was not committed: send it again".to_owned()))
        }
    }
}

/// `POST …/message/{message}/{delivery}/extend[?lease=5m]`: the worker has it in hand still. A lease
/// that has ended is taken up again, unless another worker has the message.
pub(super) async fn extend(
    ways: web::Data<Ways>,
    path: web::Path<(String, String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [lease, vhost] = query.of(["lease", "vhost"])?;
    let lease = span("lease", lease, LEASE_MIN, LEASE_MAX)?;
    let (queue, id, number) = path.into_inner();
    let number = delivery(&number)?;
    MessageId::parse(&id)?;
    let vhost = vhost.unwrap_or_default();
    let desk = desk_of(&ways, &vhost)?;
    let queue: Arc<str> = queue.into();
    if let Some(why) = over(&ways, &id).await {
        desk.forget(&queue, &id);
        let problem = Problem::gone(format!("{why}: the attempt is over, stop working on it"));
        return Err(problem.because(why));
    }
    let ask = || desk.extend(&queue, &id, number, lease);
    let extended = match ask() {
        Err(NotLent::NotThere) => {
            // After a start the message may be on its way to the bus, whose answer comes behind it.
            door::inspect(&ways, &own_bus(&ways, &vhost), Vec::new()).await;
            ask()
        }
        known => known,
    };
    let lease = extended.map_err(not_lent)?;
    Ok(HttpResponse::Ok().json(Extended { until: after(lease) }))
}

/// `POST …/message/{message}/{delivery}/nack[?requeue=true[&delay=10s]]`: the worker does not do it.
/// Its attempt fails, or the message goes back to its queue.
pub(super) async fn nack(
    ways: web::Data<Ways>,
    path: web::Path<(String, String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [requeue, delay, vhost] = query.of(["requeue", "delay", "vhost"])?;
    let requeue = requeue.map_or(Ok(false), |value| query::flag("requeue", &value))?;
    query::refuse_alone("delay", delay.is_some(), "requeue", requeue)?;
    let delay = span("delay", delay, Duration::ZERO, DELAY_MAX)?.unwrap_or_default();
    let (_, id, number) = path.into_inner();
    let number = delivery(&number)?;
    MessageId::parse(&id)?;
    let desk = desk_of(&ways, &vhost.unwrap_or_default())?;
    if requeue {
        desk.give_back(&id, number, delay).map_err(not_lent)?;
        return taken(Ok(None));
    }
    taken(desk.refuse(&id, number).await.map_err(not_lent)?)
}

/// The bus whose messages are lent over HTTP.
fn own_bus(ways: &Ways, vhost: &str) -> BusKey {
    ways.buses.named(Some(&BusKind::Embedded.name().into()), vhost)
}

/// The desk of that bus.
fn desk_of(ways: &Ways, vhost: &str) -> Result<Arc<Desk>, Problem> {
    ways.desks.of(&own_bus(ways, vhost)).ok_or_else(|| {
        let place = match vhost {
            "" => String::new(),
            vhost => format!(" in the virtual host {}", quoted(vhost)),
        };
        Problem::not_found(format!("no loaded workflow uses the embedded bus{place}"))
    })
}

/// The desk of a bus that calls web services.
fn pushing_desk(ways: &Ways, bus: String) -> Result<Arc<Desk>, Problem> {
    let settings = &ways.common.settings;
    if settings.push_bus(&bus).is_none() {
        let why = settings.unknown_bus(&bus).unwrap_or_else(|| {
            format!("{}, which calls no web services: leave it out", quoted(&bus))
        });
        return Err(Problem::malformed(format!("bus is {why}")));
    }
    let key = ways.buses.named(Some(&bus.as_str().into()), "");
    ways.desks.of(&key).ok_or_else(|| match ways.buses.find(&key) {
        // A service that is told 404 would not send its reply again.
        Some(_) => Problem::overloaded("the manager is starting: send the reply again".to_owned()),
        None => Problem::not_found(format!("no loaded workflow uses the bus {}", quoted(&bus))),
    })
}

/// Why the attempt of a message is over, if it is.
async fn over(ways: &Ways, id: &str) -> Option<&'static str> {
    let MessageId { of, attempt } = MessageId::parse(id).ok()?;
    let (job, step) = (of.job, of.step);
    if !ways.routes.is_live(job) {
        // After a start the router may not have taken up the jobs of the journal yet.
        door::routed(ways).await;
        if !ways.routes.is_live(job) {
            return Some("settled");
        }
    }
    let told = live::look(ways, job, move |job| {
        let Some(index) = job.graph().index_of(&step) else { return Some("unknown step") };
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
    });
    told.await.flatten()
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

/// What the id of a message tells.
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

fn most(text: &str) -> Result<u32, Problem> {
    let asked: Option<u32> = text.parse().ok();
    asked.filter(|max| (1..=MESSAGES_MAX).contains(max)).ok_or_else(|| {
        Problem::malformed(format!(
            "max is {}, expected a whole number from 1 to {MESSAGES_MAX}",
            quoted(text)
        ))
    })
}

/// The name that a worker gives itself.
fn named(name: String) -> Result<Arc<str>, Problem> {
    let length = name.chars().count();
    if !(1..=WORKER_CHARS_MAX).contains(&length) {
        return Err(Problem::malformed(format!(
            "worker has {length} characters, expected a name of 1 to {WORKER_CHARS_MAX}"
        )));
    }
    Ok(name.into())
}

fn span(
    key: &str,
    text: Option<String>,
    min: Duration,
    max: Duration,
) -> Result<Option<Duration>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let span = humantime::parse_duration(&text).ok();
    let span = span.filter(|span| (min..=max).contains(span)).ok_or_else(|| {
        let shown = humantime::format_duration;
        Problem::malformed(format!(
            "{key} is {}, expected a time from {} to {}, such as 30s",
            quoted(&text),
            shown(min),
            shown(max)
        ))
    })?;
    Ok(Some(span))
}

pub(super) fn after(span: Duration) -> Time {
    let nanoseconds = i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    Time(Timestamp(clock::now().0.saturating_add(nanoseconds)))
}

/// One message: the input is the body, all else stands in headers.
fn one(queue: &str, vhost: &str, loan: Loan) -> HttpResponse {
    let mut answer = HttpResponse::Ok();
    answer.content_type(mime::APPLICATION_JSON);
    let mut set = |name: &str, value: &str| header(&mut answer, name, value);
    set("Correlation-Id", loan.correlation_id.as_deref().unwrap_or_default());
    set("Message-Id", &loan.id);
    for Header { name, value } in &loan.headers {
        match value {
            HeaderValue::Text(text) => set(name, text),
            HeaderValue::Number(number) => set(name, &number.to_string()),
        }
    }
    if let Some(priority) = loan.priority {
        set("Priority", &priority.to_string());
    }
    set("Delivery", &loan.delivery.to_string());
    set("Lease-Until", &crate::times::rfc3339(after(loan.lease).0));
    set("Reply-To", &reply_to(queue, vhost, &loan));
    answer.body(loan.body.to_bytes())
}

/// A header whose value fits into one; names and ids do.
fn header(answer: &mut HttpResponseBuilder, name: &str, value: &str) {
    answer.insert_header((name, value.as_bytes()));
}

fn reply_to(queue: &str, vhost: &str, loan: &Loan) -> String {
    let vhost = (!vhost.is_empty()).then_some(("vhost", vhost));
    reply_path(queue, &loan.id, loan.delivery, vhost)
}

impl MessageView {
    fn of(queue: &str, vhost: &str, loan: Loan) -> Result<MessageView, Problem> {
        let text = |name| Header::text_in(&loan.headers, name).map(|text| text.to_string());
        Ok(MessageView {
            workflow: text("workflow"),
            job: text("job"),
            traceparent: text("traceparent"),
            attempt: Header::number_in(&loan.headers, "attempt"),
            priority: loan.priority,
            delivery: loan.delivery,
            lease_until: after(loan.lease),
            reply_to: reply_to(queue, vhost, &loan),
            body: raw(loan.body.to_bytes())?,
            correlation_id: loan.correlation_id,
            message_id: loan.id,
        })
    }
}

fn raw(body: Bytes) -> Result<Box<RawValue>, Problem> {
    serde_json::from_slice(&body).map_err(|error| Problem::broken(error.to_string()))
}
