//! The state that the parts of a manager share. Each actor is given only its part of it: an
//! environment (`…Env`), which is defined beside the actor.

use super::buses::Buses;
use super::child_budget::ChildBudget;
use super::fatal::FatalReporter;
use super::health::Health;
use super::inputs::Definitions;
use super::loaded_definitions::LoadedDefinitions;
use super::log_limiter::KeyedRateLimiter;
use super::losses::QueueLosses;
use super::memory::{JobMemory, MemoryGauges};
use super::pauses::CurrentPauses;
use super::routes::Routes;
use super::rules::Rules;
use super::spare_places::SpareTable;
use crate::events::{EventHub, Webhook};
use crate::settings::Settings;
use crate::telemetry::Metrics;
use crate::telemetry::rates::JobRates;
use crate::traces::Traces;
use base::clock;
use bus::LeaseQueues;
use engine::{Limits, Timestamp};
use journal::Records;
use std::sync::Arc;

/// The shared state of a manager, from which the environments of its actors are made.
pub struct ManagerCore {
    /// The settings. They do not change while the process runs.
    pub settings: Arc<Settings>,
    /// The limits for decisions of the engine, from the settings.
    pub limits: Limits,
    /// The metrics.
    pub metrics: Metrics,
    /// The creations and outcomes of jobs, by minute.
    pub rates: Arc<JobRates>,
    /// The rules that decide for the jobs.
    pub rules: Arc<dyn Rules>,
    /// The definitions for new jobs.
    pub definitions: Arc<LoadedDefinitions>,
    /// The readers of the journal.
    pub reader: Arc<dyn Records>,
    /// The health of the manager, for readiness and liveness.
    pub health: Arc<Health>,
    /// The queues that have lost messages.
    pub queue_losses: Arc<QueueLosses>,
    /// When the process started, by the wall clock and by the monotonic clock.
    pub started_at: (Timestamp, tokio::time::Instant),
    /// Limits the rate of log lines about messages and requests from outside.
    pub log_limiter: Arc<KeyedRateLimiter>,
    /// The hub of events, to which clients subscribe.
    pub event_hub: Arc<EventHub>,
    /// The webhook; `None`: the settings have none.
    pub webhook: Option<Arc<Webhook>>,
    /// The exporter of traces; `None`: the settings have none.
    pub traces: Option<Arc<Traces>>,
    /// The memory that active jobs hold.
    pub memory: Arc<JobMemory>,
    /// The budget of child jobs, which all fan-outs share.
    pub child_budget: Arc<ChildBudget>,
    /// Shuts the process down after a fatal error.
    pub fatal: FatalReporter,
    /// The routes of the jobs that take input. Only the router changes them.
    pub routes: Routes,
    /// The queues and workflows that are paused. Only the router changes them.
    pub pauses: Arc<CurrentPauses>,
    /// The spare places of limits. Only the router adds limits.
    pub spare_places: Arc<SpareTable>,
    /// The registry of buses.
    pub buses: Arc<Buses>,
    /// The lease queues of embedded buses.
    pub lease_queues: Arc<LeaseQueues>,
}

/// Returns the limits for decisions of the engine.
pub(crate) fn engine_limits(settings: &Settings) -> Limits {
    Limits {
        step_message_bytes_max: settings.limits.step_message_bytes_max,
        reply_bytes_max: settings.limits.reply_bytes_max,
        depth_max: settings.limits.depth_max,
        window: settings.fanout.window,
        window_bytes: settings.fanout.window_bytes,
    }
}

impl ManagerCore {
    /// Creates the shared state of a manager with these settings.
    ///
    /// # Errors
    ///
    /// Returns an error if the webhook cannot be created.
    pub(super) fn new(
        settings: Settings,
        definitions: Definitions,
        (rules, lease_queues): (Arc<dyn Rules>, Arc<LeaseQueues>),
        (reader, routes): (Arc<dyn Records>, Routes),
        metrics: Metrics,
        fatal: FatalReporter,
    ) -> Result<ManagerCore, String> {
        let limits = engine_limits(&settings);
        let steps_max = settings.metrics.steps_max;
        let definitions = LoadedDefinitions::new(definitions, metrics.clone(), steps_max);
        let gauges = MemoryGauges {
            used: metrics.jobs_bytes.clone(),
            max: metrics.jobs_bytes_max.clone(),
            passivated: metrics.jobs_passivated.clone(),
            pending: metrics.job_trees_waiting.clone(),
        };
        let memory = JobMemory::new(settings.limits.jobs_bytes_max, gauges);
        let health = Health::new(settings.default_bus()).with_memory(memory.clone());
        Ok(ManagerCore {
            limits,
            rates: Arc::default(),
            rules,
            definitions: Arc::new(definitions),
            reader,
            health: Arc::new(health),
            queue_losses: Arc::default(),
            started_at: (clock::now(), clock::timer_now()),
            log_limiter: Arc::default(),
            event_hub: Arc::default(),
            webhook: Webhook::new(&settings, &metrics)?.map(Arc::new),
            traces: Traces::new(&settings, &metrics).map(Arc::new),
            memory,
            child_budget: Arc::new(ChildBudget::new(settings.fanout.children_max)),
            fatal,
            routes,
            pauses: Arc::default(),
            spare_places: Arc::default(),
            buses: Arc::new(Buses::new(&settings)),
            lease_queues,
            metrics,
            settings: Arc::new(settings),
        })
    }
}
