//! The supervisor: starts everything in order, rebuilds a job actor that panicked, and stops
//! everything in order.
//!
//! Order of start: journal (lock, verify, recover) → arbiters → router, supervisor, journal actor,
//! buses → jobs. Order of stop: no new jobs → buses stop taking deliveries and wait for confirms →
//! the journal commits what is left.

use super::announcer::{ANNOUNCED_MAX, Announcer, AnnouncerInput};
use super::archive::{Archive, ArchiveInput};
use super::bus::{BusActor, BusInput, event_sink};
use super::job::JobInput;
use super::journal::{JournalActor, JournalInput};
use super::outbox::Answer;
use super::router::{Leave, NewJob, Router, RouterInput};
use super::routes::{self, Table};
use super::shared::{Definitions, Shared, Wiring};
use super::webhook::Webhook;
use super::{Kind, Mail, Mailbox, Owner};
use crate::bus::amqp::{self, AmqpSettings, TopicConnector};
use crate::bus::embedded::{EmbeddedBus, Workers};
use crate::bus::{Bus, BusState, EventSink};
use crate::engine::{Definition, JobId, Message, Millis};
use crate::faults;
use crate::journal::{JobNumber, JournalError, Options, Reader, Recovered, Remedy, Store};
use crate::settings::Settings;
use actix::{Actor, Arbiter, ArbiterHandle, Context, Handler};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How often a job is rebuilt after a panic before it fails.
const REBUILDS_MAX: u32 = 3;

/// How long threads are waited for at least that were told to end.
const JOINED_WITHIN: Duration = Duration::from_secs(1);

/// Has jobs rebuilt whose actors panicked, and buses started for virtual hosts that a reload
/// brings.
pub struct Supervisor {
    shared: Arc<Shared>,
    panicked: HashMap<JobNumber, (JobId, u32)>,
    transport: Transport,
    /// Where the buses of a reload run.
    bus_arbiter: ArbiterHandle,
}

/// What the supervisor can be told.
pub enum SupervisorInput {
    /// A job actor has panicked, and has no job until it is rebuilt.
    Panicked {
        /// The job.
        id: JobId,
        /// Its number.
        number: JobNumber,
    },
    /// The archive has rebuilt it, if it was there.
    Reloaded(JobNumber, Option<Box<Recovered>>),
    /// New definitions take the place of the loaded ones: all, or none with the reason.
    Redefine(Definitions, oneshot::Sender<Result<(), String>>),
}

impl Supervisor {
    fn receive(&mut self, input: SupervisorInput) {
        match input {
            SupervisorInput::Panicked { id, number } => {
                let (_, panics) = self.panicked.entry(number).or_insert((id, 0));
                *panics += 1;
                tracing::error!(job = %id, panics, "the job's actor panicked: it is rebuilt from the journal");
                self.shared.metrics.restarts.with_label_values(&["job"]).inc();
                if !faults::planted("panicked actors not rebuilt") {
                    self.shared.wiring().archive.post(ArchiveInput::Rebuild(number));
                }
            }
            SupervisorInput::Reloaded(number, recovered) => {
                let Some((id, panics)) = self.panicked.get(&number).copied() else { return };
                let Some(recovered) = recovered else {
                    // Deleted while it was broken.
                    self.panicked.remove(&number);
                    let leave = Leave { id, number, heard: None };
                    return self.shared.wiring().router.post(RouterInput::Leave(vec![leave]));
                };
                let Some(job) = self.shared.routes.find(id).filter(|job| job.number() == number)
                else {
                    return;
                };
                let abandon = (panics > REBUILDS_MAX).then(|| {
                    self.panicked.remove(&number);
                    format!("its actor panicked {panics} times; the log has the panics").into()
                });
                job.post(JobInput::Rebuilt { recovered, abandon });
            }
            SupervisorInput::Redefine(definitions, answer) => {
                // Whoever asked may have gone; the definitions hold all the same.
                let _ = answer.send(self.redefine(definitions));
            }
        }
    }

    fn redefine(&self, definitions: Definitions) -> Result<(), String> {
        let mut by_vhost = queues_by_vhost(&definitions, definitions.values());
        let buses =
            self.shared.wiring().buses.read().unwrap_or_else(PoisonError::into_inner).clone();
        let serving: Vec<_> = buses
            .into_iter()
            .map(|(vhost, bus)| (bus, by_vhost.remove(&vhost).unwrap_or_default()))
            .collect();
        let mut makers = Vec::new();
        for (vhost, queues) in by_vhost {
            let queues = Queues { joins: true, ..queues };
            makers.push((
                vhost.clone(),
                (self.transport)(&self.shared.settings, &vhost, queues)
                    .map_err(|error| error.to_string())?,
            ));
        }
        for (vhost, maker) in makers {
            let mailbox = start_bus(&self.shared, &vhost, maker, &self.bus_arbiter, None);
            self.shared
                .wiring()
                .buses
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(vhost, mailbox);
        }
        self.shared
            .wiring()
            .journal
            .post(JournalInput::Relate(definitions.values().cloned().collect()));
        self.shared.set_definitions(definitions);
        // Who calls a workflow now finds it.
        for (bus, queues) in serving {
            bus.post(BusInput::Serve(queues.steps, queues.workflows));
        }
        Ok(())
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;
}

impl Owner for Supervisor {
    type Input = SupervisorInput;
    const KIND: &'static str = "supervisor";
}

impl Handler<Mail<SupervisorInput>> for Supervisor {
    type Result = ();

    fn handle(&mut self, mail: Mail<SupervisorInput>, _: &mut Self::Context) {
        mail.handle(|input| self.receive(input));
    }
}

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The bus.
    #[error("{0}")]
    Bus(String),
    /// Something in the definitions that only shows when all are together.
    #[error("{0}")]
    Definitions(String),
}

/// A running manager, in this process.
pub struct Manager {
    shared: Arc<Shared>,
    fatal: mpsc::UnboundedReceiver<String>,
    arbiters: Vec<Arbiter>,
}

/// Makes a bus, on the thread that it will run on.
pub type BusMaker = Box<dyn FnOnce(EventSink) -> Box<dyn Bus> + Send>;

/// The queues of a virtual host.
#[derive(Default)]
pub struct Queues {
    /// Those of its steps.
    pub steps: Vec<Arc<str>>,
    /// The names of its loaded workflows, each of which has a queue as well.
    pub workflows: Vec<Arc<str>>,
    /// Whether a reload has brought the virtual host.
    pub joins: bool,
}

/// Chooses the transport of a virtual host.
pub type Transport =
    Arc<dyn Fn(&Settings, &str, Queues) -> Result<BusMaker, StartError> + Send + Sync>;

/// Where the actors run.
pub enum Threads {
    /// On threads of their own: the journal, the router, each bus, and for the jobs one per core.
    Own(Vec<Arbiter>),
    /// All on the current one, so that everything happens in one order.
    Current,
}

/// Keeps a bus from delivering before the router has the recovered jobs in its mailbox: dropped, it is
/// open.
type Gate = std::sync::mpsc::Sender<()>;

/// The bus's side of its gate.
type Wait = std::sync::mpsc::Receiver<()>;

impl Threads {
    /// A gate for the next thread; none is needed where everything is on one, which has the mail
    /// before it runs anything.
    fn gate(&self) -> Option<(Gate, Wait)> {
        match self {
            Threads::Own(_) => Some(std::sync::mpsc::channel()),
            Threads::Current => None,
        }
    }

    fn next(&mut self) -> ArbiterHandle {
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

/// Starts a manager; on an actix system. Without an AMQP server in the settings it runs on the
/// embedded bus with `workers`.
pub async fn start(
    settings: Settings,
    definitions: Vec<Arc<Definition>>,
    workers: Workers,
) -> Result<Manager, StartError> {
    let transport = move |settings: &Settings, vhost: &str, queues: Queues| {
        transport(settings, vhost, queues, workers.clone())
    };
    start_on(Threads::Own(Vec::new()), settings, definitions, Arc::new(transport))
}

/// Starts a manager on the given threads and transport.
pub fn start_on(
    threads: Threads,
    settings: Settings,
    definitions: Vec<Arc<Definition>>,
    transport: Transport,
) -> Result<Manager, StartError> {
    let by_name = by_name(definitions);
    let journal = &settings.journal;
    let options = Options {
        file: journal.file.clone(),
        cache_bytes: journal.cache_bytes,
        verify_bytes_max: journal.verify_bytes_max,
        pages_max: journal.pages_max,
    };
    let mut store = Store::open(&options)?;
    let started = super::clock::instant();
    let recovered = store.recover()?;
    if !recovered.is_empty() {
        tracing::info!(
            jobs = recovered.len(),
            elapsed_ms = Millis::of(started.elapsed()).0,
            "recovered from the journal"
        );
    }
    if let Err(error) = store.relate(by_name.values().map(|definition| &**definition)) {
        match error.remedy() {
            // The first job of each makes what is missing.
            Remedy::WaitForRoom => tracing::warn!(%error, "no room for the tables of statuses"),
            Remedy::Exit => return Err(error.into()),
        }
    }
    let next_number = store.next_number()?;
    let (fatal_sender, fatal) = mpsc::unbounded_channel();
    let reader = Reader::new(store.path());
    let (table, routes) = routes::table();
    let shared =
        Arc::new(Shared::new(settings, by_name, routes, reader, next_number, fatal_sender));
    let arbiters = wire(&shared, store, (table, recovered), threads, transport)?;
    shared.wiring().journal.post(JournalInput::Retain);
    Webhook::start(&shared)?;
    Ok(Manager { shared, fatal, arbiters })
}

/// Definitions by their full names.
pub(super) fn by_name(definitions: Vec<Arc<Definition>>) -> Definitions {
    definitions.into_iter().map(|definition| (definition.full_name(), definition)).collect()
}

fn wire(
    shared: &Arc<Shared>,
    store: Store,
    (table, recovered): (Table, Vec<Recovered>),
    mut threads: Threads,
    transport: Transport,
) -> Result<Vec<Arbiter>, StartError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let job_arbiters: Vec<ArbiterHandle> = (0..cores).map(|_| threads.next()).collect();
    let (journal_arbiter, router_arbiter) = (threads.next(), threads.next());
    let definitions = shared.definitions();
    let used =
        definitions.values().chain(recovered.iter().map(|recovered| recovered.job.definition()));
    let mut makers = Vec::new();
    for (vhost, queues) in queues_by_vhost(&definitions, used) {
        makers.push((vhost.clone(), transport(&shared.settings, &vhost, queues)?));
    }
    let owned = shared.clone();
    let journal =
        JournalActor::start_in_arbiter(&journal_arbiter, move |_| JournalActor::new(store, owned));
    let owned = shared.clone();
    let router = Router::start_in_arbiter(&router_arbiter, move |_| Router::new(owned, table));
    let owned = shared.clone();
    let archive = Archive::start_in_arbiter(&threads.next(), move |_| Archive::new(owned));
    let owned = shared.clone();
    let bus_arbiter = router_arbiter.clone();
    let supervisor = Supervisor::start_in_arbiter(&router_arbiter, move |_| Supervisor {
        shared: owned,
        panicked: HashMap::new(),
        transport,
        bus_arbiter,
    });
    let (owned, connector) = (shared.clone(), topic(&shared.settings)?);
    let announcer =
        Announcer::start_in_arbiter(&threads.next(), move |_| Announcer::new(owned, connector));
    let creations = shared.settings.limits.creations_waiting_max;
    shared.wire(Wiring {
        router: Mailbox::new(router, creations, Kind::new(&shared.metrics, Router::KIND)),
        journal: Mailbox::new(journal, usize::MAX, Kind::new(&shared.metrics, JournalActor::KIND)),
        archive: Mailbox::new(archive, usize::MAX, Kind::new(&shared.metrics, Archive::KIND)),
        supervisor: Mailbox::new(
            supervisor,
            usize::MAX,
            Kind::new(&shared.metrics, Supervisor::KIND),
        ),
        announcer: Mailbox::new(
            announcer,
            ANNOUNCED_MAX,
            Kind::new(&shared.metrics, Announcer::KIND),
        ),
        buses: RwLock::default(),
        arbiters: job_arbiters,
    });
    // Last: what a bus reports goes to the others.
    let mut gates = Vec::new();
    for (vhost, maker) in makers {
        let (gate, wait) = threads.gate().unzip();
        let mailbox = start_bus(shared, &vhost, maker, &threads.next(), wait);
        gates.extend(gate);
        shared
            .wiring()
            .buses
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(vhost, mailbox);
    }
    shared.wiring().router.post(RouterInput::Recovered(recovered));
    // A reply to a job that cannot be found would be taken for one to an unknown job.
    drop(gates);
    Ok(match threads {
        Threads::Own(arbiters) => arbiters,
        Threads::Current => Vec::new(),
    })
}

fn start_bus(
    shared: &Arc<Shared>,
    vhost: &str,
    maker: BusMaker,
    arbiter: &ArbiterHandle,
    wait: Option<Wait>,
) -> Mailbox<BusInput> {
    shared.health.set_bus(vhost, BusState::Disconnected { reason: String::new() });
    let (owned, name) = (shared.clone(), vhost.to_owned());
    let address = BusActor::start_in_arbiter(arbiter, move |_| {
        if let Some(wait) = wait {
            // An error means that the gate is open.
            let _ = wait.recv();
        }
        let sink = event_sink(&owned, &name);
        BusActor::new(maker(sink), name, owned)
    });
    Mailbox::new(address, usize::MAX, Kind::new(&shared.metrics, BusActor::KIND))
}

/// The virtual hosts of `used` definitions and their queues; workflows that are loaded have one
/// each, besides those of their steps.
fn queues_by_vhost<'a>(
    loaded: &Definitions,
    used: impl Iterator<Item = &'a Arc<Definition>>,
) -> BTreeMap<String, Queues> {
    let mut steps: BTreeMap<String, BTreeSet<Arc<str>>> = BTreeMap::new();
    let mut seen: BTreeSet<*const Definition> = BTreeSet::new();
    for definition in used {
        if seen.insert(Arc::as_ptr(definition)) {
            steps.entry(definition.vhost.clone()).or_default().extend(definition.queues());
        }
    }
    let of_vhost = |(vhost, steps): (String, BTreeSet<Arc<str>>)| {
        let workflows = loaded
            .values()
            .filter(|definition| definition.vhost == vhost)
            .map(|definition| definition.name.as_str().into());
        let queues = Queues {
            steps: steps.into_iter().collect(),
            workflows: workflows.collect(),
            joins: false,
        };
        (vhost, queues)
    };
    steps.into_iter().map(of_vhost).collect()
}

fn transport(
    settings: &Settings,
    vhost: &str,
    queues: Queues,
    workers: Workers,
) -> Result<BusMaker, StartError> {
    if settings.amqp.server.0.is_empty() {
        return Ok(Box::new(move |sink| {
            Box::new(EmbeddedBus::new(workers, queues.workflows, sink))
        }));
    }
    let checked = amqp::Connector::new(amqp_settings(settings, vhost, queues))
        .map_err(|error| StartError::Bus(error.to_string()))?;
    Ok(Box::new(move |sink| Box::new(checked.connect(sink))))
}

/// The exchange for events, in the virtual host of the broker's address.
fn topic(settings: &Settings) -> Result<Option<TopicConnector>, StartError> {
    let events = &settings.events;
    if events.exchange.is_empty() {
        return Ok(None);
    }
    let connector = TopicConnector::new(
        amqp_settings(settings, "", Queues::default()),
        events.exchange.clone(),
        events.exchange_buffer_max,
    );
    connector.map(Some).map_err(|error| StartError::Bus(error.to_string()))
}

fn amqp_settings(settings: &Settings, vhost: &str, queues: Queues) -> AmqpSettings {
    let section = &settings.amqp;
    AmqpSettings {
        server: section.server.0.clone(),
        vhost: (!vhost.is_empty()).then(|| vhost.to_owned()),
        management: section.management.0.clone(),
        reply_queue: section.reply_queue.clone(),
        reply_queue_type: section.reply_queue_type,
        unreadable: section.unreadable,
        prefetch: section.prefetch,
        replies_bytes_max: section.replies_bytes_max,
        unconfirmed_max: section.unconfirmed_max,
        unconfirmed_bytes_max: section.unconfirmed_bytes_max,
        reconnect_min: section.reconnect_min.0,
        reconnect_max: section.reconnect_max.0,
        heartbeat: section.heartbeat.0,
        queues: queues.steps,
        workflows: queues.workflows,
        joins: queues.joins,
    }
}

impl Manager {
    /// What the API and in-process users share with the actors.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Asks for a job; answered after the commit.
    pub async fn create(&self, workflow: &str, id: Option<JobId>, message: Message) -> Answer {
        create(&self.shared, workflow, id, message).await
    }

    /// Waits for a reason to end that lies in the manager itself.
    pub async fn failed(&mut self) -> String {
        self.fatal.recv().await.unwrap_or_else(|| "the manager is gone".to_owned())
    }

    /// Stops in order, within the setting `shutdown.grace`; what is left is left to the next start.
    /// A thread that does not end is not waited for.
    pub async fn stop(self) {
        self.shared.health.stopping.store(true, Ordering::Relaxed);
        faults::hit("supervisor::stop");
        let (grace, begun) = (self.shared.settings.shutdown.grace.0, super::clock::instant());
        if tokio::time::timeout(grace, self.stop_in_order()).await.is_err() {
            tracing::warn!(
                grace_ms = Millis::of(grace).0,
                "not all was finished within shutdown.grace: the next start takes it up"
            );
        }
        // Before the journal, which is whole in its main file only when nobody reads the -wal.
        let (reader, patience) =
            (self.shared.reader.clone(), grace.saturating_sub(begun.elapsed()));
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
        // that nobody waits for: a runtime does not end before what was spawned on it.
        let (joined, is_joined) = oneshot::channel();
        std::thread::spawn(move || {
            arbiters.into_iter().for_each(|arbiter| drop(arbiter.join()));
            // Whoever waited may have given up.
            let _ = joined.send(());
        });
        let left = grace.saturating_sub(begun.elapsed()).max(JOINED_WITHIN);
        if tokio::time::timeout(left, is_joined).await.is_err() {
            tracing::warn!("a thread did not end within shutdown.grace");
        }
    }

    async fn stop_in_order(&self) {
        let wiring = self.shared.wiring();
        let mut closing = Vec::new();
        for bus in self.shared.buses() {
            let (answer, answered) = oneshot::channel();
            bus.post(BusInput::Close(answer));
            closing.push(answered);
        }
        for answered in closing {
            // An error means that the bus has ended already.
            let _ = answered.await;
        }
        if let Some(webhook) = &self.shared.webhook {
            webhook.close().await;
        }
        let (answer, answered) = oneshot::channel();
        wiring.journal.post(JournalInput::Barrier(answer));
        let _ = answered.await;
        // Behind the commit of the last events.
        let (answer, answered) = oneshot::channel();
        wiring.announcer.post(AnnouncerInput::Close(answer));
        let _ = answered.await;
    }
}

/// Asks for a job; answered after the commit.
pub async fn create(
    shared: &Shared,
    workflow: &str,
    id: Option<JobId>,
    message: Message,
) -> Answer {
    let Some(definition) = shared.definitions().get(workflow).cloned() else {
        return Answer::Unknown;
    };
    if !shared.health.accepts() {
        let reasons: Vec<String> = shared
            .health
            .checks()
            .into_iter()
            .filter(|(_, good, _)| !good)
            .map(|(name, _, text)| format!("{name}: {text}"))
            .collect();
        return Answer::Overloaded(reasons.join("; "));
    }
    let (answer, answered) = oneshot::channel();
    let limit = shared.settings.limits.creations_waiting_max;
    // A client that has gone takes its request with it, wherever that is, and gives its place back.
    let Ok(_place) = shared.creations.try_acquire() else {
        return Answer::Overloaded(format!(
            "{limit} creations are under way (setting limits.creations_waiting_max)"
        ));
    };
    match shared.wiring().router.offer(RouterInput::Create(NewJob {
        id,
        definition,
        message,
        answer,
    })) {
        Err(_) => Answer::Overloaded("the router's mailbox is full".to_owned()),
        Ok(()) => answered.await.unwrap_or_else(|_| {
            Answer::Failed("the job's creation panicked; the log has the panic".to_owned())
        }),
    }
}
