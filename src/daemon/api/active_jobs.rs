//! Inspects active jobs through their actors, without reading the journal.

use crate::actors::role::Role;
use crate::api::state::ApiState;
use base::clock::timer_now;
use engine::{Control, Gate, Job, JobId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long an inspection waits for the commit of the state that it has seen. While the journal
/// cannot be written, inspections time out. Their callers then read the last committed state from
/// the journal.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Applies `inspect` to the job with this id, and waits until the inspected state is committed.
/// Returns `None` if no such job is active, if it is passivated, if this process stands by, or if
/// the commit takes longer than [`INSPECT_TIMEOUT`].
pub(super) async fn inspect_job<T: Send + 'static>(
    api: &Arc<ApiState>,
    id: JobId,
    inspect: impl FnOnce(&Job) -> T + Send + 'static,
) -> Option<T> {
    inspect_job_until(api, id, inspect_deadline(), inspect).await
}

/// Returns until when inspections wait that share one wait.
pub(super) fn inspect_deadline() -> Instant {
    timer_now() + INSPECT_TIMEOUT
}

/// Does the same as [`inspect_job`], but waits until `deadline` at most.
pub(super) async fn inspect_job_until<T: Send + 'static>(
    api: &Arc<ApiState>,
    id: JobId,
    deadline: Instant,
    inspect: impl FnOnce(&Job) -> T + Send + 'static,
) -> Option<T> {
    let Role::Active(manager) = &api.role else { return None };
    if deadline <= timer_now() {
        return None;
    }
    let inspection = manager.inspect_job(id, inspect);
    tokio::time::timeout_at(deadline, inspection).await.ok().flatten()
}

/// Applies `inspect` to the job with this id. Returns the result, and a receiver for
/// [`wait_for_commit`] of the inspected state. Returns `None` if no such job is active, if it is
/// passivated, or if its actor takes longer than [`INSPECT_TIMEOUT`].
pub(super) async fn inspect_uncommitted<T: Send + 'static>(
    api: &Arc<ApiState>,
    id: JobId,
    inspect: impl FnOnce(&Job) -> T + Send + 'static,
) -> Option<(T, oneshot::Receiver<()>)> {
    let Role::Active(manager) = &api.role else { return None };
    let inspection = manager.inspect_uncommitted(id, inspect);
    tokio::time::timeout(INSPECT_TIMEOUT, inspection).await.ok().flatten()
}

/// Waits for a commit. Returns whether it came within [`INSPECT_TIMEOUT`].
pub(super) async fn wait_for_commit(commit: oneshot::Receiver<()>) -> bool {
    tokio::time::timeout(INSPECT_TIMEOUT, commit).await.is_ok()
}

/// Applies `inspect` to the gate of the limits. Returns `None` if this process stands by, if it is
/// stopping, or if its router takes longer than [`INSPECT_TIMEOUT`].
pub(super) async fn inspect_gate<T: Send + 'static>(
    api: &Arc<ApiState>,
    inspect: impl FnOnce(&Gate) -> T + Send + 'static,
) -> Option<T> {
    let Role::Active(manager) = &api.role else { return None };
    tokio::time::timeout(INSPECT_TIMEOUT, manager.inspect_gate(inspect)).await.ok().flatten()
}

/// Waits until the job with this id takes input, if it has not ended.
pub(super) async fn activate_job(api: &Arc<ApiState>, id: JobId) {
    let Role::Active(manager) = &api.role else { return };
    if !api.routes.is_active(id) {
        // After a start the router may not know all recovered jobs yet.
        manager.wait_for_router().await;
    }
    manager.activate(id).await;
}

/// Returns the controls in force; none if this process stands by, is stopping, or if its router
/// takes longer than [`INSPECT_TIMEOUT`].
pub(super) async fn list_controls(api: &Arc<ApiState>) -> Vec<Control> {
    let Role::Active(manager) = &api.role else { return Vec::new() };
    tokio::time::timeout(INSPECT_TIMEOUT, manager.controls()).await.unwrap_or_default()
}
