//! The inbox: the external steps that run, of jobs and child jobs, those that have waited longest
//! first. Jobs that take input are all in the route table, so it is not the journal that is
//! searched.

use super::active_jobs::{inspect_deadline, inspect_job_until};
use super::problem::Problem;
use super::query::{self, Query, invalid_cursor};
use super::reads::{Look, look_at_job, page_bytes_for, read_with_permit, reserve_response};
use super::resolve::resolve_workflow;
use super::route::*;
use crate::actors::listed_state::asked_steps;
use crate::actors::routes::{AskedJob, AskedJobs};
use crate::api::state::ApiState;
use crate::view::CellsView;
use actix_web::{HttpResponse, web};
use base::times::Rfc3339Time;
use engine::{Job, JobId, StepIndex, Timestamp};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] =
    &[ApiRoute::get("/api/inbox", || web::to(list_inbox)).by_active().operation(|schemas| {
        let summary = "The external steps that wait, those that have waited longest first";
        OperationSpec::new("listInbox", "jobs", summary)
            .with_parameters(&[WORKFLOW, VHOST_OF_WORKFLOW, LIMIT, ASKED_CURSOR])
            .with_json_response(200, "The steps", schemas.reference::<InboxView>())
            .with_problems(&[404])
    })];

/// The number of jobs of a page by default.
const JOBS_DEFAULT: u32 = 100;

/// The most jobs of a page: each is asked for its steps.
const JOBS_MAX: u32 = 1_000;

/// A page ends with the job with which it has so many steps.
const STEPS_MAX: usize = 2_000;

/// How many jobs are asked for their steps at the same time.
const ASKED_AT_ONCE: usize = 16;

/// The most memory that the steps of a job usually take, in bytes: as values, and as text.
const JOB_BYTES: usize = 8 * 1024;

/// Responds with one page of the inbox. A page has all such steps of each of its jobs.
async fn list_inbox(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    let [workflow, vhost, limit, cursor] =
        query.extract(["workflow", "vhost", "limit", "cursor"])?;
    query::check_requires("vhost", vhost.is_some(), "workflow", workflow.is_some())?;
    let limit = limit.as_deref().map_or(Ok(JOBS_DEFAULT), query::parse_limit)?.min(JOBS_MAX);
    let after = cursor.as_deref().map(parse_cursor).transpose()?;
    let workflow = match workflow {
        Some(name) => Some(resolve_workflow(&api, &name, vhost.as_deref()).await?),
        None => None,
    };
    // After a start the router may not know all recovered jobs yet.
    api.active()?.wait_for_router().await;
    let (routes, wanted, rows) = (api.routes.clone(), workflow.clone(), limit as usize);
    // There may be a million jobs, and other requests must not wait for a look at all of them.
    let look = web::block(move || routes.asked_jobs(wanted.as_deref(), after, rows)).await;
    let AskedJobs { jobs, has_more, steps: counts } =
        look.map_err(|error| Problem::internal(error.to_string()))?;
    // The steps are held before they are written.
    let mut response = reserve_response(&api, page_bytes_for(limit, JOB_BYTES)).await?;
    let (last, deadline) = (jobs.last().copied(), inspect_deadline());
    let (mut steps, mut next) = (Vec::new(), last.filter(|_| has_more));
    let look = |job: AskedJob| {
        let api = &api;
        async move { (job, look_at(api, job.id, deadline, view_steps).await) }
    };
    let mut looks = stream::iter(jobs).map(look).buffered(ASKED_AT_ONCE);
    let mut unreadable = 0;
    while let Some((job, found)) = looks.next().await {
        match found? {
            Look::Seen(found) => steps.extend(found),
            Look::Gone => {}
            Look::Unreadable => unreadable += 1,
        }
        if steps.len() >= STEPS_MAX && Some(job) != last {
            next = Some(job);
            break;
        }
    }
    drop(looks);
    add_labels_of_roots(&api, deadline, &mut steps).await?;
    let is_counted = |name: &String| workflow.as_ref().is_none_or(|wanted| wanted == name);
    let count = counts.iter().filter(|(name, _)| is_counted(name)).map(|(_, count)| count).sum();
    let next = next.as_ref().map(to_cursor);
    let view = InboxView { steps, count, workflows: counts, unreadable, next };
    let write = move |_: &dyn journal::Records| response.write_json(&view).map(|()| response);
    Ok(read_with_permit(&api, write).await?.into_response())
}

/// Applies `view` to an active job: the job itself, or as it is in the journal if it is passivated,
/// or if what it did is not committed by the deadline.
async fn look_at<T: Send + 'static>(
    api: &Arc<ApiState>,
    id: JobId,
    deadline: Instant,
    view: fn(&Job) -> T,
) -> Result<Look<T>, Problem> {
    if let Some(view) = inspect_job_until(api, id, deadline, view).await {
        return Ok(Look::Seen(view));
    }
    look_at_job(api, id, move |stored| view(&stored.job)).await
}

/// Returns the external steps of a job that run.
fn view_steps(job: &Job) -> Vec<AskedStepView> {
    let origin = job.origin();
    let (label, columns) = CellsView::from_cells(job.cells());
    let view = |(index, since): (StepIndex, Timestamp)| {
        let (step, parent) = (job.graph().step(index), origin.parent);
        AskedStepView {
            job: job.id(),
            workflow: job.definition().full_name(),
            root: parent.map(|_| origin.root),
            task: parent.map(|_| job.graph().name.clone()),
            item: parent.map(|parent| parent.index),
            label: label.clone(),
            columns: columns.clone(),
            step: step.name.clone(),
            attempt: job.step(index).attempt,
            status: job.status(index).to_owned(),
            since: Rfc3339Time(since),
            status_key: step.status.key.clone(),
            statuses: step.status.words.clone(),
        }
    };
    asked_steps(job).map(view).collect()
}

/// Gives the steps of child jobs the labels and columns of their root jobs.
async fn add_labels_of_roots(
    api: &Arc<ApiState>,
    deadline: Instant,
    steps: &mut [AskedStepView],
) -> Result<(), Problem> {
    let roots: BTreeSet<JobId> = steps.iter().filter_map(|step| step.root).collect();
    let cells: BTreeMap<JobId, _> = stream::iter(roots)
        .map(|root| async move {
            let view = |job: &Job| CellsView::from_cells(job.cells());
            Ok::<_, Problem>((root, look_at(api, root, deadline, view).await?))
        })
        .buffered(ASKED_AT_ONCE)
        .try_collect()
        .await?;
    for step in steps {
        let root = step.root.and_then(|root| cells.get(&root));
        if let Some(Look::Seen((label, columns))) = root {
            (step.label, step.columns) = (label.clone(), columns.clone());
        }
    }
    Ok(())
}

/// Formats the cursor after a job.
fn to_cursor(job: &AskedJob) -> String {
    format!("{}.{}", job.since.0, job.id)
}

/// Parses a cursor that [`to_cursor`] has formatted.
fn parse_cursor(text: &str) -> Result<AskedJob, Problem> {
    let parse = |text: &str| {
        let (since, id) = text.split_once('.')?;
        Some(AskedJob { since: Timestamp(since.parse().ok()?), id: id.parse().ok()? })
    };
    parse(text).ok_or_else(|| invalid_cursor(text))
}

/// A page of the external steps that run.
#[derive(Serialize, ToSchema)]
#[schema(as = Inbox)]
struct InboxView {
    steps: Vec<AskedStepView>,
    /// How many there are on all pages.
    count: usize,
    /// How many there are in each workflow.
    workflows: BTreeMap<String, usize>,
    /// How many jobs of this page cannot be read, because their records are damaged: their steps
    /// are missing.
    unreadable: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// An external step that runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = InboxStep)]
struct AskedStepView {
    job: JobId,
    workflow: String,
    /// The root job, for a child job.
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<JobId>,
    /// The task that a child job runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    /// The index of the item, for a child job.
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<u32>,
    /// The label of the root job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    label: Option<Arc<str>>,
    /// The columns of the root job.
    #[serde(skip_serializing_if = "CellsView::is_empty")]
    #[schema(value_type = Object)]
    columns: CellsView,
    #[schema(value_type = String)]
    step: Arc<str>,
    attempt: u32,
    status: String,
    /// Since when it waits: the start of the attempt.
    since: Rfc3339Time,
    /// The key of the output whose value is the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    status_key: Option<Arc<str>>,
    /// The statuses that the step can have. The first one is that of a step that runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    statuses: Vec<Arc<str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let job =
            AskedJob { since: Timestamp(1_795_256_418_000_000_001), id: JobId::from_call(&[]) };
        assert_eq!(parse_cursor(&to_cursor(&job)).ok(), Some(job));
        for text in ["", "1", "1.", ".1", "1.2", "x.f557697b-f911-401c-86b7-6d9b62f1f2bb"] {
            assert!(parse_cursor(text).is_err(), "{text}");
        }
    }
}
