//! Resolves references to jobs, which may be prefixes of ids.

use super::arguments::JobRef;
use super::client::Client;
use super::error::ClientError;
use super::responses::parse_response;
use super::text::Text;
use engine::JobId;
use serde::Deserialize;

/// How many jobs are listed if a prefix is ambiguous.
const MATCHES_LISTED_MAX: usize = 10;

/// The jobs whose ids begin with a prefix.
#[derive(Deserialize)]
struct MatchesResponse {
    jobs: Vec<MatchResponse>,
}

/// A job whose id begins with a prefix.
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
            JobRef::Prefix(prefix) => prefix,
        };
        // One more than is listed, to find out whether there are more.
        let limit = MATCHES_LISTED_MAX + 1;
        let query = [("id".to_owned(), prefix.clone()), ("limit".to_owned(), limit.to_string())];
        let MatchesResponse { jobs } = parse_response(&client.query("/api/jobs/search", &query)?)?;
        let refuse = |text: String| Err(ClientError::Refused(text));
        match jobs.as_slice() {
            [] => refuse(format!(
                "no job's id begins with {prefix}; that of a child job is given whole"
            )),
            [job] => job.job.raw().parse().map_err(|_| {
                ClientError::Refused(format!("the manager answers with an odd id, {}", job.job))
            }),
            jobs => {
                let listed_count = jobs.len().min(MATCHES_LISTED_MAX);
                let qualifier = if jobs.len() > listed_count { "more than " } else { "" };
                let lines = jobs
                    .iter()
                    .take(listed_count)
                    .map(|job| format!("\n  {}  {}  {}", job.job, job.workflow, job.state));
                let lines: String = lines.collect();
                refuse(format!(
                    "the ids of {qualifier}{listed_count} jobs begin with {prefix}, give more \
                     digits:{lines}"
                ))
            }
        }
    }

    /// Returns the full id without calling a manager. A prefix is an error.
    pub(super) fn full_id(&self) -> Result<JobId, ClientError> {
        match self {
            JobRef::Full(id) => Ok(*id),
            JobRef::Prefix(prefix) => Err(ClientError::Usage(format!(
                "{prefix} is the beginning of an id, and no manager is asked: give the whole id"
            ))),
        }
    }
}
