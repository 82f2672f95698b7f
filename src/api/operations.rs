//! Operations on jobs (SPEC §6): one at a time, or on all that a filter finds.

use super::incoming::Incoming;
use super::named::job_id;
use super::problem::Problem;
use super::problem::unknown_job_text;
use super::query::Query;
use super::reads::{self, read};
use super::search::{FILTERS, Kind, Row, SearchQuery, next_page, row_bytes};
use crate::actors::answer::{CANCELLED_BY, Erased, Now, Refusal, StepNow};
use crate::actors::door;
use crate::actors::ways::Ways;
use crate::engine::{JobId, Operation, Reply};
use crate::reload;
use crate::times::Time;
use actix_web::{HttpResponse, web};
use bytes::Bytes;
use futures_util::future::join_all;
use serde::Serialize;

/// How many jobs of a bulk operation are under way at once: they share commits.
const BULK_AT_ONCE: usize = 200;

/// How many refusals the answer to a bulk operation lists.
const REFUSALS_SHOWN_MAX: usize = 100;

/// `POST /api/job/{id}/{cancel|pause|resume|retry|rerun}`; `rerun` takes `?step=NAME`.
pub async fn operate(
    ways: web::Data<Ways>,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let (id, word) = path.into_inner();
    let [step] = query.of(["step"])?;
    let operation = operation(&word, step)?.ok_or_else(|| {
        Problem::not_found("use DELETE /api/job/{id}?erase=true to delete a job".to_owned())
    })?;
    let id = job_id(&id)?;
    respond(id, door::operate(&ways, id, operation).await)
}

/// The operation named `word`; none: deletion.
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

/// `POST /api/job/{id}/step/{step}[?type=result|error|progress]`: what a worker would send, from a
/// person or another system.
pub async fn reply(
    ways: web::Data<Ways>,
    path: web::Path<(String, String)>,
    query: Query,
    incoming: Incoming,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    let [kind] = query.of(["type"])?;
    let id = job_id(&id)?;
    let body = incoming.read(&ways.common).await?;
    let reply: fn(Bytes) -> Reply = match kind.as_deref() {
        None | Some("result") => Reply::Result,
        Some("error") => Reply::Error,
        Some("progress") => Reply::Progress,
        Some(other) => {
            return Err(Problem::malformed(format!(
                "type is {other:?}, expected result, error or progress"
            )));
        }
    };
    // Its room is kept until the answer.
    let reply = reply(body.bytes().clone());
    respond(id, door::operate(&ways, id, Operation::Reply { step, reply }).await)
}

/// The response to an operation.
pub(super) fn respond(id: JobId, now: Result<Now, Refusal>) -> Result<HttpResponse, Problem> {
    let told = match now.map_err(|refusal| refused_job(id, refusal))? {
        Now::Job(state) => serde_json::json!({ "id": id, "state": state }),
        Now::Step(state, step) => {
            serde_json::json!({ "id": id, "state": state, "step": shown_step(&step) })
        }
    };
    Ok(HttpResponse::Ok().json(told))
}

/// The response to a deletion.
pub(super) fn respond_erased(
    id: JobId,
    erased: Result<Erased, Refusal>,
) -> Result<HttpResponse, Problem> {
    let Erased = erased.map_err(|refusal| refused_job(id, refusal))?;
    Ok(HttpResponse::Ok().json(serde_json::json!({ "id": id, "state": "deleted" })))
}

fn refused_job(id: JobId, refusal: Refusal) -> Problem {
    refused(refusal, || unknown_job_text(id))
}

/// The problem that a refusal becomes; `unknown` says what does not exist.
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

/// A step after an operation on it, with the keys of `GET /api/job/{id}`.
fn shown_step(step: &StepNow) -> serde_json::Value {
    let mut shown = serde_json::json!({ "name": step.name, "state": step.state, "status": step.status, "attempt": step.attempt });
    if let Some(reason) = &step.reason {
        shown["reason"] = (**reason).into();
    }
    if let Some(at) = step.retry_at {
        shown["retryAt"] = serde_json::json!(Time(at));
    }
    shown
}

/// `POST /api/jobs/{cancel|pause|resume|retry|rerun|delete}?…`: the operation on all that the
/// filter finds, a page at a time; with `dryRun=true` it only tells what it would do.
pub async fn operate_all(
    ways: web::Data<Ways>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let word = path.into_inner();
    let asked = SearchQuery::parse(&ways.common, query.into_pairs(), Kind::Bulk).await?;
    let (order, beyond, limit) = (asked.order, asked.beyond(), asked.limit());
    // Refused before anything is done.
    operation(&word, asked.step.clone())?;
    if asked.filter.is_empty() {
        return Err(Problem::malformed(format!(
            "{word} for all jobs needs a filter: {}",
            FILTERS.join(", ")
        )));
    }
    if asked.dry_run == Some(true) {
        let told = reads::answer(&ways.common, row_bytes(limit), move |reader, answer| {
            let hits = reader.search(&asked.filter, order, beyond, limit)?;
            let jobs = hits.iter().map(Row::of).collect();
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
    let mut answer = serde_json::json!({ "operation": word, "matched": hits.len() });
    if let Some(next) = next_page(&hits, limit) {
        answer["next"] = next.into();
    }
    let (mut done, mut refused) = (0, Vec::new());
    for some in hits.chunks(BULK_AT_ONCE) {
        let asks = some.iter().map(|hit| async {
            match operation(&word, asked.step.clone())? {
                Some(operation) => respond(hit.id, door::operate(&ways, hit.id, operation).await),
                None => respond_erased(hit.id, door::erase(&ways, hit.id).await),
            }
        });
        for (hit, outcome) in some.iter().zip(join_all(asks).await) {
            match outcome {
                Ok(_) => done += 1,
                Err(problem) => {
                    refused.push(serde_json::json!({ "job": hit.id, "reason": problem.detail() }))
                }
            }
        }
    }
    answer["done"] = done.into();
    answer["refused"] = refused.len().into();
    refused.truncate(REFUSALS_SHOWN_MAX);
    answer["refusals"] = refused.into();
    Ok(HttpResponse::Ok().json(answer))
}

/// The jobs to which a bulk operation would be applied.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Dry<'a> {
    dry_run: bool,
    jobs: Vec<Row<'a>>,
    matched: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    operation: &'a str,
}

/// `POST /api/reload`: reads the workflow files again, all or nothing.
pub async fn reload(ways: web::Data<Ways>, query: Query) -> Result<HttpResponse, Problem> {
    query.none()?;
    match reload::reload(&ways).await {
        Ok(reloaded) => Ok(HttpResponse::Ok().json(reloaded)),
        Err(error) => Err(Problem::invalid(format!("nothing was changed: {error}"))),
    }
}
