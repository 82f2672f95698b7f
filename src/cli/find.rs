//! Finds the job of which only the beginning of the id is given.

use super::arguments::JobRef;
use super::client::Client;
use super::error::ClientError;
use super::show::parse;
use super::text::Text;
use crate::engine::JobId;
use serde::Deserialize;

/// How many matching jobs are listed.
const TOLD_MAX: usize = 10;

#[derive(Deserialize)]
struct Page {
    jobs: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    job: Text,
    workflow: Text,
    state: Text,
}

impl JobRef {
    /// Returns the full id. A prefix is looked up among the root jobs, and must match exactly one.
    pub(super) fn find(&self, client: &Client) -> Result<JobId, ClientError> {
        let beginning = match self {
            JobRef::Whole(id) => return Ok(*id),
            JobRef::Beginning(beginning) => beginning,
        };
        let limit = TOLD_MAX + 1;
        let query = [("id".to_owned(), beginning.clone()), ("limit".to_owned(), limit.to_string())];
        let Page { jobs } = parse(&client.query("/api/jobs/search", &query)?)?;
        let refused = |text: String| Err(ClientError::Refused(text));
        match jobs.as_slice() {
            [] => refused(format!(
                "no job's id begins with {beginning}; that of a child job is given whole"
            )),
            [one] => one.job.raw().parse().map_err(|_| {
                ClientError::Refused(format!("the manager answers with an odd id, {}", one.job))
            }),
            several => {
                let count = several.len().min(TOLD_MAX);
                let more = if several.len() > count { "more than " } else { "" };
                let lines = several
                    .iter()
                    .take(count)
                    .map(|found| format!("\n  {}  {}  {}", found.job, found.workflow, found.state));
                let lines: String = lines.collect();
                refused(format!(
                    "the ids of {more}{count} jobs begin with {beginning}, give more digits:{lines}"
                ))
            }
        }
    }

    /// Returns the full id, where no manager can be asked.
    pub(super) fn whole(&self) -> Result<JobId, ClientError> {
        match self {
            JobRef::Whole(id) => Ok(*id),
            JobRef::Beginning(beginning) => Err(ClientError::Usage(format!(
                "{beginning} is the beginning of an id, and no manager is asked: give the whole id"
            ))),
        }
    }
}
