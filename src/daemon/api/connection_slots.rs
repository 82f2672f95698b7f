//! The slots of connections: which connections hold one, which is evicted for a new one, and how
//! many may be busy. A call is an HTTP request or a gRPC call. A connection is busy while it has an
//! active call, and idle otherwise.
//!
//! At most seven eighths of the slots may be busy. The others are for new and idle connections, and
//! for probes. So a new connection gets a slot, unless its client network has too many busy ones.
//! Once seven eighths of the slots are taken, each new connection evicts idle ones: all that have
//! been open for some seconds without an admitted call. If there are none, it evicts one,
//! preferably without an admitted call, and among equals the one that has been idle for longest.

use super::problem::Problem;
use crate::access;
use crate::actors::log_limiter::KeyedRateLimiter;
use crate::api::state::ApiState;
use crate::telemetry::Metrics;
use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpRequest};
use base::budget::{Permit, ResourceBudget};
use base::clock;
use futures_util::task::AtomicWaker;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::Duration;
use tokio::time::Instant;

/// How long a connection may stay open without an admitted call while slots are short.
const UNADMITTED_MAX: Duration = Duration::from_secs(5);

/// How long a connection counts as new. A new connection is evicted only after all other idle ones,
/// because its first call may be on its way.
const NEW_CONNECTION_GRACE: Duration = Duration::from_secs(1);

/// A bit in the counter of a connection's active calls. It is set when the connection is closed:
/// after that, no call may begin.
const CLOSED_BIT: usize = 1 << (usize::BITS - 1);

/// The slots of all connections to a port.
pub struct ConnectionSlots {
    metrics: Metrics,
    log_limiter: Arc<KeyedRateLimiter>,
    /// The name of the setting that limits the connections.
    setting: &'static str,
    /// The time from which times in milliseconds are counted.
    started: Instant,
    /// The most busy connections. Once this many connections are open, each new one evicts idle
    /// ones.
    busy_max: usize,
    /// The most connections from one client network.
    network_max: usize,
    /// The number of busy connections.
    busy: AtomicUsize,
    /// Bounds the long polls: waiting calls of workers, and streams of events.
    long_polls: ResourceBudget,
    /// The capacity of `long_polls`.
    long_polls_max: usize,
    open: Mutex<OpenConnections>,
}

/// The connections that hold a slot.
#[derive(Default)]
struct OpenConnections {
    /// The number of the connection that was opened last.
    last_number: u64,
    by_number: HashMap<u64, Arc<ConnectionSlot>>,
    /// The number of connections from each client network ([`access::client_network`]).
    count_by_network: HashMap<IpAddr, usize>,
}

/// The slot of one connection.
pub struct ConnectionSlot {
    /// The address of the client.
    pub address: SocketAddr,
    /// Identifies the connection; no two connections of the same slots have one number.
    number: u64,
    slots: Arc<ConnectionSlots>,
    /// When the connection was opened, in milliseconds since [`ConnectionSlots::started`].
    opened_ms: u64,
    /// When the last active call ended, or when the connection was opened, in the same unit.
    idle_since_ms: AtomicU64,
    /// Whether a call of the connection was admitted, as the authorisation decides.
    is_admitted: AtomicBool,
    /// The number of active calls, with [`CLOSED_BIT`].
    active_calls: AtomicUsize,
    /// How many calls have begun so far.
    call_count: AtomicUsize,
    /// Whether the manager has closed the connection.
    is_closed: AtomicBool,
    /// Wakes the task of the connection when it is closed.
    waker: AtomicWaker,
}

/// Releases the slot of a connection when it is dropped.
pub struct SlotGuard(pub Arc<ConnectionSlot>);

/// An active call of a connection. The call ends when the guard is dropped.
pub struct CallGuard(Arc<ConnectionSlot>);

impl ConnectionSlots {
    /// Makes `max` slots, of which one client network gets at most `address_max`. 0 means fifteen
    /// sixteenths of `max`: more than may be busy, so one network alone cannot exhaust the slots.
    pub fn new(
        api: &ApiState,
        setting: &'static str,
        max: usize,
        address_max: usize,
    ) -> Arc<ConnectionSlots> {
        let busy_max = max - max / 8;
        // A quarter of the slots stays free for calls that do not wait.
        let long_polls_max = (max - max / 4).max(1);
        Arc::new(ConnectionSlots {
            metrics: api.metrics.clone(),
            log_limiter: api.log_limiter.clone(),
            setting,
            started: clock::timer_now(),
            busy_max,
            network_max: if address_max == 0 { max - max / 16 } else { address_max },
            busy: AtomicUsize::new(0),
            long_polls: ResourceBudget::for_count(long_polls_max),
            long_polls_max,
            open: Mutex::default(),
        })
    }

    /// Acquires a slot for a new connection. Evicts idle connections if slots are short. Returns
    /// `None` if the client network already has its limit of connections, and all of them are busy.
    pub fn acquire_slot(self: &Arc<Self>, address: SocketAddr) -> Option<SlotGuard> {
        let network = access::client_network(address.ip());
        let mut open = self.lock_open();
        let count = open.count_by_network.get(&network).copied().unwrap_or(0);
        if count >= self.network_max && self.evict_idle(&mut open, Some(network)) == 0 {
            self.count_closed("address", 1);
            if self.log_limiter.may_log("address") {
                tracing::warn!(
                    %address,
                    max = self.network_max,
                    "a connection is refused: its address has as many as it may have, all with \
                     calls under way (http.address_connections_max; logged once a minute)"
                );
            }
            return None;
        }
        if open.by_number.len() >= self.busy_max {
            let evicted = self.evict_idle(&mut open, None);
            if self.log_limiter.may_log(self.setting) {
                tracing::warn!(
                    connections = open.by_number.len() + evicted,
                    evicted,
                    "connections are short: those without a call under way end for newcomers \
                     (setting {}; logged once a minute)",
                    self.setting
                );
            }
        }
        open.last_number += 1;
        let now = self.now_ms();
        let slot = Arc::new(ConnectionSlot {
            address,
            number: open.last_number,
            slots: self.clone(),
            opened_ms: now,
            idle_since_ms: AtomicU64::new(now),
            is_admitted: AtomicBool::new(false),
            active_calls: AtomicUsize::new(0),
            call_count: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        open.by_number.insert(slot.number, slot.clone());
        *open.count_by_network.entry(network).or_default() += 1;
        Some(SlotGuard(slot))
    }

    /// Closes all idle connections that have been open for [`UNADMITTED_MAX`] without an admitted
    /// call. If there are none, closes the idle connection that ranks first. Considers only
    /// connections from `network`, if it is given. Returns how many were closed.
    fn evict_idle(&self, open: &mut OpenConnections, network: Option<IpAddr>) -> usize {
        let now = self.now_ms();
        let mut evicted = Vec::new();
        let mut first_candidate: Option<EvictionCandidate> = None;
        for slot in open.by_number.values() {
            if network.is_some_and(|network| network != access::client_network(slot.address.ip()))
                || slot.active_calls.load(Ordering::Acquire) > 0
            {
                continue;
            }
            let is_admitted = slot.is_admitted.load(Ordering::Relaxed);
            let age = Duration::from_millis(now.saturating_sub(slot.opened_ms));
            if !is_admitted && age >= UNADMITTED_MAX {
                evicted.push(slot.number);
            }
            let rank = if is_admitted {
                EvictionRank::Admitted
            } else if age < NEW_CONNECTION_GRACE {
                EvictionRank::New
            } else {
                EvictionRank::Unadmitted
            };
            let idle_since_ms = slot.idle_since_ms.load(Ordering::Relaxed);
            let candidate = EvictionCandidate { rank, idle_since_ms, number: slot.number };
            if first_candidate.is_none_or(|first| candidate < first) {
                first_candidate = Some(candidate);
            }
        }
        if evicted.is_empty() {
            evicted.extend(first_candidate.map(|candidate| candidate.number));
        }
        let count_before = open.by_number.len();
        for number in evicted {
            if open.by_number.get(&number).is_some_and(|slot| slot.close_if_idle()) {
                open.remove(number);
            }
        }
        let count = count_before - open.by_number.len();
        self.count_closed("room", count);
        count
    }

    /// Counts connections that the manager has closed or refused, in a metric.
    fn count_closed(&self, reason: &str, count: usize) {
        let counter = self.metrics.connections_ended.with_label_values(&[reason]);
        counter.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// Returns the milliseconds since `started`.
    fn now_ms(&self) -> u64 {
        let elapsed = clock::timer_now().saturating_duration_since(self.started);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    fn lock_open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The order in which idle connections are evicted, first to last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionRank {
    /// None of its calls was admitted.
    Unadmitted,
    /// At least one of its calls was admitted.
    Admitted,
    /// It has just been opened, and none of its calls was admitted.
    New,
}

/// An idle connection. The least candidate is evicted first: by its rank, then the connection that
/// has been idle for longest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionCandidate {
    rank: EvictionRank,
    idle_since_ms: u64,
    number: u64,
}

impl OpenConnections {
    /// Removes a connection. Does nothing if it was evicted before.
    fn remove(&mut self, number: u64) {
        let Some(slot) = self.by_number.remove(&number) else { return };
        let network = access::client_network(slot.address.ip());
        if let Some(count) = self.count_by_network.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.count_by_network.remove(&network);
            }
        }
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.0.slots.lock_open().remove(self.0.number);
    }
}

impl ConnectionSlot {
    /// Marks that a call of the connection was admitted. Such a connection is evicted after those
    /// without one.
    pub fn mark_admitted(&self) {
        self.is_admitted.store(true, Ordering::Relaxed);
    }

    /// Returns whether a call of the connection was admitted.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::Relaxed)
    }

    /// Returns how many calls have begun on the connection.
    pub(super) fn call_count(&self) -> usize {
        self.call_count.load(Ordering::Relaxed)
    }

    /// Returns whether the connection has an active call.
    pub(super) fn is_busy(&self) -> bool {
        self.active_calls.load(Ordering::Relaxed) & !CLOSED_BIT > 0
    }

    /// Begins a call, which ends when the returned guard is dropped. A probe is refused only if the
    /// connection was closed.
    ///
    /// # Errors
    ///
    /// Returns a 503 if the connection was closed, or too many connections are busy.
    pub fn begin_call(self: &Arc<Self>, is_probe: bool) -> Result<CallGuard, Problem> {
        let calls_before = self.active_calls.fetch_add(1, Ordering::AcqRel);
        let call = CallGuard(self.clone());
        self.call_count.fetch_add(1, Ordering::Relaxed);
        let ConnectionSlots { busy, busy_max, setting, log_limiter, .. } = &*self.slots;
        let was_idle = calls_before & !CLOSED_BIT == 0;
        // A connection that is busy already counts among the busy ones.
        let busy_before = if was_idle { busy.fetch_add(1, Ordering::Relaxed) } else { 0 };
        if calls_before & CLOSED_BIT != 0 {
            return Err(Problem::overloaded(
                "this connection was ended for others: send the call again on a new one".to_owned(),
            ));
        }
        if busy_before >= *busy_max && !is_probe {
            if log_limiter.may_log("busy") {
                tracing::warn!(
                    busy_max,
                    "calls are refused: so many connections have calls under way (seven eighths \
                     of {setting}; logged once a minute)"
                );
            }
            return Err(Problem::overloaded(format!(
                "{busy_max} connections have calls under way, seven eighths of {setting}: the rest \
                 is for probes"
            )));
        }
        Ok(call)
    }

    /// Acquires a permit for a long poll.
    ///
    /// # Errors
    ///
    /// Returns a 503 if there are too many long polls.
    pub(super) fn acquire_long_poll(&self) -> Result<Permit, Problem> {
        let ConnectionSlots { long_polls, long_polls_max, setting, log_limiter, .. } = &*self.slots;
        long_polls.try_acquire(1).ok_or_else(|| {
            if log_limiter.may_log("long_polls") {
                tracing::warn!(
                    long_polls_max,
                    "calls are refused: so many workers and readers of events wait on connections \
                     of their own (three quarters of {setting}; logged once a minute)"
                );
            }
            Problem::overloaded(format!(
                "{long_polls_max} workers and readers of events wait, three quarters of \
                 {setting}: the rest is for other calls"
            ))
        })
    }

    /// Closes the connection even if it is busy.
    pub fn close(&self) {
        self.active_calls.fetch_or(CLOSED_BIT, Ordering::AcqRel);
        self.notify_closed();
    }

    /// Closes the connection if it is idle. Returns whether it was.
    fn close_if_idle(&self) -> bool {
        let is_idle = self
            .active_calls
            .compare_exchange(0, CLOSED_BIT, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if is_idle {
            self.notify_closed();
        }
        is_idle
    }

    /// Wakes the task of the connection, which then closes the socket.
    fn notify_closed(&self) {
        tracing::debug!(peer = %self.address, "a connection is closed by the manager");
        self.is_closed.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Returns whether the manager has closed the connection. If it has not, the task of `context`
    /// is woken when it does.
    pub fn poll_closed(&self, context: &Context<'_>) -> bool {
        self.waker.register(context.waker());
        self.is_closed.load(Ordering::Acquire)
    }

    /// Counts a connection that is closed because its TLS handshake or a request head was late.
    pub(super) fn report_late_head(&self) {
        self.slots.count_closed("head", 1);
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let ConnectionSlot { slots, active_calls, idle_since_ms, .. } = &*self.0;
        idle_since_ms.store(slots.now_ms(), Ordering::Relaxed);
        let calls_before = active_calls.fetch_sub(1, Ordering::AcqRel) & !CLOSED_BIT;
        if calls_before == 1 {
            slots.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The slot of a request's connection. `None`: a test made the request, without a connection.
pub(super) struct RequestSlot(Option<Arc<ConnectionSlot>>);

impl RequestSlot {
    /// Acquires a permit for a long poll, if the request has a connection.
    pub(super) fn acquire_long_poll(&self) -> Result<Option<Permit>, Problem> {
        self.0.as_ref().map(|slot| slot.acquire_long_poll()).transpose()
    }
}

impl FromRequest for RequestSlot {
    type Error = Infallible;
    type Future = Ready<Result<RequestSlot, Infallible>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(RequestSlot(request.conn_data::<Arc<ConnectionSlot>>().cloned())))
    }
}
