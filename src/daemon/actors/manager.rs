//! The manager: whoever embeds it starts it, sends requests to it and stops it. Requests go through
//! its [handle](ManagerHandle), as those of the API do.
//!
//! Order of start: journal (lock, verify, recover) → arbiters → mailboxes → journal actor, router,
//! archive, supervisor, notifier → buses → jobs. Order of stop: no new jobs → buses stop taking
//! deliveries and wait for confirms → the webhook → the journal commits what is left → traces and
//! events of the last commits are sent → readers → threads.

use super::archive::{Archive, ArchiveEnv};
use super::fatal::FatalReporter;
use super::inputs::{BusInput, JournalInput, NotifierInput, RouterInput};
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
use super::supervisor::{Supervisor, SupervisorEnv};
use super::transport::{
    BusMaker, BusStarter, StartError, StartGate, StartGateReceiver, Transport, queues_by_bus,
    settings_transport, topic_maker,
};
use crate::events::WebhookEnv;
use crate::settings::Settings;
use actix::{Arbiter, ArbiterHandle};
use base::clock;
use base::faults;
use bus::BusKey;
use bus::LeaseQueues;
use bus::embedded::Workers;
use engine::{Definition, Millis};
use journal::{
    JobNumber, Journal, JournalError, JournalOptions, NoticeNumber, RecoveredJob, Remedy,
    SqliteJournal,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// The least time that threads have to end after they were stopped.
const JOIN_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// The pause between two tries to open a journal that another program keeps locked.
const OPEN_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A running manager, in this process.
pub struct Manager {
    handle: ManagerHandle,
    core: ManagerCore,
    mailboxes: Mailboxes,
    fatal: mpsc::UnboundedReceiver<String>,
    arbiters: Vec<Arbiter>,
}

/// The threads on which the actors run.
pub enum Threads {
    /// On threads of their own: the journal, the archive, the supervisor, the notifier, each bus
    /// but the first, and jobs on half the cores. The first bus and those of a reload run beside
    /// the router.
    Own(Vec<Arbiter>),
    /// All on the current thread, so that everything happens in one order.
    Current,
}

impl Threads {
    /// Creates a gate for the next thread. With a single thread none is needed: the inputs are
    /// there before anything runs.
    fn new_gate(&self) -> Option<(StartGate, StartGateReceiver)> {
        match self {
            Threads::Own(_) => Some(std::sync::mpsc::channel()),
            Threads::Current => None,
        }
    }

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

/// The parts of a manager that can be replaced.
pub struct Parts {
    /// Makes the buses.
    pub transport: Transport,
    /// Decides for the jobs.
    pub rules: Arc<dyn Rules>,
    /// Connects the actors.
    pub wiring: Wiring,
    /// Where the lease queues of embedded buses are registered.
    pub lease_queues: Arc<LeaseQueues>,
}

/// Returns the mailboxes that senders use. It may put something between these and the actors.
pub type Wiring = Box<dyn FnOnce(Mailboxes, &ManagerCore) -> Mailboxes>;

impl Parts {
    /// Returns the parts of a normal manager: the buses of the settings, with `workers` on the
    /// embedded one; the engine's rules; every mailbox leads straight to its actor.
    pub fn standard(workers: Workers) -> Parts {
        let lease_queues = Arc::default();
        Parts {
            transport: settings_transport(workers, Arc::clone(&lease_queues)),
            rules: Arc::new(Engine),
            wiring: Box::new(|mailboxes, _| mailboxes),
            lease_queues,
        }
    }
}

/// Starts a manager on an actix system. Without an AMQP server in the settings it runs on the
/// embedded bus with `workers`.
pub async fn start(
    settings: Settings,
    definitions: Vec<Arc<Definition>>,
    workers: Workers,
) -> Result<Manager, StartError> {
    let threads = Threads::Own(Vec::new());
    start_on(threads, settings, definitions, Parts::standard(workers))
}

/// Starts a manager on the given threads, of the given parts.
pub fn start_on(
    threads: Threads,
    settings: Settings,
    definitions: Vec<Arc<Definition>>,
    parts: Parts,
) -> Result<Manager, StartError> {
    let Parts { transport, rules, wiring, lease_queues } = parts;
    let by_name = index_by_name(definitions);
    let journal = &settings.journal;
    let options = JournalOptions {
        file: journal.file.clone(),
        cache_bytes: journal.cache_bytes,
        verify_bytes_max: journal.verify_bytes_max,
        pages_max: journal.pages_max,
    };
    let mut store: Box<dyn Journal> = Box::new(open_journal(&options)?.with_reserve());
    if let Err(error) = store
        .create_status_tables(&by_name.values().map(|definition| &**definition).collect::<Vec<_>>())
    {
        match error.remedy() {
            // The first job of each workflow creates the table that is missing.
            Remedy::WaitForSpace | Remedy::WaitForLock => {
                tracing::warn!(%error, "the tables of statuses have to wait")
            }
            Remedy::Exit => return Err(error.into()),
        }
    }
    let next_number = store.next_job_number()?;
    let (fatal_reporter, fatal) = FatalReporter::new();
    let (table, routes) = routes::new_route_table();
    let core = ManagerCore::new(
        settings,
        by_name,
        (rules, lease_queues),
        (store.records(), routes),
        fatal_reporter,
    )
    .map_err(StartError::Webhook)?;
    tracing::info!(
        jobs_bytes_max = core.memory.limit_bytes(),
        "jobs under way may hold so many bytes of memory (setting limits.jobs_bytes_max)"
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
    // Before the actors: a recovered job may end at once.
    if let Some(traces) = &core.traces {
        traces.start(&core.settings, core.reader.clone()).map_err(StartError::Traces)?;
    }
    let has_threads = matches!(threads, Threads::Own(_));
    let (mailboxes, arbiters) = start_actors(
        &core,
        store,
        (table, next_number),
        (recovered, passivated),
        threads,
        (transport, wiring),
    )?;
    if has_threads {
        rates_backfill::start(RatesBackfill {
            reader: core.reader.clone(),
            rates: core.rates.clone(),
            definitions: core.definitions.current(),
            started: core.started_at.0,
        });
    }
    mailboxes.journal.send(JournalInput::StartRetention);
    if let Err(error) = start_webhook(&core, &mailboxes) {
        // The journal is closed with its thread.
        for arbiter in arbiters {
            arbiter.stop();
            let _ = arbiter.join();
        }
        return Err(error);
    }
    Ok(Manager { handle: ManagerHandle::new(&core, &mailboxes), core, mailboxes, fatal, arbiters })
}

/// Starts to deliver the ends of jobs to the webhook, if there is one.
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

/// Opens the journal. While another program keeps its file locked, the start waits.
fn open_journal(options: &JournalOptions) -> Result<SqliteJournal, JournalError> {
    loop {
        match SqliteJournal::open(options) {
            Err(error) if error.remedy() == Remedy::WaitForLock => {
                tracing::warn!(%error, "the start waits for the journal");
                std::thread::sleep(OPEN_RETRY_DELAY);
            }
            opened => return opened,
        }
    }
}

/// Makes the buses of the loaded definitions and of those that jobs under way run.
fn make_buses(
    core: &ManagerCore,
    starter: &BusStarter,
    recovered: &[RecoveredJob],
    passivated: &[PassivatedTree],
) -> Result<Vec<(BusKey, BusMaker)>, StartError> {
    let definitions = core.definitions.current();
    let recovered_use = recovered.iter().map(|recovered| recovered.job.definition());
    let passivated_use = passivated.iter().map(|tree| &tree.definition);
    let used = definitions.values().chain(recovered_use).chain(passivated_use);
    let mut makers = Vec::new();
    for (key, served) in queues_by_bus(&core.buses, &definitions, used) {
        if !core.buses.is_known(&key.name) {
            tracing::error!(
                bus = %key,
                "jobs under way need a bus that the settings do not have: they wait; add it to \
                 buses and start again"
            );
            continue;
        }
        let maker = starter.load(&key, served, false)?;
        makers.push((key, maker));
    }
    Ok(makers)
}

/// The inboxes of the actors of which there is one each.
struct Inboxes {
    router: Inbox<Router>,
    journal: Inbox<JournalActor>,
    archive: Inbox<Archive>,
    supervisor: Inbox<Supervisor>,
    notifier: Inbox<Notifier>,
}

fn new_mailboxes(core: &ManagerCore) -> (Mailboxes, Inboxes) {
    fn new<A: MailboxActor>(core: &ManagerCore, capacity: usize) -> (Mailbox<A::Input>, Inbox<A>) {
        new_mailbox(capacity, ActorMetrics::new(&core.metrics, A::KIND))
    }
    let (router, router_inbox) = new(core, core.settings.limits.creations_waiting_max);
    let (journal, journal_inbox) = new(core, usize::MAX);
    let (archive, archive_inbox) = new(core, usize::MAX);
    let (supervisor, supervisor_inbox) = new(core, usize::MAX);
    let (notifier, notifier_inbox) = new(core, NOTIFIER_MAILBOX_MAX);
    let inboxes = Inboxes {
        router: router_inbox,
        journal: journal_inbox,
        archive: archive_inbox,
        supervisor: supervisor_inbox,
        notifier: notifier_inbox,
    };
    (Mailboxes { router, journal, archive, supervisor, notifier }, inboxes)
}

fn start_actors(
    core: &ManagerCore,
    store: Box<dyn Journal>,
    (table, next_number): (RouteTable, JobNumber),
    (recovered, passivated): (Vec<RecoveredJob>, Vec<PassivatedTree>),
    mut threads: Threads,
    (transport, wiring): (Transport, Wiring),
) -> Result<(Mailboxes, Vec<Arbiter>), StartError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // The other half of the cores is for the journal, the bus and HTTP: more threads would wake
    // each other more often than they work side by side.
    let job_arbiters: Vec<ArbiterHandle> =
        (0..cores.div_ceil(2)).map(|_| threads.next_arbiter()).collect();
    let (journal_arbiter, router_arbiter) = (threads.next_arbiter(), threads.next_arbiter());
    let (mailboxes, inboxes) = new_mailboxes(core);
    let mailboxes = wiring(mailboxes, core);
    let new_starter = || BusStarter::new(core, &mailboxes, transport.clone());
    let bus_starter = new_starter();
    let makers = make_buses(core, &bus_starter, &recovered, &passivated)?;
    let topic = topic_maker(&core.settings)?;
    let outbox = Arc::new(Outbox::new(core, &mailboxes));
    let env = JournalEnv::new(core, &mailboxes, &outbox);
    inboxes.journal.start_in(&journal_arbiter, move || JournalActor::new(store, env));
    let env = RouterEnv::new(core, &mailboxes, &outbox, job_arbiters);
    inboxes.router.start_in(&router_arbiter, move || Router::new(env, table, next_number));
    let env = ArchiveEnv::new(core, &mailboxes);
    inboxes.archive.start_in(&threads.next_arbiter(), move || Archive::new(env));
    let env = SupervisorEnv::new(core, &mailboxes, new_starter(), router_arbiter.clone());
    inboxes.supervisor.start_in(&threads.next_arbiter(), move || Supervisor::new(env));
    let (feeds, metrics) = (core.feeds.clone(), core.metrics.clone());
    inboxes
        .notifier
        .start_in(&threads.next_arbiter(), move || Notifier::new(feeds, metrics, topic));
    // Last, because a bus reports to the other actors.
    let mut gates = Vec::new();
    // The first bus runs on the thread of the router: a reply goes from one to the other without
    // waking a thread.
    let mut first_arbiter = Some(router_arbiter);
    for (key, maker) in makers {
        let (gate, at_gate) = threads.new_gate().unzip();
        let arbiter = first_arbiter.take().unwrap_or_else(|| threads.next_arbiter());
        bus_starter.start(key, maker, &arbiter, at_gate);
        gates.extend(gate);
    }
    mailboxes.router.send(RouterInput::Recovered(recovered, passivated));
    // A reply to a job that cannot be found yet would be taken for a reply to an unknown job.
    drop(gates);
    let arbiters = match threads {
        Threads::Own(arbiters) => arbiters,
        Threads::Current => Vec::new(),
    };
    Ok((mailboxes, arbiters))
}

impl Manager {
    /// Returns the handle, for the API and for users in this process.
    pub fn handle(&self) -> &ManagerHandle {
        &self.handle
    }

    /// Returns what the manager consists of besides its actors.
    pub fn core(&self) -> &ManagerCore {
        &self.core
    }

    /// Returns the mailboxes of its actors.
    pub fn mailboxes(&self) -> &Mailboxes {
        &self.mailboxes
    }

    /// Waits until the manager itself has a reason to end, and returns it.
    pub async fn wait_for_failure(&mut self) -> String {
        self.fatal.recv().await.unwrap_or_else(|| "the manager is gone".to_owned())
    }

    /// Stops in order, within the setting `shutdown.grace`. What is unfinished then is left to the
    /// next start, and a thread that does not end is left behind.
    pub async fn stop(self) {
        self.core.health.stopping.store(true, Ordering::Relaxed);
        faults::hit("manager::stop");
        let (grace, begun) = (self.core.settings.shutdown.grace.0, clock::instant());
        if tokio::time::timeout(grace, self.drain()).await.is_err() {
            tracing::warn!(
                grace_ms = Millis::from_duration(grace).0,
                "not all was finished within shutdown.grace: the next start takes it up"
            );
        }
        // Before the journal: its main file is complete only if nobody still reads the -wal.
        let (reader, patience) = (self.core.reader.clone(), grace.saturating_sub(begun.elapsed()));
        let closed =
            actix_rt::task::spawn_blocking(move || reader.close("the manager stops", patience));
        if !closed.await.unwrap_or(false) {
            tracing::warn!("a read of the journal did not end within shutdown.grace");
        }
        let arbiters = self.arbiters;
        for arbiter in &arbiters {
            // False for one whose thread has ended already.
            let _ = arbiter.stop();
        }
        // Joined, so that the journal is closed and its lock free when this returns. On a thread
        // that nobody waits for, because a runtime does not end before its own tasks do.
        let (joined, is_joined) = oneshot::channel();
        std::thread::spawn(move || {
            arbiters.into_iter().for_each(|arbiter| drop(arbiter.join()));
            // The receiver may have given up.
            let _ = joined.send(());
        });
        let left = grace.saturating_sub(begun.elapsed()).max(JOIN_TIMEOUT_MIN);
        if tokio::time::timeout(left, is_joined).await.is_err() {
            tracing::warn!("a thread did not end within shutdown.grace");
        }
    }

    async fn drain(&self) {
        let mut closing = Vec::new();
        for (_, bus) in self.core.buses.all() {
            let (answer, answered) = oneshot::channel();
            bus.send(BusInput::Close(answer));
            closing.push(answered);
        }
        for answered in closing {
            // An error means that the bus has ended already.
            let _ = answered.await;
        }
        if let Some(webhook) = &self.core.webhook {
            webhook.close().await;
        }
        let (answer, answered) = oneshot::channel();
        self.mailboxes.journal.send(JournalInput::ProjectionBarrier(answer));
        let _ = answered.await;
        // After the commit of the last ends.
        if let Some(traces) = &self.core.traces {
            traces.close().await;
        }
        // After the commit of the last events.
        let (answer, answered) = oneshot::channel();
        self.mailboxes.notifier.send(NotifierInput::Close(answer));
        let _ = answered.await;
    }
}
