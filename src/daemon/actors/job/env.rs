//! What the actors of jobs use.

use crate::actors::buses::Buses;
use crate::actors::call_check::CallEnv;
use crate::actors::child_budget::ChildBudget;
use crate::actors::health::Health;
use crate::actors::inputs::{JournalInput, RouterInput, SupervisorInput};
use crate::actors::log_limiter::KeyedRateLimiter;
use crate::actors::mailbox::Mailbox;
use crate::actors::mailboxes::Mailboxes;
use crate::actors::manager_core::ManagerCore;
use crate::actors::memory::JobMemory;
use crate::actors::outbox::Outbox;
use crate::actors::rules::Rules;
use crate::events::EventHub;
use crate::settings::EventSettings;
use crate::telemetry::Metrics;
use crate::telemetry::rates::JobRates;
use engine::{Job, Limits};
use std::sync::Arc;
use std::time::Duration;

/// What the actors of jobs use. All of them share it.
pub(in crate::actors) struct JobEnv {
    pub(super) router: Mailbox<RouterInput>,
    pub(super) journal: Mailbox<JournalInput>,
    pub(super) supervisor: Mailbox<SupervisorInput>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) calls: Arc<CallEnv>,
    pub(super) buses: Arc<Buses>,
    pub(super) health: Arc<Health>,
    pub(super) rules: Arc<dyn Rules>,
    pub(super) limits: Limits,
    pub(super) memory: Arc<JobMemory>,
    pub(super) child_budget: Arc<ChildBudget>,
    pub(super) feeds: Arc<EventHub>,
    pub(super) events: EventSettings,
    /// The share of root jobs whose traces are exported, if any are.
    pub(super) sampling_rate: Option<f64>,
    /// How long a timeout waits after a time in which messages could not be sent.
    pub(super) unsent_wait: Duration,
    pub(super) metrics: Metrics,
    pub(super) rates: Arc<JobRates>,
    pub(super) log_limiter: Arc<KeyedRateLimiter>,
}

impl JobEnv {
    pub(in crate::actors) fn new(
        core: &ManagerCore,
        mailboxes: &Mailboxes,
        outbox: &Arc<Outbox>,
        calls: &Arc<CallEnv>,
    ) -> JobEnv {
        JobEnv {
            router: mailboxes.router.clone(),
            journal: mailboxes.journal.clone(),
            supervisor: mailboxes.supervisor.clone(),
            outbox: outbox.clone(),
            calls: calls.clone(),
            buses: core.buses.clone(),
            health: core.health.clone(),
            rules: core.rules.clone(),
            limits: core.limits,
            memory: core.memory.clone(),
            child_budget: core.child_budget.clone(),
            feeds: core.feeds.clone(),
            events: core.settings.events.clone(),
            sampling_rate: core.settings.traces.sampling_rate(),
            unsent_wait: core.settings.amqp.replies_first.0,
            metrics: core.metrics.clone(),
            rates: core.rates.clone(),
            log_limiter: core.log_limiter.clone(),
        }
    }

    /// Returns whether anybody subscribes to the events of a job.
    pub(super) fn has_subscribers(&self, job: &Job) -> bool {
        let origin = job.origin();
        let parent = origin.parent.map_or(origin.root, |parent| parent.job);
        self.events.has_exchange() || self.feeds.has_subscribers([origin.id, parent, origin.root])
    }
}
