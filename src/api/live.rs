//! Inspects jobs under way through their actors, without reading the journal.

use crate::actors::door;
use crate::actors::ways::Ways;
use crate::engine::{Job, JobId};
use std::time::Duration;

/// How long to wait until what was inspected is committed. While the journal cannot be written,
/// callers read what was committed before instead.
const LOOK_WAIT_MAX: Duration = Duration::from_secs(1);

/// Applies `inspect` to the job with this id, and waits until the inspected state is committed.
/// Returns `None` if no such job is under way, or its actor does not answer now.
pub(super) async fn look<T: Send + 'static>(
    ways: &Ways,
    id: JobId,
    see: impl FnOnce(&Job) -> T + Send + 'static,
) -> Option<T> {
    let look = door::look(ways, id, see);
    tokio::time::timeout(LOOK_WAIT_MAX, look).await.ok().flatten()
}
