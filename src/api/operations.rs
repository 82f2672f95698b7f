//! Operations on jobs (SPEC §6): one at a time, or on all that a filter finds.

use super::incoming::Incoming;
use super::named::{job_id, with_jobs};
use super::problem::Problem;
use super::problem::unknown_job_text;
use super::query::{self, Query};
use super::reads::{self, read};
use super::reads::{PAGE_ROWS, row_bytes};
use crate::actors::answer::{CANCELLED_BY, Erased, Now, Refusal, StepNow};
use crate::actors::common::Common;
use crate::actors::door;
use crate::actors::ways::Ways;
use crate::engine::{JobId, Operation, Reply};
use crate::journal::JobNumber;
use crate::journal::{Filter, Hit};
use crate::reload;
use crate::times::Time;
use actix_web::{HttpResponse, web};
use bytes::Bytes;
use futures_util::future::join_all;
use serde::Serialize;
use std::sync::Arc;

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

/// The parameters of a search; a bulk operation has two more.
const SEARCH_PARAMETERS: [&str; 8] =
    ["workflow", "vhost", "state", "after", "before", "status.<step>", "limit", "cursor"];
const BULK_PARAMETERS: [&str; 2] = ["dryRun", "step"];

/// What the query of a search, or of a bulk operation, asks for.
#[derive(Default)]
struct SearchQuery {
    filter: Filter,
    limit: Option<u32>,
    below: Option<JobNumber>,
    dry_run: Option<bool>,
    step: Option<String>,
}

impl SearchQuery {
    /// `more`: those of [`BULK_PARAMETERS`] that the call takes.
    async fn parse(
        common: &Arc<Common>,
        pairs: Vec<(String, String)>,
        more: &[&'static str],
    ) -> Result<SearchQuery, Problem> {
        let mut asked = SearchQuery::default();
        let (mut workflow, mut vhost) = (None, None);
        for (key, value) in pairs {
            match key.as_str() {
                "vhost" => query::set(&mut vhost, &key, value)?,
                "workflow" => query::set(&mut workflow, &key, value)?,
                "state" => query::set(&mut asked.filter.state, &key, query::state(&value)?)?,
                "after" => {
                    query::set(&mut asked.filter.created_from, &key, query::time(&key, &value)?)?
                }
                "before" => {
                    query::set(&mut asked.filter.created_before, &key, query::time(&key, &value)?)?
                }
                "limit" => query::set(&mut asked.limit, &key, query::limit(&value)?)?,
                "cursor" => query::set(&mut asked.below, &key, query::cursor(&value)?)?,
                "dryRun" if more.contains(&"dryRun") => {
                    query::set(&mut asked.dry_run, &key, query::flag(&key, &value)?)?
                }
                "step" if more.contains(&"step") => query::set(&mut asked.step, &key, value)?,
                _ => match key.strip_prefix("status.") {
                    Some(step) => asked.filter.statuses.push((step.to_owned(), value)),
                    None => return Err(query::unknown(&key, &[&SEARCH_PARAMETERS, more].concat())),
                },
            }
        }
        query::refuse_alone("vhost", vhost.is_some(), "workflow", workflow.is_some())?;
        if let Some(name) = workflow {
            asked.filter.workflow = Some(with_jobs(common, &name, vhost.as_deref()).await?);
        }
        asked.check_steps(common).await?;
        Ok(asked)
    }

    fn limit(&self) -> u32 {
        self.limit.unwrap_or(PAGE_ROWS)
    }

    fn below(&self) -> JobNumber {
        self.below.unwrap_or(JobNumber::MAX)
    }

    async fn check_steps(&self, common: &Arc<Common>) -> Result<(), Problem> {
        let Some((first, _)) = self.filter.statuses.first() else { return Ok(()) };
        let Some(workflow) = &self.filter.workflow else {
            return Err(Problem::malformed(format!(
                "status.{first} needs workflow=NAME: steps belong to a workflow"
            )));
        };
        let known: Vec<String> = match common.definitions().get(workflow) {
            Some(definition) => {
                definition.graph().steps.iter().map(|step| step.name.to_string()).collect()
            }
            None => {
                let workflow = workflow.clone();
                read(common, move |reader| reader.status_columns(&workflow))
                    .await?
                    .unwrap_or_default()
            }
        };
        match self.filter.statuses.iter().find(|(step, _)| !known.contains(step)) {
            None => Ok(()),
            Some((unknown, _)) => Err(Problem::malformed(format!(
                "workflow {workflow} has no step {unknown:?}; its steps are {}",
                known.join(", ")
            ))),
        }
    }
}

/// `GET /api/jobs/search?…`: top-level jobs by workflow, state, status and time of creation, newest
/// first, paged.
pub async fn search(common: web::Data<Common>, query: Query) -> Result<HttpResponse, Problem> {
    let asked = SearchQuery::parse(&common, query.into_pairs(), &[]).await?;
    let limit = asked.limit();
    let found = reads::answer(&common, row_bytes(limit), move |reader, answer| {
        let hits = reader.search(&asked.filter, asked.below(), limit)?;
        answer.json(&SearchAnswer {
            jobs: hits.iter().map(Row::of).collect(),
            next: next_page(&hits, limit),
        })
    });
    found.await
}

/// What a search found.
#[derive(Serialize)]
struct SearchAnswer<'a> {
    jobs: Vec<Row<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Serialize)]
struct Row<'a> {
    created: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Time>,
    job: JobId,
    state: &'a str,
    workflow: &'a str,
}

impl Row<'_> {
    fn of(hit: &Hit) -> Row<'_> {
        Row {
            created: Time(hit.created),
            ended: hit.ended.map(Time),
            job: hit.id,
            state: &hit.state,
            workflow: &hit.workflow,
        }
    }
}

/// Where the next page begins.
fn next_page(hits: &[Hit], limit: u32) -> Option<String> {
    hits.last().filter(|_| hits.len() == limit as usize).map(|hit| hit.number.to_string())
}

/// `POST /api/jobs/{cancel|pause|resume|retry|rerun|delete}?…`: the operation on all that the
/// filter finds, a page at a time; with `dryRun=true` it only tells what it would do.
pub async fn operate_all(
    ways: web::Data<Ways>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let word = path.into_inner();
    let asked = SearchQuery::parse(&ways.common, query.into_pairs(), &BULK_PARAMETERS).await?;
    let (below, limit) = (asked.below(), asked.limit());
    // Refused before anything is done.
    operation(&word, asked.step.clone())?;
    if asked.filter.is_empty() {
        return Err(Problem::malformed(format!(
            "{word} for all jobs needs a filter: workflow, state, status.<step>, after or before"
        )));
    }
    if asked.dry_run == Some(true) {
        let told = reads::answer(&ways.common, row_bytes(limit), move |reader, answer| {
            let hits = reader.search(&asked.filter, below, limit)?;
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
    let hits = read(&ways.common, move |reader| reader.search(&filter, below, limit)).await?;
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
