//! Computes the label and the columns of jobs anew, from their records, by the loaded definition of
//! their workflow (docs/reference/http-api-operations.md). One call does one page of jobs.

use super::operations::parse_reason;
use super::problem::Problem;
use super::query::{self, Query};
use super::reads::{Look, look_at_job, read_small};
use super::resolve::find_definition;
use super::route::*;
use crate::api::state::ApiState;
use actix_web::{HttpResponse, web};
use engine::{Definition, JobId, NamedCell};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use journal::{CellRefill, JobFilter, JobNumber, SearchOrder};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] =
    &[ApiRoute::post("/api/workflows/{workflow}/refill", || web::to(refill_columns)).operation(
        |schemas| {
            let summary = "Computes the label and the columns of jobs anew, by the loaded \
                           definition, page by page";
            OperationSpec::new("refillColumns", "operations", summary)
                .with_parameters(&[VHOST, LIMIT, CURSOR, DRY_RUN, REASON])
                .with_json_response(200, "What was done", schemas.reference::<RefillView>())
                .with_problems(&[404, 409])
        },
    )];

/// The number of jobs of a page by default.
const JOBS_DEFAULT: u32 = 100;

/// The most jobs of a page.
const JOBS_MAX: u32 = 1_000;

/// How many jobs are rebuilt at the same time.
const REBUILT_AT_ONCE: usize = 4;

/// How often jobs that go on meanwhile are computed again.
const ROUNDS: usize = 5;

/// What a page of a refill has done.
#[derive(Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Refill)]
struct RefillView {
    operation: &'static str,
    workflow: String,
    /// The hash of the definition by which the cells were computed.
    definition: String,
    dry_run: bool,
    /// How many jobs were looked at.
    jobs: usize,
    /// How many of them had other cells.
    changed: usize,
    /// How many of them lack a step that a cell reads, which is empty then.
    without_step: usize,
    /// How many of them went on again and again, and are left as they are.
    busy: usize,
    /// How many of them cannot be read, because their records are damaged, and are left as they
    /// are.
    unreadable: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A job whose cells were computed anew.
struct Computed {
    id: JobId,
    refill: CellRefill,
    lacks_step: bool,
}

/// Refills one page of the jobs of a workflow, the oldest first.
async fn refill_columns(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
) -> Result<HttpResponse, Problem> {
    let [vhost, limit, cursor, dry_run, reason] =
        query.extract(["vhost", "limit", "cursor", "dryRun", "reason"])?;
    // The audit log has it.
    parse_reason(reason)?;
    let dry_run = dry_run.map_or(Ok(false), |value| query::parse_flag("dryRun", &value))?;
    let limit = limit.as_deref().map_or(Ok(JOBS_DEFAULT), query::parse_limit)?.min(JOBS_MAX);
    let order = SearchOrder::OldestFirst;
    let after = cursor.as_deref().map_or(Ok(order.start_cursor()), query::parse_cursor)?;
    let definition = find_definition(&api, &path, vhost.as_deref())?;
    let workflow = definition.full_name();
    let filter = JobFilter { workflow: Some(workflow.clone()), ..JobFilter::default() };
    let find = move |reader: &dyn journal::Records| {
        let hits = reader.search(&filter, order, after, limit)?;
        Ok(hits.into_iter().map(|hit| (hit.number, hit.id)).collect::<Vec<_>>())
    };
    let found = read_small(&api, find).await?;
    let next = found.last().filter(|_| found.len() == limit as usize);
    let mut view = RefillView {
        operation: "refill",
        workflow,
        definition: definition.hash().to_string(),
        dry_run,
        jobs: found.len(),
        next: next.map(|(number, _)| number.to_string()),
        ..RefillView::default()
    };
    let mut ids: Vec<JobId> = found.into_iter().map(|(_, id)| id).collect();
    for round in 0..ROUNDS {
        view.busy = 0;
        let (computed, unreadable) = compute(&api, &definition, ids).await?;
        view.unreadable += unreadable;
        if round == 0 {
            view.without_step = computed.iter().filter(|job| job.lacks_step).count();
        }
        let changed = keep_changed(&api, &definition, computed).await?;
        if dry_run {
            view.changed = changed.len();
            return Ok(HttpResponse::Ok().json(view));
        }
        if changed.is_empty() {
            return Ok(HttpResponse::Ok().json(view));
        }
        let (numbers, refills): (HashMap<JobNumber, JobId>, Vec<CellRefill>) =
            changed.into_iter().map(|job| ((job.refill.job, job.id), job.refill)).unzip();
        let count = refills.len();
        if find_definition(&api, &path, vhost.as_deref())? != definition {
            let workflow = &view.workflow;
            return Err(Problem::conflict(format!(
                "the definition of workflow {workflow} was changed meanwhile: begin again"
            )));
        }
        let moved_on = api
            .active()?
            .refill_cells(definition.clone(), refills)
            .await
            .map_err(Problem::overloaded)?;
        view.changed += count - moved_on.len();
        view.busy = moved_on.len();
        ids = moved_on.iter().filter_map(|number| numbers.get(number).copied()).collect();
        if ids.is_empty() {
            break;
        }
    }
    Ok(HttpResponse::Ok().json(view))
}

/// Computes the cells of jobs by this definition. Jobs that do not exist any more are left out, and
/// so are jobs that cannot be read, which are counted.
async fn compute(
    api: &Arc<ApiState>,
    definition: &Arc<Definition>,
    ids: Vec<JobId>,
) -> Result<(Vec<Computed>, usize), Problem> {
    let compute_job = |id: JobId| {
        let definition = definition.clone();
        look_at_job(api, id, move |stored| {
            let refilled = stored.job.refilled_cells(&definition.columns);
            let refill = CellRefill {
                job: stored.number,
                entries: stored.job.entry_count(),
                cells: refilled.cells,
            };
            Computed { id, refill, lacks_step: refilled.lacks_step }
        })
    };
    let looks = stream::iter(ids).map(compute_job).buffered(REBUILT_AT_ONCE);
    let looks: Vec<Look<Computed>> = looks.try_collect().await?;
    let unreadable = looks.iter().filter(|look| matches!(look, Look::Unreadable)).count();
    let computed = looks.into_iter().filter_map(|look| match look {
        Look::Seen(computed) => Some(computed),
        Look::Gone | Look::Unreadable => None,
    });
    Ok((computed.collect(), unreadable))
}

/// Returns the jobs that have other cells in the journal.
async fn keep_changed(
    api: &Arc<ApiState>,
    definition: &Arc<Definition>,
    mut computed: Vec<Computed>,
) -> Result<Vec<Computed>, Problem> {
    let numbers: Vec<JobNumber> = computed.iter().map(|job| job.refill.job).collect();
    let definition = definition.clone();
    let load =
        move |reader: &dyn journal::Records| reader.load_cells(&numbers, &definition.columns);
    let stored: HashMap<JobNumber, Vec<NamedCell>> = read_small(api, load).await?;
    computed.retain(|job| {
        let stored = stored.get(&job.refill.job).map_or(&[][..], Vec::as_slice);
        let find = |name: &str| stored.iter().find(|(other, _)| **other == *name);
        let is_same = |(name, cell): &NamedCell| {
            find(name).and_then(|(_, stored)| stored.as_ref()) == cell.as_ref()
        };
        !job.refill.cells.iter().all(is_same)
    });
    Ok(computed)
}
