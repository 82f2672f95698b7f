//! Shows a step of a job with its attempts, the input and output of a step, and the message of a
//! job.

use super::active_jobs;
use super::history::{self, PAGE_BYTES_MAX};
use super::problem::Problem;
use super::query::Query;
use super::reads::{self, ByteRange};
use super::rebuilt_jobs::{AttemptRange, LONG_RECORD_ENTRIES};
use super::resolve::parse_job_id;
use super::route::*;
use crate::api::state::ApiState;
use crate::view::{AttemptHistory, StepDetail};
use actix_web::{HttpRequest, HttpResponse, web};
use base::clock;
use engine::text::{did_you_mean, quote};
use engine::{Graph, Job, JobId, Message, StepIndex};
use journal::{JobAtEntry, RecordVersion, Records};
use serde_json::json;
use std::ops::RangeInclusive;
use std::sync::Arc;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/api/job/{id}/step/{step}", || web::to(get_step)).operation(|schemas| {
        OperationSpec::new("getStep", "jobs", "A step with its attempts")
            .with_parameters(&[AT])
            .with_json_response(200, "The step", schemas.reference::<StepDetail<'_>>())
            .with_problems(&[404])
    }),
    ApiRoute::get("/api/job/{id}/message", || web::to(get_message))
        .operation(|_| describe_payload("getMessage", "The message that the job was created with")),
    ApiRoute::get("/api/job/{id}/step/{step}/input", || web::to(get_input))
        .operation(|_| describe_payload("getInput", "The input of a step")),
    ApiRoute::get("/api/job/{id}/step/{step}/output", || web::to(get_output))
        .operation(|_| describe_payload("getOutput", "The output of a step")),
];

/// Describes an operation that responds with a payload, unchanged.
fn describe_payload(id: &str, summary: &str) -> OperationSpec {
    OperationSpec::new(id, "jobs", summary)
        .with_json_response(200, "The text", message_schema())
        // A part of a JSON text is not JSON, so it has no schema.
        .with_json_response(206, "The requested range of it", json!({}))
        .with_empty_response(416, "The range begins after its end")
        .with_problems(&[404])
}

/// The most entries that are read at once.
const PAGE_ENTRIES: u32 = 10_000;

/// Shows a step with its attempts, as it is now or as it was after an entry.
async fn get_step(
    api: web::Data<ApiState>,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [at] = query.extract(["at"])?;
    let (id, name) = path.into_inner();
    let id = parse_job_id(&id)?;
    let entry_number = at.map(|text| history::parse_entry_number("at", &text)).transpose()?;
    let attempts = load_attempts(&api, id, name.clone(), entry_number).await?;
    if let Some(entry_number) = entry_number {
        let read =
            reads::with_job_at_entry(&api, id, entry_number, move |job_at_entry, response| {
                match job_at_entry {
                    JobAtEntry::Found { job, at } => {
                        let step = find_step(job.graph(), id, &name)?;
                        response.write_json(&StepDetail::new(job, step, attempts, *at))
                    }
                    JobAtEntry::NoSuchEntry { entries } => {
                        Err(history::unknown_entry(id, entry_number, *entries))
                    }
                }
            });
        let ((), response) = read.await?;
        return Ok(response.into_response());
    }
    let (now, active_attempts, step_name) = (clock::now(), attempts.clone(), name.clone());
    let inspection = active_jobs::inspect_job(&api, id, move |job| {
        let step = find_step(job.graph(), id, &step_name).ok()?;
        serde_json::to_vec(&StepDetail::new(job, step, active_attempts, now)).ok()
    });
    if let Some(body) = inspection.await.flatten() {
        return Ok(HttpResponse::Ok().content_type(mime::APPLICATION_JSON).body(body));
    }
    let read = reads::with_job(&api, id, move |stored, response| {
        let step = find_step(stored.job.graph(), id, &name)?;
        response.write_json(&StepDetail::new(&stored.job, step, attempts, now))
    });
    let ((), response) = read.await?;
    Ok(response.into_response())
}

/// Loads the attempts of a step from the job's entries, up to and including the entry with the
/// number `last_entry`. `None`: from all entries. Those that are cached are not read again.
async fn load_attempts(
    api: &Arc<ApiState>,
    id: JobId,
    name: String,
    last_entry: Option<u64>,
) -> Result<AttemptHistory, Problem> {
    let jobs = api.rebuilt_jobs.clone();
    let read = reads::read_with_permit(api, move |reader| {
        let job = reader.find_parent_job(id)?.ok_or_else(|| Problem::unknown_job(id))?;
        let step = find_step(job.graph(), id, &name)?;
        let current = reader.record_version(id)?.ok_or_else(|| Problem::unknown_job(id))?;
        let (range, version) = match last_entry {
            None => (AttemptRange::All, current),
            Some(last_entry) => {
                let entries = last_entry.min(current.entries);
                (AttemptRange::First, RecordVersion { entries, ..current })
            }
        };
        let (mut attempts, after) = jobs
            .find_attempts((id, step), range, version)
            .unwrap_or_else(|| (AttemptHistory::for_step(step), 0));
        if after < version.entries {
            apply_entries(reader, id, &mut attempts, after..=version.entries)?;
            if current.entries >= LONG_RECORD_ENTRIES {
                jobs.insert_attempts((id, step), range, version, &attempts);
            }
        }
        Ok(attempts)
    });
    read.await
}

/// Applies the entries of a job after the first one of the range, up to and including its last.
fn apply_entries(
    reader: &dyn Records,
    id: JobId,
    attempts: &mut AttemptHistory,
    range: RangeInclusive<u64>,
) -> Result<(), Problem> {
    let (after, last) = range.into_inner();
    if after == 0 {
        let head = reader.for_each_row(id, &mut |row| attempts.apply(&row, last))?;
        return head.map(|_| ()).ok_or_else(|| Problem::unknown_job(id));
    }
    let mut next = Some(after);
    while let Some(after) = next.filter(|after| *after < last) {
        let page = reader
            .load_record_page(id, after, PAGE_ENTRIES, PAGE_BYTES_MAX)?
            .ok_or_else(|| Problem::unknown_job(id))?;
        page.rows.iter().for_each(|row| attempts.apply(row, last));
        next = page.next_cursor();
    }
    Ok(())
}

/// Finds the step with this name. Returns a 404 if the job has none.
pub(super) fn find_step(graph: &Graph, id: JobId, name: &str) -> Result<StepIndex, Problem> {
    graph.find_index(name).ok_or_else(|| {
        let hint = did_you_mean(name, graph.steps.iter().map(|step| &*step.name));
        Problem::not_found(format!("job {id} has no step {}{hint}", quote(name)))
    })
}

/// A payload of a job. It is shown exactly as it was sent.
#[derive(Clone)]
enum PayloadKind {
    /// The message with which the job was created.
    Message,
    /// The input of the step with this name.
    Input(String),
    /// The output of the step with this name.
    Output(String),
}

impl PayloadKind {
    /// Finds the payload in a job. Returns a 404 if the job does not have it.
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

/// Shows the input of a step.
async fn get_input(
    api: web::Data<ApiState>,
    request: HttpRequest,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    respond_payload(&api, &request, &id, query, PayloadKind::Input(step)).await
}

/// Shows the output of a step.
async fn get_output(
    api: web::Data<ApiState>,
    request: HttpRequest,
    path: web::Path<(String, String)>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let (id, step) = path.into_inner();
    respond_payload(&api, &request, &id, query, PayloadKind::Output(step)).await
}

/// Shows the message with which a job was created.
async fn get_message(
    api: web::Data<ApiState>,
    request: HttpRequest,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    respond_payload(&api, &request, &path, query, PayloadKind::Message).await
}

/// Responds with a payload, or with the requested range of it.
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
    let inspection = active_jobs::inspect_job(api, id, move |job| active_kind.find_in(job));
    let buffered = match inspection.await {
        Some(payload) => {
            let payload = payload?;
            let bytes = payload.encoded_len();
            reads::write_response(api, bytes, move |_, response| {
                response.set_range(range);
                response.write_json(&payload)
            })
            .await?
        }
        None => {
            let read = reads::with_job(api, id, move |stored, response| {
                response.set_range(range);
                response.write_json(&kind.find_in(&stored.job)?)
            });
            let ((), response) = read.await?;
            response
        }
    };
    Ok(buffered.into_response())
}
