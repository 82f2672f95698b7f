//! Resolves the names in a request's path: of a job, or of a workflow.

use super::problem::Problem;
use super::reads::read_small;
use crate::actors::health::JournalWait;
use crate::api::state::ApiState;
use engine::text::did_you_mean;
use engine::{Definition, JobId};
use journal::{JobFilter, NEWEST_CURSOR, SearchOrder};
use std::sync::Arc;

pub(super) fn parse_job_id(text: &str) -> Result<JobId, Problem> {
    let text = text.strip_suffix('/').unwrap_or(text);
    text.parse().map_err(|error: engine::id::InvalidJobId| Problem::malformed(error.to_string()))
}

fn full_name(name: &str, vhost: Option<&str>) -> String {
    let name = name.strip_suffix('/').unwrap_or(name);
    match vhost {
        Some(vhost) if !vhost.is_empty() => format!("{vhost}/{name}"),
        _ => name.to_owned(),
    }
}

/// Resolves the full name of a workflow that is loaded, or that has jobs in the journal.
pub(super) async fn resolve_workflow(
    api: &Arc<ApiState>,
    name: &str,
    vhost: Option<&str>,
) -> Result<String, Problem> {
    let unknown = match find_definition(api, name, vhost) {
        Ok(definition) => return Ok(definition.full_name()),
        Err(unknown) => unknown,
    };
    let full = full_name(name, vhost);
    let filter = JobFilter { workflow: Some(full.clone()), ..JobFilter::default() };
    let found = read_small(api, move |reader| {
        reader.search(&filter, SearchOrder::NewestFirst, NEWEST_CURSOR, 1)
    })
    .await?;
    if found.is_empty() { Err(unknown) } else { Ok(full) }
}

pub(super) fn find_definition(
    api: &ApiState,
    name: &str,
    vhost: Option<&str>,
) -> Result<Arc<Definition>, Problem> {
    let full = full_name(name, vhost);
    let definitions = api.manager.definitions();
    definitions.get(&full).cloned().ok_or_else(|| {
        let hint = did_you_mean(&full, definitions.keys().map(String::as_str));
        Problem::not_found(format!("unknown workflow {full}{hint}"))
    })
}

/// Loads the steps that the table of statuses of a workflow has, by the names of its columns.
pub(super) async fn load_status_columns(
    api: &Arc<ApiState>,
    workflow: &str,
) -> Result<Vec<String>, Problem> {
    let name = workflow.to_owned();
    let columns = read_small(api, move |reader| reader.load_status_columns(&name)).await?;
    columns.ok_or_else(|| {
        if api.manager.health().is_journal_waiting() {
            return Problem::overloaded(JournalWait::DiskSpace.as_str().to_owned());
        }
        Problem::internal(format!(
            "the table of statuses of {workflow} is missing: the next start makes it, or the next \
             change of a job"
        ))
    })
}
