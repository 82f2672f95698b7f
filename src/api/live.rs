//! Looks at jobs under way by asking their actors: the journal is not read.

use crate::actors::door;
use crate::actors::ways::Ways;
use crate::engine::{Job, JobId};
use std::time::Duration;

/// How long a look waits for the commit of what it has seen. While the journal cannot be written,
/// what was committed before is read instead.
const LOOK_WAIT_MAX: Duration = Duration::from_secs(1);

/// What `see` makes of the job with this id, once what it has seen is committed. None: no such job
/// is under way, or its actor does not answer now.
pub(super) async fn look<T: Send + 'static>(
    ways: &Ways,
    id: JobId,
    see: impl FnOnce(&Job) -> T + Send + 'static,
) -> Option<T> {
    let look = door::look(ways, id, see);
    tokio::time::timeout(LOOK_WAIT_MAX, look).await.ok().flatten()
}
