//! The environment of bus actors.

use super::buses::Buses;
use super::fatal::FatalReporter;
use super::health::Health;
use super::inputs::{JournalInput, RouterInput};
use super::log_limiter::KeyedRateLimiter;
use super::losses::QueueLosses;
use super::mailbox::Mailbox;
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use super::routes::Routes;
use crate::telemetry::Metrics;
use std::sync::Arc;

/// What bus actors may use. All of them share it.
pub struct BusEnv {
    pub(super) router: Mailbox<RouterInput>,
    pub(super) journal: Mailbox<JournalInput>,
    pub(super) routes: Routes,
    pub(super) buses: Arc<Buses>,
    pub(super) health: Arc<Health>,
    pub(super) queue_losses: Arc<QueueLosses>,
    pub(super) metrics: Metrics,
    pub(super) log_limiter: Arc<KeyedRateLimiter>,
    pub(super) fatal: FatalReporter,
}

impl BusEnv {
    pub(super) fn new(core: &ManagerCore, mailboxes: &Mailboxes) -> BusEnv {
        BusEnv {
            router: mailboxes.router.clone(),
            journal: mailboxes.journal.clone(),
            routes: core.routes.clone(),
            buses: core.buses.clone(),
            health: core.health.clone(),
            queue_losses: core.queue_losses.clone(),
            metrics: core.metrics.clone(),
            log_limiter: core.log_limiter.clone(),
            fatal: core.fatal.clone(),
        }
    }
}
