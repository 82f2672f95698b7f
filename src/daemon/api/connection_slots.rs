//! The slots of connections: which connection has one, which must give its own up for a new
//! connection, and how many may have calls under way.
//!
//! A new connection always finds a slot: an eighth of them is never given to connections with calls
//! under way, but kept for connections that are new or idle, and for probes. While slots are short,
//! connections without a call under way are closed: first those none of whose calls was admitted,
//! then the others, each time the one that has been idle for longest.

use super::problem::Problem;
use crate::access;
use crate::actors::common::KeyedRateLimiter;
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

/// How long a connection may stay without an admitted call while slots are short.
const UNADMITTED_MAX: Duration = Duration::from_secs(5);

/// How long a new connection stays at least: its first call may be on its way.
const NEW_CONNECTION_GRACE: Duration = Duration::from_secs(1);

/// The bit in the number of a connection's active calls that says that the connection was closed,
/// and that no further call begins.
const CLOSED_BIT: usize = 1 << (usize::BITS - 1);

/// The slots of all connections to a port.
pub struct ConnectionSlots {
    metrics: Metrics,
    log_limiter: Arc<KeyedRateLimiter>,
    /// The name of the setting that limits the connections.
    setting: &'static str,
    started: Instant,
    /// Beyond this number of connections, idle ones are closed for new ones. At most as many may
    /// have calls under way.
    busy_max: usize,
    /// The most connections from one address.
    address_max: usize,
    /// The number of connections that have calls under way.
    busy: AtomicUsize,
    /// Bounds the calls that wait for something that may come late.
    long_polls: ResourceBudget,
    long_polls_max: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    last_number: u64,
    by_number: HashMap<u64, Arc<ConnectionSlot>>,
    by_address: HashMap<IpAddr, usize>,
}

/// The slot of one connection.
pub struct ConnectionSlot {
    /// The address of the client.
    pub address: SocketAddr,
    number: u64,
    slots: Arc<ConnectionSlots>,
    opened_ms: u64,
    /// Since when no call has been under way.
    idle_since_ms: AtomicU64,
    is_admitted: AtomicBool,
    active_calls: AtomicUsize,
    calls_begun: AtomicUsize,
    is_closed: AtomicBool,
    waker: AtomicWaker,
}

/// The order in which idle connections are closed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionRank {
    /// None of its calls was admitted.
    Unadmitted,
    /// A call was admitted, and none is under way.
    Idle,
    /// The connection has just been opened.
    New,
}

/// Releases the slot of a connection when it is dropped.
pub struct SlotGuard(pub Arc<ConnectionSlot>);

/// A call under way on a connection, until it is dropped.
pub struct CallGuard(Arc<ConnectionSlot>);

/// The slot of the connection on which a request came. `None` in tests, whose requests come on
/// none.
pub(super) struct RequestSlot(Option<Arc<ConnectionSlot>>);

impl RequestSlot {
    /// Acquires what [`ConnectionSlot::acquire_long_poll`] acquires, if there is a connection.
    pub(super) fn acquire_long_poll(&self) -> Result<Option<Permit>, Problem> {
        self.0.as_ref().map(|place| place.acquire_long_poll()).transpose()
    }
}

impl FromRequest for RequestSlot {
    type Error = Infallible;
    type Future = Ready<Result<RequestSlot, Infallible>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(RequestSlot(request.conn_data::<Arc<ConnectionSlot>>().cloned())))
    }
}

impl ConnectionSlots {
    /// Makes `max` slots, of which one address gets at most `address_max`. 0 means all but a
    /// sixteenth, which calls under way alone never take.
    pub fn new(
        api: &ApiState,
        setting: &'static str,
        max: usize,
        address_max: usize,
    ) -> Arc<ConnectionSlots> {
        let busy_max = max - max / 8;
        let long_polls_max = (max - max / 4).max(1);
        Arc::new(ConnectionSlots {
            metrics: api.metrics.clone(),
            log_limiter: api.log_limiter.clone(),
            setting,
            started: clock::timer_now(),
            busy_max,
            address_max: if address_max == 0 { max - max / 16 } else { address_max },
            busy: AtomicUsize::new(0),
            long_polls: ResourceBudget::for_count(long_polls_max),
            long_polls_max,
            open: Mutex::default(),
        })
    }

    /// Acquires a slot for a new connection. Returns `None` if its address has too many
    /// connections, all with calls under way.
    pub fn acquire_slot(self: &Arc<Self>, address: SocketAddr) -> Option<SlotGuard> {
        let network = access::client_network(address.ip());
        let mut open = self.lock_open();
        let count = open.by_address.get(&network).copied().unwrap_or(0);
        if count >= self.address_max && self.evict_idle(&mut open, Some(network)) == 0 {
            self.count_closed("address", 1);
            if self.log_limiter.may_log("address") {
                tracing::warn!(
                    %address,
                    max = self.address_max,
                    "a connection is refused: its address has as many as it may have, all with \
                     calls under way (http.address_connections_max; logged once a minute)"
                );
            }
            return None;
        }
        if open.by_number.len() >= self.busy_max {
            let ended = self.evict_idle(&mut open, None);
            if self.log_limiter.may_log(self.setting) {
                tracing::warn!(
                    connections = open.by_number.len() + ended,
                    ended,
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
            calls_begun: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        open.by_number.insert(slot.number, slot.clone());
        *open.by_address.entry(network).or_default() += 1;
        Some(SlotGuard(slot))
    }

    /// Closes all connections that have gone unadmitted for too long, or else the idle one that
    /// ranks first. Considers only those of `network`, if it is given. Returns how many were
    /// closed.
    fn evict_idle(&self, open: &mut OpenConnections, network: Option<IpAddr>) -> usize {
        let now = self.now_ms();
        let mut closing = Vec::new();
        let mut first: Option<(EvictionRank, u64, u64)> = None;
        for slot in open.by_number.values() {
            if network.is_some_and(|network| network != access::client_network(slot.address.ip()))
                || slot.active_calls.load(Ordering::Acquire) > 0
            {
                continue;
            }
            let is_admitted = slot.is_admitted.load(Ordering::Relaxed);
            let age = Duration::from_millis(now.saturating_sub(slot.opened_ms));
            if !is_admitted && age >= UNADMITTED_MAX {
                closing.push(slot.number);
            }
            let quiet_since = slot.idle_since_ms.load(Ordering::Relaxed);
            let rank = match is_admitted {
                true => EvictionRank::Idle,
                false if age < NEW_CONNECTION_GRACE => EvictionRank::New,
                false => EvictionRank::Unadmitted,
            };
            let candidate = (rank, quiet_since, slot.number);
            if first.is_none_or(|spared| candidate < spared) {
                first = Some(candidate);
            }
        }
        if closing.is_empty() {
            closing.extend(first.map(|(_, _, number)| number));
        }
        let before = open.by_number.len();
        for number in closing {
            if open.by_number.get(&number).is_some_and(|place| place.close_if_idle()) {
                open.remove(number);
            }
        }
        let count = before - open.by_number.len();
        self.count_closed("room", count);
        count
    }

    /// Counts connections that the manager has closed.
    fn count_closed(&self, reason: &str, count: usize) {
        let ended = self.metrics.connections_ended.with_label_values(&[reason]);
        ended.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    fn now_ms(&self) -> u64 {
        let since = clock::timer_now().saturating_duration_since(self.started);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn lock_open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    fn remove(&mut self, number: u64) {
        let Some(slot) = self.by_number.remove(&number) else { return };
        let network = access::client_network(slot.address.ip());
        if let Some(count) = self.by_address.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&network);
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
    /// Marks that a call of the connection was admitted, which keeps it longer.
    pub fn mark_admitted(&self) {
        self.is_admitted.store(true, Ordering::Relaxed);
    }

    /// Returns whether a call of the connection was admitted.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::Relaxed)
    }

    /// Returns how many calls have begun on the connection.
    pub(super) fn calls_begun(&self) -> usize {
        self.calls_begun.load(Ordering::Relaxed)
    }

    /// Returns whether a call is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.active_calls.load(Ordering::Relaxed) & !CLOSED_BIT > 0
    }

    /// Begins a call, which ends when the returned guard is dropped. Probes are always let in.
    ///
    /// # Errors
    ///
    /// 503: the connection was closed, or too many connections have calls under way.
    pub fn begin_call(self: &Arc<Self>, is_probe: bool) -> Result<CallGuard, Problem> {
        let before = self.active_calls.fetch_add(1, Ordering::AcqRel);
        let call = CallGuard(self.clone());
        self.calls_begun.fetch_add(1, Ordering::Relaxed);
        let ConnectionSlots { busy, busy_max: usual, setting, log_limiter, .. } = &*self.slots;
        let is_first = before & !CLOSED_BIT == 0;
        let busy = if is_first { busy.fetch_add(1, Ordering::Relaxed) } else { 0 };
        if before & CLOSED_BIT != 0 {
            return Err(Problem::overloaded(
                "this connection was ended for others: send the call again on a new one".to_owned(),
            ));
        }
        if busy >= *usual && !is_probe {
            if log_limiter.may_log("busy") {
                tracing::warn!(
                    usual,
                    "calls are refused: so many connections have calls under way (seven eighths \
                     of {setting}; logged once a minute)"
                );
            }
            return Err(Problem::overloaded(format!(
                "{usual} connections have calls under way, seven eighths of {setting}: the rest \
                 is for probes"
            )));
        }
        Ok(call)
    }

    /// Acquires a permit for a call that waits for something that may come late.
    ///
    /// # Errors
    ///
    /// 503: too many such calls wait.
    pub(super) fn acquire_long_poll(&self) -> Result<Permit, Problem> {
        let ConnectionSlots {
            long_polls: lasting,
            long_polls_max: lasting_max,
            setting,
            log_limiter,
            ..
        } = &*self.slots;
        lasting.try_acquire(1).ok_or_else(|| {
            if log_limiter.may_log("lasting") {
                tracing::warn!(
                    lasting_max,
                    "calls are refused: so many workers and readers of events wait on connections \
                     of their own (three quarters of {setting}; logged once a minute)"
                );
            }
            Problem::overloaded(format!(
                "{lasting_max} workers and readers of events wait, three quarters of {setting}: \
                 the rest is for other calls"
            ))
        })
    }

    /// Closes the connection, whatever is under way on it.
    pub fn close(&self) {
        self.active_calls.fetch_or(CLOSED_BIT, Ordering::AcqRel);
        self.wake_closed();
    }

    /// Closes the connection if it has no call under way. Returns whether it did.
    fn close_if_idle(&self) -> bool {
        let is_idle = self
            .active_calls
            .compare_exchange(0, CLOSED_BIT, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if is_idle {
            self.wake_closed();
        }
        is_idle
    }

    fn wake_closed(&self) {
        tracing::debug!(peer = %self.address, "a connection is ended");
        self.is_closed.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Returns whether the connection was closed. If not, the task is woken when it is.
    pub fn poll_closed(&self, context: &Context<'_>) -> bool {
        self.waker.register(context.waker());
        self.is_closed.load(Ordering::Acquire)
    }

    /// Counts a connection that is closed because the head of a request came too late.
    pub(super) fn report_late_head(&self) {
        self.slots.count_closed("head", 1);
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let ConnectionSlot {
            slots: places,
            active_calls: calls,
            idle_since_ms: quiet_since_ms,
            ..
        } = &*self.0;
        quiet_since_ms.store(places.now_ms(), Ordering::Relaxed);
        if calls.fetch_sub(1, Ordering::AcqRel) & !CLOSED_BIT == 1 {
            places.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
