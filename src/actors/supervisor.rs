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
use super::rules::{Engine, Rules};
use super::shared::{Definitions, Shared, Wiring};
use super::transport::{BusMaker, Opening, Transport, queues_by_vhost, topic, transport};
use super::webhook::Webhook;
use super::{Kind, Mail, Mailbox, Owner};
use crate::bus::embedded::Workers;
use crate::bus::{BusKey, BusState};
use crate::engine::{Definition, JobId, Message, Millis};
use crate::faults;
use crate::journal::{JobNumber, JournalError, Options, Recovered, Remedy, Store};
use crate::settings::Settings;
use actix::{Actor, Arbiter, ArbiterHandle, Context, Handler};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
        let buses = &self.shared.buses;
        let mut by_vhost = queues_by_vhost(&definitions, definitions.values());
        let serving: Vec<_> = buses
            .all()
            .into_iter()
            .map(|(key, bus)| (bus, by_vhost.remove(&*key.vhost).unwrap_or_default()))
            .collect();
        let mut makers = Vec::new();
        for (vhost, served) in by_vhost {
            let (key, opening) = (buses.of_vhost(&vhost), Opening { served, joins: true });
            let maker = (self.transport)(&self.shared.settings, &key, opening)
                .map_err(|error| error.to_string())?;
            makers.push((key, maker));
        }
        for (key, maker) in makers {
            let bus = start_bus(&self.shared, &key, maker, &self.bus_arbiter, None);
            buses.add(key, bus);
        }
        self.shared
            .wiring()
            .journal
            .post(JournalInput::Relate(definitions.values().cloned().collect()));
        self.shared.set_definitions(definitions);
        // Who calls a workflow now finds it.
        for (bus, queues) in serving {
            bus.post(BusInput::Serve(queues));
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
    let threads = Threads::Own(Vec::new());
    start_on(threads, settings, definitions, transport(workers), Arc::new(Engine))
}

/// Starts a manager on the given threads and transport.
pub fn start_on(
    threads: Threads,
    settings: Settings,
    definitions: Vec<Arc<Definition>>,
    transport: Transport,
    rules: Arc<dyn Rules>,
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
    let recovered = store.recover()?.into_iter().map(|job| rules.recovered(job));
    let recovered: Vec<Recovered> = recovered.collect();
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
    let reader = store.reader();
    let (table, routes) = routes::table();
    let shared =
        Arc::new(Shared::new(settings, by_name, rules, routes, reader, next_number, fatal_sender));
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
    for (vhost, served) in queues_by_vhost(&definitions, used) {
        let (key, opening) = (shared.buses.of_vhost(&vhost), Opening { served, joins: false });
        let maker = transport(&shared.settings, &key, opening)?;
        makers.push((key, maker));
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
        arbiters: job_arbiters,
    });
    // Last: what a bus reports goes to the others.
    let mut gates = Vec::new();
    for (key, maker) in makers {
        let (gate, wait) = threads.gate().unzip();
        let bus = start_bus(shared, &key, maker, &threads.next(), wait);
        gates.extend(gate);
        shared.buses.add(key, bus);
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
    key: &BusKey,
    maker: BusMaker,
    arbiter: &ArbiterHandle,
    wait: Option<Wait>,
) -> Mailbox<BusInput> {
    shared.health.set_bus(key, BusState::Disconnected { reason: String::new() });
    let (owned, key) = (shared.clone(), key.clone());
    let address = BusActor::start_in_arbiter(arbiter, move |_| {
        if let Some(wait) = wait {
            // An error means that the gate is open.
            let _ = wait.recv();
        }
        let sink = event_sink(&owned, &key);
        BusActor::new(maker(sink), key, owned)
    });
    Mailbox::new(address, usize::MAX, Kind::new(&shared.metrics, BusActor::KIND))
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
        for (_, bus) in self.shared.buses.all() {
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
