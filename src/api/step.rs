//! One step of a job: its attempts, its input and its output.

use super::history::{self, PAGE_BYTES_MAX};
use super::live;
use super::named::job_id;
use super::problem::Problem;
use super::query::Query;
use super::reads::{self, Part};
use crate::actors::common::Common;
use crate::actors::ways::Ways;
use crate::clock;
use crate::engine::words::{did_you_mean, quoted};
use crate::engine::{Graph, Job, JobId, Message, StepIndex};
use crate::journal::{JobAt, Records};
use crate::view::{Attempts, StepDetail};
use actix_web::{HttpRequest, HttpResponse, web};
use std::sync::Arc;

/// How many entries are read at once.
const ENTRIES_AT_ONCE: u32 = 10_000;

/// Handles `GET /api/job/{id}/step/{step}[?at=N]`.
pub(super) async fn detail(
    ways: web::Data<Ways>,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [at] = query.of(["at"])?;
    let (id, name) = path.into_inner();
    let id = job_id(&id)?;
    let at = at.map(|at| history::number("at", &at)).transpose()?;
    let attempts = attempts(&ways.common, id, name.clone(), at).await?;
    if let Some(at) = at {
        let load = move |reader: &dyn Records| {
            reader.job_at(id, at)?.ok_or_else(|| Problem::unknown_job(id))
        };
        let shown = reads::rebuilt(&ways.common, id, load, move |then, answer| match then {
            JobAt::Was { job, at } => {
                let step = step_of(job.graph(), id, &name)?;
                answer.json(&StepDetail::of(&job, step, attempts, at))
            }
            JobAt::Never { entries } => Err(history::no_entry(id, at, entries)),
        });
        return Ok(shown.await?.1.into_response());
    }
    let (now, known, step) = (clock::now(), attempts.clone(), name.clone());
    let told = live::look(&ways, id, move |job| {
        let step = step_of(job.graph(), id, &step).ok()?;
        serde_json::to_vec(&StepDetail::of(job, step, known, now)).ok()
    });
    if let Some(Some(body)) = told.await {
        return Ok(HttpResponse::Ok().content_type(mime::APPLICATION_JSON).body(body));
    }
    let kept = reads::job(&ways.common, id, move |found, answer| {
        let step = step_of(found.job.graph(), id, &name)?;
        answer.json(&StepDetail::of(&found.job, step, attempts, now))
    });
    Ok(kept.await?.1.into_response())
}

/// Loads the attempts of a step, up to the entry numbered `upto`.
async fn attempts(
    common: &Arc<Common>,
    id: JobId,
    name: String,
    upto: Option<u64>,
) -> Result<Attempts, Problem> {
    let upto = upto.unwrap_or(u64::MAX);
    let gathered = reads::placed(common, move |reader| {
        let page_after = |after| {
            reader
                .record(id, after, ENTRIES_AT_ONCE, PAGE_BYTES_MAX)?
                .ok_or_else(|| Problem::unknown_job(id))
        };
        let mut page = page_after(0)?;
        let mut attempts = Attempts::of(step_of(page.graph(), id, &name)?);
        loop {
            page.rows.iter().for_each(|row| attempts.take(row, upto));
            match page.next().filter(|next| *next < upto) {
                Some(next) => page = page_after(next)?,
                None => return Ok(attempts),
            }
        }
    });
    gathered.await
}

/// Finds the step with this name.
pub(super) fn step_of(graph: &Graph, id: JobId, name: &str) -> Result<StepIndex, Problem> {
    graph.index_of(name).ok_or_else(|| {
        let hint = did_you_mean(name, graph.steps.iter().map(|step| &*step.name));
        Problem::not_found(format!("job {id} has no step {}{hint}", quoted(name)))
    })
}

/// A payload of a job, which is returned as the text that was sent.
#[derive(Clone)]
enum Payload {
    Message,
    Input(String),
    Output(String),
}

impl Payload {
    fn of(&self, job: &Job) -> Result<Message, Problem> {
        match self {
            Payload::Message => Ok(job.message().clone()),
            Payload::Input(name) => {
                let step = step_of(job.graph(), job.id(), name)?;
                job.given_input(step).ok_or_else(|| {
                    Problem::not_found(format!(
                        "step {} of job {} has no input: it is {}",
                        quoted(name),
                        job.id(),
                        job.step_state(step).word()
                    ))
                })
            }
            Payload::Output(name) => {
                let step = step_of(job.graph(), job.id(), name)?;
                job.step(step).output.clone().ok_or_else(|| {
                    Problem::not_found(format!(
                        "step {} of job {} has no output: it is {}",
                        quoted(name),
                        job.id(),
                        job.step_state(step).word()
                    ))
                })
            }
        }
    }
}

/// Handles `GET /api/job/{id}/step/{step}/input`.
pub(super) async fn input(
    ways: web::Data<Ways>,
    request: HttpRequest,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    payload(&ways, &request, &id, query, Payload::Input(step)).await
}

/// Handles `GET /api/job/{id}/step/{step}/output`.
pub(super) async fn output(
    ways: web::Data<Ways>,
    request: HttpRequest,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    payload(&ways, &request, &id, query, Payload::Output(step)).await
}

/// Handles `GET /api/job/{id}/message`.
pub(super) async fn message(
    ways: web::Data<Ways>,
    request: HttpRequest,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    payload(&ways, &request, &path, query, Payload::Message).await
}

async fn payload(
    ways: &Ways,
    request: &HttpRequest,
    id: &str,
    query: Query,
    which: Payload,
) -> Result<HttpResponse, Problem> {
    query.none()?;
    let id = job_id(id)?;
    let part = Part::asked_for(request.headers());
    let asked = which.clone();
    let written = match live::look(ways, id, move |job| asked.of(job)).await {
        Some(message) => {
            let message = message?;
            let bytes = message.encoded_len();
            reads::written(&ways.common, bytes, move |_, answer| {
                answer.only(part);
                answer.json(&message)
            })
            .await?
        }
        None => {
            let kept = reads::job(&ways.common, id, move |found, answer| {
                answer.only(part);
                answer.json(&which.of(&found.job)?)
            });
            kept.await?.1
        }
    };
    Ok(written.into_response())
}
