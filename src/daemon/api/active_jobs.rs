//! Inspects active jobs through their actors, without reading the journal.

use crate::api::state::ApiState;
use engine::{Job, JobId};
use std::sync::Arc;
use std::time::Duration;

/// How long an inspection waits for the commit of the state that it has seen. While the journal
/// cannot be written, inspections time out. Their callers then read the last committed state from
/// the journal.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Applies `inspect` to the job with this id, and waits until the inspected state is committed.
/// Returns `None` if no such job is active, if it is passivated, or if the commit takes longer than
/// [`INSPECT_TIMEOUT`].
pub(super) async fn inspect_job<T: Send + 'static>(
    api: &Arc<ApiState>,
    id: JobId,
    inspect: impl FnOnce(&Job) -> T + Send + 'static,
) -> Option<T> {
    let inspection = api.manager.inspect_job(id, inspect);
    tokio::time::timeout(INSPECT_TIMEOUT, inspection).await.ok().flatten()
}
