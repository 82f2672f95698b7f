//! Workers over HTTP: they lease the messages of a queue of the embedded bus, and reply. The body
//! of a message is the step's input, byte for byte, and everything else stands in headers, so that
//! a worker can be a loop around any HTTP client.

use super::incoming::Incoming;
use super::lending::{
    self, Asked, DELAY_MAX, LEASE_MAX, LEASE_MIN, MESSAGES_MAX, Receipt, WAIT_DEFAULT, WAIT_MAX,
    desk_of, named, own_bus, until, within,
};
use super::places::Placed;
use super::problem::Problem;
use super::query::{self, Query};
use super::reads::Written;
use super::token::Caller;
use crate::actors::ways::Ways;
use crate::bus::desk::{Borrower, Desk, Loan, NotCommitted, Told};
use crate::bus::{Header, HeaderValue};
use crate::engine::words::quoted;
use crate::times::Time;
use actix_web::{HttpResponse, HttpResponseBuilder, web};
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// A message, in a list of several.
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
    /// The id of the root job.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracestate: Option<String>,
    /// Which delivery of the message it is, from 1.
    delivery: u32,
    /// When the message is given to another worker, unless this one replies or asks for more time.
    lease_until: Time,
    /// The path to which the reply is sent.
    reply_to: String,
    /// The step's input.
    #[schema(value_type = Object)]
    body: Box<RawValue>,
}

/// The outcome of a reply.
#[derive(Serialize, ToSchema)]
pub(super) struct Taken {
    /// Whether the reply changed something.
    taken: bool,
    /// Why the reply changed nothing. Sending it again is useless then.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// Why the attempt failed by a result that is none for its step: it is no JSON object, is too
    /// large, or has a status that the step does not list.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    failed: Option<Arc<str>>,
    /// Until when the worker has the message now, behind progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Time>,
}

/// When a worker's lease ends.
#[derive(Serialize, ToSchema)]
pub(super) struct Extended {
    until: Time,
}

/// Handles `POST /api/queue/{queue}/receive[?vhost=V][&wait=30s][&lease=5m][&max=N][&worker=NAME]`:
/// leases the next message of the queue, as soon as there is one.
pub(super) async fn receive(
    ways: web::Data<Ways>,
    path: web::Path<String>,
    query: Query,
    caller: Caller,
    placed: Placed,
) -> Result<HttpResponse, Problem> {
    let [vhost, wait, lease, max, worker] =
        query.of(["vhost", "wait", "lease", "max", "worker"])?;
    let (queue, vhost) = (path.into_inner(), vhost.unwrap_or_default());
    caller.may_use(&queue, &vhost)?;
    let wait = span("wait", wait, Duration::ZERO, WAIT_MAX)?.unwrap_or(WAIT_DEFAULT);
    let lease = span("lease", lease, LEASE_MIN, LEASE_MAX)?;
    let max = max.as_deref().map(most).transpose()?;
    let worker = worker.as_deref().map(named).transpose()?;
    let borrower =
        Borrower { lease, worker, line: None, room: Some(ways.common.rooms.messages.clone()) };
    let asked = Asked {
        queue: queue.clone(),
        vhost: vhost.clone(),
        borrower,
        wait,
        max: max.unwrap_or(1),
        way: "over HTTP",
    };
    let _lasting = if wait.is_zero() { None } else { placed.lasts()? };
    let mut loans = lending::receive(&ways, asked).await?;
    if max.is_none() {
        return Ok(match loans.pop() {
            Some(loan) => one(&ways, &queue, &vhost, loan)?,
            None => HttpResponse::NoContent().finish(),
        });
    }
    let rooms = loans.iter_mut().filter_map(|loan| loan.room.take()).collect();
    let views: Result<Vec<MessageView>, Problem> =
        loans.into_iter().map(|loan| MessageView::of(&queue, &vhost, loan)).collect();
    let text = serde_json::to_vec(&views?).map_err(|error| Problem::broken(error.to_string()))?;
    Ok(Written::of(&ways.common, text.into(), rooms)?.into_response())
}

/// Handles `POST …/message/{message}/{delivery}/reply[?type=result|error|progress][&bus=B]`;
/// answers once what follows from the reply is committed. `bus` names a bus that calls web
/// services, for a service that replies later.
pub(super) async fn reply(
    ways: web::Data<Ways>,
    path: web::Path<(String, String, String)>,
    query: Query,
    caller: Caller,
    incoming: Incoming,
) -> Result<HttpResponse, Problem> {
    let [kind, vhost, bus] = query.of(["type", "vhost", "bus"])?;
    let kind = query::reply_type(kind.as_deref())?;
    let receipt = Receipt::new(path.into_inner(), vhost)?;
    let (desk, bus) = match bus {
        Some(bus) => {
            let key = ways.buses.named(Some(&bus.as_str().into()), "");
            (pushing_desk(&ways, bus)?, key)
        }
        None => (desk_of(&ways, &receipt.vhost)?, own_bus(&ways, &receipt.vhost)),
    };
    caller.may_settle(&ways, &bus, &receipt).await?;
    // The body's permit is held until the response.
    let body = incoming.read(&ways.common).await?;
    taken(lending::reply(&desk, receipt, kind, (caller.sender(), None), body.bytes().clone()).await)
}

fn taken(told: Result<Told, NotCommitted>) -> Result<HttpResponse, Problem> {
    match told {
        Ok(Told { unused: reason, failed, until: end }) => {
            let until = end.map(until);
            Ok(HttpResponse::Ok().json(Taken { taken: reason.is_none(), reason, failed, until }))
        }
        Err(NotCommitted) => {
            Err(Problem::overloaded("the reply was not committed: send it again".to_owned()))
        }
    }
}

/// Handles `POST …/message/{message}/{delivery}/extend[?lease=5m]`: extends the worker's lease. A
/// lease that has expired is renewed, unless another worker has the message.
pub(super) async fn extend(
    ways: web::Data<Ways>,
    path: web::Path<(String, String, String)>,
    query: Query,
    caller: Caller,
) -> Result<HttpResponse, Problem> {
    let [lease, vhost] = query.of(["lease", "vhost"])?;
    let lease = span("lease", lease, LEASE_MIN, LEASE_MAX)?;
    let receipt = Receipt::new(path.into_inner(), vhost)?;
    caller.may_settle(&ways, &own_bus(&ways, &receipt.vhost), &receipt).await?;
    let end = lending::extend(&ways, &receipt, lease, None).await?;
    Ok(HttpResponse::Ok().json(Extended { until: until(end) }))
}

/// Handles `POST …/message/{message}/{delivery}/nack[?requeue=true[&delay=10s]]`: the worker gives
/// the message up. Its attempt fails, or the message goes back to its queue.
pub(super) async fn nack(
    ways: web::Data<Ways>,
    path: web::Path<(String, String, String)>,
    query: Query,
    caller: Caller,
) -> Result<HttpResponse, Problem> {
    let [requeue, delay, vhost] = query.of(["requeue", "delay", "vhost"])?;
    let requeue = requeue.map_or(Ok(false), |value| query::flag("requeue", &value))?;
    query::refuse_alone("delay", delay.is_some(), "requeue", requeue)?;
    let delay = span("delay", delay, Duration::ZERO, DELAY_MAX)?.unwrap_or_default();
    let receipt = Receipt::new(path.into_inner(), vhost)?;
    let desk = desk_of(&ways, &receipt.vhost)?;
    caller.may_settle(&ways, &own_bus(&ways, &receipt.vhost), &receipt).await?;
    taken(lending::nack(&desk, &receipt, requeue.then_some(delay), caller.sender()).await?)
}

/// Finds the lease queue of a bus that calls web services.
fn pushing_desk(ways: &Ways, bus: String) -> Result<Arc<Desk>, Problem> {
    let settings = &ways.common.settings;
    if settings.push_bus(&bus).is_none() {
        let why = settings.unknown_bus(&bus).unwrap_or_else(|| {
            format!("{}, which calls no web services: leave it out", quoted(&bus))
        });
        return Err(Problem::not_found(format!("bus is {why}")));
    }
    let key = ways.buses.named(Some(&bus.as_str().into()), "");
    ways.desks.of(&key).ok_or_else(|| match ways.buses.find(&key) {
        // A service that is answered 404 would not send its reply again.
        Some(_) => Problem::overloaded("the manager is starting: send the reply again".to_owned()),
        None => Problem::not_found(format!("no loaded workflow uses the bus {}", quoted(&bus))),
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

/// Parses a duration, if one is given.
fn span(
    key: &str,
    text: Option<String>,
    min: Duration,
    max: Duration,
) -> Result<Option<Duration>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let span = humantime::parse_duration(&text).ok();
    within(key, span, || quoted(&text), (min, max)).map(Some)
}

/// Responds with one message: the input is the body, everything else stands in headers.
fn one(ways: &Ways, queue: &str, vhost: &str, mut loan: Loan) -> Result<HttpResponse, Problem> {
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
    set("Lease-Until", &crate::times::rfc3339(until(loan.until).0));
    set("Reply-To", &Receipt::text(queue, vhost, &loan));
    let rooms = loan.room.take().into_iter().collect();
    Ok(answer.body(Written::of(&ways.common, loan.body.to_bytes(), rooms)?.into_body()))
}

/// Sets a header. Names and ids always fit into one.
fn header(answer: &mut HttpResponseBuilder, name: &str, value: &str) {
    answer.insert_header((name, value.as_bytes()));
}

impl MessageView {
    fn of(queue: &str, vhost: &str, loan: Loan) -> Result<MessageView, Problem> {
        let text = |name| Header::text_in(&loan.headers, name).map(|text| text.to_string());
        Ok(MessageView {
            workflow: text("workflow"),
            job: text("job"),
            traceparent: text("traceparent"),
            tracestate: text("tracestate"),
            attempt: Header::number_in(&loan.headers, "attempt"),
            priority: loan.priority,
            delivery: loan.delivery,
            lease_until: until(loan.until),
            reply_to: Receipt::text(queue, vhost, &loan),
            body: raw(loan.body.to_bytes())?,
            correlation_id: loan.correlation_id,
            message_id: loan.id,
        })
    }
}

fn raw(body: Bytes) -> Result<Box<RawValue>, Problem> {
    serde_json::from_slice(&body).map_err(|error| Problem::broken(error.to_string()))
}
