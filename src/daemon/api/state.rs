//! The shared state of the HTTP and gRPC servers of one manager.

use crate::access::Access;
use crate::actors::log_limiter::KeyedRateLimiter;
use crate::actors::manager::Manager;
use crate::actors::manager_handle::ManagerHandle;
use crate::budgets::Budgets;
use crate::events::EventHub;
use crate::reload::Reloader;
use crate::settings::Settings;
use crate::telemetry::Metrics;
use crate::telemetry::rates::JobRates;
use journal::Records;
use std::sync::Arc;

/// The shared state that requests use, over HTTP and gRPC.
pub struct ApiState {
    /// The settings in force.
    pub settings: Arc<Settings>,
    /// The tokens and the TLS certificate.
    pub access: Arc<Access>,
    /// Bounds on the memory and the reads that clients can occupy.
    pub budgets: Budgets,
    /// Reads the journal.
    pub reader: Arc<dyn Records>,
    /// The metrics.
    pub metrics: Metrics,
    /// How many jobs were created and ended, by minute.
    pub rates: Arc<JobRates>,
    /// Distributes events to their subscribers.
    pub event_hub: Arc<EventHub>,
    /// Limits log lines that clients can cause, so that they cannot flood the log.
    pub log_limiter: Arc<KeyedRateLimiter>,
    /// The handle of the running manager.
    pub manager: ManagerHandle,
}

impl ApiState {
    /// Creates the state. A manager must have only one, so that all its servers share tokens and
    /// bounds.
    pub fn new(manager: &Manager) -> Arc<ApiState> {
        let core = manager.core();
        Arc::new(ApiState {
            settings: core.settings.clone(),
            access: Arc::new(Access::new(&core.settings.http)),
            budgets: Budgets::new(&core.settings.http, &core.settings.embedded),
            reader: core.reader.clone(),
            metrics: core.metrics.clone(),
            rates: core.rates.clone(),
            event_hub: core.event_hub.clone(),
            log_limiter: core.log_limiter.clone(),
            manager: manager.handle().clone(),
        })
    }

    /// Returns the reloader of the manager's files.
    pub fn reloader(&self) -> Reloader {
        Reloader {
            settings: self.settings.clone(),
            access: self.access.clone(),
            metrics: self.metrics.clone(),
            manager: self.manager.clone(),
        }
    }
}
