//! The shared state of the HTTP and gRPC servers of one process.

use super::problem::Problem;
use super::rebuilt_jobs::RebuiltJobs;
use crate::access::Access;
use crate::actors::buses::Buses;
use crate::actors::health::{Health, HealthCheck};
use crate::actors::loaded_definitions::{Definitions, LoadedDefinitions};
use crate::actors::log_limiter::KeyedRateLimiter;
use crate::actors::losses::QueueLosses;
use crate::actors::manager::Manager;
use crate::actors::manager_core::engine_limits;
use crate::actors::manager_handle::ManagerHandle;
use crate::actors::role::{Role, Standby};
use crate::actors::routes::{self, Routes};
use crate::budgets::Budgets;
use crate::events::EventHub;
use crate::reload::Reloader;
use crate::settings::Settings;
use crate::telemetry::Metrics;
use crate::telemetry::rates::JobRates;
use base::clock;
use engine::{Limits, Timestamp};
use journal::Records;
use std::sync::Arc;

/// The shared state that requests use, over HTTP and gRPC. What only an active process has is
/// behind [`active`](Self::active).
pub struct ApiState {
    /// The settings in force.
    pub settings: Arc<Settings>,
    /// The tokens and the TLS certificate.
    pub access: Arc<Access>,
    /// Bounds on the memory and the reads that clients can occupy.
    pub budgets: Budgets,
    /// Ended jobs that were rebuilt from long records.
    pub rebuilt_jobs: Arc<RebuiltJobs>,
    /// Reads the journal.
    pub reader: Arc<dyn Records>,
    /// The metrics.
    pub metrics: Metrics,
    /// How many jobs were created and ended, by minute; `None`: a standby does not count them.
    pub rates: Option<Arc<JobRates>>,
    /// Distributes events to their subscribers.
    pub event_hub: Arc<EventHub>,
    /// Limits log lines that clients can cause, so that they cannot flood the log.
    pub log_limiter: Arc<KeyedRateLimiter>,
    /// The loaded definitions.
    pub definitions: Arc<LoadedDefinitions>,
    /// The health of the manager; that of a standby knows nothing.
    pub health: Arc<Health>,
    /// The routes of active jobs; a standby has none.
    pub routes: Routes,
    /// The registry of buses. Those of a standby are not started.
    pub buses: Arc<Buses>,
    /// The queues that have lost messages; a standby knows none.
    pub queue_losses: Arc<QueueLosses>,
    /// The limits for decisions of the engine.
    pub limits: Limits,
    /// When the process started, by the wall clock and by the monotonic clock.
    pub started_at: (Timestamp, tokio::time::Instant),
    /// Whether this process is active.
    pub role: Role,
}

impl ApiState {
    /// Creates the state. A manager must have only one, so that all its servers share tokens and
    /// bounds.
    pub fn new(manager: &Manager) -> Arc<ApiState> {
        let access = Access::new(&manager.core().settings.http);
        ApiState::with_access(manager, Arc::new(access))
    }

    /// Creates the state of a manager. Its tokens and certificate are those of the standby that it
    /// was before.
    pub fn with_access(manager: &Manager, access: Arc<Access>) -> Arc<ApiState> {
        let core = manager.core();
        let budgets = Budgets::new(&core.settings.http, &core.settings.embedded);
        Arc::new(ApiState {
            settings: core.settings.clone(),
            access,
            rebuilt_jobs: Arc::new(RebuiltJobs::new(&budgets.answers, &core.settings.http)),
            budgets,
            reader: core.reader.clone(),
            metrics: core.metrics.clone(),
            rates: Some(core.rates.clone()),
            event_hub: core.event_hub.clone(),
            log_limiter: core.log_limiter.clone(),
            definitions: core.definitions.clone(),
            health: core.health.clone(),
            routes: core.routes.clone(),
            buses: core.buses.clone(),
            queue_losses: core.queue_losses.clone(),
            limits: core.limits,
            started_at: core.started_at,
            role: Role::Active(manager.handle().clone()),
        })
    }

    /// Creates the state of a process that stands by: it has no actors.
    pub fn stand_by(
        settings: Settings,
        definitions: Definitions,
        reader: Arc<dyn Records>,
        metrics: Metrics,
        standby: Standby,
    ) -> Arc<ApiState> {
        let steps_max = settings.metrics.steps_max;
        let (_, routes) = routes::new_route_table();
        let budgets = Budgets::new(&settings.http, &settings.embedded);
        Arc::new(ApiState {
            access: Arc::new(Access::new(&settings.http)),
            rebuilt_jobs: Arc::new(RebuiltJobs::new(&budgets.answers, &settings.http)),
            budgets,
            reader,
            rates: None,
            event_hub: Arc::default(),
            log_limiter: Arc::default(),
            definitions: Arc::new(LoadedDefinitions::new(definitions, metrics.clone(), steps_max)),
            health: Arc::new(Health::new(settings.default_bus())),
            routes,
            buses: Arc::new(Buses::new(&settings)),
            queue_losses: Arc::default(),
            limits: engine_limits(&settings),
            started_at: (clock::now(), clock::timer_now()),
            role: Role::Standby(standby),
            metrics,
            settings: Arc::new(settings),
        })
    }

    /// Returns the handle of the active manager.
    ///
    /// # Errors
    ///
    /// Returns a 503 that names the active one if this process stands by.
    pub fn active(&self) -> Result<&ManagerHandle, Problem> {
        match &self.role {
            Role::Active(manager) => Ok(manager),
            Role::Standby(standby) => Err(Problem::standby(standby)),
        }
    }

    /// Returns the definitions for new jobs.
    pub fn definitions(&self) -> Arc<Definitions> {
        self.definitions.current()
    }

    /// Returns the results of all checks of readiness.
    pub fn checks(&self) -> Vec<HealthCheck> {
        match &self.role {
            Role::Active(_) => self.health.checks(),
            Role::Standby(standby) => vec![standby.check()],
        }
    }

    /// Returns the reloader of the manager's files.
    pub fn reloader(&self) -> Reloader {
        Reloader {
            settings: self.settings.clone(),
            access: self.access.clone(),
            metrics: self.metrics.clone(),
            definitions: self.definitions.clone(),
            role: self.role.clone(),
        }
    }
}
