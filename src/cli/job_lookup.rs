//! Finds the job of which only the beginning of the id is given.

use super::arguments::JobRef;
use super::client::Client;
use super::error::ClientError;
use super::responses::parse_response;
use super::text::Text;
use engine::JobId;
use serde::Deserialize;

/// How many matching jobs are listed.
const MATCHES_MAX: usize = 10;

#[derive(Deserialize)]
struct MatchesResponse {
    jobs: Vec<MatchResponse>,
}

#[derive(Deserialize)]
struct MatchResponse {
    job: Text,
    workflow: Text,
    state: Text,
}

impl JobRef {
    /// Returns the full id. A prefix is looked up among the root jobs, and must match exactly one.
    pub(super) fn resolve(&self, client: &Client) -> Result<JobId, ClientError> {
        let prefix = match self {
            JobRef::Full(id) => return Ok(*id),
            JobRef::Prefix(beginning) => beginning,
        };
        let limit = MATCHES_MAX + 1;
        let query = [("id".to_owned(), prefix.clone()), ("limit".to_owned(), limit.to_string())];
        let MatchesResponse { jobs } = parse_response(&client.query("/api/jobs/search", &query)?)?;
        let refused = |text: String| Err(ClientError::Refused(text));
        match jobs.as_slice() {
            [] => refused(format!(
                "no job's id begins with {prefix}; that of a child job is given whole"
            )),
            [one] => one.job.raw().parse().map_err(|_| {
                ClientError::Refused(format!("the manager answers with an odd id, {}", one.job))
            }),
            several => {
                let listed = several.len().min(MATCHES_MAX);
                let more = if several.len() > listed { "more than " } else { "" };
                let lines = several
                    .iter()
                    .take(listed)
                    .map(|found| format!("\n  {}  {}  {}", found.job, found.workflow, found.state));
                let lines: String = lines.collect();
                refused(format!(
                    "the ids of {more}{listed} jobs begin with {prefix}, give more digits:{lines}"
                ))
            }
        }
    }

    /// Returns the full id, where no manager can be asked.
    pub(super) fn full_id(&self) -> Result<JobId, ClientError> {
        match self {
            JobRef::Full(id) => Ok(*id),
            JobRef::Prefix(beginning) => Err(ClientError::Usage(format!(
                "{beginning} is the beginning of an id, and no manager is asked: give the whole id"
            ))),
        }
    }
}
