//! Takes many replies of workers in one call, each with a verdict of its own. All of them are
//! delivered before any is waited for, so that they share the commits of the journal.

use super::leases::{self, Receipt, embedded_bus, find_lease_queue, to_wall_clock};
use super::problem::Problem;
use super::query::{Query, ReplyType, parse_reply_type};
use super::request_body::RequestBody;
use super::route::*;
use super::token::Authenticated;
use crate::api::state::ApiState;
use actix_web::http::StatusCode;
use actix_web::{HttpResponse, ResponseError, web};
use base::times::Rfc3339Time;
use bus::Rejection;
use bus::lease_queue::{LeaseQueue, NotCommitted, ReplyOutcome};
use bytes::Bytes;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use std::sync::Arc;
use utoipa::ToSchema;

/// The most replies in one call. A worker is given as many messages in one response.
const REPLIES_MAX: usize = MESSAGES_MAX as usize;

pub(super) const ROUTES: &[ApiRoute] = &[ApiRoute::post("/api/replies", || web::to(reply_to_many))
    .needing(Access::AnyToken)
    .operation(|schemas| {
        let mut replies = schemas.list_of::<ReplyView>();
        (replies["minItems"], replies["maxItems"]) = (json!(1), json!(REPLIES_MAX));
        let other =
            json!({ "description": "Anything else costs itself alone: its verdict is 400" });
        replies["items"] = json!({ "anyOf": [replies["items"], other] });
        let mut verdicts = schemas.list_of::<VerdictView>();
        verdicts["description"] = json!("One for each reply, in their order");
        OperationSpec::new(
            "replies",
            "workers",
            "Many replies at once; the response follows the commit of all, with a verdict for each",
        )
        .with_body(true, replies)
        .with_json_response(200, "The verdicts", verdicts)
    })];

/// A reply in a list of many.
#[derive(Deserialize, ToSchema)]
#[schema(as = ReplyOfMany)]
#[serde(deny_unknown_fields)]
struct ReplyView {
    /// The `Reply-To` of the message, unchanged.
    reply_to: String,
    /// `result` (the default), `error` or `progress`.
    #[serde(rename = "type")]
    reply_type: Option<String>,
    /// The step's output, or `{"error":…}`, or progress. Absent: the output `{}`.
    #[schema(value_type = Option<Object>)]
    body: Option<Box<RawValue>>,
}

/// What became of one of many replies.
#[derive(Serialize, ToSchema)]
#[schema(as = Verdict)]
struct VerdictView {
    /// The status with which the reply would have been answered alone. 503: send it again.
    status: u16,
    /// With 200: whether the reply changed something.
    #[serde(skip_serializing_if = "Option::is_none")]
    taken: Option<bool>,
    /// Why the reply changed nothing. Sending it again is useless then.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// Why the result is invalid, so that the attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    failed: Option<Arc<str>>,
    /// The new end of the lease, after progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Rfc3339Time>,
    /// With another status than 200: what is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// A reply that its sender may send, not yet delivered.
struct AcceptedReply {
    lease_queue: Arc<LeaseQueue>,
    receipt: Receipt,
    reply_type: ReplyType,
    body: Bytes,
}

/// Accepts many replies of workers. Responds once everything that follows from them is committed.
/// A reply that cannot be accepted has no influence on the others.
async fn reply_to_many(
    api: web::Data<ApiState>,
    query: Query,
    principal: Authenticated,
    body: RequestBody,
) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    leases::check_in_touch(&api)?;
    // `_body` holds its permit until the response.
    let (replies, _body) = body.read(&api).await?.parse_with(&api, parse_replies).await?;
    let mut accepted = Vec::with_capacity(replies.len());
    for reply in replies {
        accepted.push(accept(&api, &principal, &reply).await);
    }
    // Each is delivered when it is first polled, which is in their order.
    let verdicts = join_all(accepted.into_iter().map(async |reply| match reply {
        Ok(AcceptedReply { lease_queue, receipt, reply_type, body }) => {
            let sender = (principal.sender(), None);
            let result = leases::handle_reply(&lease_queue, receipt, reply_type, sender, body);
            VerdictView::from_result(result.await)
        }
        Err(problem) => VerdictView::from_problem(&problem),
    }));
    Ok(HttpResponse::Ok().json(verdicts.await))
}

/// Parses the list of replies. Its elements are parsed later, one by one.
fn parse_replies(body: &[u8]) -> Result<Vec<Box<RawValue>>, Problem> {
    let expected = format!("expected a JSON array of 1 to {REPLIES_MAX} replies");
    let replies: Vec<Box<RawValue>> = serde_json::from_slice(body)
        .map_err(|error| Problem::malformed(format!("the body: {error}; {expected}")))?;
    if (1..=REPLIES_MAX).contains(&replies.len()) {
        return Ok(replies);
    }
    Err(Problem::malformed(format!("the body has {} replies, {expected}", replies.len())))
}

/// Parses a reply, and checks that the principal may send it.
async fn accept(
    api: &Arc<ApiState>,
    principal: &Authenticated,
    reply: &RawValue,
) -> Result<AcceptedReply, Problem> {
    let reply: ReplyView = serde_json::from_str(reply.get())
        .map_err(|error| Problem::malformed(format!("the reply: {error}")))?;
    let reply_type = parse_reply_type(reply.reply_type.as_deref())?;
    let receipt = Receipt::parse(&reply.reply_to)?;
    principal.check_queue_access(&receipt.queue, &receipt.vhost)?;
    let lease_queue = find_lease_queue(api, &receipt.vhost)?;
    principal.check_settle_access(api, &embedded_bus(api, &receipt.vhost), &receipt).await?;
    let body = reply
        .body
        .map_or_else(Bytes::new, |body| Bytes::from(Box::<str>::from(body).into_boxed_bytes()));
    Ok(AcceptedReply { lease_queue, receipt, reply_type, body })
}

impl VerdictView {
    /// Makes the verdict on a reply that was delivered.
    fn from_result(result: Result<ReplyOutcome, NotCommitted>) -> VerdictView {
        match result {
            Ok(ReplyOutcome { rejection, failure, until }) => VerdictView {
                status: StatusCode::OK.as_u16(),
                taken: Some(rejection.is_none()),
                reason: rejection.map(Rejection::label),
                failed: failure,
                until: until.map(to_wall_clock),
                detail: None,
            },
            Err(NotCommitted) => VerdictView::from_problem(&leases::not_committed()),
        }
    }

    /// Makes the verdict on a reply that is refused.
    fn from_problem(problem: &Problem) -> VerdictView {
        VerdictView {
            status: problem.status_code().as_u16(),
            taken: None,
            reason: problem.reason(),
            failed: None,
            until: None,
            detail: Some(problem.detail().to_owned()),
        }
    }
}
