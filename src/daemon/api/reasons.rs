//! Groups the failures of jobs and child jobs by the pattern of their reason.

use super::problem::Problem;
use super::query::{self, Query};
use super::reads::{self, page_bytes_for, truncate};
use super::resolve::resolve_workflow;
use super::route::*;
use crate::api::state::ApiState;
use actix_web::{HttpResponse, web};
use base::times::Rfc3339Time;
use engine::{JobId, ReasonPattern};
use journal::{FailureFilter, FailureGroup, GROUPED_FAILURES_MAX};
use serde::Serialize;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[ApiRoute::get("/api/reasons", || web::to(list_reasons))
    .operation(|schemas| {
        let summary = "Why jobs and child jobs failed, the most frequent reasons first";
        OperationSpec::new("listReasons", "jobs", summary)
            .with_parameters(&[WORKFLOW, VHOST_OF_WORKFLOW, ENDED_AFTER, ENDED_BEFORE])
            .with_json_response(200, "The reasons", schemas.reference::<ReasonsView>())
            .with_problems(&[404])
    })];

/// How many groups a response shows: the largest ones.
const GROUPS_MAX: u32 = 100;

/// How many characters of an example's reason are shown.
const REASON_CHARS_MAX: usize = 200;

/// The most memory that a group takes, in bytes: as a value, and as text.
const GROUP_BYTES: usize = 8 * 1024;

/// Responds with the failures, grouped by reason and workflow.
async fn list_reasons(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    let [workflow, vhost, ended_after, ended_before] =
        query.extract(["workflow", "vhost", "endedAfter", "endedBefore"])?;
    query::check_requires("vhost", vhost.is_some(), "workflow", workflow.is_some())?;
    let parse_time = |key, text: Option<String>| {
        text.as_deref().map(|text| query::parse_time(key, text)).transpose()
    };
    let mut filter = FailureFilter {
        workflow: None,
        ended_from: parse_time("endedAfter", ended_after)?,
        ended_before: parse_time("endedBefore", ended_before)?,
    };
    if let Some(name) = workflow {
        filter.workflow = Some(resolve_workflow(&api, &name, vhost.as_deref()).await?);
    }
    let bytes = page_bytes_for(GROUPS_MAX, GROUP_BYTES);
    let read = reads::respond(&api, bytes, move |reader, response| {
        let groups = reader.group_failures(&filter, GROUPS_MAX)?;
        response.write_json(&ReasonsView {
            failures: groups.failures,
            failures_is_minimum: groups.failures >= GROUPED_FAILURES_MAX,
            reasons: groups.groups.into_iter().map(ReasonView::from_group).collect(),
        })
    });
    read.await
}

/// Why jobs and child jobs failed.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Reasons)]
struct ReasonsView {
    /// How many failures are grouped: the newest ones.
    failures: u32,
    /// Whether there may be older failures, which are not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    failures_is_minimum: bool,
    /// The groups, the largest first.
    reasons: Vec<ReasonView>,
}

/// The failures of one workflow whose reasons have one pattern.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Reason)]
struct ReasonView {
    /// The pattern: the reason without ids, numbers, times and quoted values.
    reason: String,
    /// The id of the pattern, by which searches filter.
    #[schema(value_type = String)]
    reason_id: String,
    workflow: String,
    /// How many jobs and child jobs failed.
    count: u32,
    /// How many of them are child jobs.
    children: u32,
    /// When the first and the last of them failed.
    first: Rfc3339Time,
    last: Rfc3339Time,
    /// The newest of them, and why it failed.
    job: JobId,
    example: String,
}

impl ReasonView {
    fn from_group(group: FailureGroup) -> ReasonView {
        let example = group.example_reason.as_deref().unwrap_or_default();
        ReasonView {
            reason: ReasonPattern::from_reason(example).text().to_owned(),
            reason_id: group.reason.to_string(),
            workflow: group.workflow,
            count: group.jobs,
            children: group.children,
            first: Rfc3339Time(group.first),
            last: Rfc3339Time(group.last),
            job: group.example,
            example: truncate(example, REASON_CHARS_MAX),
        }
    }
}
