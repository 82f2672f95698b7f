//! What keeps the manager from working, as readiness reports it.

use super::memory::JobMemory;
use crate::settings::BusKind;
use base::clock;
use bus::{BusKey, BusState};
use engine::Timestamp;
use journal::FileLoss;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Notify;

/// What keeps the manager from working.
pub struct Health {
    disk_state: RwLock<DiskState>,
    /// The description of what has happened to the journal's files, if anything has.
    journal_lost: OnceLock<String>,
    /// Whether the daemon is about to stop.
    pub stopping: AtomicBool,
    buses: RwLock<BTreeMap<BusKey, BusHealth>>,
    default_bus: Arc<str>,
    /// The memory that jobs under way hold, if it is reported.
    memory: Option<Arc<JobMemory>>,
    changed: Notify,
}

/// Whether commits have room on the disk, and a file that no other program keeps locked.
#[derive(Clone, Copy, Debug)]
enum DiskState {
    /// They always had.
    Writable,
    /// The journal waits.
    Waiting(JournalWait),
    /// The journal had to wait, and can write again since then, by the wall clock and by a
    /// monotonic one.
    WritableSince(Timestamp, tokio::time::Instant),
}

/// What the journal waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalWait {
    /// Room on the disk.
    DiskSpace,
    /// The end of a lock that another program holds on the file.
    Lock,
}

impl JournalWait {
    /// Returns a sentence for those who wait.
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

/// What is known of a bus.
struct BusHealth {
    state: BusState,
    /// Since when it is connected, by the wall clock and by a monotonic one.
    connected: Option<(Timestamp, tokio::time::Instant)>,
    /// Since when it is not connected.
    disconnected: Option<Timestamp>,
}

/// Renders what clients are told once the journal is lost.
pub fn render_loss(loss: &FileLoss) -> String {
    format!(
        "the journal is lost: {loss}. Nothing is accepted, answered or acknowledged any more. What \
         was accepted may be only in the files that this process has open: before you stop it see \
         \"A journal that is lost\" in docs/operations.md"
    )
}

impl Health {
    /// Creates a state in which everything works. `default_bus`: the bus of workflows that name
    /// none.
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

    /// Adds the memory of jobs to the state, so that readiness reports it.
    pub fn with_memory(self, memory: Arc<JobMemory>) -> Health {
        Health { memory: Some(memory), ..self }
    }

    /// Stores the state of a bus.
    pub fn set_bus(&self, key: &BusKey, state: BusState) {
        let is_connected = |state: &BusState| !matches!(state, BusState::Disconnected { .. });
        let mut buses = self.buses.write().unwrap_or_else(PoisonError::into_inner);
        let disconnected = match buses.get(key) {
            _ if is_connected(&state) => None,
            Some(BusHealth { disconnected: Some(since), .. }) => Some(*since),
            Some(BusHealth { disconnected: None, .. }) | None => Some(clock::now()),
        };
        let connected = match buses.get(key) {
            _ if !is_connected(&state) => None,
            Some(BusHealth { connected: Some(since), .. }) => Some(*since),
            Some(BusHealth { connected: None, .. }) | None => {
                Some((clock::now(), clock::timer_now()))
            }
        };
        buses.insert(key.clone(), BusHealth { state, connected, disconnected });
        drop(buses);
        self.notify_change();
    }

    /// Wakes those who wait for readiness: a check may have turned good.
    pub fn notify_change(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until all checks are good.
    pub async fn wait_until_ready(&self) {
        loop {
            let changed = self.changed.notified();
            if self.checks().iter().all(|(_, good, _)| *good) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the time before which sent messages may have replies that lie unread in the reply
    /// queue of a bus: while the bus is not connected, while it is catching up, and for the span
    /// `replies_first` after it has connected again.
    ///
    /// `None`: all replies are read.
    pub fn replies_unread_before(
        &self,
        key: &BusKey,
        replies_first: Duration,
    ) -> Option<Timestamp> {
        let buses = self.buses.read().unwrap_or_else(PoisonError::into_inner);
        let BusHealth { state, connected, .. } = buses.get(key)?;
        match *connected {
            None => Some(Timestamp(i64::MAX)),
            Some((at, _)) if *state == BusState::CatchingUp => Some(at),
            Some((at, since)) => {
                (clock::timer_now().saturating_duration_since(since) < replies_first).then_some(at)
            }
        }
    }

    /// Returns since when a bus is not connected: a message of later date has not been sent.
    /// `None`: it is connected, or nothing is known of it.
    pub fn disconnected_since(&self, key: &BusKey) -> Option<Timestamp> {
        self.buses.read().unwrap_or_else(PoisonError::into_inner).get(key)?.disconnected
    }

    /// Returns the time before which messages of attempts may have waited unsent for room on the
    /// disk: while there is none, and for the span `sent_first` after there is room again.
    ///
    /// `None`: all are sent.
    pub fn unsent_before(&self, sent_first: Duration) -> Option<Timestamp> {
        match self.disk_state() {
            DiskState::Writable => None,
            DiskState::Waiting(_) => Some(Timestamp(i64::MAX)),
            DiskState::WritableSince(at, since) => {
                (clock::timer_now().saturating_duration_since(since) < sent_first).then_some(at)
            }
        }
    }

    fn disk_state(&self) -> DiskState {
        *self.disk_state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the journal waits, for whatever reason.
    pub fn is_journal_waiting(&self) -> bool {
        self.journal_wait().is_some()
    }

    /// Returns what the journal waits for, if it waits.
    pub fn journal_wait(&self) -> Option<JournalWait> {
        match self.disk_state() {
            DiskState::Waiting(wait) => Some(wait),
            DiskState::Writable | DiskState::WritableSince(..) => None,
        }
    }

    /// Stores whether the journal could be written. Returns whether that has changed.
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

    /// Stores what the journal waits for. Returns whether that has changed.
    pub(super) fn set_waiting(&self, wait: JournalWait) -> bool {
        let is_new = self.journal_wait() != Some(wait);
        if is_new {
            self.set_disk_state(DiskState::Waiting(wait));
        }
        is_new
    }

    fn set_disk_state(&self, state: DiskState) {
        *self.disk_state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Returns each check: its name, whether it is good, and a sentence.
    pub fn checks(&self) -> Vec<(String, bool, String)> {
        let bad = self.journal_loss().or(self.journal_wait().map(JournalWait::as_str));
        let stopping = self.stopping.load(Ordering::Relaxed);
        let mut checks = vec![
            ("journal".to_owned(), bad.is_none(), bad.unwrap_or("ok").to_owned()),
            ("process".to_owned(), !stopping, if stopping { "stopping" } else { "ok" }.to_owned()),
        ];
        if let Some(ago) = clock::since_adjustment() {
            let (by_s, ago_s) = (clock::total_adjustment_s(), ago.as_secs());
            let sentence = format!(
                "ok: it was set by {by_s} s since the start, the last time {ago_s} s ago \
                 (retention waits for an hour)"
            );
            checks.push(("clock".to_owned(), true, sentence));
        }
        let buses = self.buses.read().unwrap_or_else(PoisonError::into_inner);
        for (BusKey { name: bus_name, vhost }, BusHealth { state, .. }) in buses.iter() {
            let mut name = "bus".to_owned();
            // The default bus is called *the* bus where there is only one.
            let is_default = *bus_name == self.default_bus;
            let bus = Some(bus_name).filter(|_| !is_default);
            for part in bus.into_iter().chain(Some(vhost).filter(|vhost| !vhost.is_empty())) {
                name.push(' ');
                name.push_str(part);
            }
            let mut sentence = state.to_string();
            if **bus_name == *BusKind::Embedded.name() {
                sentence.push_str(if is_default {
                    " (embedded: no broker is set)"
                } else {
                    " (embedded)"
                });
            }
            let is_good = matches!(state, BusState::Connected | BusState::CatchingUp);
            checks.push((name, is_good, sentence));
        }
        // Never bad: creations beyond it are refused with that reason, and all else goes on.
        checks.extend(
            self.memory.iter().map(|jobs| ("memory".to_owned(), true, jobs.render_summary())),
        );
        checks
    }

    /// Returns the state of a bus.
    pub fn bus(&self, key: &BusKey) -> Option<BusState> {
        self.buses
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .map(|link| link.state.clone())
    }

    /// Returns whether jobs can be accepted.
    pub fn can_accept(&self) -> bool {
        !self.is_journal_waiting() && self.can_cancel()
    }

    /// Returns whether jobs under way can be cancelled: also while there is no room on the disk.
    pub fn can_cancel(&self) -> bool {
        self.journal_wait() != Some(JournalWait::Lock)
            && self.journal_loss().is_none()
            && !self.stopping.load(Ordering::Relaxed)
    }

    /// Marks the journal as lost, until the process ends; returns the sentence that says so.
    pub(super) fn set_journal_lost(&self, loss: &FileLoss) -> &str {
        self.journal_lost.get_or_init(|| render_loss(loss))
    }

    /// Returns why the journal is lost, if it is.
    pub fn journal_loss(&self) -> Option<&str> {
        self.journal_lost.get().map(String::as_str)
    }
}
