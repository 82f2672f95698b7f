//! The child jobs of a job: listed and filtered, a page at a time.

use super::named::job_id;
use super::problem::Problem;
use super::query::{self, Query};
use super::reads::{self, PAGE_ROWS, cut, read, rows_bytes};
use crate::actors::common::Common;
use crate::engine::words::{did_you_mean, enumerated, quoted};
use crate::engine::{Graph, JobId, StepIndex};
use crate::journal::{ChildCursor, ChildFilter, ChildRow};
use crate::times::Time;
use actix_web::{HttpResponse, web};
use serde::Serialize;
use utoipa::ToSchema;

/// How much of a reason a list contains, in characters; the child job itself has all of it.
const REASON_CHARS_MAX: usize = 1_000;

/// The most that a row takes, in bytes: as it is read, with its reason, and as text.
const ROW_BYTES: usize = 8 * 1024;

#[derive(Serialize, ToSchema)]
#[schema(as = ChildJobs)]
pub(super) struct Page<'a> {
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
    created: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Handles `GET /api/job/{id}/children[?state=S][&step=NAME][&limit=N][&after=CURSOR]`: lists by
/// step and item.
pub(super) async fn of_job(
    common: web::Data<Common>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [state, step, limit, after] = query.of(["state", "step", "limit", "after"])?;
    let id = job_id(&path)?;
    let state = state.as_deref().map(query::state).transpose()?;
    let limit = limit.as_deref().map_or(Ok(PAGE_ROWS), query::limit)?;
    let after = after.as_deref().map_or(Ok(ChildCursor::START), cursor)?;
    let family = read(&common, move |reader| reader.family(id))
        .await?
        .ok_or_else(|| Problem::unknown_job(id))?;
    let step = step.map(|name| step_named(family.graph(), &name)).transpose()?;
    let filter = ChildFilter { state, step };
    let page = reads::answer(&common, rows_bytes(limit, ROW_BYTES), move |reader, answer| {
        let rows = reader.children(&family, filter, after, limit)?;
        let next =
            rows.last().filter(|_| rows.len() == limit as usize).map(|row| text_of(row.cursor));
        answer.json(&Page {
            children: rows.iter().map(|row| shown(family.graph(), row)).collect(),
            next,
        })
    });
    page.await
}

fn shown<'a>(graph: &'a Graph, row: &'a ChildRow) -> ChildView<'a> {
    ChildView {
        job: row.id,
        step: graph.steps.get(usize::from(row.step.0)).map_or("", |step| &*step.name),
        item: row.item,
        state: &row.state,
        created: Time(row.created),
        ended: row.ended.map(Time),
        reason: row.reason.as_ref().map(|reason| cut(reason, REASON_CHARS_MAX)),
    }
}

/// Finds the step with this name, which must be a fan-out step.
fn step_named(graph: &Graph, name: &str) -> Result<StepIndex, Problem> {
    let with_children =
        || graph.steps.iter().filter(|step| step.task.is_some()).map(|step| &*step.name);
    if with_children().any(|known| known == name) {
        return graph
            .index_of(name)
            .ok_or_else(|| Problem::broken("a step without an index".to_owned()));
    }
    let hint = did_you_mean(name, with_children());
    let known = enumerated(with_children(), "and");
    let known =
        if known.is_empty() { "none does".to_owned() } else { format!("those that do: {known}") };
    Err(Problem::not_found(format!(
        "the job has no step {} that starts child jobs{hint}; {known}",
        quoted(name)
    )))
}

fn text_of(cursor: ChildCursor) -> String {
    format!("{}.{}.{}", cursor.step, cursor.item, cursor.number)
}

fn cursor(text: &str) -> Result<ChildCursor, Problem> {
    let numbers: Result<Vec<i64>, _> = text.split('.').map(str::parse).collect();
    match numbers.as_deref() {
        Ok([step, item, number]) => Ok(ChildCursor { step: *step, item: *item, number: *number }),
        Ok(_) | Err(_) => Err(Problem::malformed(format!(
            "after is {}, which this API did not give: pass on the \"next\" of the page before",
            quoted(text)
        ))),
    }
}
