//! Carries out operations on jobs (docs/reference/http-api-operations.md): on one job, or on all
//! jobs that match a filter.

use super::principal::PrincipalName;
use super::problem::Problem;
use super::problem::describe_unknown_job;
use super::query::{self, Query, ReplyType};
use super::reads::{self, read_small};
use super::request_body::RequestBody;
use super::resolve::parse_job_id;
use super::route::*;
use super::search::{
    FILTERS, FoundJobView, SEARCH_PARAMETERS, SearchPurpose, SearchQuery, next_page, page_bytes,
};
use crate::actors::client_response::{
    CANCEL_REASON, Erased, OperationResponse, RequestError, StepSnapshot,
};
use crate::api::state::ApiState;
use crate::reload::{self, Reloaded};
use crate::settings::Scope;
use crate::view::CellsView;
use actix_web::{HttpResponse, web};
use base::times::Rfc3339Time;
use engine::text::quote;
use engine::{JobId, Operation, OperationRequest, Reply, StepState};
use futures_util::future::join_all;
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use utoipa::ToSchema;

/// The operations on a job, with a summary of each.
const OPERATIONS: &[(&str, &str)] = &[
    ("cancel", "Cancels the job"),
    ("pause", "Pauses the job: nothing new is dispatched, but replies are accepted"),
    ("resume", "Resumes the job after a pause"),
    ("retry", "Retries the job from its failed steps"),
    ("rerun", "Runs a step of the job again, and all steps that depend on it"),
];

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::post("/api/job/{id}/{operation}", || web::to(operate)).operation_for_each(
        OPERATIONS,
        |name, summary, schemas| {
            describe_operation(&format!("{name}Job"), summary, schemas)
                .with_parameters(operation_parameters(name))
        },
    ),
    ApiRoute::post("/api/jobs/{operation}", || web::to(operate_on_all)).operation_for_each(
        OPERATIONS,
        |name, summary, schemas| {
            describe_bulk(name, summary, schemas)
                .with_parameters(operation_parameters(name))
                .with_parameters(&[REASON])
        },
    ),
    ApiRoute::post("/api/jobs/delete", || web::to(erase_all))
        .needing(Access::Scope(Scope::Admin))
        .operation(|schemas| describe_bulk("delete", "Erases the ended job", schemas)),
    ApiRoute::post("/api/job/{id}/step/{step}", || web::to(reply_by_hand)).operation(|schemas| {
        let reply = json!({ "anyOf": [message_schema()], "description": REPLY_DESCRIPTION });
        describe_operation("replyByHand", "Replies in place of a worker", schemas)
            .with_parameters(&[REPLY_TYPE])
            .with_body(true, reply)
            .with_problems(&[422])
    }),
    ApiRoute::post("/api/reload", || web::to(reload_files))
        .needing(Access::Scope(Scope::Admin))
        .operation(|schemas| {
            let summary = "Reads the workflow files and the tokens file again, all or nothing";
            OperationSpec::new("reload", "manager", summary)
                .with_json_response(200, "What has changed", schemas.reference::<Reloaded>())
                .with_problems(&[422])
        }),
];

/// Describes an operation on one job.
pub(super) fn describe_operation(id: &str, summary: &str, schemas: &mut Schemas) -> OperationSpec {
    OperationSpec::new(id, "operations", summary)
        .with_parameters(&[REASON])
        .with_json_response(200, "The job's new state", schemas.reference::<JobStateView<'_>>())
        .with_problems(&[404, 409])
}

/// Returns the parameters that only this operation takes.
fn operation_parameters(operation_name: &str) -> &'static [Parameter] {
    if operation_name == "rerun" { &[FROM_STEP, ONLY_ITEMS] } else { &[] }
}

/// Describes an operation on all jobs that match a filter.
fn describe_bulk(operation_name: &str, summary: &str, schemas: &mut Schemas) -> OperationSpec {
    let outcome =
        any_of([schemas.reference::<BulkOutcomeView<'_>>(), schemas.reference::<DryRunView<'_>>()]);
    let summary = format!("{summary}; applied to all that match a filter, page by page");
    OperationSpec::new(&format!("{operation_name}Jobs"), "operations", &summary)
        .with_parameters(&SEARCH_PARAMETERS)
        .with_rule(describe_missing_filter(operation_name))
        .with_parameters(&[DRY_RUN])
        .with_json_response(200, "What was done, or would be", outcome)
        .with_problems(&[404])
}

/// How many jobs a bulk operation handles concurrently, so that their entries share commits (group
/// commit).
const CONCURRENT_JOBS_MAX: usize = 200;

/// How many refusals the response to a bulk operation lists. All of them are counted.
const REFUSALS_LISTED_MAX: usize = 100;

/// Carries out an operation on one job.
async fn operate(
    api: web::Data<ApiState>,
    path: web::Path<(String, String)>,
    query: Query,
    principal: PrincipalName,
) -> Result<HttpResponse, Problem> {
    let (id, operation_name) = path.into_inner();
    let [step, items, reason] = query.extract(["step", "items", "reason"])?;
    let operation = parse_operation(&operation_name, step, items)?.ok_or_else(|| {
        Problem::not_found("use DELETE /api/job/{id}?erase=true to delete a job".to_owned())
    })?;
    let id = parse_job_id(&id)?;
    respond(id, api.active()?.operate(id, build_request(operation, reason, principal)?).await)
}

/// Makes the request for an operation, with its reason and the name of its principal. Appends the
/// reason to the reason of a cancellation.
pub(super) fn build_request(
    mut operation: Operation,
    reason: Option<String>,
    PrincipalName(name): PrincipalName,
) -> Result<OperationRequest, Problem> {
    let reason = parse_reason(reason)?;
    if let (Operation::Cancel { reason: cancel_reason }, Some(reason)) = (&mut operation, &reason) {
        *cancel_reason = format!("{cancel_reason}: {reason}").into();
    }
    Ok(OperationRequest { operation, reason, principal: name })
}

/// Checks the length of a request's reason, if the request has one.
pub(super) fn parse_reason(reason: Option<String>) -> Result<Option<Arc<str>>, Problem> {
    let Some(reason) = reason else { return Ok(None) };
    let chars = reason.chars().count();
    if !(1..=OPERATION_REASON_CHARS_MAX as usize).contains(&chars) {
        return Err(Problem::malformed(format!(
            "reason has {chars} characters, expected 1 to {OPERATION_REASON_CHARS_MAX}: it is kept \
             in the record, for those who read it"
        )));
    }
    Ok(Some(reason.into()))
}

/// Parses the name of an operation, with the step and its items that only `rerun` takes. Returns
/// `None` for `delete`, which is not an operation of the engine.
fn parse_operation(
    name: &str,
    step: Option<String>,
    items: Option<String>,
) -> Result<Option<Operation>, Problem> {
    for (parameter, is_given) in [("step", step.is_some()), ("items", items.is_some())] {
        if name != "rerun" && is_given {
            return Err(Problem::malformed(format!("{name} takes no {parameter}; rerun does")));
        }
    }
    Ok(Some(match name {
        "cancel" => Operation::Cancel { reason: CANCEL_REASON.into() },
        "pause" => Operation::Pause,
        "resume" => Operation::Resume,
        "retry" => Operation::Retry,
        "rerun" => {
            let step = step.ok_or_else(|| {
                Problem::malformed(
                    "rerun needs ?step=NAME, the step from which the job is run again".to_owned(),
                )
            })?;
            let only_failed_items = match items.as_deref() {
                None => false,
                Some("failed") => true,
                Some(other) => {
                    return Err(Problem::malformed(format!(
                        "items is {}, expected failed: the items that run again alone; without it \
                         all items do",
                        quote(other)
                    )));
                }
            };
            Operation::Rerun { step, only_failed_items }
        }
        "delete" => return Ok(None),
        _ => {
            return Err(Problem::not_found(format!(
                "there is no operation \"{name}\"; there are cancel, pause, resume, retry, rerun \
                 and delete"
            )));
        }
    }))
}

/// Accepts a reply from a person or another system, in place of a worker.
async fn reply_by_hand(
    api: web::Data<ApiState>,
    path: web::Path<(String, String)>,
    query: Query,
    principal: PrincipalName,
    body: RequestBody,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    let [kind, reason] = query.extract(["type", "reason"])?;
    let id = parse_job_id(&id)?;
    // `body` holds its permit until the response.
    let body = body.read(&api).await?;
    let bytes = body.bytes().clone();
    let reply = match query::parse_reply_type(kind.as_deref())? {
        ReplyType::Result => Reply::Result(bytes),
        ReplyType::Error => Reply::Error(bytes),
        ReplyType::Progress => Reply::Progress(bytes),
    };
    let request = build_request(Operation::Reply { step, reply }, reason, principal)?;
    respond(id, api.active()?.operate(id, request).await)
}

/// Makes the HTTP response to an operation on a job.
pub(super) fn respond(
    id: JobId,
    result: Result<OperationResponse, RequestError>,
) -> Result<HttpResponse, Problem> {
    let (state, step) = match result.map_err(|error| to_job_problem(id, error))? {
        OperationResponse::Job(state) => (state, None),
        OperationResponse::Step(state, step) => (state, Some(step)),
    };
    let step = step.as_ref().map(StepNowView::from_step);
    Ok(HttpResponse::Ok().json(JobStateView { id, state: state.as_str(), step }))
}

/// Makes the HTTP response to the erasure of a job.
pub(super) fn respond_erased(
    id: JobId,
    result: Result<Erased, RequestError>,
) -> Result<HttpResponse, Problem> {
    let Erased = result.map_err(|error| to_job_problem(id, error))?;
    Ok(HttpResponse::Ok().json(JobStateView { id, state: "deleted", step: None }))
}

/// Converts the error of an operation on a job to a problem.
fn to_job_problem(id: JobId, error: RequestError) -> Problem {
    to_problem(error, || describe_unknown_job(id))
}

/// Converts an error of the manager to a problem. `describe_unknown` makes the detail of a 404.
pub(super) fn to_problem(
    error: RequestError,
    describe_unknown: impl FnOnce() -> String,
) -> Problem {
    match error {
        RequestError::NotFound => Problem::not_found(describe_unknown()),
        RequestError::UnknownStep(reason) => Problem::not_found(reason),
        RequestError::Conflict(reason) => Problem::conflict(reason),
        RequestError::NoPlace(reason) => Problem::conflict(reason).with_reason("no_place"),
        RequestError::Invalid(reason) => Problem::invalid(reason),
        RequestError::Overloaded(reason) => Problem::overloaded(reason),
        RequestError::Failed(reason) => Problem::internal(reason),
    }
}

/// The state of a job after an operation.
#[derive(Serialize, ToSchema)]
#[schema(as = Operated)]
pub(super) struct JobStateView<'a> {
    id: JobId,
    /// The job's state, or `deleted`.
    state: &'a str,
    /// The step after the operation, if it was on a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<StepNowView<'a>>,
}

/// A step after an operation on it, with the keys of `GET /api/job/{id}`.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StepNow)]
struct StepNowView<'a> {
    name: &'a str,
    state: StepState,
    status: &'a str,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<Rfc3339Time>,
}

impl StepNowView<'_> {
    fn from_step(step: &StepSnapshot) -> StepNowView<'_> {
        StepNowView {
            name: &step.name,
            state: step.state,
            status: &step.status,
            attempt: step.attempt,
            reason: step.reason.as_deref(),
            retry_at: step.retry_at.map(Rfc3339Time),
        }
    }
}

/// Describes why a bulk operation without a filter is refused.
fn describe_missing_filter(operation_name: &str) -> String {
    format!("{operation_name} for all jobs needs a filter: {}", FILTERS.join(", "))
}

/// Erases one page of the jobs that match the filter.
async fn erase_all(
    api: web::Data<ApiState>,
    query: Query,
    principal: PrincipalName,
) -> Result<HttpResponse, Problem> {
    operate_on_all(api, "delete".to_owned().into(), query, principal).await
}

/// Applies an operation to one page of the jobs that match the filter. With `dryRun`, only lists
/// these jobs.
async fn operate_on_all(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
    PrincipalName(name): PrincipalName,
) -> Result<HttpResponse, Problem> {
    let operation_name = path.into_inner();
    let search = SearchQuery::parse(&api, query.into_pairs(), SearchPurpose::Bulk).await?;
    let (order, after, limit) = (search.order, search.after(), search.limit());
    // Invalid requests are refused before anything is changed.
    if let Some(operation) =
        parse_operation(&operation_name, search.step.clone(), search.items.clone())?
    {
        build_request(operation, search.reason.clone(), PrincipalName(None))?;
    } else if search.reason.is_some() {
        return Err(Problem::malformed(
            "delete takes no reason: nothing is left of the job's record".to_owned(),
        ));
    }
    if search.filter.is_empty() {
        return Err(Problem::malformed(describe_missing_filter(&operation_name)));
    }
    if search.is_dry_run == Some(true) {
        let routes = api.routes.clone();
        let read = reads::respond(&api, page_bytes(limit), move |reader, response| {
            let hits = reader.search(&search.filter, order, after, limit)?;
            let jobs = hits.iter().map(|hit| FoundJobView::from_hit(hit, None, &routes)).collect();
            response.write_json(&DryRunView {
                dry_run: true,
                jobs,
                matched: hits.len(),
                next: next_page(&hits, limit),
                operation: &operation_name,
            })
        });
        return read.await;
    }
    let filter = search.filter.clone();
    let hits = read_small(&api, move |reader| reader.search(&filter, order, after, limit)).await?;
    let manager = api.active()?;
    let (mut done_count, mut refusals) = (0, Vec::new());
    for chunk in hits.chunks(CONCURRENT_JOBS_MAX) {
        let requests = chunk.iter().map(|hit| async {
            match parse_operation(&operation_name, search.step.clone(), search.items.clone())? {
                Some(operation) => {
                    let request = build_request(
                        operation,
                        search.reason.clone(),
                        PrincipalName(name.clone()),
                    )?;
                    respond(hit.id, manager.operate(hit.id, request).await)
                }
                None => respond_erased(hit.id, manager.erase(hit.id).await),
            }
        });
        for (hit, result) in chunk.iter().zip(join_all(requests).await) {
            match result {
                Ok(_) => done_count += 1,
                Err(problem) => {
                    let (label, _) = CellsView::from_cells(hit.cells.clone());
                    let reason = problem.detail().to_owned();
                    refusals.push(RefusalView { job: hit.id, label, reason });
                }
            }
        }
    }
    let refused = refusals.len();
    refusals.truncate(REFUSALS_LISTED_MAX);
    Ok(HttpResponse::Ok().json(BulkOutcomeView {
        done: done_count,
        matched: hits.len(),
        next: next_page(&hits, limit),
        operation: &operation_name,
        refusals,
        refused,
    }))
}

/// The outcome of a bulk operation.
#[derive(Serialize, ToSchema)]
#[schema(as = Bulk)]
struct BulkOutcomeView<'a> {
    done: usize,
    /// The number of jobs on this page.
    matched: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    operation: &'a str,
    /// The first refusals.
    refusals: Vec<RefusalView>,
    refused: usize,
}

/// A job on which an operation was refused.
#[derive(Serialize, ToSchema)]
#[schema(as = Refused)]
struct RefusalView {
    job: JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    label: Option<Arc<str>>,
    reason: String,
}

/// The jobs to which a bulk operation would be applied.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DryRun)]
struct DryRunView<'a> {
    dry_run: bool,
    jobs: Vec<FoundJobView<'a>>,
    matched: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    operation: &'a str,
}

/// Reloads the workflow files, the tokens file and the certificate. Changes nothing if any of them
/// is invalid.
async fn reload_files(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    match reload::reload(&api.reloader()).await {
        Ok(reloaded) => Ok(HttpResponse::Ok().json(reloaded)),
        Err(error) => Err(Problem::invalid(format!("nothing was changed: {error}"))),
    }
}
