//! Serves workers over HTTP: they lease messages from queues of the embedded bus, and reply to
//! them. The body of a message is the step's input, byte for byte, and everything else is in
//! headers. So a worker can be a loop around any HTTP client.

use super::connection_slots::RequestSlot;
use super::leases::{
    self, DELAY_MAX, LEASE_MAX, LEASE_MIN, LeaseRequest, MESSAGES_MAX, MessagePath, Receipt,
    WAIT_DEFAULT, WAIT_MAX, check_bounds, embedded_bus, find_lease_queue, parse_worker_name,
    to_wall_clock,
};
use super::problem::Problem;
use super::query::{self, Query};
use super::reads::BufferedResponse;
use super::request_body::RequestBody;
use super::route::*;
use super::token::Authenticated;
use crate::api::state::ApiState;
use actix_web::{HttpResponse, HttpResponseBuilder, web};
use base::times::Rfc3339Time;
use bus::lease_queue::{LeaseQueue, LeasedMessage, NotCommitted, ReceiveOptions, ReplyOutcome};
use bus::{Header, HeaderValue, Rejection};
use bytes::Bytes;
use engine::text::quote;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::post("/api/queue/{queue}/receive", || web::to(receive_messages))
        .needing(Access::Queue)
        .operation(|schemas| {
            let input = any_of([message_schema(), schemas.list_of::<MessageView>()]);
            let summary = "The next message of a queue of the embedded bus; everything but the \
                           input is in headers";
            describe_operation("receive", summary)
                .with_parameters(&[WAIT, LEASE, MAX_MESSAGES, WORKER])
                .with_json_response(200, "The step's input; with `max` a list", input)
                .with_empty_response(204, "There was no message in time")
        }),
    ApiRoute::post("/api/queue/{queue}/message/{message}/{delivery}/reply", || web::to(reply))
        .needing(Access::Queue)
        .operation(|schemas| {
            describe_operation("reply", "The worker's reply; the response follows its commit")
                .with_parameters(&[REPLY_TYPE, SERVICE_BUS])
                // Any body is accepted. One that is not a JSON object fails the attempt.
                .with_body(false, json!({ "description": REPLY_DESCRIPTION }))
                .with_json_response(
                    200,
                    "The outcome of the reply",
                    schemas.reference::<ReplyOutcomeView>(),
                )
        }),
    ApiRoute::post("/api/queue/{queue}/message/{message}/{delivery}/extend", || web::to(extend))
        .needing(Access::Queue)
        .operation(|schemas| {
            describe_operation("extend", "Extends the lease of a message")
                .with_parameters(&[LEASE])
                .with_json_response(
                    200,
                    "The end of the lease",
                    schemas.reference::<LeaseEndView>(),
                )
                .with_problems(&[410])
        }),
    ApiRoute::post("/api/queue/{queue}/message/{message}/{delivery}/nack", || web::to(nack))
        .needing(Access::Queue)
        .operation(|schemas| {
            describe_operation("nack", "Rejects a message")
                .with_parameters(&[REQUEUE, DELAY])
                .with_json_response(200, "The outcome", schemas.reference::<ReplyOutcomeView>())
                .with_problems(&[410])
        }),
    ApiRoute::unassigned("/api/queue/{queue}/message/{path:.*}", Access::Queue),
];

/// Describes an operation for workers: all of them take a virtual host.
fn describe_operation(id: &str, summary: &str) -> OperationSpec {
    OperationSpec::new(id, "workers", summary).with_parameters(&[VHOST]).with_problems(&[404, 409])
}

/// A message, in a list of several.
#[derive(Serialize, ToSchema)]
#[schema(as = StepMessage)]
struct MessageView {
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
    /// Only on a queue `workflow.<name>`: how many levels of child jobs and calls are above the job
    /// that calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracestate: Option<String>,
    /// The number of the delivery of the message, from 1.
    delivery: u32,
    /// When the message is given to another worker, unless this one replies or extends the lease.
    lease_until: Rfc3339Time,
    /// The path to which the reply is sent.
    reply_to: String,
    /// The step's input.
    #[schema(value_type = Object)]
    body: Box<RawValue>,
}

/// The outcome of a reply.
#[derive(Serialize, ToSchema)]
#[schema(as = Taken)]
struct ReplyOutcomeView {
    /// Whether the reply changed something.
    taken: bool,
    /// Why the reply changed nothing. Sending it again is useless then.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// Why the result is invalid, so that the attempt failed: it is not a JSON object, is too
    /// large, or has a status that the step does not list.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    failed: Option<Arc<str>>,
    /// The new end of the lease, after progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Rfc3339Time>,
}

/// When a worker's lease ends.
#[derive(Serialize, ToSchema)]
#[schema(as = Extended)]
struct LeaseEndView {
    until: Rfc3339Time,
}

/// Leases the next messages of a queue. This is a long poll unless `wait` is 0.
async fn receive_messages(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
    principal: Authenticated,
    slot: RequestSlot,
) -> Result<HttpResponse, Problem> {
    let [vhost, wait, lease, max, worker] =
        query.extract(["vhost", "wait", "lease", "max", "worker"])?;
    let (queue, vhost) = (path.into_inner(), vhost.unwrap_or_default());
    principal.check_queue_access(&queue, &vhost)?;
    let wait = parse_duration("wait", wait, Duration::ZERO, WAIT_MAX)?.unwrap_or(WAIT_DEFAULT);
    let lease = parse_duration("lease", lease, LEASE_MIN, LEASE_MAX)?;
    let max = max.as_deref().map(parse_max).transpose()?;
    let worker = worker.as_deref().map(parse_worker_name).transpose()?;
    let options = ReceiveOptions {
        lease,
        worker,
        revocations: None,
        budget: Some(api.budgets.messages.clone()),
    };
    let request = LeaseRequest {
        queue: queue.clone(),
        vhost: vhost.clone(),
        options,
        wait,
        max: max.unwrap_or(1),
        transport: "over HTTP",
    };
    let _permit = if wait.is_zero() { None } else { slot.acquire_long_poll()? };
    let mut messages = leases::receive(&api, request).await?;
    if max.is_none() {
        return Ok(match messages.pop() {
            Some(message) => respond_message(&api, &queue, &vhost, message)?,
            None => HttpResponse::NoContent().finish(),
        });
    }
    let permits = messages.iter_mut().filter_map(|message| message.permit.take()).collect();
    let views: Result<Vec<MessageView>, Problem> = messages
        .into_iter()
        .map(|message| MessageView::from_leased(&queue, &vhost, message))
        .collect();
    let json = serde_json::to_vec(&views?).map_err(|error| Problem::internal(error.to_string()))?;
    Ok(BufferedResponse::from_bytes(&api, json.into(), permits)?.into_response())
}

/// Accepts the reply of a worker, or of a web service that replies after the call: then `bus` names
/// the bus that called it. Responds once everything that follows from the reply is committed.
async fn reply(
    api: web::Data<ApiState>,
    path: web::Path<MessagePath>,
    query: Query,
    principal: Authenticated,
    body: RequestBody,
) -> Result<HttpResponse, Problem> {
    let [reply_type, vhost, bus] = query.extract(["type", "vhost", "bus"])?;
    let reply_type = query::parse_reply_type(reply_type.as_deref())?;
    let receipt = Receipt::new(path.into_inner(), vhost)?;
    leases::check_in_touch(&api)?;
    let (lease_queue, bus) = match bus {
        Some(bus) => {
            let key = api.buses.resolve(Some(&bus.as_str().into()), "");
            (find_push_queue(&api, bus)?, key)
        }
        None => (find_lease_queue(&api, &receipt.vhost)?, embedded_bus(&api, &receipt.vhost)),
    };
    principal.check_settle_access(&api, &bus, &receipt).await?;
    // `body` holds its permit until the response.
    let body = body.read(&api).await?;
    respond_settled(
        leases::handle_reply(
            &lease_queue,
            receipt,
            reply_type,
            (principal.sender(), None),
            body.bytes().clone(),
        )
        .await,
    )
}

/// Makes the response to a reply or a rejection.
fn respond_settled(result: Result<ReplyOutcome, NotCommitted>) -> Result<HttpResponse, Problem> {
    match result {
        Ok(ReplyOutcome { rejection, failure, until }) => {
            let reason = rejection.map(Rejection::label);
            let until = until.map(to_wall_clock);
            Ok(HttpResponse::Ok().json(ReplyOutcomeView {
                taken: reason.is_none(),
                reason,
                failed: failure,
                until,
            }))
        }
        Err(NotCommitted) => Err(leases::not_committed()),
    }
}

/// Extends the worker's lease. A lease that has expired is renewed, unless another worker has the
/// message.
async fn extend(
    api: web::Data<ApiState>,
    path: web::Path<MessagePath>,
    query: Query,
    principal: Authenticated,
) -> Result<HttpResponse, Problem> {
    let [lease, vhost] = query.extract(["lease", "vhost"])?;
    let lease = parse_duration("lease", lease, LEASE_MIN, LEASE_MAX)?;
    let receipt = Receipt::new(path.into_inner(), vhost)?;
    principal.check_settle_access(&api, &embedded_bus(&api, &receipt.vhost), &receipt).await?;
    let end = leases::extend_lease(&api, &receipt, lease, None).await?;
    Ok(HttpResponse::Ok().json(LeaseEndView { until: to_wall_clock(end) }))
}

/// Rejects a message: its attempt fails, or, with `requeue`, the message returns to its queue.
async fn nack(
    api: web::Data<ApiState>,
    path: web::Path<MessagePath>,
    query: Query,
    principal: Authenticated,
) -> Result<HttpResponse, Problem> {
    let [requeue, delay, vhost] = query.extract(["requeue", "delay", "vhost"])?;
    let requeue = requeue.map_or(Ok(false), |value| query::parse_flag("requeue", &value))?;
    query::check_requires("delay", delay.is_some(), "requeue", requeue)?;
    let delay =
        parse_duration("delay", delay, Duration::ZERO, DELAY_MAX)?.unwrap_or(Duration::ZERO);
    let receipt = Receipt::new(path.into_inner(), vhost)?;
    let lease_queue = find_lease_queue(&api, &receipt.vhost)?;
    principal.check_settle_access(&api, &embedded_bus(&api, &receipt.vhost), &receipt).await?;
    respond_settled(
        leases::nack(&api, &lease_queue, &receipt, requeue.then_some(delay), principal.sender())
            .await?,
    )
}

/// Finds the lease queue of a bus that calls web services.
fn find_push_queue(api: &Arc<ApiState>, bus: String) -> Result<Arc<LeaseQueue>, Problem> {
    let settings = &api.settings;
    if settings.push_bus(&bus).is_none() {
        let error = settings.unknown_bus_error(&bus).unwrap_or_else(|| {
            format!("{}, which calls no web services: leave it out", quote(&bus))
        });
        return Err(Problem::not_found(format!("bus is {error}")));
    }
    let key = api.buses.resolve(Some(&bus.as_str().into()), "");
    api.active()?.lease_queues().find(&key).ok_or_else(|| match api.buses.find(&key) {
        // Not 404, because then the service would not send its reply again.
        Some(_) => Problem::overloaded("the manager is starting: send the reply again".to_owned()),
        None => Problem::not_found(format!("no loaded workflow uses the bus {}", quote(&bus))),
    })
}

/// Parses `max`, the largest number of messages in a response.
fn parse_max(text: &str) -> Result<u32, Problem> {
    let parsed: Option<u32> = text.parse().ok();
    parsed.filter(|max| (1..=MESSAGES_MAX).contains(max)).ok_or_else(|| {
        Problem::malformed(format!(
            "max is {}, expected a whole number from 1 to {MESSAGES_MAX}",
            quote(text)
        ))
    })
}

/// Parses a duration from `min` to `max`. Returns `None` if none is given.
fn parse_duration(
    key: &str,
    text: Option<String>,
    min: Duration,
    max: Duration,
) -> Result<Option<Duration>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let duration = humantime::parse_duration(&text).ok();
    check_bounds(key, duration, || quote(&text), (min, max)).map(Some)
}

/// Responds with one message: the input is the body, and everything else is in headers.
fn respond_message(
    api: &Arc<ApiState>,
    queue: &str,
    vhost: &str,
    mut message: LeasedMessage,
) -> Result<HttpResponse, Problem> {
    let mut response = HttpResponse::Ok();
    response.content_type(mime::APPLICATION_JSON);
    let mut set = |name: &str, value: &str| set_header(&mut response, name, value);
    set("Correlation-Id", message.correlation_id.as_deref().unwrap_or_default());
    set("Message-Id", &message.id);
    for Header { name, value } in &message.headers {
        match value {
            HeaderValue::Text(text) => set(name, text),
            HeaderValue::Number(number) => set(name, &number.to_string()),
        }
    }
    if let Some(priority) = message.priority {
        set("Priority", &priority.to_string());
    }
    set("Delivery", &message.delivery.to_string());
    set("Lease-Until", &base::times::format_rfc3339(to_wall_clock(message.until).0));
    set("Reply-To", &Receipt::format(queue, vhost, &message));
    let permits = message.permit.take().into_iter().collect();
    Ok(response
        .body(BufferedResponse::from_bytes(api, message.body.to_bytes(), permits)?.into_body()))
}

/// Sets a header. The value must be valid in a header, as names and ids always are.
fn set_header(response: &mut HttpResponseBuilder, name: &str, value: &str) {
    response.insert_header((name, value.as_bytes()));
}

impl MessageView {
    /// Converts a leased message. Its permit must have been taken out before.
    fn from_leased(
        queue: &str,
        vhost: &str,
        message: LeasedMessage,
    ) -> Result<MessageView, Problem> {
        let find_text =
            |name| Header::find_text(&message.headers, name).map(|text| text.to_string());
        Ok(MessageView {
            workflow: find_text("workflow"),
            job: find_text("job"),
            traceparent: find_text("traceparent"),
            tracestate: find_text("tracestate"),
            attempt: Header::find_number(&message.headers, "attempt"),
            depth: Header::find_number(&message.headers, "depth"),
            priority: message.priority,
            delivery: message.delivery,
            lease_until: to_wall_clock(message.until),
            reply_to: Receipt::format(queue, vhost, &message),
            body: to_raw_json(message.body.to_bytes())?,
            correlation_id: message.correlation_id,
            message_id: message.id,
        })
    }
}

/// Converts the body of a message to JSON that is copied byte for byte into the response.
fn to_raw_json(body: Bytes) -> Result<Box<RawValue>, Problem> {
    serde_json::from_slice(&body).map_err(|error| Problem::internal(error.to_string()))
}
