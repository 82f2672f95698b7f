//! Lists and filters the child jobs of a job, page by page.

use super::problem::Problem;
use super::query::{self, Query};
use super::reads::{self, PAGE_ROWS, page_bytes_for, read_small, truncate};
use super::resolve::parse_job_id;
use super::route::*;
use crate::api::state::ApiState;
use actix_web::{HttpResponse, web};
use base::times::Rfc3339Time;
use engine::text::{did_you_mean, enumerate_quoted, quote};
use engine::{Graph, JobId, StepIndex};
use journal::{ChildCursor, ChildFilter, ChildRow};
use serde::Serialize;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] =
    &[ApiRoute::get("/api/job/{id}/children", || web::to(list_children)).operation(|schemas| {
        OperationSpec::new("listChildJobs", "jobs", "The child jobs of a job, by step and item")
            .with_parameters(&[STATE, STEP, LIMIT, CHILD_AFTER])
            .with_json_response(200, "The child jobs", schemas.reference::<Page<'_>>())
            .with_problems(&[404])
    })];

/// How many characters of a child job's reason a list shows. The child job itself shows it in
/// full.
const REASON_CHARS_MAX: usize = 1_000;

/// The most memory that a row of a page takes, in bytes: as a value with its reason, and as text.
const ROW_BYTES: usize = 8 * 1024;

#[derive(Serialize, ToSchema)]
#[schema(as = ChildJobs)]
struct Page<'a> {
    children: Vec<ChildView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ChildJob)]
struct ChildView<'a> {
    job: JobId,
    step: &'a str,
    item: u32,
    state: &'a str,
    created: Rfc3339Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Rfc3339Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Lists the child jobs of a job, optionally of one step or in one state.
async fn list_children(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [state, step, limit, after] = query.extract(["state", "step", "limit", "after"])?;
    let id = parse_job_id(&path)?;
    let state = state.as_deref().map(query::parse_state).transpose()?;
    let limit = limit.as_deref().map_or(Ok(PAGE_ROWS), query::parse_limit)?;
    let after = after.as_deref().map_or(Ok(ChildCursor::START), parse_cursor)?;
    let parent = read_small(&api, move |reader| reader.find_parent_job(id))
        .await?
        .ok_or_else(|| Problem::unknown_job(id))?;
    let step = step.map(|name| find_fan_out_step(parent.graph(), &name)).transpose()?;
    let filter = ChildFilter { state, step };
    let page = reads::respond(&api, page_bytes_for(limit, ROW_BYTES), move |reader, response| {
        let rows = reader.load_children(&parent, filter, after, limit)?;
        let next = rows
            .last()
            .filter(|_| rows.len() == limit as usize)
            .map(|row| format_cursor(row.cursor));
        response.write_json(&Page {
            children: rows.iter().map(|row| to_view(parent.graph(), row)).collect(),
            next,
        })
    });
    page.await
}

/// Converts a row to its view. `graph` is the graph of the parent.
fn to_view<'a>(graph: &'a Graph, row: &'a ChildRow) -> ChildView<'a> {
    ChildView {
        job: row.id,
        step: graph.steps.get(usize::from(row.step.0)).map_or("", |step| &*step.name),
        item: row.item,
        state: &row.state,
        created: Rfc3339Time(row.created),
        ended: row.ended.map(Rfc3339Time),
        reason: row.reason.as_ref().map(|reason| truncate(reason, REASON_CHARS_MAX)),
    }
}

/// Finds the step with this name, which must be a fan-out step.
fn find_fan_out_step(graph: &Graph, name: &str) -> Result<StepIndex, Problem> {
    let fan_out_steps =
        || graph.steps.iter().filter(|step| step.task.is_some()).map(|step| &*step.name);
    let fan_out_step = graph.find_index(name).filter(|step| graph.step(*step).task.is_some());
    fan_out_step.ok_or_else(|| {
        let hint = did_you_mean(name, fan_out_steps());
        let names = enumerate_quoted(fan_out_steps(), "and");
        let alternatives = if names.is_empty() {
            "none does".to_owned()
        } else {
            format!("those that do: {names}")
        };
        Problem::not_found(format!(
            "the job has no step {} that starts child jobs{hint}; {alternatives}",
            quote(name)
        ))
    })
}

/// Formats a cursor for a response. The client passes it on in its next request.
fn format_cursor(cursor: ChildCursor) -> String {
    format!("{}.{}.{}", cursor.step, cursor.item, cursor.number)
}

/// Parses a cursor that [`format_cursor`] has formatted.
fn parse_cursor(text: &str) -> Result<ChildCursor, Problem> {
    let numbers: Result<Vec<i64>, _> = text.split('.').map(str::parse).collect();
    match numbers.as_deref() {
        Ok([step, item, number]) => Ok(ChildCursor { step: *step, item: *item, number: *number }),
        Ok(_) | Err(_) => Err(Problem::malformed(format!(
            "after is {}, which this API did not give: pass on the \"next\" of the page before",
            quote(text)
        ))),
    }
}
