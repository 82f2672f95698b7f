//! What all actors look at: limits, metrics, health, the definitions, and the ways to the others.

use super::buses::Buses;
use super::losses::Losses;
use super::mail::{
    AnnouncerInput, ArchiveInput, Definitions, JournalInput, RouterInput, SupervisorInput,
};
use super::mailbox::{Kind, Mailbox};
use super::room::Rooms;
use super::routes::Routes;
use super::rules::Rules;
use crate::bus::{BusKey, BusState, embedded};
use crate::clock;
use crate::engine::{Definition, Job, Limits, Timestamp};
use crate::events::{Feeds, Webhook};
use crate::journal::{JobNumber, Loss, Reader};
use crate::settings::{BusKind, Settings};
use crate::telemetry::Metrics;
use actix::ArbiterHandle;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, mpsc};

/// Definitions by their full names.
pub(super) fn by_name(definitions: Vec<Arc<Definition>>) -> Definitions {
    definitions.into_iter().map(|definition| (definition.full_name(), definition)).collect()
}

/// Shared by all actors and the API of a process.
pub struct Shared {
    /// The settings in force.
    pub settings: Settings,
    /// The limits that decisions look at.
    pub limits: Limits,
    /// The metrics.
    pub metrics: Metrics,
    /// What decides for the jobs.
    pub rules: Arc<dyn Rules>,
    /// Which jobs take input; the router writes it.
    pub routes: Routes,
    /// The buses.
    pub buses: Buses,
    definitions: RwLock<Arc<Definitions>>,
    /// Reads the journal.
    pub reader: Reader,
    /// What readiness says.
    pub health: Health,
    /// Queues that have lost messages.
    pub losses: Losses,
    /// Keeps what strangers send from flooding the log.
    pub throttle: Throttle,
    /// Places for creations that are asked for and not yet answered.
    pub creations: Semaphore,
    /// Room for what clients of the API make the process hold.
    pub rooms: Rooms,
    /// The metrics of job mailboxes.
    pub job_kind: Arc<Kind>,
    /// The streams of events.
    pub feeds: Feeds,
    /// The webhook, if there is one.
    pub webhook: Option<Arc<Webhook>>,
    next_number: AtomicI64,
    fatal: mpsc::UnboundedSender<String>,
    wiring: OnceLock<Wiring>,
}

/// The ways to the actors, known once all are started.
pub struct Wiring {
    /// The one router.
    pub router: Mailbox<RouterInput>,
    /// The one journal.
    pub journal: Mailbox<JournalInput>,
    /// The one archive.
    pub archive: Mailbox<ArchiveInput>,
    /// The one supervisor.
    pub supervisor: Mailbox<SupervisorInput>,
    /// The one announcer.
    pub announcer: Mailbox<AnnouncerInput>,
    /// The arbiters over which jobs are spread.
    pub arbiters: Vec<ArbiterHandle>,
}

impl Shared {
    /// Before any actor is started; `fatal` receives the reason for an end of the process.
    pub fn new(
        settings: Settings,
        definitions: Definitions,
        rules: Arc<dyn Rules>,
        routes: Routes,
        reader: Reader,
        next_number: JobNumber,
        fatal: mpsc::UnboundedSender<String>,
    ) -> Shared {
        let limits = Limits {
            step_message_bytes_max: settings.limits.step_message_bytes_max,
            reply_bytes_max: settings.limits.reply_bytes_max,
            depth_max: settings.limits.depth_max,
            window: settings.fanout.window,
            window_bytes: settings.fanout.window_bytes,
        };
        let metrics = Metrics::new();
        let job_kind = Kind::new(&metrics, "job");
        let webhook = Webhook::new(&settings.events, &metrics).map(Arc::new);
        let creations =
            Semaphore::new(settings.limits.creations_waiting_max.min(Semaphore::MAX_PERMITS));
        let rooms = Rooms::new(&settings.http);
        Shared {
            buses: Buses::new(settings.bus()),
            settings,
            limits,
            rules,
            routes,
            definitions: RwLock::new(Arc::new(definitions)),
            reader,
            health: Health::default(),
            losses: Losses::default(),
            throttle: Throttle::default(),
            creations,
            rooms,
            job_kind,
            feeds: Feeds::default(),
            webhook,
            metrics,
            next_number: AtomicI64::new(next_number),
            fatal,
            wiring: OnceLock::new(),
        }
    }

    /// The queue at which the steps of this manager wait for replies.
    pub fn own_reply_queue(&self) -> &str {
        match self.settings.bus() {
            BusKind::Embedded => embedded::REPLIES,
            BusKind::Amqp => &self.settings.amqp.reply_queue,
        }
    }

    /// Makes the ways known; once.
    pub fn wire(&self, wiring: Wiring) {
        assert!(self.wiring.set(wiring).is_ok(), "wired twice");
    }

    /// The ways to the actors.
    #[allow(
        clippy::expect_used,
        reason = "supervisor::start wires before it starts the first job, bus event or request"
    )]
    pub fn wiring(&self) -> &Wiring {
        self.wiring.get().expect("wired")
    }

    /// Whether the bus that a workflow runs on was started.
    pub fn has_bus_for(&self, definition: &Definition) -> bool {
        self.buses.find(&self.buses.of(definition)).is_some()
    }

    /// The definitions for new jobs.
    pub fn definitions(&self) -> Arc<Definitions> {
        self.definitions.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts others in their place; running jobs keep theirs.
    pub(super) fn set_definitions(&self, definitions: Definitions) {
        *self.definitions.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(definitions);
    }

    /// Whether anybody hears of what happens to a job.
    pub fn announces(&self, job: &Job) -> bool {
        let origin = job.origin();
        let parent = origin.parent.map_or(origin.root, |parent| parent.job);
        !self.settings.events.exchange.is_empty()
            || self.feeds.wants([origin.id, parent, origin.root])
    }

    /// The next job's number.
    pub fn take_number(&self) -> JobNumber {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends the process in order, for this reason.
    pub fn fail(&self, reason: String) {
        // Closed only when the end is under way already.
        let _ = self.fatal.send(reason);
    }
}

/// Lets each kind of line into the log once a minute (SPEC §4).
#[derive(Default)]
pub struct Throttle(Mutex<BTreeMap<&'static str, tokio::time::Instant>>);

/// How often a kind of line is logged.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

impl Throttle {
    /// Whether a line of this kind may be logged now.
    pub fn may_log(&self, kind: &'static str) -> bool {
        // Not by the wall clock: set back, it would keep the kind out of the log for as long.
        let now = clock::ticks();
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due =
            logged.get(kind).is_none_or(|at| now.saturating_duration_since(*at) >= LOGGED_EVERY);
        if due {
            logged.insert(kind, now);
        }
        due
    }
}

/// What stands in the way of work.
#[derive(Default)]
pub struct Health {
    /// The journal waits for room on the disk.
    pub journal_full: AtomicBool,
    /// What has happened to the journal's files, if anything has.
    journal_lost: OnceLock<String>,
    /// The daemon is about to stop.
    pub stopping: AtomicBool,
    buses: RwLock<BTreeMap<BusKey, Link>>,
    changed: Notify,
}

/// What is known of a bus.
struct Link {
    state: BusState,
    /// Since when it is connected, by the wall clock and by one that nobody sets.
    connected: Option<(Timestamp, tokio::time::Instant)>,
}

impl Health {
    /// Keeps the state of a bus.
    pub fn set_bus(&self, key: &BusKey, state: BusState) {
        let is_connected = |state: &BusState| !matches!(state, BusState::Disconnected { .. });
        let mut buses = self.buses.write().unwrap_or_else(PoisonError::into_inner);
        let connected = match buses.get(key) {
            _ if !is_connected(&state) => None,
            Some(Link { connected: Some(since), .. }) => Some(*since),
            Some(Link { connected: None, .. }) | None => Some((clock::now(), clock::ticks())),
        };
        buses.insert(key.clone(), Link { state, connected });
        drop(buses);
        self.tell_change();
    }

    /// A check may have turned good.
    pub fn tell_change(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until all checks are good.
    pub async fn ready(&self) {
        loop {
            let changed = self.changed.notified();
            if self.checks().iter().all(|(_, good, _)| *good) {
                return;
            }
            changed.await;
        }
    }

    /// Replies to what was sent before this may lie unheard in the reply queue of a bus: while it is
    /// not connected, and for the span `replies_first` after it has been again. None: all are heard.
    pub fn deaf_to(&self, key: &BusKey, replies_first: Duration) -> Option<Timestamp> {
        match self.buses.read().unwrap_or_else(PoisonError::into_inner).get(key)?.connected {
            None => Some(Timestamp(i64::MAX)),
            Some((at, since)) => {
                (clock::ticks().saturating_duration_since(since) < replies_first).then_some(at)
            }
        }
    }

    /// Each check by name: whether it is good, and a sentence.
    pub fn checks(&self) -> Vec<(String, bool, String)> {
        let full = self
            .journal_full
            .load(Ordering::Relaxed)
            .then_some("no room on the disk: nothing is accepted until there is");
        let bad = self.lost_journal().or(full);
        let stopping = self.stopping.load(Ordering::Relaxed);
        let mut checks = vec![
            ("journal".to_owned(), bad.is_none(), bad.unwrap_or("ok").to_owned()),
            ("process".to_owned(), !stopping, if stopping { "stopping" } else { "ok" }.to_owned()),
        ];
        for (BusKey { vhost, .. }, Link { state, .. }) in
            self.buses.read().unwrap_or_else(PoisonError::into_inner).iter()
        {
            let name = if vhost.is_empty() { "bus".to_owned() } else { format!("bus {vhost}") };
            checks.push((name, *state == BusState::Connected, state.to_string()));
        }
        checks
    }

    /// The state of a bus.
    pub fn bus(&self, key: &BusKey) -> Option<BusState> {
        self.buses
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .map(|link| link.state.clone())
    }

    /// Whether jobs can be accepted.
    pub fn accepts(&self) -> bool {
        !self.journal_full.load(Ordering::Relaxed)
            && self.lost_journal().is_none()
            && !self.stopping.load(Ordering::Relaxed)
    }

    /// The journal is lost, until the end of the process; gives the sentence that says so.
    pub(super) fn lose_journal(&self, loss: &Loss) -> &str {
        self.journal_lost.get_or_init(|| {
            format!(
                "the journal is lost: {loss}. Nothing is accepted, answered or acknowledged any more. What was accepted may be only in the files that this \
                 process has open: before you stop it see \"A journal that is lost\" in docs/operations.md"
            )
        })
    }

    /// Why there is no journal any more, if so.
    pub fn lost_journal(&self) -> Option<&str> {
        self.journal_lost.get().map(String::as_str)
    }
}
