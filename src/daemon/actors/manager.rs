//! Starts and stops the manager. An application that embeds it sends requests through its
//! [handle](ManagerHandle), as the API does.
//!
//! Order of start: journal (lock, verify, recover) → arbiters → mailboxes → journal actor, router,
//! archive, supervisor, notifier → buses → jobs.
//!
//! Order of stop: no new jobs → buses stop taking deliveries and wait for confirms → the webhook →
//! the journal commits the remaining records → traces and events of the last commits are sent →
//! readers → threads.

use super::archive::{Archive, ArchiveEnv};
use super::broker_probe::BrokerProbe;
use super::bus_starter::{
    BusFactory, BusProvider, BusStarter, StartError, StartGate, StartGateReceiver,
    event_topic_factory, queues_by_bus, settings_bus_provider,
};
use super::fatal::{FatalReporter, StopReason};
use super::inputs::{BusInput, JournalInput, NotifierInput, RouterInput, SchedulerInput};
use super::journal::{JournalActor, JournalEnv};
use super::loaded_definitions::index_by_name;
use super::mailbox::{ActorMetrics, Inbox, Mailbox, MailboxActor, new_mailbox};
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use super::manager_handle::ManagerHandle;
use super::notifier::{NOTIFIER_MAILBOX_MAX, Notifier};
use super::outbox::Outbox;
use super::passivation::{PassivatedTree, load_at_start};
use super::rates_backfill::{self, RatesBackfill};
use super::router::{Router, RouterEnv};
use super::routes::{self, RouteTable};
use super::rules::{Engine, Rules};
use super::scheduler::{self, Scheduler, SchedulerEnv};
use super::supervisor::{Supervisor, SupervisorEnv};
use super::trends::{LastMinute, TrendRecorder};
use crate::events::WebhookEnv;
use crate::settings::Settings;
use crate::telemetry::Metrics;
use actix::{Arbiter, ArbiterHandle};
use base::clock;
use base::faults;
use bus::BusKey;
use bus::LeaseQueues;
use bus::embedded::Workers;
use engine::{Control, Definition, Millis, RateMark};
use journal::{
    JobNumbers, Journal, JournalOptions, NoticeNumber, Ownership, PostgresJournal, RecoveredJob,
    Remedy, SqliteJournal,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// The timeout for threads to end after they were stopped, if less of the setting `shutdown.grace`
/// is left.
const JOIN_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// The delay between attempts to open a journal that another program keeps locked.
const OPEN_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A running manager in this process.
pub struct Manager {
    handle: ManagerHandle,
    core: ManagerCore,
    mailboxes: Mailboxes,
    stop_reasons: mpsc::UnboundedReceiver<StopReason>,
    /// `None` if no other process can take the journal over.
    ownership: Option<Arc<Ownership>>,
    arbiters: Vec<Arbiter>,
    /// `None` if no trends are recorded.
    last_minute: Option<LastMinute>,
}

/// The threads on which the actors run.
pub enum Threads {
    /// One thread each for the journal, the router, the archive, the supervisor, the notifier and
    /// every bus except the first, and one for every two cores for jobs. The first bus and the
    /// buses that a reload adds run on the router's thread. The arbiters are those started so far.
    Own(Vec<Arbiter>),
    /// The current thread for all actors, so that they run in a deterministic order.
    Current,
}

impl Threads {
    /// Creates the gate of the next bus; `None` on the current thread, where a bus runs only after
    /// the start anyway.
    fn new_gate(&self) -> Option<(StartGate, StartGateReceiver)> {
        match self {
            Threads::Own(_) => Some(std::sync::mpsc::channel()),
            Threads::Current => None,
        }
    }

    /// Starts a thread for the next actor, or returns the current one.
    fn next_arbiter(&mut self) -> ArbiterHandle {
        match self {
            Threads::Own(arbiters) => {
                let arbiter = Arbiter::new();
                let handle = arbiter.handle();
                arbiters.push(arbiter);
                handle
            }
            Threads::Current => Arbiter::current(),
        }
    }
}

/// The parts of a manager that tests can replace.
pub struct Parts {
    /// Provides the buses.
    pub bus_provider: BusProvider,
    /// The rules that decide for the jobs.
    pub rules: Arc<dyn Rules>,
    /// Chooses the mailboxes that senders use.
    pub wiring: Wiring,
    /// The registry of the lease queues of embedded buses.
    pub lease_queues: Arc<LeaseQueues>,
    /// The journal; `None`: that of the settings is opened.
    pub journal: Option<Box<dyn Journal>>,
    /// The metrics. They go on from those of the standby that this process was before.
    pub metrics: Metrics,
}

/// Returns the mailboxes that senders use, from those of the actors. A test can put a relay between
/// them.
pub type Wiring = Box<dyn FnOnce(Mailboxes, &ManagerCore) -> Mailboxes>;

impl Parts {
    /// Returns the standard parts: the buses of the settings, with `workers` on the embedded bus,
    /// the engine's rules, and direct mailboxes.
    pub fn standard(workers: Workers) -> Parts {
        let lease_queues = Arc::default();
        Parts {
            bus_provider: settings_bus_provider(workers, Arc::clone(&lease_queues)),
            rules: Arc::new(Engine),
            wiring: Box::new(|mailboxes, _| mailboxes),
            lease_queues,
            journal: None,
            metrics: Metrics::new(),
        }
    }
}

/// Starts a manager with its standard parts, in an actix system. `workers` are the workers of this
/// process, which the embedded bus runs. It is the default bus if the settings have no AMQP server.
///
/// # Errors
///
/// Returns an error if the journal cannot be opened or read, or a part cannot be started.
pub async fn start(
    settings: Settings,
    definitions: Vec<Arc<Definition>>,
    workers: Workers,
) -> Result<Manager, StartError> {
    let threads = Threads::Own(Vec::new());
    start_on(threads, settings, definitions, Parts::standard(workers))
}

/// Starts a manager on the given threads, with the given parts.
///
/// # Errors
///
/// Returns an error if the journal cannot be opened or read, or a part cannot be started.
pub fn start_on(
    threads: Threads,
    settings: Settings,
    definitions: Vec<Arc<Definition>>,
    parts: Parts,
) -> Result<Manager, StartError> {
    let Parts { bus_provider, rules, wiring, lease_queues, journal, metrics } = parts;
    let definitions = index_by_name(definitions);
    let mut store = match journal {
        Some(journal) => journal,
        None => open_journal(&settings)?,
    };
    let workflows: Vec<&Definition> =
        definitions.values().map(|definition| &**definition).collect();
    if let Err(error) = store.create_status_tables(&workflows) {
        if !error.remedy().is_retryable() {
            return Err(error.into());
        }
        // The first job of each workflow creates its missing table.
        tracing::warn!(%error, "the tables of statuses have to wait");
    }
    let numbers = store.job_numbers()?;
    let marks = store.load_rate_marks()?;
    let controls = load_controls(&mut *store)?;
    let (fatal_reporter, stop_reasons) = FatalReporter::new();
    let ownership = store.ownership();
    let (route_table, routes) = routes::new_route_table();
    let core = ManagerCore::new(
        settings,
        definitions,
        (rules, lease_queues),
        (store.records(), routes),
        metrics,
        fatal_reporter,
    )
    .map_err(StartError::Webhook)?;
    tracing::info!(
        jobs_bytes_max = core.memory.limit_bytes(),
        "the memory limit of jobs under way, in bytes (setting limits.jobs_bytes_max)"
    );
    let started = clock::instant();
    let (recovered, passivated) = load_at_start(&*store, &*core.rules, core.memory.limit_bytes())?;
    if !recovered.is_empty() {
        tracing::info!(
            jobs = recovered.len(),
            elapsed_ms = Millis::from_duration(started.elapsed()).0,
            "recovered from the journal"
        );
    }
    // Traces are started before the actors, because a recovered job may end at once.
    if let Some(traces) = &core.traces {
        traces.start(&core.settings, core.reader.clone()).map_err(StartError::Traces)?;
    }
    let has_own_threads = matches!(threads, Threads::Own(_));
    let (mailboxes, arbiters) = start_actors(
        &core,
        store,
        (route_table, numbers, (marks, controls)),
        (recovered, passivated),
        threads,
        (bus_provider, wiring),
    )?;
    if has_own_threads {
        rates_backfill::start(RatesBackfill {
            reader: core.reader.clone(),
            rates: core.rates.clone(),
            definitions: core.definitions.current(),
            process_started: core.started_at.0,
        });
    }
    mailboxes.journal.send(JournalInput::StartRetention);
    if let Err(error) = start_webhook(&core, &mailboxes) {
        // The journal is closed when the thread of its actor ends.
        for arbiter in arbiters {
            arbiter.stop();
            let _ = arbiter.join();
        }
        return Err(error);
    }
    if let Some(ownership) = &ownership {
        ownership.end_start();
    }
    let handle = ManagerHandle::new(&core, &mailboxes, ownership.clone());
    // The last thread is the notifier's or a bus's. On the current thread, nothing is recorded.
    let last_minute = arbiters.last().map(|arbiter| {
        let (last_minute, asked) = LastMinute::new();
        arbiter.spawn(TrendRecorder::new(&core, &mailboxes, handle.clone()).run(asked));
        last_minute
    });
    Ok(Manager { handle, core, mailboxes, stop_reasons, ownership, arbiters, last_minute })
}

/// Loads what operators have changed for a time, and deletes what has ended meanwhile.
fn load_controls(store: &mut dyn Journal) -> Result<Vec<Control>, StartError> {
    let now = clock::now();
    let (over, in_force): (Vec<Control>, Vec<Control>) =
        store.load_controls()?.into_iter().partition(|control| control.is_over(now));
    for control in over {
        store.delete_control(&control.key)?;
    }
    Ok(in_force)
}

/// Starts the delivery of job ends to the webhook, if there is one.
fn start_webhook(core: &ManagerCore, mailboxes: &Mailboxes) -> Result<(), StartError> {
    let Some(webhook) = &core.webhook else { return Ok(()) };
    let (journal, fatal) = (mailboxes.journal.clone(), core.fatal.clone());
    webhook.start(WebhookEnv {
        reader: core.reader.clone(),
        delete_notices: Box::new(move |notices: Vec<NoticeNumber>| {
            journal.send(JournalInput::DeleteNotices(notices));
        }),
        fail_process: Arc::new(move |reason| fatal.report(reason)),
    })?;
    Ok(())
}

/// Opens the journal of the settings. A file that another program keeps locked is tried again.
fn open_journal(settings: &Settings) -> Result<Box<dyn Journal>, StartError> {
    if let Some(options) = settings.postgres_options().map_err(StartError::Settings)? {
        return Ok(Box::new(PostgresJournal::open(options)?));
    }
    let journal = &settings.journal;
    let options = JournalOptions {
        file: journal.file.clone(),
        cache_bytes: journal.cache_bytes,
        verify_bytes_max: journal.verify_bytes_max,
        pages_max: journal.pages_max,
    };
    loop {
        match SqliteJournal::open(&options) {
            Err(error) if error.remedy() == Remedy::WaitForLock => {
                tracing::warn!(%error, "the start waits for the journal");
                std::thread::sleep(OPEN_RETRY_DELAY);
            }
            result => return Ok(Box::new(result?.with_reserve())),
        }
    }
}

/// Returns the factories of the buses that the loaded definitions and those of active jobs need.
fn load_bus_factories(
    core: &ManagerCore,
    starter: &BusStarter,
    recovered: &[RecoveredJob],
    passivated: &[PassivatedTree],
) -> Result<Vec<(BusKey, BusFactory)>, StartError> {
    let definitions = core.definitions.current();
    let recovered_definitions = recovered.iter().map(|recovered| recovered.job.definition());
    let passivated_definitions = passivated.iter().map(|tree| &tree.definition);
    let used_definitions =
        definitions.values().chain(recovered_definitions).chain(passivated_definitions);
    let mut factories = Vec::new();
    for (key, served) in queues_by_bus(&core.buses, &definitions, used_definitions) {
        if !core.buses.is_known(&key.name) {
            tracing::error!(
                bus = %key,
                "jobs under way need a bus that the settings do not have: they wait; add it to \
                 buses and start again"
            );
            continue;
        }
        let factory = starter.load_factory(&key, served, false)?;
        factories.push((key, factory));
    }
    Ok(factories)
}

/// The inboxes of the singleton actors.
struct Inboxes {
    router: Inbox<Router>,
    journal: Inbox<JournalActor>,
    archive: Inbox<Archive>,
    supervisor: Inbox<Supervisor>,
    scheduler: Inbox<Scheduler>,
    notifier: Inbox<Notifier>,
}

/// Creates the mailboxes of the singleton actors. Those of the journal, the archive and the
/// supervisor have no limit, because only other actors and bounded requests send to them.
fn new_mailboxes(core: &ManagerCore) -> (Mailboxes, Inboxes) {
    fn new<A: MailboxActor>(core: &ManagerCore, capacity: usize) -> (Mailbox<A::Input>, Inbox<A>) {
        new_mailbox(capacity, ActorMetrics::new(&core.metrics, A::KIND))
    }
    let (router, router_inbox) = new(core, core.settings.limits.creations_waiting_max);
    let (journal, journal_inbox) = new(core, usize::MAX);
    let (archive, archive_inbox) = new(core, usize::MAX);
    let (supervisor, supervisor_inbox) = new(core, usize::MAX);
    let (scheduler, scheduler_inbox) = new(core, usize::MAX);
    let (notifier, notifier_inbox) = new(core, NOTIFIER_MAILBOX_MAX);
    let inboxes = Inboxes {
        router: router_inbox,
        journal: journal_inbox,
        archive: archive_inbox,
        supervisor: supervisor_inbox,
        scheduler: scheduler_inbox,
        notifier: notifier_inbox,
    };
    (Mailboxes { router, journal, archive, supervisor, scheduler, notifier }, inboxes)
}

/// Starts all actors, and returns their mailboxes and threads.
fn start_actors(
    core: &ManagerCore,
    store: Box<dyn Journal>,
    (route_table, numbers, kept): (RouteTable, JobNumbers, (Vec<RateMark>, Vec<Control>)),
    (recovered, passivated): (Vec<RecoveredJob>, Vec<PassivatedTree>),
    mut threads: Threads,
    (bus_provider, wiring): (BusProvider, Wiring),
) -> Result<(Mailboxes, Vec<Arbiter>), StartError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Jobs use half of the cores, and the journal, the buses and HTTP the other half. With more
    // threads for jobs, waking them would cost more than the parallelism gains.
    let job_arbiters: Vec<ArbiterHandle> =
        (0..cores.div_ceil(2)).map(|_| threads.next_arbiter()).collect();
    let (journal_arbiter, router_arbiter) = (threads.next_arbiter(), threads.next_arbiter());
    let (mailboxes, inboxes) = new_mailboxes(core);
    let mailboxes = wiring(mailboxes, core);
    let bus_starter = Arc::new(BusStarter::new(core, &mailboxes, bus_provider));
    let bus_factories = load_bus_factories(core, &bus_starter, &recovered, &passivated)?;
    let topic_factory = event_topic_factory(&core.settings)?;
    let outbox = Arc::new(Outbox::new(core, &mailboxes));
    let probe = BrokerProbe::from_settings(&core.settings)?;
    let ownership = store.ownership().map(|ownership| (ownership, Arc::new(probe)));
    let env = JournalEnv::new(core, &mailboxes, &outbox);
    inboxes.journal.start_in(&journal_arbiter, move || JournalActor::new(store, env));
    let env = RouterEnv::new(core, &mailboxes, &outbox, job_arbiters);
    inboxes.router.start_in(&router_arbiter, move || Router::new(env, route_table, numbers, kept));
    let env = ArchiveEnv::new(core, &mailboxes);
    inboxes.archive.start_in(&threads.next_arbiter(), move || Archive::new(env));
    let (starter, arbiter) = (bus_starter.clone(), router_arbiter.clone());
    let env = SupervisorEnv::new(core, &mailboxes, starter, arbiter, ownership);
    inboxes.supervisor.start_in(&threads.next_arbiter(), move || Supervisor::new(env));
    let ledgers = scheduler::load_ledgers(core)?;
    let env = SchedulerEnv::new(core, &mailboxes);
    inboxes.scheduler.start_in(&router_arbiter, move || Scheduler::new(env, ledgers));
    let (event_hub, metrics) = (core.event_hub.clone(), core.metrics.clone());
    inboxes.notifier.start_in(&threads.next_arbiter(), move || {
        Notifier::new(event_hub, metrics, topic_factory)
    });
    // The buses are started last, because their events are inputs of the other actors.
    let mut gates = Vec::new();
    // The first bus runs on the router's thread, so that a reply need not wake another thread.
    let mut first_arbiter = Some(router_arbiter);
    for (key, factory) in bus_factories {
        let (gate, receiver) = threads.new_gate().unzip();
        let arbiter = first_arbiter.take().unwrap_or_else(|| threads.next_arbiter());
        bus_starter.start(key, factory, &arbiter, receiver);
        gates.extend(gate);
    }
    mailboxes.router.send(RouterInput::Recovered(recovered, passivated));
    mailboxes.scheduler.send(SchedulerInput::Load(core.definitions.current()));
    // The gates open only now: a reply before the recovery of its job would count as a reply to an
    // unknown job.
    drop(gates);
    let arbiters = match threads {
        Threads::Own(arbiters) => arbiters,
        Threads::Current => Vec::new(),
    };
    Ok((mailboxes, arbiters))
}

impl Manager {
    /// Returns the handle for clients: the API, or an application that embeds the manager.
    pub fn handle(&self) -> &ManagerHandle {
        &self.handle
    }

    /// Returns the state that the manager's parts share.
    pub fn core(&self) -> &ManagerCore {
        &self.core
    }

    /// Returns the mailboxes of the singleton actors.
    pub fn mailboxes(&self) -> &Mailboxes {
        &self.mailboxes
    }

    /// Waits until a part of the manager asks for a shutdown, and returns why.
    pub async fn wait_for_stop_reason(&mut self) -> StopReason {
        let stopped = || StopReason::Failed("the manager has stopped".to_owned());
        self.stop_reasons.recv().await.unwrap_or_else(stopped)
    }

    /// Announces to standbys that the name is given back soon, so that they look more often. A stop
    /// follows.
    pub fn announce_leaving(&self) {
        if let Some(ownership) = &self.ownership {
            ownership.announce_leaving();
        }
    }

    /// Stops the manager cleanly, within the setting `shutdown.grace`. The next start resumes
    /// unfinished work, and a thread that does not end is detached.
    pub async fn stop(mut self) {
        self.core.health.mark_stopping();
        faults::hit("manager::stop");
        let (grace, started) = (self.core.settings.shutdown.grace.0, clock::instant());
        if let Some(last_minute) = self.last_minute.take() {
            last_minute.record(grace).await;
        }
        let drain_timeout = grace.saturating_sub(started.elapsed());
        if tokio::time::timeout(drain_timeout, self.drain()).await.is_err() {
            tracing::warn!(
                grace_ms = Millis::from_duration(grace).0,
                "not everything was finished within shutdown.grace: the next start resumes it"
            );
        }
        // The readers are closed before the journal, because its last checkpoint is complete only
        // if nothing reads the `-wal`.
        let (reader, timeout) = (self.core.reader.clone(), grace.saturating_sub(started.elapsed()));
        let close =
            actix_rt::task::spawn_blocking(move || reader.close("the manager stops", timeout));
        if !close.await.unwrap_or(false) {
            tracing::warn!("a read of the journal did not end within shutdown.grace");
        }
        let arbiters = self.arbiters;
        if arbiters.is_empty() {
            // The manager has no threads of its own.
            return;
        }
        for arbiter in &arbiters {
            // An arbiter whose thread has ended returns false.
            let _ = arbiter.stop();
        }
        // The threads are joined, so that the journal is closed and unlocked when this returns. A
        // detached thread joins them: at its end, the runtime would wait for a blocking task
        // without a timeout.
        let (sender, receiver) = oneshot::channel();
        std::thread::spawn(move || {
            arbiters.into_iter().for_each(|arbiter| drop(arbiter.join()));
            // An error means that the receiver has timed out.
            let _ = sender.send(());
        });
        let join_timeout = grace.saturating_sub(started.elapsed()).max(JOIN_TIMEOUT_MIN);
        if tokio::time::timeout(join_timeout, receiver).await.is_err() {
            tracing::warn!("a thread did not end within shutdown.grace");
        }
    }

    /// Closes the buses and the webhook, waits for the commit of all records, and sends the traces
    /// and events of the last commits.
    async fn drain(&self) {
        let mut receivers = Vec::new();
        for (_, bus) in self.core.buses.all() {
            let (sender, receiver) = oneshot::channel();
            bus.send(BusInput::Close(sender));
            receivers.push(receiver);
        }
        for receiver in receivers {
            // An error means that the bus actor has stopped.
            let _ = receiver.await;
        }
        if let Some(webhook) = &self.core.webhook {
            webhook.close().await;
        }
        let (sender, receiver) = oneshot::channel();
        self.mailboxes.journal.send(JournalInput::ProjectionBarrier(sender));
        let _ = receiver.await;
        if let Some(traces) = &self.core.traces {
            traces.close().await;
        }
        let (sender, receiver) = oneshot::channel();
        self.mailboxes.notifier.send(NotifierInput::Close(sender));
        let _ = receiver.await;
    }
}
