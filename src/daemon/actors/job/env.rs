//! The environment of job actors.

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
use crate::actors::pauses::CurrentPauses;
use crate::actors::rules::Rules;
use crate::actors::spare_places::SpareTable;
use crate::events::EventHub;
use crate::settings::EventSettings;
use crate::telemetry::Metrics;
use crate::telemetry::rates::JobRates;
use engine::{Job, Limits};
use std::sync::Arc;
use std::time::Duration;

/// What job actors may use. All of them share it.
pub(in crate::actors) struct JobEnv {
    pub(super) router: Mailbox<RouterInput>,
    pub(super) journal: Mailbox<JournalInput>,
    pub(super) supervisor: Mailbox<SupervisorInput>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) call_env: Arc<CallEnv>,
    pub(super) buses: Arc<Buses>,
    pub(super) health: Arc<Health>,
    pub(super) rules: Arc<dyn Rules>,
    pub(super) limits: Limits,
    pub(super) pauses: Arc<CurrentPauses>,
    pub(super) spare_places: Arc<SpareTable>,
    pub(super) memory: Arc<JobMemory>,
    pub(super) child_budget: Arc<ChildBudget>,
    pub(super) event_hub: Arc<EventHub>,
    pub(super) event_settings: EventSettings,
    /// The sampling ratio of traces: the fraction of root jobs whose traces are exported; `None`:
    /// none are.
    pub(super) sampling_ratio: Option<f64>,
    /// How long timeouts are suspended after the disk was full, so that the delayed messages are
    /// sent and answered first. It is the same on every bus, because a full disk stops the messages
    /// of all buses.
    pub(super) unsent_grace: Duration,
    pub(super) metrics: Metrics,
    pub(super) rates: Arc<JobRates>,
    pub(super) log_limiter: Arc<KeyedRateLimiter>,
}

impl JobEnv {
    pub(in crate::actors) fn new(
        core: &ManagerCore,
        mailboxes: &Mailboxes,
        outbox: &Arc<Outbox>,
        call_env: &Arc<CallEnv>,
    ) -> JobEnv {
        JobEnv {
            router: mailboxes.router.clone(),
            journal: mailboxes.journal.clone(),
            supervisor: mailboxes.supervisor.clone(),
            outbox: outbox.clone(),
            call_env: call_env.clone(),
            buses: core.buses.clone(),
            health: core.health.clone(),
            rules: core.rules.clone(),
            limits: core.limits,
            pauses: core.pauses.clone(),
            spare_places: core.spare_places.clone(),
            memory: core.memory.clone(),
            child_budget: core.child_budget.clone(),
            event_hub: core.event_hub.clone(),
            event_settings: core.settings.events.clone(),
            sampling_ratio: core.settings.traces.sampling_ratio(),
            // There is no setting of its own: the grace after a full disk is as long as the one
            // after a lost connection to the broker.
            unsent_grace: core.settings.amqp.replies_first.0,
            metrics: core.metrics.clone(),
            rates: core.rates.clone(),
            log_limiter: core.log_limiter.clone(),
        }
    }

    /// Returns whether the events of a job have a subscriber.
    pub(super) fn has_subscribers(&self, job: &Job) -> bool {
        let origin = job.origin();
        let parent = origin.parent.map_or(origin.root, |parent| parent.job);
        self.event_settings.has_exchange()
            || self.event_hub.has_subscribers([origin.id, parent, origin.root])
    }
}
