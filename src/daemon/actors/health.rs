//! The health of the manager: the state of the journal and of the buses, as readiness reports it.

use super::memory::JobMemory;
use crate::settings::BusKind;
use base::clock;
use bus::{BusKey, BusState};
use engine::{Millis, Timestamp};
use journal::{FileLoss, LEASE, Remedy};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Notify;

/// From which difference of this machine's clock and that of the journal's server on it is warned.
const CLOCK_AHEAD_WARNED_MS: u64 = 1_000;

/// From which difference on the manager is not ready.
const CLOCK_AHEAD_MAX_MS: u64 = 10_000;

/// From which age of the newest beat on the manager is not ready: commits hang too, or will.
const BEAT_AGE_MAX: Duration = Duration::from_secs(6);

/// The message for clients while no beat reaches the database.
const OUT_OF_TOUCH: &str = "the journal's database server has had no sign of life of this manager \
                            for so long that another one may be active: nothing is accepted, and \
                            no worker receives a message, until it is known";

/// The message while the newest beat has not reached the database for some time.
const BEAT_LATE: &str = "the journal's database server has had no sign of life of this manager for \
                         some seconds: what is to be committed waits for an answer";

/// The health of the manager. All actors share it.
pub struct Health {
    write_state: RwLock<WriteState>,
    /// The message for clients that the journal's files are lost. It is set once they are.
    loss_message: OnceLock<String>,
    is_stopping: AtomicBool,
    /// How far the clock of this machine is ahead of that of the journal's server, in milliseconds;
    /// 0 if there is none, or if it is not known.
    clock_ahead_ms: AtomicI64,
    /// How long ago the newest beat was sent of those that have reached the database, in
    /// milliseconds; 0 if nobody can take this process's name.
    beat_age_ms: AtomicU64,
    buses: RwLock<BTreeMap<BusKey, BusHealth>>,
    /// The name of the default bus.
    default_bus: Arc<str>,
    /// The memory of jobs, which readiness reports; `None`: it is not reported.
    memory: Option<Arc<JobMemory>>,
    /// Wakes the tasks that wait for readiness, when a check may have passed.
    changed: Notify,
    /// Wakes the tasks that wait until another process may be active.
    lost_touch: Notify,
}

/// The result of one check of the health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is checked: `journal`, `process`, `clock`, `memory`, or `bus` with the name and the
    /// virtual host of a bus.
    pub name: String,
    /// Whether the check passes.
    pub is_passed: bool,
    /// The state in words, or why the check fails.
    pub message: String,
}

impl HealthCheck {
    /// Creates the result of a check.
    pub fn new(
        name: impl Into<String>,
        is_passed: bool,
        message: impl Into<String>,
    ) -> HealthCheck {
        HealthCheck { name: name.into(), is_passed, message: message.into() }
    }
}

/// As `name: message`.
impl fmt::Display for HealthCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.message)
    }
}

/// Whether the journal can be written.
#[derive(Clone, Copy, Debug)]
enum WriteState {
    /// The journal has never waited.
    Writable,
    /// The journal waits.
    Waiting(JournalWait),
    /// The journal has waited, and can be written since this moment.
    WritableSince(Moment),
}

/// One moment on both clocks. Time stamps are compared with the wall clock; the monotonic clock
/// measures how long ago the moment was.
#[derive(Clone, Copy, Debug)]
struct Moment {
    wall_time: Timestamp,
    instant: tokio::time::Instant,
}

impl Moment {
    fn now() -> Moment {
        Moment { wall_time: clock::now(), instant: clock::timer_now() }
    }

    /// Returns the wall time of the moment if it was less than `duration` ago.
    fn wall_time_within(self, duration: Duration) -> Option<Timestamp> {
        let elapsed = clock::timer_now().saturating_duration_since(self.instant);
        (elapsed < duration).then_some(self.wall_time)
    }
}

/// What the journal waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalWait {
    /// Free disk space.
    DiskSpace,
    /// The lock on the file, which another program holds.
    Lock,
    /// The server of the journal's database, which cannot be reached or does not write.
    Server,
    /// Memory of the process for the journal's database.
    Memory,
}

impl JournalWait {
    /// Returns what the journal waits for with this remedy; `None`: waiting does not help.
    pub fn for_remedy(remedy: Remedy) -> Option<JournalWait> {
        match remedy {
            Remedy::WaitForSpace => Some(JournalWait::DiskSpace),
            Remedy::WaitForLock => Some(JournalWait::Lock),
            Remedy::WaitForServer => Some(JournalWait::Server),
            Remedy::WaitForMemory => Some(JournalWait::Memory),
            Remedy::Exit => None,
        }
    }

    /// Returns a message for the log and for clients.
    pub fn as_str(self) -> &'static str {
        match self {
            JournalWait::DiskSpace => "no room on the disk: nothing is accepted until there is",
            JournalWait::Lock => {
                "another program keeps the journal's file locked: nothing is accepted until it \
                 lets go (fuser or lsof on the file tells which)"
            }
            JournalWait::Server => {
                "the journal's database server cannot be reached: nothing is accepted until it can"
            }
            JournalWait::Memory => {
                "the process has no memory for the journal: nothing is accepted until it has (a \
                 limit of address space is too small, or limits.jobs_bytes_max too large)"
            }
        }
    }
}

/// The health of a bus.
struct BusHealth {
    state: BusState,
    /// When the bus connected; `None`: it is not connected.
    connected_since: Option<Moment>,
    /// When the bus disconnected, by the wall clock; `None`: it is connected.
    disconnected_since: Option<Timestamp>,
}

impl Health {
    /// Creates the health of a manager without any problem. `default_bus` is the bus of workflows
    /// that name none.
    pub fn new(default_bus: &str) -> Health {
        Health {
            write_state: RwLock::new(WriteState::Writable),
            loss_message: OnceLock::new(),
            is_stopping: AtomicBool::new(false),
            clock_ahead_ms: AtomicI64::new(0),
            beat_age_ms: AtomicU64::new(0),
            buses: RwLock::default(),
            default_bus: default_bus.into(),
            memory: None,
            changed: Notify::new(),
            lost_touch: Notify::new(),
        }
    }

    /// Adds the memory of jobs, so that readiness reports it.
    pub fn with_memory(self, memory: Arc<JobMemory>) -> Health {
        Health { memory: Some(memory), ..self }
    }

    /// Marks the manager as stopping: it accepts nothing any more.
    pub(super) fn mark_stopping(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Returns whether the manager is stopping.
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Stores how far the clock of this machine is ahead of that of the journal's server, in
    /// milliseconds. Warns when they begin to differ.
    pub(super) fn set_clock_ahead_ms(&self, ahead_ms: i64) {
        let earlier_ms = self.clock_ahead_ms.swap(ahead_ms, Ordering::Relaxed);
        let differs = |ms: i64| ms.unsigned_abs() > CLOCK_AHEAD_WARNED_MS;
        if differs(ahead_ms) && !differs(earlier_ms) {
            tracing::warn!("{}", render_clock_ahead(ahead_ms));
        }
        if ahead_ms != earlier_ms {
            self.notify_change();
        }
    }

    /// Stores how long ago the newest beat was sent of those that have reached the database. From
    /// [`LEASE`] on another process may be active: nothing is accepted, and no worker receives a
    /// message.
    pub(super) fn set_beat_age(&self, age: Duration) {
        let was_late = self.is_beat_older_than(BEAT_AGE_MAX);
        self.beat_age_ms.store(Millis::from_duration(age).0, Ordering::Relaxed);
        if was_late && age < BEAT_AGE_MAX {
            self.notify_change();
        }
        if age >= LEASE {
            self.lost_touch.notify_waiters();
        }
    }

    /// Waits until another process may be active, and returns why.
    pub async fn wait_until_out_of_touch(&self) -> &'static str {
        loop {
            // This precedes the look, so that no notification is missed in between.
            let lost_touch = self.lost_touch.notified();
            if let Some(reason) = self.out_of_touch() {
                return reason;
            }
            lost_touch.await;
        }
    }

    fn is_beat_older_than(&self, age: Duration) -> bool {
        self.beat_age_ms.load(Ordering::Relaxed) >= Millis::from_duration(age).0
    }

    /// Returns why another process may be active; `None`: this one is.
    pub fn out_of_touch(&self) -> Option<&'static str> {
        self.is_beat_older_than(LEASE).then_some(OUT_OF_TOUCH)
    }

    /// Returns why commits are thought to hang; `None`: they are not.
    fn late_beat(&self) -> Option<&'static str> {
        self.is_beat_older_than(BEAT_AGE_MAX).then_some(BEAT_LATE)
    }

    /// Stores the state of a bus, and since when it is connected or disconnected.
    pub fn set_bus(&self, key: &BusKey, state: BusState) {
        let is_connected = |state: &BusState| !matches!(state, BusState::Disconnected { .. });
        let mut buses = self.buses.write().unwrap_or_else(PoisonError::into_inner);
        let disconnected_since = match buses.get(key) {
            _ if is_connected(&state) => None,
            Some(BusHealth { disconnected_since: Some(since), .. }) => Some(*since),
            Some(BusHealth { disconnected_since: None, .. }) | None => Some(clock::now()),
        };
        let connected_since = match buses.get(key) {
            _ if !is_connected(&state) => None,
            Some(BusHealth { connected_since: Some(since), .. }) => Some(*since),
            Some(BusHealth { connected_since: None, .. }) | None => Some(Moment::now()),
        };
        buses.insert(key.clone(), BusHealth { state, connected_since, disconnected_since });
        drop(buses);
        self.notify_change();
    }

    /// Wakes the tasks that wait for readiness, because a check may have passed.
    pub fn notify_change(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until all checks pass.
    pub async fn wait_until_ready(&self) {
        loop {
            // This precedes the checks, so that no notification is missed in between.
            let changed = self.changed.notified();
            if self.checks().iter().all(|check| check.is_passed) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the end of the time for which replies may be unread: the reply to a message that was
    /// sent earlier may still be in the reply queue of the bus. `None`: all replies are read, or
    /// the bus has no state yet. Replies may be unread while the bus is not connected, while it is
    /// catching up, and for the duration `replies_first` after it has connected.
    pub fn replies_unread_before(
        &self,
        key: &BusKey,
        replies_first: Duration,
    ) -> Option<Timestamp> {
        let buses = self.buses.read().unwrap_or_else(PoisonError::into_inner);
        let BusHealth { state, connected_since, .. } = buses.get(key)?;
        match *connected_since {
            None => Some(Timestamp(i64::MAX)),
            Some(connected) if *state == BusState::CatchingUp => Some(connected.wall_time),
            Some(connected) => connected.wall_time_within(replies_first),
        }
    }

    /// Returns when a bus disconnected: no message has been sent since. `None`: the bus is
    /// connected, or has no state yet.
    pub fn disconnected_since(&self, key: &BusKey) -> Option<Timestamp> {
        self.buses.read().unwrap_or_else(PoisonError::into_inner).get(key)?.disconnected_since
    }

    /// Returns the end of the time for which messages may be unsent because their commit had to
    /// wait: the message of an attempt that began earlier may be one of them. `None`: all messages
    /// are sent. Messages may be unsent while the journal waits, and for the duration
    /// `unsent_grace` afterwards.
    pub fn unsent_before(&self, unsent_grace: Duration) -> Option<Timestamp> {
        match self.write_state() {
            WriteState::Writable => None,
            WriteState::Waiting(_) => Some(Timestamp(i64::MAX)),
            WriteState::WritableSince(moment) => moment.wall_time_within(unsent_grace),
        }
    }

    fn write_state(&self) -> WriteState {
        *self.write_state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the journal has to wait.
    pub fn is_journal_waiting(&self) -> bool {
        self.journal_wait().is_some()
    }

    /// Returns what the journal waits for; `None`: it does not wait.
    pub fn journal_wait(&self) -> Option<JournalWait> {
        match self.write_state() {
            WriteState::Waiting(wait) => Some(wait),
            WriteState::Writable | WriteState::WritableSince(_) => None,
        }
    }

    /// Records that the journal can be written. Returns whether it had to wait before.
    pub(super) fn mark_writable(&self) -> bool {
        let has_waited = self.is_journal_waiting();
        if has_waited {
            self.set_write_state(WriteState::WritableSince(Moment::now()));
        }
        has_waited
    }

    /// Sets what the journal waits for. Returns whether that has changed.
    pub(super) fn set_waiting(&self, wait: JournalWait) -> bool {
        let is_changed = self.journal_wait() != Some(wait);
        if is_changed {
            self.set_write_state(WriteState::Waiting(wait));
        }
        is_changed
    }

    fn set_write_state(&self, state: WriteState) {
        *self.write_state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Returns the checks: of the journal, the process, the clock if it was set or differs from the
    /// database's, each bus, and the memory if it is reported.
    pub fn checks(&self) -> Vec<HealthCheck> {
        let wait = self.journal_wait().map(JournalWait::as_str);
        let problem = self.journal_loss().or(self.out_of_touch()).or(wait).or(self.late_beat());
        let is_stopping = self.is_stopping();
        let process_message = if is_stopping { "stopping" } else { "ok" };
        let mut checks = vec![
            HealthCheck::new("journal", problem.is_none(), problem.unwrap_or("ok")),
            HealthCheck::new("process", !is_stopping, process_message),
        ];
        let ahead_ms = self.clock_ahead_ms.load(Ordering::Relaxed);
        if ahead_ms.unsigned_abs() > CLOCK_AHEAD_MAX_MS {
            checks.push(HealthCheck::new("clock", false, render_clock_ahead(ahead_ms)));
        } else if let Some(elapsed) = clock::since_adjustment() {
            let (total_s, elapsed_s) = (clock::total_adjustment_s(), elapsed.as_secs());
            let message = format!(
                "ok: it was set by {total_s} s since the start, the last time {elapsed_s} s ago \
                 (retention waits for an hour)"
            );
            checks.push(HealthCheck::new("clock", true, message));
        }
        let buses = self.buses.read().unwrap_or_else(PoisonError::into_inner);
        for (BusKey { name: bus_name, vhost }, BusHealth { state, .. }) in buses.iter() {
            // The check of the default bus has no bus name.
            let mut check_name = "bus".to_owned();
            let is_default = *bus_name == self.default_bus;
            let bus_part = Some(bus_name).filter(|_| !is_default);
            let vhost_part = Some(vhost).filter(|vhost| !vhost.is_empty());
            for part in bus_part.into_iter().chain(vhost_part) {
                check_name.push(' ');
                check_name.push_str(part);
            }
            let mut message = state.to_string();
            if **bus_name == *BusKind::Embedded.name() {
                message.push_str(if is_default {
                    " (embedded: no broker is set)"
                } else {
                    " (embedded)"
                });
            }
            let is_passed = matches!(state, BusState::Connected { .. } | BusState::CatchingUp);
            checks.push(HealthCheck::new(check_name, is_passed, message));
        }
        // This check always passes: at the memory limit only some requests are refused, and they
        // report the reason.
        if let Some(memory) = &self.memory {
            checks.push(HealthCheck::new("memory", true, memory.render_summary()));
        }
        checks
    }

    /// Returns the state of a bus; `None`: it has reported none yet.
    pub fn bus(&self, key: &BusKey) -> Option<BusState> {
        self.buses
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .map(|health| health.state.clone())
    }

    /// Returns whether the manager accepts jobs and requests now.
    pub fn can_accept(&self) -> bool {
        !self.is_journal_waiting() && self.late_beat().is_none() && self.can_cancel()
    }

    /// Returns whether active jobs can be cancelled, which is possible even while the disk is full.
    pub fn can_cancel(&self) -> bool {
        matches!(self.journal_wait(), None | Some(JournalWait::DiskSpace))
            && self.journal_loss().is_none()
            && !self.is_stopping()
            && self.out_of_touch().is_none()
    }

    /// Marks the journal as lost, which is permanent. Returns the message for clients.
    pub(super) fn set_journal_lost(&self, loss: &FileLoss) -> &str {
        self.loss_message.get_or_init(|| render_loss(loss))
    }

    /// Returns the message for clients after the journal was lost; `None`: it is not lost.
    pub fn journal_loss(&self) -> Option<&str> {
        self.loss_message.get().map(String::as_str)
    }
}

/// Renders the message that the clock of this machine differs from that of the journal's server.
fn render_clock_ahead(ahead_ms: i64) -> String {
    let (ms, place) = (ahead_ms.unsigned_abs(), if ahead_ms > 0 { "ahead of" } else { "behind" });
    format!(
        "the clock of this machine is {}.{} s {place} that of the database server, and managers of \
         one cluster need clocks within a second: let NTP set both",
        ms / 1000,
        ms % 1000 / 100
    )
}

/// Renders the message for clients after the journal is lost.
pub fn render_loss(loss: &FileLoss) -> String {
    format!(
        "the journal is lost: {loss}. Nothing is accepted, answered or acknowledged any more. What \
         was accepted may be only in the files that this process has open: before you stop it see \
         \"A journal that is lost\" in docs/how-to/back-up.md"
    )
}
