//! The health of the manager: the state of the journal and of the buses, as readiness reports it.

use super::memory::JobMemory;
use crate::settings::BusKind;
use base::clock;
use bus::{BusKey, BusState};
use engine::Timestamp;
use journal::FileLoss;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Notify;

/// The health of the manager.
pub struct Health {
    disk_state: RwLock<DiskState>,
    /// The message for clients after the journal's files were lost.
    journal_lost: OnceLock<String>,
    /// Whether the manager is stopping.
    pub stopping: AtomicBool,
    buses: RwLock<BTreeMap<BusKey, BusHealth>>,
    /// The name of the default bus.
    default_bus: Arc<str>,
    /// The memory of jobs, which readiness reports; `None`: it is not reported.
    memory: Option<Arc<JobMemory>>,
    /// Notified when a check may have passed.
    changed: Notify,
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
enum DiskState {
    /// The journal has never waited.
    Writable,
    /// The journal waits.
    Waiting(JournalWait),
    /// The journal has waited, and can be written since then, by the wall clock and by the
    /// monotonic clock.
    WritableSince(Timestamp, tokio::time::Instant),
}

/// What the journal waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalWait {
    /// Free disk space.
    DiskSpace,
    /// The lock on the file, which another program holds.
    Lock,
}

impl JournalWait {
    /// Returns a message for the log and for clients.
    pub fn as_str(self) -> &'static str {
        match self {
            JournalWait::DiskSpace => "no room on the disk: nothing is accepted until there is",
            JournalWait::Lock => {
                "another program keeps the journal's file locked: nothing is accepted until it \
                 lets go (fuser or lsof on the file tells which)"
            }
        }
    }
}

/// The health of a bus.
struct BusHealth {
    state: BusState,
    /// When the bus connected, by the wall clock and by the monotonic clock; `None`: it is not
    /// connected.
    connected_since: Option<(Timestamp, tokio::time::Instant)>,
    /// When the bus disconnected; `None`: it is connected.
    disconnected_since: Option<Timestamp>,
}

/// Renders the message for clients after the journal is lost.
pub fn render_loss(loss: &FileLoss) -> String {
    format!(
        "the journal is lost: {loss}. Nothing is accepted, answered or acknowledged any more. What \
         was accepted may be only in the files that this process has open: before you stop it see \
         \"A journal that is lost\" in docs/operations.md"
    )
}

impl Health {
    /// Creates the health of a manager without any problem. `default_bus` is the bus of workflows
    /// that name none.
    pub fn new(default_bus: &str) -> Health {
        Health {
            disk_state: RwLock::new(DiskState::Writable),
            journal_lost: OnceLock::new(),
            stopping: AtomicBool::new(false),
            buses: RwLock::default(),
            default_bus: default_bus.into(),
            memory: None,
            changed: Notify::new(),
        }
    }

    /// Adds the memory of jobs, so that readiness reports it.
    pub fn with_memory(self, memory: Arc<JobMemory>) -> Health {
        Health { memory: Some(memory), ..self }
    }

    /// Stores the state of a bus.
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
            Some(BusHealth { connected_since: None, .. }) | None => {
                Some((clock::now(), clock::timer_now()))
            }
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
            let changed = self.changed.notified();
            if self.checks().iter().all(|check| check.is_passed) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the time before which messages were sent whose replies may be unread in the reply
    /// queue of a bus. Replies may be unread while the bus is not connected, while it is catching
    /// up, and for the duration `replies_first` after it has connected. `None`: all replies are
    /// read.
    pub fn replies_unread_before(
        &self,
        key: &BusKey,
        replies_first: Duration,
    ) -> Option<Timestamp> {
        let buses = self.buses.read().unwrap_or_else(PoisonError::into_inner);
        let BusHealth { state, connected_since, .. } = buses.get(key)?;
        match *connected_since {
            None => Some(Timestamp(i64::MAX)),
            Some((time, _)) if *state == BusState::CatchingUp => Some(time),
            Some((time, instant)) => (clock::timer_now().saturating_duration_since(instant)
                < replies_first)
                .then_some(time),
        }
    }

    /// Returns when a bus disconnected: messages since then are not sent. `None`: the bus is
    /// connected, or has no state yet.
    pub fn disconnected_since(&self, key: &BusKey) -> Option<Timestamp> {
        self.buses.read().unwrap_or_else(PoisonError::into_inner).get(key)?.disconnected_since
    }

    /// Returns the time before which attempts began whose messages may be unsent, because their
    /// commit had to wait. They may be unsent while the journal waits, and for the duration
    /// `unsent_grace` afterwards. `None`: all messages are sent.
    pub fn unsent_before(&self, unsent_grace: Duration) -> Option<Timestamp> {
        match self.disk_state() {
            DiskState::Writable => None,
            DiskState::Waiting(_) => Some(Timestamp(i64::MAX)),
            DiskState::WritableSince(time, instant) => {
                (clock::timer_now().saturating_duration_since(instant) < unsent_grace)
                    .then_some(time)
            }
        }
    }

    fn disk_state(&self) -> DiskState {
        *self.disk_state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the journal waits.
    pub fn is_journal_waiting(&self) -> bool {
        self.journal_wait().is_some()
    }

    /// Returns what the journal waits for; `None`: it does not wait.
    pub fn journal_wait(&self) -> Option<JournalWait> {
        match self.disk_state() {
            DiskState::Waiting(wait) => Some(wait),
            DiskState::Writable | DiskState::WritableSince(..) => None,
        }
    }

    /// Sets whether the journal can be written. Returns whether that has changed.
    pub(super) fn set_writable(&self, is_writable: bool) -> bool {
        if !is_writable {
            return self.set_waiting(JournalWait::DiskSpace);
        }
        let has_waited = self.is_journal_waiting();
        if has_waited {
            self.set_disk_state(DiskState::WritableSince(clock::now(), clock::timer_now()));
        }
        has_waited
    }

    /// Sets what the journal waits for. Returns whether that has changed.
    pub(super) fn set_waiting(&self, wait: JournalWait) -> bool {
        let is_changed = self.journal_wait() != Some(wait);
        if is_changed {
            self.set_disk_state(DiskState::Waiting(wait));
        }
        is_changed
    }

    fn set_disk_state(&self, state: DiskState) {
        *self.disk_state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Returns the checks: of the journal, the process, the clock if it was set, each bus, and the
    /// memory if it is reported.
    pub fn checks(&self) -> Vec<HealthCheck> {
        let problem = self.journal_loss().or(self.journal_wait().map(JournalWait::as_str));
        let is_stopping = self.stopping.load(Ordering::Relaxed);
        let process_message = if is_stopping { "stopping" } else { "ok" };
        let mut checks = vec![
            HealthCheck::new("journal", problem.is_none(), problem.unwrap_or("ok")),
            HealthCheck::new("process", !is_stopping, process_message),
        ];
        if let Some(elapsed) = clock::since_adjustment() {
            let (by_s, ago_s) = (clock::total_adjustment_s(), elapsed.as_secs());
            let message = format!(
                "ok: it was set by {by_s} s since the start, the last time {ago_s} s ago \
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
            let is_passed = matches!(state, BusState::Connected | BusState::CatchingUp);
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

    /// Returns whether jobs can be accepted.
    pub fn can_accept(&self) -> bool {
        !self.is_journal_waiting() && self.can_cancel()
    }

    /// Returns whether active jobs can be cancelled, which is possible even while the disk is full.
    pub fn can_cancel(&self) -> bool {
        self.journal_wait() != Some(JournalWait::Lock)
            && self.journal_loss().is_none()
            && !self.stopping.load(Ordering::Relaxed)
    }

    /// Marks the journal as lost, which is permanent. Returns the message for clients.
    pub(super) fn set_journal_lost(&self, loss: &FileLoss) -> &str {
        self.journal_lost.get_or_init(|| render_loss(loss))
    }

    /// Returns the message for clients that the journal is lost; `None`: it is not lost.
    pub fn journal_loss(&self) -> Option<&str> {
        self.journal_lost.get().map(String::as_str)
    }
}
