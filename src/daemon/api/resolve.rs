//! Resolves the names of jobs and workflows in requests.

use super::problem::Problem;
use super::reads::read_small;
use crate::api::state::ApiState;
use engine::text::did_you_mean;
use engine::{Definition, JobId};
use journal::{JobFilter, NEWEST_CURSOR, SearchOrder};
use std::sync::Arc;

/// Parses the id of a job, with or without a slash at its end.
pub(super) fn parse_job_id(text: &str) -> Result<JobId, Problem> {
    let text = text.strip_suffix('/').unwrap_or(text);
    text.parse().map_err(|error: engine::id::InvalidJobId| Problem::malformed(error.to_string()))
}

/// Returns the full name of a workflow: `VHOST/NAME`, or only `NAME` without a virtual host.
fn full_name(name: &str, vhost: Option<&str>) -> String {
    let name = name.strip_suffix('/').unwrap_or(name);
    match vhost {
        Some(vhost) if !vhost.is_empty() => format!("{vhost}/{name}"),
        _ => name.to_owned(),
    }
}

/// Resolves a workflow that is loaded, or that has jobs in the journal. Returns its full name.
pub(super) async fn resolve_workflow(
    api: &Arc<ApiState>,
    name: &str,
    vhost: Option<&str>,
) -> Result<String, Problem> {
    let unknown_workflow = match find_definition(api, name, vhost) {
        Ok(definition) => return Ok(definition.full_name()),
        Err(problem) => problem,
    };
    let full_name = full_name(name, vhost);
    let filter = JobFilter { workflow: Some(full_name.clone()), ..JobFilter::default() };
    let hits = read_small(api, move |reader| {
        reader.search(&filter, SearchOrder::NewestFirst, NEWEST_CURSOR, 1)
    })
    .await?;
    if hits.is_empty() { Err(unknown_workflow) } else { Ok(full_name) }
}

/// Finds the loaded definition of a workflow. Returns a 404 if there is none.
pub(super) fn find_definition(
    api: &ApiState,
    name: &str,
    vhost: Option<&str>,
) -> Result<Arc<Definition>, Problem> {
    let full_name = full_name(name, vhost);
    let definitions = api.definitions();
    definitions.get(&full_name).cloned().ok_or_else(|| {
        let hint = did_you_mean(&full_name, definitions.keys().map(String::as_str));
        Problem::not_found(format!("unknown workflow {full_name}{hint}"))
    })
}

/// Loads the column names of a workflow's status table. Each column has the name of a step, but its
/// case may differ from the loaded definition's.
pub(super) async fn load_status_columns(
    api: &Arc<ApiState>,
    workflow: &str,
) -> Result<Vec<String>, Problem> {
    let name = workflow.to_owned();
    let columns = read_small(api, move |reader| reader.load_status_columns(&name)).await?;
    if columns.is_none() {
        // The active process may not have loaded the workflow yet.
        api.active()?;
    }
    columns.ok_or_else(|| {
        if let Some(wait) = api.health.journal_wait() {
            return Problem::overloaded(wait.as_str().to_owned());
        }
        Problem::internal(format!(
            "the table of statuses of {workflow} is missing: the next start makes it, or the next \
             change of a job"
        ))
    })
}
