//! Searches jobs by a filter, for a list or for a bulk operation.

use super::problem::Problem;
use super::query::{self, Query};
use super::reads::{self, PAGE_ROWS, page_bytes_for, read_small, truncate};
use super::resolve::{load_status_columns, parse_job_id, resolve_workflow};
use super::route::*;
use crate::actors::routes::Routes;
use crate::api::state::ApiState;
use crate::view::CellsView;
use actix_web::{HttpResponse, web};
use base::times::Rfc3339Time;
use engine::cell::CELL_BYTES_MAX;
use engine::reason_pattern::InvalidReasonId;
use engine::text::{did_you_mean, quote};
use engine::{JobId, JobState, ReasonId};
use journal::{JobFilter, JobNumber, ParentRecord, Records, SearchHit, SearchOrder};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] =
    &[ApiRoute::get("/api/jobs/search", || web::to(search_jobs)).operation(|schemas| {
        let summary =
            "Jobs that match a filter; also by `status.STEP=WORD` and `column.NAME=VALUE`";
        OperationSpec::new("searchJobs", "jobs", summary)
            .with_parameters(&SEARCH_PARAMETERS)
            .with_parameters(&[WITH_COUNT, PARENT])
            .with_json_response(200, "The jobs", schemas.reference::<SearchAnswer<'_>>())
            .with_problems(&[404])
    })];

/// The parameters that select jobs, for a list or for a bulk operation.
pub(super) const SEARCH_PARAMETERS: [Parameter; 15] = [
    WORKFLOW,
    VHOST_OF_WORKFLOW,
    STATES,
    ID_PREFIX,
    BY_SCHEDULE,
    BY_LABEL,
    BY_REASON,
    BY_FAILED_ITEMS,
    CREATED_AFTER,
    CREATED_BEFORE,
    ENDED_AFTER,
    ENDED_BEFORE,
    ORDER,
    LIMIT,
    CURSOR,
];

/// The parameters by which a search can filter.
pub(super) const FILTERS: [&str; 13] = [
    "workflow",
    "state",
    "id",
    "schedule",
    "after",
    "before",
    "endedAfter",
    "endedBefore",
    "status.<step>",
    "label",
    "reasonId",
    "failedItems",
    "column.<name>",
];

/// The parameters of a search that do not filter.
const OTHER_PARAMETERS: [&str; 4] = ["vhost", "order", "limit", "cursor"];

/// The number up to which matching jobs are counted.
const COUNT_MAX: u32 = 10_000;

/// How many characters of a job's reason a list shows.
const REASON_CHARS_MAX: usize = 200;

/// The fewest hexadecimal digits of an id that can be searched for.
const ID_DIGITS_MIN: usize = 4;

/// The number of hexadecimal digits of a complete id.
const ID_DIGITS: usize = 32;

/// The most memory that a row of a page takes, in bytes: as a value with its reason, and as text.
const ROW_BYTES: usize = 4 * 1024;

/// Returns the most memory that a page of `limit` rows takes, in bytes.
pub(super) fn page_bytes(limit: u32) -> usize {
    page_bytes_for(limit, ROW_BYTES)
}

/// The purpose of a search.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SearchPurpose {
    /// A list of the matching jobs.
    List,
    /// An operation on the matching jobs.
    Bulk,
}

impl SearchPurpose {
    /// Returns the parameters that only searches of this purpose accept.
    fn extra_parameters(self) -> &'static [&'static str] {
        match self {
            SearchPurpose::List => &["count", "parent"],
            SearchPurpose::Bulk => &["dryRun", "step", "items", "reason"],
        }
    }
}

/// The parsed query of a search, or of a bulk operation.
#[derive(Default)]
pub(super) struct SearchQuery {
    pub(super) filter: JobFilter,
    pub(super) order: SearchOrder,
    /// The largest number of rows of the page. `None`: the default.
    limit: Option<u32>,
    /// The cursor: the number of the last job of the page before. `None`: this is the first page.
    after: Option<JobNumber>,
    /// Whether the response has the number of all matching jobs. `None`: it does not.
    must_count: Option<bool>,
    /// The job whose child jobs are searched.
    parent: Option<ParentRecord>,
    /// Whether a bulk operation only lists the matching jobs. `None`: it is carried out.
    pub(super) is_dry_run: Option<bool>,
    /// The step from which a bulk `rerun` runs jobs again.
    pub(super) step: Option<String>,
    /// The items of that step that run again.
    pub(super) items: Option<String>,
    /// The reason that the client gave for a bulk operation.
    pub(super) reason: Option<String>,
}

impl SearchQuery {
    /// Parses the query of a search, and resolves the workflow, parent and steps that it names.
    pub(super) async fn parse(
        api: &Arc<ApiState>,
        pairs: Vec<(String, String)>,
        purpose: SearchPurpose,
    ) -> Result<SearchQuery, Problem> {
        let mut search = SearchQuery::default();
        let (mut workflow, mut vhost, mut states, mut order) = (None, None, None, None);
        let (mut parent, mut failed_items) = (None, None);
        for (key, value) in pairs {
            let is_extra = purpose.extra_parameters().contains(&key.as_str());
            let filter = &mut search.filter;
            let parse_time = || query::parse_time(&key, &value);
            match key.as_str() {
                "vhost" => query::set_once(&mut vhost, &key, value)?,
                "workflow" => query::set_once(&mut workflow, &key, value)?,
                "state" => {
                    let parsed: Result<Vec<JobState>, _> =
                        value.split(',').map(query::parse_state).collect();
                    query::set_once(&mut states, &key, parsed?)?;
                }
                "id" => query::set_once(&mut filter.id_range, &key, parse_id_range(&value)?)?,
                "schedule" => query::set_once(&mut filter.schedule, &key, value)?,
                "reasonId" => query::set_once(&mut filter.reason, &key, parse_reason_id(&value)?)?,
                "failedItems" => {
                    query::set_once(&mut failed_items, &key, query::parse_flag(&key, &value)?)?
                }
                "label" => query::set_once(&mut filter.label, &key, parse_label(value)?)?,
                "after" => query::set_once(&mut filter.created_from, &key, parse_time()?)?,
                "before" => query::set_once(&mut filter.created_before, &key, parse_time()?)?,
                "endedAfter" => query::set_once(&mut filter.ended_from, &key, parse_time()?)?,
                "endedBefore" => query::set_once(&mut filter.ended_before, &key, parse_time()?)?,
                "order" => query::set_once(&mut order, &key, parse_order(&value)?)?,
                "limit" => query::set_once(&mut search.limit, &key, query::parse_limit(&value)?)?,
                "cursor" => query::set_once(&mut search.after, &key, query::parse_cursor(&value)?)?,
                "count" if is_extra => {
                    query::set_once(&mut search.must_count, &key, query::parse_flag(&key, &value)?)?
                }
                "parent" if is_extra => query::set_once(&mut parent, &key, parse_job_id(&value)?)?,
                "dryRun" if is_extra => {
                    query::set_once(&mut search.is_dry_run, &key, query::parse_flag(&key, &value)?)?
                }
                "step" if is_extra => query::set_once(&mut search.step, &key, value)?,
                "items" if is_extra => query::set_once(&mut search.items, &key, value)?,
                "reason" if is_extra => query::set_once(&mut search.reason, &key, value)?,
                _ => match (key.strip_prefix("status."), key.strip_prefix("column.")) {
                    (Some(step), _) => filter.statuses.push((step.to_owned(), value)),
                    (None, Some(name)) => filter.cells.push((name.to_owned(), value)),
                    (None, None) => {
                        let accepted =
                            [&FILTERS[..], &OTHER_PARAMETERS, purpose.extra_parameters()].concat();
                        return Err(query::unknown_parameter(&key, &accepted));
                    }
                },
            }
        }
        query::check_requires("vhost", vhost.is_some(), "workflow", workflow.is_some())?;
        let states = states.unwrap_or_default();
        search.filter.states =
            JobState::ALL.into_iter().filter(|state| states.contains(state)).collect();
        search.order = order.unwrap_or_default();
        search.filter.failed_items = failed_items.unwrap_or_default();
        if let Some(name) = workflow {
            search.filter.workflow = Some(resolve_workflow(api, &name, vhost.as_deref()).await?);
        }
        if let Some(id) = parent {
            let record = read_small(api, move |reader| reader.find_parent_job(id)).await?;
            let record = record.ok_or_else(|| Problem::unknown_job(id))?;
            search.filter.parent = Some(record.key());
            search.parent = Some(record);
        }
        search.check_steps(api).await?;
        search.check_columns(api)?;
        search.check_schedule(api).await?;
        Ok(search)
    }

    /// Returns the largest number of rows of the page.
    pub(super) fn limit(&self) -> u32 {
        self.limit.unwrap_or(PAGE_ROWS)
    }

    /// Returns the cursor after which the page begins.
    pub(super) fn after(&self) -> JobNumber {
        self.after.unwrap_or(self.order.start_cursor())
    }

    /// Checks that the schedule by which the search filters is loaded, or has started jobs.
    async fn check_schedule(&self, api: &Arc<ApiState>) -> Result<(), Problem> {
        let Some(schedule) = self.filter.schedule.clone() else { return Ok(()) };
        if self.parent.is_some() {
            let text = "schedule is about top-level jobs, and parent asks for child jobs";
            return Err(Problem::malformed(text.to_owned()));
        }
        let definitions = api.definitions();
        let loaded: Vec<String> = definitions
            .values()
            .flat_map(|definition| &definition.schedules.0)
            .map(|schedule| schedule.full_name())
            .collect();
        if loaded.contains(&schedule) {
            return Ok(());
        }
        let hint = did_you_mean(&schedule, loaded.iter().map(String::as_str));
        let filter = JobFilter { schedule: Some(schedule.clone()), ..JobFilter::default() };
        let order = SearchOrder::NewestFirst;
        let search =
            move |reader: &dyn Records| reader.search(&filter, order, order.start_cursor(), 1);
        match read_small(api, search).await?.as_slice() {
            [] => Err(Problem::not_found(format!("unknown schedule {schedule}{hint}"))),
            _ => Ok(()),
        }
    }

    /// Checks that the workflow, or any that is loaded, has the columns by which the search
    /// filters.
    fn check_columns(&self, api: &Arc<ApiState>) -> Result<(), Problem> {
        let JobFilter { cells, label, .. } = &self.filter;
        if self.parent.is_some() && (label.is_some() || !cells.is_empty()) {
            let text = "label and column.NAME are about top-level jobs, and parent asks for child \
                        jobs";
            return Err(Problem::malformed(text.to_owned()));
        }
        let definitions = api.definitions();
        let (names, whose): (Vec<&str>, String) = match &self.filter.workflow {
            Some(workflow) => match definitions.get(workflow) {
                Some(definition) => {
                    (definition.columns.names().collect(), format!("workflow {workflow} has"))
                }
                // Its jobs tell.
                None => return Ok(()),
            },
            None => {
                let names = definitions.values().flat_map(|loaded| loaded.columns.names());
                (names.collect(), "no workflow has".to_owned())
            }
        };
        match cells.iter().find(|(name, _)| !names.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => {
                let hint = did_you_mean(name, names.iter().copied());
                let none = if self.filter.workflow.is_some() { "no" } else { "a" };
                Err(Problem::malformed(format!("{whose} {none} column {}{hint}", quote(name))))
            }
        }
    }

    /// Checks that the workflow has the steps by whose status the search filters.
    async fn check_steps(&self, api: &Arc<ApiState>) -> Result<(), Problem> {
        let Some((first_step, _)) = self.filter.statuses.first() else { return Ok(()) };
        if self.parent.is_some() {
            return Err(Problem::malformed(format!(
                "status.{first_step} is about top-level jobs, and parent asks for child jobs"
            )));
        }
        let Some(workflow) = &self.filter.workflow else {
            return Err(Problem::malformed(format!(
                "status.{first_step} needs workflow=NAME: steps belong to a workflow"
            )));
        };
        let step_names: Vec<String> = match api.definitions().get(workflow) {
            Some(definition) => {
                definition.graph().steps.iter().map(|step| step.name.to_string()).collect()
            }
            None => load_status_columns(api, workflow).await?,
        };
        match self.filter.statuses.iter().find(|(step, _)| !step_names.contains(step)) {
            None => Ok(()),
            Some((step, _)) => Err(Problem::malformed(format!(
                "workflow {workflow} has no step {step:?}; its steps are {}",
                step_names.join(", ")
            ))),
        }
    }
}

/// Parses the prefix of an id. Returns the least and the greatest id with that prefix.
fn parse_id_range(text: &str) -> Result<(JobId, JobId), Problem> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let is_valid_length = (ID_DIGITS_MIN..=ID_DIGITS).contains(&digits.len());
    let pad = |digit: char| {
        let padded: String =
            digits.chars().chain(std::iter::repeat(digit)).take(ID_DIGITS).collect();
        u128::from_str_radix(&padded, 16).ok().map(|id| JobId(uuid::Uuid::from_u128(id)))
    };
    let is_hex = digits.chars().all(|c| c.is_ascii_hexdigit());
    match (pad('0'), pad('f')) {
        (Some(first), Some(last)) if is_valid_length && is_hex => Ok((first, last)),
        _ => Err(Problem::malformed(format!(
            "id is {}, expected a job's id or its beginning: {ID_DIGITS_MIN} to {ID_DIGITS} hex \
             digits, hyphens are ignored",
            quote(text)
        ))),
    }
}

/// Parses a text that labels have. An empty one would match every label.
fn parse_label(text: String) -> Result<String, Problem> {
    if text.trim().is_empty() || text.len() > CELL_BYTES_MAX {
        return Err(Problem::malformed(format!(
            "label is {}, expected a text of 1 to {CELL_BYTES_MAX} bytes",
            quote(&text)
        )));
    }
    Ok(text)
}

/// Parses the id of a reason's pattern.
fn parse_reason_id(text: &str) -> Result<ReasonId, Problem> {
    text.parse().map_err(|InvalidReasonId| {
        Problem::malformed(format!(
            "reasonId is {}, expected the id of a reason: 16 hex digits, as GET /api/reasons tells",
            quote(text)
        ))
    })
}

/// Parses the order of the jobs on a page.
fn parse_order(text: &str) -> Result<SearchOrder, Problem> {
    match text {
        "newest" => Ok(SearchOrder::NewestFirst),
        "oldest" => Ok(SearchOrder::OldestFirst),
        other => Err(Problem::malformed(format!("order is {other:?}, expected newest or oldest"))),
    }
}

/// Lists one page of the root jobs, or of the child jobs of one job, that match the filter.
async fn search_jobs(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    let search = SearchQuery::parse(&api, query.into_pairs(), SearchPurpose::List).await?;
    let (limit, routes) = (search.limit(), api.routes.clone());
    let read = reads::respond(&api, page_bytes(limit), move |reader, response| {
        let hits = reader.search(&search.filter, search.order, search.after(), limit)?;
        let count = match search.must_count {
            Some(true) => Some(reader.count_matches(&search.filter, COUNT_MAX + 1)?),
            Some(false) | None => None,
        };
        response.write_json(&SearchAnswer {
            jobs: hits
                .iter()
                .map(|hit| FoundJobView::from_hit(hit, search.parent.as_ref(), &routes))
                .collect(),
            next: next_page(&hits, limit),
            count: count.map(|count| count.min(COUNT_MAX)),
            count_is_minimum: count.is_some_and(|count| count > COUNT_MAX),
        })
    });
    read.await
}

/// The jobs that a search found.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = FoundJobs)]
struct SearchAnswer<'a> {
    jobs: Vec<FoundJobView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// How many jobs there are on all pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    /// Whether there are more jobs than were counted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    count_is_minimum: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = FoundJob)]
pub(super) struct FoundJobView<'a> {
    created: Rfc3339Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Rfc3339Time>,
    /// It has completed, although items of its own fan-outs failed.
    #[serde(rename = "failedItems", skip_serializing_if = "std::ops::Not::not")]
    has_failed_items: bool,
    /// The index of the item, for a child job.
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<u32>,
    job: JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// What its workflow has people call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    label: Option<Arc<str>>,
    #[serde(skip_serializing_if = "CellsView::is_empty")]
    #[schema(value_type = Object)]
    columns: CellsView,
    /// When it begins, until it has begun.
    #[serde(rename = "startsAt", skip_serializing_if = "Option::is_none")]
    starts_at: Option<Rfc3339Time>,
    state: &'a str,
    /// The parent's step, for a child job.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<StepCounts>,
    workflow: &'a str,
}

/// The progress of a job.
#[derive(Serialize, ToSchema)]
struct StepCounts {
    /// The number of its steps that are completed, failed, skipped or cancelled. Present for active
    /// and for completed jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    done: Option<usize>,
    /// The number of all its steps.
    total: usize,
}

impl<'a> FoundJobView<'a> {
    /// Makes the row of a hit. `parent` is the job whose child jobs were searched.
    pub(super) fn from_hit(
        hit: &'a SearchHit,
        parent: Option<&'a ParentRecord>,
        routes: &Routes,
    ) -> FoundJobView<'a> {
        let find_step_name = |parent: &'a ParentRecord| {
            let (step, _) = hit.parent_item?;
            Some(&*parent.graph().steps.get(usize::from(step.0))?.name)
        };
        let state = JobState::from_name(&hit.state);
        let is_active = matches!(state, Some(JobState::Running | JobState::Paused));
        let listed_state = is_active.then(|| routes.listed_state(hit.id)).flatten();
        // For a failed or cancelled job only its record has the number, and reading all records
        // would be too expensive for a list.
        let count_done_steps = |total| match listed_state {
            Some(listed_state) => Some(listed_state.steps_done),
            None => (state == Some(JobState::Completed)).then_some(total),
        };
        let (label, columns) = CellsView::from_cells(hit.cells.clone());
        FoundJobView {
            label,
            columns,
            item: hit.parent_item.map(|(_, item)| item),
            step: parent.and_then(find_step_name),
            steps: hit.steps.map(|total| StepCounts { done: count_done_steps(total), total }),
            created: Rfc3339Time(hit.created),
            ended: hit.ended.map(Rfc3339Time),
            has_failed_items: hit.has_failed_items,
            job: hit.id,
            starts_at: listed_state.and_then(|listed| listed.begins_at).map(Rfc3339Time),
            reason: hit.reason.as_ref().map(|reason| truncate(reason, REASON_CHARS_MAX)),
            state: &hit.state,
            workflow: &hit.workflow,
        }
    }
}

/// Returns the cursor of the next page. Returns `None` if this page is the last one.
pub(super) fn next_page(hits: &[SearchHit], limit: u32) -> Option<String> {
    hits.last().filter(|_| hits.len() == limit as usize).map(|hit| hit.number.to_string())
}
