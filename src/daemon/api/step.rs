//! One step of a job: its attempts, its input and its output.

use super::active_jobs;
use super::history::{self, PAGE_BYTES_MAX};
use super::problem::Problem;
use super::query::Query;
use super::reads::{self, ByteRange};
use super::resolve::parse_job_id;
use super::route::*;
use crate::api::state::ApiState;
use crate::view::{AttemptHistory, StepDetail};
use actix_web::{HttpRequest, HttpResponse, web};
use base::clock;
use engine::text::{did_you_mean, quote};
use engine::{Graph, Job, JobId, Message, StepIndex};
use journal::{JobAtEntry, Records};
use serde_json::json;
use std::sync::Arc;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/api/job/{id}/step/{step}", || web::to(get_step)).operation(|schemas| {
        OperationSpec::new("getStep", "jobs", "A step with its attempts")
            .with_parameters(&[AT])
            .with_json_response(200, "The step", schemas.reference::<StepDetail<'_>>())
            .with_problems(&[404])
    }),
    ApiRoute::get("/api/job/{id}/message", || web::to(get_message))
        .operation(|_| describe_payload("getMessage", "The message that it was created with")),
    ApiRoute::get("/api/job/{id}/step/{step}/input", || web::to(get_input))
        .operation(|_| describe_payload("getInput", "What its worker is given")),
    ApiRoute::get("/api/job/{id}/step/{step}/output", || web::to(get_output))
        .operation(|_| describe_payload("getOutput", "What its worker gave")),
];

/// Describes the operation that returns a payload as the text that was sent.
fn describe_payload(id: &str, summary: &str) -> OperationSpec {
    OperationSpec::new(id, "jobs", summary)
        .with_json_response(200, "The text", message_schema())
        // A part of a JSON text is no JSON.
        .with_json_response(206, "The part of it that was asked for", json!({}))
        .with_empty_response(416, "It has no such part")
        .with_problems(&[404])
}

/// How many entries are read at once.
const ENTRIES_AT_ONCE: u32 = 10_000;

async fn get_step(
    api: web::Data<ApiState>,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [at] = query.extract(["at"])?;
    let (id, name) = path.into_inner();
    let id = parse_job_id(&id)?;
    let at = at.map(|at| history::parse_entry_number("at", &at)).transpose()?;
    let attempts = load_attempts(&api, id, name.clone(), at).await?;
    if let Some(at) = at {
        let load = move |reader: &dyn Records| {
            reader.load_job_at_entry(id, at)?.ok_or_else(|| Problem::unknown_job(id))
        };
        let response = reads::with_rebuilt_job(&api, id, load, move |then, response| match then {
            JobAtEntry::Found { job, at } => {
                let step = find_step(job.graph(), id, &name)?;
                response.write_json(&StepDetail::new(&job, step, attempts, at))
            }
            JobAtEntry::NoSuchEntry { entries } => Err(history::unknown_entry(id, at, entries)),
        });
        return Ok(response.await?.1.into_response());
    }
    let (now, known_attempts, step) = (clock::now(), attempts.clone(), name.clone());
    let found = active_jobs::inspect_job(&api, id, move |job| {
        let step = find_step(job.graph(), id, &step).ok()?;
        serde_json::to_vec(&StepDetail::new(job, step, known_attempts, now)).ok()
    });
    if let Some(Some(body)) = found.await {
        return Ok(HttpResponse::Ok().content_type(mime::APPLICATION_JSON).body(body));
    }
    let response = reads::with_job(&api, id, move |stored, response| {
        let step = find_step(stored.job.graph(), id, &name)?;
        response.write_json(&StepDetail::new(&stored.job, step, attempts, now))
    });
    Ok(response.await?.1.into_response())
}

/// Loads the attempts of a step, up to the entry numbered `upto`.
async fn load_attempts(
    api: &Arc<ApiState>,
    id: JobId,
    name: String,
    last_number: Option<u64>,
) -> Result<AttemptHistory, Problem> {
    let last_number = last_number.unwrap_or(u64::MAX);
    let loaded = reads::read_with_permit(api, move |reader| {
        let page_after = |after| {
            reader
                .load_record_page(id, after, ENTRIES_AT_ONCE, PAGE_BYTES_MAX)?
                .ok_or_else(|| Problem::unknown_job(id))
        };
        let mut page = page_after(0)?;
        let mut attempts = AttemptHistory::for_step(find_step(page.graph(), id, &name)?);
        loop {
            page.rows.iter().for_each(|row| attempts.apply(row, last_number));
            match page.next_cursor().filter(|next| *next < last_number) {
                Some(next) => page = page_after(next)?,
                None => return Ok(attempts),
            }
        }
    });
    loaded.await
}

/// Finds the step with this name.
pub(super) fn find_step(graph: &Graph, id: JobId, name: &str) -> Result<StepIndex, Problem> {
    graph.find_index(name).ok_or_else(|| {
        let hint = did_you_mean(name, graph.steps.iter().map(|step| &*step.name));
        Problem::not_found(format!("job {id} has no step {}{hint}", quote(name)))
    })
}

/// A payload of a job, which is returned as the text that was sent.
#[derive(Clone)]
enum PayloadKind {
    Message,
    Input(String),
    Output(String),
}

impl PayloadKind {
    fn find_in(&self, job: &Job) -> Result<Message, Problem> {
        match self {
            PayloadKind::Message => Ok(job.message().clone()),
            PayloadKind::Input(name) => {
                let step = find_step(job.graph(), job.id(), name)?;
                job.started_input(step).ok_or_else(|| {
                    Problem::not_found(format!(
                        "step {} of job {} has no input: it is {}",
                        quote(name),
                        job.id(),
                        job.step_state(step).as_str()
                    ))
                })
            }
            PayloadKind::Output(name) => {
                let step = find_step(job.graph(), job.id(), name)?;
                job.step(step).output.clone().ok_or_else(|| {
                    Problem::not_found(format!(
                        "step {} of job {} has no output: it is {}",
                        quote(name),
                        job.id(),
                        job.step_state(step).as_str()
                    ))
                })
            }
        }
    }
}

async fn get_input(
    api: web::Data<ApiState>,
    request: HttpRequest,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    respond_payload(&api, &request, &id, query, PayloadKind::Input(step)).await
}

async fn get_output(
    api: web::Data<ApiState>,
    request: HttpRequest,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    respond_payload(&api, &request, &id, query, PayloadKind::Output(step)).await
}

async fn get_message(
    api: web::Data<ApiState>,
    request: HttpRequest,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    respond_payload(&api, &request, &path, query, PayloadKind::Message).await
}

async fn respond_payload(
    api: &Arc<ApiState>,
    request: &HttpRequest,
    id: &str,
    query: Query,
    kind: PayloadKind,
) -> Result<HttpResponse, Problem> {
    query.check_empty()?;
    let id = parse_job_id(id)?;
    let range = ByteRange::from_headers(request.headers());
    let active_kind = kind.clone();
    let written = match active_jobs::inspect_job(api, id, move |job| active_kind.find_in(job)).await
    {
        Some(message) => {
            let message = message?;
            let bytes = message.encoded_len();
            reads::write_response(api, bytes, move |_, response| {
                response.set_range(range);
                response.write_json(&message)
            })
            .await?
        }
        None => {
            let response = reads::with_job(api, id, move |stored, response| {
                response.set_range(range);
                response.write_json(&kind.find_in(&stored.job)?)
            });
            response.await?.1
        }
    };
    Ok(written.into_response())
}
