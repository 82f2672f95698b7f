//! What calls of the API use.

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

/// What calls use, over HTTP and gRPC.
pub struct ApiState {
    /// The settings in force.
    pub settings: Arc<Settings>,
    /// Which principal may do what.
    pub access: Arc<Access>,
    /// Bounds on what clients make the process hold.
    pub budgets: Budgets,
    /// Reads the journal.
    pub reader: Arc<dyn Records>,
    /// The metrics.
    pub metrics: Metrics,
    /// The outcomes of jobs, minute by minute.
    pub rates: Arc<JobRates>,
    /// The streams of events.
    pub feeds: Arc<EventHub>,
    /// Keeps what comes from outside from flooding the log.
    pub log_limiter: Arc<KeyedRateLimiter>,
    /// What may be asked of the manager.
    pub manager: ManagerHandle,
}

impl ApiState {
    /// Creates what the calls to a manager use: once for each manager, so that all its servers
    /// share tokens and bounds.
    pub fn new(manager: &Manager) -> Arc<ApiState> {
        let core = manager.core();
        Arc::new(ApiState {
            settings: core.settings.clone(),
            access: Arc::new(Access::new(&core.settings.http)),
            budgets: Budgets::new(&core.settings.http, &core.settings.embedded),
            reader: core.reader.clone(),
            metrics: core.metrics.clone(),
            rates: core.rates.clone(),
            feeds: core.feeds.clone(),
            log_limiter: core.log_limiter.clone(),
            manager: manager.handle().clone(),
        })
    }

    /// Returns what reloads the files of the manager.
    pub fn reloader(&self) -> Reloader {
        Reloader {
            settings: self.settings.clone(),
            access: self.access.clone(),
            metrics: self.metrics.clone(),
            manager: self.manager.clone(),
        }
    }
}
