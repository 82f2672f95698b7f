//! What all actors share: the settings, the limits, the metrics, the definitions, the
//! health. Nothing in it leads to an actor; [`ActorHandles`](super::handles::ActorHandles) do.

use super::child_budget::ChildBudget;
use super::health::Health;
use super::inputs::Definitions;
use super::losses::QueueLosses;
use super::mailbox::ActorMetrics;
use super::memory::{JobMemory, MemoryGauges};
use super::rules::Rules;
use crate::events::{EventHub, Webhook};
use crate::settings::Settings;
use crate::telemetry::Metrics;
use crate::telemetry::rates::JobRates;
use crate::traces::Traces;
use base::clock;
use engine::{Definition, Job, Limits, Timestamp};
use journal::Records;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::mpsc;

/// Returns the definitions by their full names.
pub fn index_by_name(definitions: Vec<Arc<Definition>>) -> Definitions {
    definitions.into_iter().map(|definition| (definition.full_name(), definition)).collect()
}

/// What all actors of a process share.
pub struct Common {
    /// The settings in force; they never change.
    pub settings: Arc<Settings>,
    /// The limits for decisions; from the settings.
    pub limits: Limits,
    /// The metrics.
    pub metrics: Metrics,
    /// The outcomes of jobs, minute by minute.
    pub rates: Arc<JobRates>,
    /// The metrics of job mailboxes.
    pub job_actor_metrics: Arc<ActorMetrics>,
    /// The rules that decide for the jobs.
    pub rules: Arc<dyn Rules>,
    definitions: RwLock<Arc<Definitions>>,
    /// Reads the journal.
    pub reader: Arc<dyn Records>,
    /// What readiness and liveness are answered from.
    pub health: Health,
    /// The queues that have lost messages.
    pub queue_losses: QueueLosses,
    /// When the process started, by the wall clock and by a monotonic one.
    pub started_at: (Timestamp, tokio::time::Instant),
    /// Keeps what comes from outside from flooding the log.
    pub log_limiter: Arc<KeyedRateLimiter>,
    /// The streams of events.
    pub feeds: Arc<EventHub>,
    /// The webhook, if there is one.
    pub webhook: Option<Arc<Webhook>>,
    /// The traces of jobs, if they are sent.
    pub traces: Option<Traces>,
    /// The memory that jobs under way hold.
    pub memory: Arc<JobMemory>,
    /// What all fan-outs share.
    pub child_budget: Arc<ChildBudget>,
    fatal: mpsc::UnboundedSender<String>,
}

impl Common {
    /// Creates the shared state of a process; `fatal` receives the reason if the process has to
    /// end.
    ///
    /// # Errors
    ///
    /// Returns an error if the webhook cannot be made.
    pub fn new(
        settings: Settings,
        definitions: Definitions,
        rules: Arc<dyn Rules>,
        reader: Arc<dyn Records>,
        fatal: mpsc::UnboundedSender<String>,
    ) -> Result<Common, String> {
        let limits = Limits {
            step_message_bytes_max: settings.limits.step_message_bytes_max,
            reply_bytes_max: settings.limits.reply_bytes_max,
            depth_max: settings.limits.depth_max,
            window: settings.fanout.window,
            window_bytes: settings.fanout.window_bytes,
        };
        let metrics = Metrics::new();
        metrics.set_definitions(&definitions, settings.metrics.steps_max);
        let gauges = MemoryGauges {
            used: metrics.jobs_bytes.clone(),
            max: metrics.jobs_bytes_max.clone(),
            passivated: metrics.jobs_passivated.clone(),
            pending: metrics.job_trees_waiting.clone(),
        };
        let memory = JobMemory::new(settings.limits.jobs_bytes_max, gauges);
        let child_budget = Arc::new(ChildBudget::new(settings.fanout.children_max));
        let health = Health::new(settings.default_bus()).with_memory(memory.clone());
        let job_actor_metrics = ActorMetrics::new(&metrics, "job");
        let webhook = Webhook::new(&settings, &metrics)?;
        let traces = Traces::new(&settings, &metrics);
        Ok(Common {
            settings: Arc::new(settings),
            limits,
            metrics,
            rates: Arc::default(),
            job_actor_metrics,
            rules,
            definitions: RwLock::new(Arc::new(definitions)),
            reader,
            health,
            queue_losses: QueueLosses::default(),
            started_at: (clock::now(), clock::timer_now()),
            log_limiter: Arc::default(),
            feeds: Arc::default(),
            webhook: webhook.map(Arc::new),
            traces,
            memory,
            child_budget,
            fatal,
        })
    }

    /// Returns the definitions for new jobs.
    pub fn definitions(&self) -> Arc<Definitions> {
        self.definitions.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the definitions; running jobs keep theirs.
    pub(super) fn set_definitions(&self, definitions: Definitions) {
        self.metrics.set_definitions(&definitions, self.settings.metrics.steps_max);
        *self.definitions.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(definitions);
    }

    /// Returns whether anybody subscribes to the events of a job.
    pub fn has_subscribers(&self, job: &Job) -> bool {
        let origin = job.origin();
        let parent = origin.parent.map_or(origin.root, |parent| parent.job);
        self.settings.events.has_exchange()
            || self.feeds.has_subscribers([origin.id, parent, origin.root])
    }

    /// Ends the process in order, for this reason.
    pub fn report_fatal(&self, reason: String) {
        // Closed only when the process is ending already.
        let _ = self.fatal.send(reason);
    }
}

/// Lets each kind of line into the log once a minute (docs/operations.md).
#[derive(Default)]
pub struct KeyedRateLimiter(Mutex<BTreeMap<&'static str, tokio::time::Instant>>);

/// How often a kind of line may be logged.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

impl KeyedRateLimiter {
    /// Returns whether a line of this kind may be logged now; if so, the next may follow after a
    /// minute.
    pub fn may_log(&self, kind: &'static str) -> bool {
        // Not the wall clock: if it were set back, nothing would be logged for that long.
        let now = clock::timer_now();
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due =
            logged.get(kind).is_none_or(|at| now.saturating_duration_since(*at) >= LOG_INTERVAL);
        if due {
            logged.insert(kind, now);
        }
        due
    }
}
