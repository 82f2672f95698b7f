//! Lists workflows, with the number of their active jobs and statistics of their jobs.

use super::problem::Problem;
use super::query::{self, Query};
use super::reads::{read_small, truncate};
use super::route::*;
use crate::api::state::ApiState;
use crate::telemetry::rates::Rate;
use actix_web::{HttpResponse, web};
use base::clock;
use base::times::Rfc3339Time;
use engine::text::quote;
use engine::{Definition, JobId, JobState};
use journal::{JobFilter, JournalError, Records, SearchHit, SearchOrder};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use utoipa::ToSchema;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/api/workflows", || web::to(list_workflows)).operation(|schemas| {
        OperationSpec::new("listWorkflows", "workflows", "The loaded workflows")
            .with_parameters(&[ALL, STATS])
            .with_json_response(200, "The workflows", schemas.list_of::<WorkflowRow<'_>>())
    }),
    ApiRoute::get("/api/workflows/{rest:.*}", || web::to(list_workflows)).without_operation(),
];

/// The longest time span of statistics.
const SPAN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The unit, and the shortest time span, of statistics.
const MINUTE: Duration = Duration::from_secs(60);

/// How many characters of a job's reason are shown.
const REASON_CHARS_MAX: usize = 200;

#[derive(Serialize, ToSchema)]
#[schema(as = Workflow)]
struct WorkflowRow<'a> {
    vhost: &'a str,
    name: &'a str,
    job_count: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    loaded: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<Stats>,
}

/// Statistics of the jobs of a workflow.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WorkflowStats)]
struct Stats {
    /// Root jobs in the journal, by state.
    #[schema(value_type = BTreeMap<String, i64>)]
    states: BTreeMap<&'static str, i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_running: Option<KnownJobView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failed: Option<KnownJobView>,
    /// Missing at a standby, which does not count.
    #[serde(flatten)]
    rate: Option<Rate>,
}

/// A job that is shown as an example.
#[derive(Serialize, ToSchema)]
#[schema(as = KnownJob)]
struct KnownJobView {
    job: JobId,
    created: Rfc3339Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Rfc3339Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The part of a workflow's statistics that comes from the journal.
#[derive(Default)]
struct StoredStats {
    states: BTreeMap<&'static str, i64>,
    oldest_running: Option<KnownJobView>,
    last_failed: Option<KnownJobView>,
}

/// Lists the loaded workflows; with `all` also other workflows that have active jobs.
async fn list_workflows(api: web::Data<ApiState>, query: Query) -> Result<HttpResponse, Problem> {
    let [all, stats] = query.extract(["all", "stats"])?;
    let must_list_unloaded = all.map_or(Ok(false), |value| query::parse_flag("all", &value))?;
    let minutes = stats.as_deref().map(parse_minutes).transpose()?;
    let definitions = api.definitions();
    let counts = read_small(&api, |reader| reader.count_running_root_jobs()).await?;
    let unloaded_names = counts
        .iter()
        .map(|(full_name, _)| full_name)
        .filter(|full_name| must_list_unloaded && !definitions.contains_key(*full_name))
        .cloned();
    let names: Vec<String> = definitions.keys().cloned().chain(unloaded_names).collect();
    let mut stored_stats = match minutes {
        Some(_) => {
            let names = names.clone();
            read_small(&api, move |reader| load_stats(reader, &names)).await?
        }
        None => BTreeMap::new(),
    };
    let now = clock::now();
    let rows = names.iter().map(|full_name| {
        let definition = definitions.get(full_name);
        let (vhost, name) = match definition {
            Some(definition) => (definition.vhost.as_str(), definition.name.as_str()),
            None => Definition::split_full_name(full_name),
        };
        let StoredStats { states, oldest_running, last_failed } =
            stored_stats.remove(full_name).unwrap_or_default();
        let to_stats = |minutes| Stats {
            states,
            oldest_running,
            last_failed,
            rate: api.rates.as_ref().map(|rates| rates.rate(full_name, now, minutes)),
        };
        let count = counts.iter().find(|(workflow, _)| workflow == full_name);
        WorkflowRow {
            vhost,
            name,
            job_count: count.map_or(0, |(_, count)| *count),
            loaded: must_list_unloaded.then_some(definition.is_some()),
            stats: minutes.map(to_stats),
        }
    });
    Ok(HttpResponse::Ok().json(rows.collect::<Vec<_>>()))
}

/// Loads the statistics of these workflows from the journal, by full name.
fn load_stats(
    reader: &dyn Records,
    names: &[String],
) -> Result<BTreeMap<String, StoredStats>, JournalError> {
    let mut stats_by_workflow: BTreeMap<String, StoredStats> =
        names.iter().map(|name| (name.clone(), StoredStats::default())).collect();
    for (workflow, state, count) in reader.count_root_jobs_by_state()? {
        if let Some(stats) = stats_by_workflow.get_mut(&workflow) {
            stats.states.insert(state.as_str(), count);
        }
    }
    let find_first = |workflow: &str, states: &[JobState], order: SearchOrder| {
        let filter = JobFilter {
            workflow: Some(workflow.to_owned()),
            states: states.to_vec(),
            ..JobFilter::default()
        };
        let mut hits = reader.search(&filter, order, order.start_cursor(), 1)?;
        Ok::<_, JournalError>(hits.pop().map(KnownJobView::from_hit))
    };
    for (workflow, stats) in &mut stats_by_workflow {
        let active = [JobState::Running, JobState::Paused];
        stats.oldest_running = find_first(workflow, &active, SearchOrder::OldestFirst)?;
        stats.last_failed = find_first(workflow, &[JobState::Failed], SearchOrder::NewestFirst)?;
    }
    Ok(stats_by_workflow)
}

impl KnownJobView {
    fn from_hit(hit: SearchHit) -> KnownJobView {
        KnownJobView {
            job: hit.id,
            created: Rfc3339Time(hit.created),
            ended: hit.ended.map(Rfc3339Time),
            reason: hit.reason.map(|reason| truncate(&reason, REASON_CHARS_MAX)),
        }
    }
}

/// Parses the time span of statistics. Returns it in whole minutes.
fn parse_minutes(text: &str) -> Result<usize, Problem> {
    let span = humantime::parse_duration(text).ok();
    let span = span.filter(|span| (MINUTE..=SPAN_MAX).contains(span)).ok_or_else(|| {
        Problem::malformed(format!(
            "stats is {}, expected how far back to count, from 1m to 24h, such as 1h",
            quote(text)
        ))
    })?;
    Ok(usize::try_from(span.as_secs() / MINUTE.as_secs()).unwrap_or(usize::MAX))
}
