//! Operations on jobs (docs/http-api.md): on one job, or on all that a filter finds.

use super::holder::By;
use super::incoming::Incoming;
use super::named::job_id;
use super::problem::Problem;
use super::problem::unknown_job_text;
use super::query::{self, Query, ReplyType};
use super::reads::{self, read};
use super::search::{FILTERS, Kind, Row, SearchQuery, next_page, row_bytes};
use crate::actors::answer::{CANCELLED_BY, Erased, Now, Refusal, StepNow};
use crate::actors::door;
use crate::actors::ways::Ways;
use crate::engine::{JobId, Operation, Reply, Request, StepState};
use crate::reload;
use crate::times::Time;
use actix_web::{HttpResponse, web};
use futures_util::future::join_all;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// How many jobs of a bulk operation are under way at once: they share commits.
const BULK_AT_ONCE: usize = 200;

/// How many refusals the response to a bulk operation lists.
const REFUSALS_SHOWN_MAX: usize = 100;

/// The longest reason for an operation, in characters.
const REASON_CHARS_MAX: usize = 200;

/// Handles `POST /api/job/{id}/{cancel|pause|resume|retry|rerun}[?reason=TEXT]`; `rerun` takes
/// `?step=NAME`.
pub async fn operate(
    ways: web::Data<Ways>,
    path: web::Path<(String, String)>,
    query: Query,
    by: By,
) -> Result<HttpResponse, Problem> {
    let (id, word) = path.into_inner();
    let [step, reason] = query.of(["step", "reason"])?;
    let operation = operation(&word, step)?.ok_or_else(|| {
        Problem::not_found("use DELETE /api/job/{id}?erase=true to delete a job".to_owned())
    })?;
    let id = job_id(&id)?;
    respond(id, door::operate(&ways, id, request(operation, reason, by)?).await)
}

/// Makes the request for an operation, with its reason and the name of its principal.
pub(super) fn request(
    mut operation: Operation,
    reason: Option<String>,
    By(by): By,
) -> Result<Request, Problem> {
    let reason = why(reason)?;
    if let (Operation::Cancel { reason: text }, Some(reason)) = (&mut operation, &reason) {
        *text = format!("{text}: {reason}").into();
    }
    Ok(Request { operation, reason, by })
}

/// Checks the reason of a request, if one is given.
pub(super) fn why(reason: Option<String>) -> Result<Option<Arc<str>>, Problem> {
    let Some(reason) = reason else { return Ok(None) };
    let chars = reason.chars().count();
    if !(1..=REASON_CHARS_MAX).contains(&chars) {
        return Err(Problem::malformed(format!(
            "reason has {chars} characters, expected 1 to {REASON_CHARS_MAX}: it is kept in the \
             job's record, for those who read it"
        )));
    }
    Ok(Some(reason.into()))
}

/// Parses the name of an operation. Returns `None` for a deletion.
fn operation(word: &str, step: Option<String>) -> Result<Option<Operation>, Problem> {
    if word != "rerun" && step.is_some() {
        return Err(Problem::malformed(format!("{word} takes no step; rerun does")));
    }
    Ok(Some(match word {
        "cancel" => Operation::Cancel { reason: CANCELLED_BY.into() },
        "pause" => Operation::Pause,
        "resume" => Operation::Resume,
        "retry" => Operation::Retry,
        "rerun" => {
            let step = step.ok_or_else(|| {
                Problem::malformed(
                    "rerun needs ?step=NAME, the step from which the job is run again".to_owned(),
                )
            })?;
            Operation::Rerun { step }
        }
        "delete" => return Ok(None),
        _ => {
            return Err(Problem::not_found(format!(
                "there is no operation \"{word}\"; there are cancel, pause, resume, retry, rerun \
                 and delete"
            )));
        }
    }))
}

/// Handles `POST /api/job/{id}/step/{step}[?type=result|error|progress][&reason=TEXT]`: a reply by
/// a person or another system, in place of a worker.
pub async fn reply(
    ways: web::Data<Ways>,
    path: web::Path<(String, String)>,
    query: Query,
    by: By,
    incoming: Incoming,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    let [kind, reason] = query.of(["type", "reason"])?;
    let id = job_id(&id)?;
    let body = incoming.read(&ways.common).await?;
    // The body's permit is held until the response.
    let body_text = body.bytes().clone();
    let reply = match query::reply_type(kind.as_deref())? {
        ReplyType::Result => Reply::Result(body_text),
        ReplyType::Error => Reply::Error(body_text),
        ReplyType::Progress => Reply::Progress(body_text),
    };
    let request = request(Operation::Reply { step, reply }, reason, by)?;
    respond(id, door::operate(&ways, id, request).await)
}

/// Makes the response to an operation.
pub(super) fn respond(id: JobId, now: Result<Now, Refusal>) -> Result<HttpResponse, Problem> {
    let (state, step) = match now.map_err(|refusal| refused_job(id, refusal))? {
        Now::Job(state) => (state, None),
        Now::Step(state, step) => (state, Some(step)),
    };
    let step = step.as_ref().map(StepNowView::of);
    Ok(HttpResponse::Ok().json(Operated { id, state: state.word(), step }))
}

/// Makes the response to a deletion.
pub(super) fn respond_erased(
    id: JobId,
    erased: Result<Erased, Refusal>,
) -> Result<HttpResponse, Problem> {
    let Erased = erased.map_err(|refusal| refused_job(id, refusal))?;
    Ok(HttpResponse::Ok().json(Operated { id, state: "deleted", step: None }))
}

fn refused_job(id: JobId, refusal: Refusal) -> Problem {
    refused(refusal, || unknown_job_text(id))
}

/// Converts a refusal to a problem. `unknown` says what does not exist.
pub(super) fn refused(refusal: Refusal, unknown: impl FnOnce() -> String) -> Problem {
    match refusal {
        Refusal::Unknown => Problem::not_found(unknown()),
        Refusal::UnknownStep(reason) => Problem::not_found(reason),
        Refusal::Conflict(reason) => Problem::conflict(reason),
        Refusal::Invalid(reason) => Problem::invalid(reason),
        Refusal::Overloaded(reason) => Problem::overloaded(reason),
        Refusal::Failed(reason) => Problem::broken(reason),
    }
}

/// The state of a job after an operation.
#[derive(Serialize, ToSchema)]
pub(super) struct Operated<'a> {
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
    retry_at: Option<Time>,
}

impl StepNowView<'_> {
    fn of(step: &StepNow) -> StepNowView<'_> {
        StepNowView {
            name: &step.name,
            state: step.state,
            status: &step.status,
            attempt: step.attempt,
            reason: step.reason.as_deref(),
            retry_at: step.retry_at.map(Time),
        }
    }
}

/// Why an operation on all jobs is refused.
pub(super) fn needs_filter(word: &str) -> String {
    format!("{word} for all jobs needs a filter: {}", FILTERS.join(", "))
}

/// `POST /api/jobs/{cancel|pause|resume|retry|rerun|delete}?…`: the operation on all that the
/// filter finds, a page at a time; with `dryRun=true` it only tells what it would do.
pub async fn operate_all(
    ways: web::Data<Ways>,
    path: web::Path<String>,
    query: Query,
    By(by): By,
) -> Result<HttpResponse, Problem> {
    let word = path.into_inner();
    let asked = SearchQuery::parse(&ways.common, query.into_pairs(), Kind::Bulk).await?;
    let (order, beyond, limit) = (asked.order, asked.beyond(), asked.limit());
    // Checked before anything is done.
    if let Some(operation) = operation(&word, asked.step.clone())? {
        request(operation, asked.reason.clone(), By(None))?;
    } else if asked.reason.is_some() {
        return Err(Problem::malformed(
            "delete takes no reason: nothing is left of the job's record".to_owned(),
        ));
    }
    if asked.filter.is_empty() {
        return Err(Problem::malformed(needs_filter(&word)));
    }
    if asked.dry_run == Some(true) {
        let common = ways.common.clone();
        let told = reads::answer(&common, row_bytes(limit), move |reader, answer| {
            let hits = reader.search(&asked.filter, order, beyond, limit)?;
            let jobs = hits.iter().map(|hit| Row::of(hit, None, &ways)).collect();
            answer.json(&Dry {
                dry_run: true,
                jobs,
                matched: hits.len(),
                next: next_page(&hits, limit),
                operation: &word,
            })
        });
        return told.await;
    }
    let filter = asked.filter.clone();
    let hits =
        read(&ways.common, move |reader| reader.search(&filter, order, beyond, limit)).await?;
    let (mut done, mut refusals) = (0, Vec::new());
    for some in hits.chunks(BULK_AT_ONCE) {
        let asks = some.iter().map(|hit| async {
            match operation(&word, asked.step.clone())? {
                Some(operation) => {
                    let request = request(operation, asked.reason.clone(), By(by.clone()))?;
                    respond(hit.id, door::operate(&ways, hit.id, request).await)
                }
                None => respond_erased(hit.id, door::erase(&ways, hit.id).await),
            }
        });
        for (hit, outcome) in some.iter().zip(join_all(asks).await) {
            match outcome {
                Ok(_) => done += 1,
                Err(problem) => {
                    refusals.push(Refused { job: hit.id, reason: problem.detail().to_owned() })
                }
            }
        }
    }
    let refused = refusals.len();
    refusals.truncate(REFUSALS_SHOWN_MAX);
    Ok(HttpResponse::Ok().json(Bulk {
        done,
        matched: hits.len(),
        next: next_page(&hits, limit),
        operation: &word,
        refusals,
        refused,
    }))
}

/// The outcome of a bulk operation.
#[derive(Serialize, ToSchema)]
pub(super) struct Bulk<'a> {
    done: usize,
    /// The number of jobs on this page.
    matched: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    operation: &'a str,
    /// The first refusals.
    refusals: Vec<Refused>,
    refused: usize,
}

/// A job on which an operation was refused.
#[derive(Serialize, ToSchema)]
struct Refused {
    job: JobId,
    reason: String,
}

/// The jobs to which a bulk operation would be applied.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DryRun)]
pub(super) struct Dry<'a> {
    dry_run: bool,
    jobs: Vec<Row<'a>>,
    matched: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    operation: &'a str,
}

/// Handles `POST /api/reload`: reads the workflow files again, all or nothing.
pub async fn reload(ways: web::Data<Ways>, query: Query) -> Result<HttpResponse, Problem> {
    query.none()?;
    match reload::reload(&ways).await {
        Ok(reloaded) => Ok(HttpResponse::Ok().json(reloaded)),
        Err(error) => Err(Problem::invalid(format!("nothing was changed: {error}"))),
    }
}
