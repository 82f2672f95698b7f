//! The environment of the router.

use crate::actors::buses::Buses;
use crate::actors::call_check::CallEnv;
use crate::actors::health::Health;
use crate::actors::inputs::{ArchiveInput, JournalInput, RouterInput};
use crate::actors::job::{JobActor, JobEnv};
use crate::actors::loaded_definitions::LoadedDefinitions;
use crate::actors::log_limiter::KeyedRateLimiter;
use crate::actors::mailbox::{ActorMetrics, Mailbox, MailboxActor};
use crate::actors::mailboxes::Mailboxes;
use crate::actors::manager_core::ManagerCore;
use crate::actors::memory::JobMemory;
use crate::actors::outbox::Outbox;
use crate::actors::pauses::CurrentPauses;
use crate::actors::routes::Routes;
use crate::actors::spare_places::SpareTable;
use crate::settings::LimitSettings;
use crate::telemetry::Metrics;
use actix::ArbiterHandle;
use engine::Limits;
use std::sync::Arc;

/// What the router may use.
pub(in crate::actors) struct RouterEnv {
    /// The router's own mailbox. An input that it sends to itself is handled after those that are
    /// already in the mailbox.
    pub(super) router: Mailbox<RouterInput>,
    pub(super) journal: Mailbox<JournalInput>,
    pub(super) archive: Mailbox<ArchiveInput>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) call_env: Arc<CallEnv>,
    pub(super) routes: Routes,
    pub(super) buses: Arc<Buses>,
    pub(super) pauses: Arc<CurrentPauses>,
    pub(super) spare_places: Arc<SpareTable>,
    pub(super) definitions: Arc<LoadedDefinitions>,
    pub(super) health: Arc<Health>,
    pub(super) memory: Arc<JobMemory>,
    /// The limits for the admission of jobs and requests.
    pub(super) limits: LimitSettings,
    /// The limits for decisions of the engine.
    pub(super) decision_limits: Limits,
    pub(super) metrics: Metrics,
    pub(super) log_limiter: Arc<KeyedRateLimiter>,
    /// The environment of the jobs that the router starts.
    pub(super) job_env: Arc<JobEnv>,
    pub(super) job_mailbox_metrics: Arc<ActorMetrics>,
    /// The threads over which job actors are distributed.
    pub(super) arbiters: Vec<ArbiterHandle>,
}

impl RouterEnv {
    pub(in crate::actors) fn new(
        core: &ManagerCore,
        mailboxes: &Mailboxes,
        outbox: &Arc<Outbox>,
        arbiters: Vec<ArbiterHandle>,
    ) -> RouterEnv {
        let call_env = Arc::new(CallEnv::new(core, outbox));
        RouterEnv {
            router: mailboxes.router.clone(),
            journal: mailboxes.journal.clone(),
            archive: mailboxes.archive.clone(),
            outbox: outbox.clone(),
            job_env: Arc::new(JobEnv::new(core, mailboxes, outbox, &call_env)),
            call_env,
            routes: core.routes.clone(),
            buses: core.buses.clone(),
            pauses: core.pauses.clone(),
            spare_places: core.spare_places.clone(),
            definitions: core.definitions.clone(),
            health: core.health.clone(),
            memory: core.memory.clone(),
            limits: core.settings.limits.clone(),
            decision_limits: core.limits,
            metrics: core.metrics.clone(),
            log_limiter: core.log_limiter.clone(),
            job_mailbox_metrics: ActorMetrics::new(&core.metrics, JobActor::KIND),
            arbiters,
        }
    }
}
