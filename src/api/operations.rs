//! Operations on jobs (SPEC §6): one at a time, or on all that a filter finds.

use super::jobs::{PAGE_ROWS, definition, job_id, read, unknown_job};
use super::problem::Problem;
use super::query::{self, Query};
use crate::actors::outbox::Answer;
use crate::actors::reload;
use crate::actors::router::RouterInput;
use crate::actors::shared::Shared;
use crate::engine::{JobId, JobState, Message, Operation, Reply};
use crate::journal::JobNumber;
use crate::journal::search::{Filter, Hit};
use crate::times::Time;
use actix_web::{HttpResponse, web};
use bytes::Bytes;
use futures_util::future::join_all;
use serde::Deserialize;
use tokio::sync::oneshot;

/// The reason that the reader of a cancelled job sees.
const CANCELLED_BY: &str = "by a call of the API";

/// Jobs of a bulk operation that are under way at once: they share commits.
const BULK_AT_ONCE: usize = 200;

/// Refusals that the answer to a bulk operation lists.
const REFUSALS_SHOWN_MAX: usize = 100;

/// Query of [`operate`].
#[derive(Deserialize)]
pub struct OperateQuery {
    step: Option<String>,
}

/// `POST /api/job/{id}/{cancel|pause|resume|retry|rerun}`; `rerun` takes `?step=NAME`.
pub async fn operate(shared: web::Data<Shared>, path: web::Path<(String, String)>, query: Query<OperateQuery>) -> Result<HttpResponse, Problem> {
    let (id, word) = path.into_inner();
    let operation = operation(&word, query.0.step)?.ok_or_else(|| Problem::not_found("use DELETE /api/job/{id} to delete a job".to_owned()))?;
    let id = job_id(&id)?;
    respond(id, ask(&shared, id, operation).await?)
}

/// The operation called `word`; none: to delete.
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
            let step = step.ok_or_else(|| Problem::malformed("rerun needs ?step=NAME: from which step on the job is done again".to_owned()))?;
            Operation::Rerun { step }
        }
        "delete" => return Ok(None),
        _ => {
            return Err(Problem::not_found(format!("there is no operation \"{word}\"; there are cancel, pause, resume, retry, rerun and delete")));
        }
    }))
}

/// Query of [`reply`].
#[derive(Deserialize)]
pub struct ReplyQuery {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// `POST /api/job/{id}/step/{step}[?type=result|error|progress]`: what a worker would send, said by a person or another system.
pub async fn reply(
    shared: web::Data<Shared>,
    path: web::Path<(String, String)>,
    query: Query<ReplyQuery>,
    payload: web::Payload,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    let id = job_id(&id)?;
    let body = super::jobs::body(&shared, payload).await?;
    let reply: fn(Bytes) -> Reply = match query.0.kind.as_deref() {
        None | Some("result") => Reply::Result,
        Some("error") => Reply::Error,
        Some("progress") => Reply::Progress,
        Some(other) => return Err(Problem::malformed(format!("type is {other:?}, expected result, error or progress"))),
    };
    Message::parse(&body).map_err(|error| Problem::malformed(format!("the body: {error}")))?;
    let reply = reply(body);
    respond(id, ask(&shared, id, Operation::Reply { step, reply }).await?)
}

async fn ask(shared: &Shared, id: JobId, operation: Operation) -> Result<Answer, Problem> {
    if !shared.health.accepts() {
        return Err(Problem::overloaded("the manager accepts nothing now; /readyz?verbose says why".to_owned()));
    }
    answered(shared, id, |answer| RouterInput::Operate(id, operation, answer)).await
}

/// Asks the router, and waits for the answer.
pub(super) async fn answered(shared: &Shared, id: JobId, input: impl FnOnce(oneshot::Sender<Answer>) -> RouterInput) -> Result<Answer, Problem> {
    let (answer, answered) = oneshot::channel();
    if shared.wiring().router.offer(input(answer)).is_err() {
        return Err(Problem::overloaded("the router's mailbox is full".to_owned()));
    }
    // Its actor ended just now: asked again, the journal answers.
    answered.await.map_err(|_| Problem::overloaded(format!("job {id} is just ending: try again")))
}

/// The response to an operation.
pub(super) fn respond(id: JobId, answer: Answer) -> Result<HttpResponse, Problem> {
    match answer {
        Answer::Changed(state) => Ok(HttpResponse::Ok().json(serde_json::json!({ "id": id, "state": state }))),
        Answer::Deleted => Ok(HttpResponse::Ok().json(serde_json::json!({ "id": id, "state": "deleted" }))),
        Answer::Unknown => Err(unknown_job(id)),
        Answer::UnknownStep(reason) => Err(Problem::not_found(reason)),
        Answer::Conflict(reason) => Err(Problem::conflict(reason)),
        Answer::Overloaded(reason) => Err(Problem::overloaded(reason)),
        Answer::Failed(reason) => Err(Problem::broken(reason)),
        Answer::Created(_) | Answer::Existing(_) => Err(Problem::broken("an operation was answered as a creation".to_owned())),
    }
}

/// What the query of a search, or of a bulk operation, asks for.
struct Asked {
    filter: Filter,
    limit: u32,
    below: JobNumber,
    dry_run: bool,
    step: Option<String>,
}

impl Asked {
    fn parse(shared: &Shared, pairs: Vec<(String, String)>) -> Result<Asked, Problem> {
        let mut asked = Asked { filter: Filter::default(), limit: PAGE_ROWS, below: JobNumber::MAX, dry_run: false, step: None };
        let vhost = pairs.iter().find(|(key, _)| key == "vhost").map(|(_, vhost)| vhost.clone());
        for (key, value) in pairs {
            match (key.as_str(), key.strip_prefix("status.")) {
                ("vhost", _) => {}
                ("workflow", _) => asked.filter.workflow = Some(definition(shared, &value, vhost.as_deref())?.full_name()),
                ("state", _) => asked.filter.state = Some(query::state(&value)?),
                ("after", _) => asked.filter.created_from = Some(query::time("after", &value)?),
                ("before", _) => asked.filter.created_before = Some(query::time("before", &value)?),
                ("limit", _) => asked.limit = query::limit(&value)?,
                ("cursor", _) => asked.below = query::cursor(&value)?,
                ("dryRun", _) => asked.dry_run = query::flag("dryRun", &value)?,
                ("step", _) => asked.step = Some(value),
                (_, Some(step)) => asked.filter.statuses.push((step.to_owned(), value)),
                _ => {
                    let known = "workflow, vhost, state, after, before, status.<step>, limit, cursor, dryRun and, for rerun, step";
                    return Err(Problem::malformed(format!("unknown parameter {key:?}; known are {known}")));
                }
            }
        }
        asked.check_steps(shared)?;
        Ok(asked)
    }

    fn check_steps(&self, shared: &Shared) -> Result<(), Problem> {
        let Some((first, _)) = self.filter.statuses.first() else { return Ok(()) };
        let Some(workflow) = &self.filter.workflow else {
            return Err(Problem::malformed(format!("status.{first} needs workflow=NAME: steps belong to a workflow")));
        };
        let definition = definition(shared, workflow, None)?;
        match self.filter.statuses.iter().find(|(step, _)| definition.graph().index_of(step).is_none()) {
            None => Ok(()),
            Some((unknown, _)) => {
                let known: Vec<&str> = definition.graph().steps.iter().map(|step| &*step.name).collect();
                Err(Problem::malformed(format!("workflow {workflow} has no step {unknown:?}; its steps are {}", known.join(", "))))
            }
        }
    }
}

/// `GET /api/jobs/search?…`: top-level jobs by workflow, state, status and time of creation, newest first, paged.
pub async fn search(shared: web::Data<Shared>, query: Query<Vec<(String, String)>>) -> Result<HttpResponse, Problem> {
    let asked = Asked::parse(&shared, query.0)?;
    let limit = asked.limit;
    let hits = read(&shared, move |reader| reader.search(&asked.filter, asked.below, asked.limit)).await?;
    let rows: Vec<serde_json::Value> = hits.iter().map(shown).collect();
    let mut answer = serde_json::json!({ "jobs": rows });
    if let (true, Some(last)) = (hits.len() == limit as usize, hits.last()) {
        answer["next"] = last.number.to_string().into();
    }
    Ok(HttpResponse::Ok().json(answer))
}

fn shown(hit: &Hit) -> serde_json::Value {
    let ended = hit.ended.map(Time);
    let mut row = serde_json::json!({ "job": hit.id, "workflow": hit.workflow, "state": hit.state, "created": Time(hit.created) });
    if let Some(ended) = ended {
        row["ended"] = serde_json::json!(ended);
    }
    row
}

/// `POST /api/jobs/{cancel|pause|resume|retry|rerun|delete}?…`: the operation on all that the filter finds, a page at a time;
/// with `dryRun=true` only told.
pub async fn operate_all(shared: web::Data<Shared>, path: web::Path<String>, query: Query<Vec<(String, String)>>) -> Result<HttpResponse, Problem> {
    let word = path.into_inner();
    let asked = Asked::parse(&shared, query.0)?;
    // Refused before anything is done.
    operation(&word, asked.step.clone())?;
    if asked.filter.is_empty() {
        return Err(Problem::malformed(format!("{word} for all jobs needs a filter: workflow, state, status.<step>, after or before")));
    }
    let filter = asked.filter.clone();
    let hits = read(&shared, move |reader| reader.search(&filter, asked.below, asked.limit)).await?;
    let next = (hits.len() == asked.limit as usize).then(|| hits.last().map(|hit| hit.number.to_string())).flatten();
    let mut answer = serde_json::json!({ "operation": word, "matched": hits.len() });
    if let Some(next) = next {
        answer["next"] = next.into();
    }
    if asked.dry_run {
        answer["dryRun"] = true.into();
        answer["jobs"] = hits.iter().map(shown).collect();
        return Ok(HttpResponse::Ok().json(answer));
    }
    let (mut done, mut refused) = (0, Vec::new());
    for some in hits.chunks(BULK_AT_ONCE) {
        let asks = some.iter().map(|hit| async {
            let outcome = match operation(&word, asked.step.clone())? {
                Some(operation) => ask(&shared, hit.id, operation).await,
                None if JobState::of_word(&hit.state).is_some_and(|state| !state.is_ended()) => {
                    Err(Problem::conflict(format!("job {} is {}: only an ended job can be deleted; cancel it first", hit.id, hit.state)))
                }
                None => answered(&shared, hit.id, |answer| RouterInput::End(hit.id, answer)).await,
            };
            respond(hit.id, outcome?)
        });
        for (hit, outcome) in some.iter().zip(join_all(asks).await) {
            match outcome {
                Ok(_) => done += 1,
                Err(problem) => refused.push(serde_json::json!({ "job": hit.id, "reason": problem.detail() })),
            }
        }
    }
    answer["done"] = done.into();
    answer["refused"] = refused.len().into();
    refused.truncate(REFUSALS_SHOWN_MAX);
    answer["refusals"] = refused.into();
    Ok(HttpResponse::Ok().json(answer))
}

/// `POST /api/reload`: the workflow files once more, all or nothing.
pub async fn reload(shared: web::Data<Shared>) -> Result<HttpResponse, Problem> {
    match reload::reload(&shared).await {
        Ok(reloaded) => Ok(HttpResponse::Ok().json(reloaded)),
        Err(error) => Err(Problem::invalid(format!("nothing was changed: {error}"))),
    }
}
