//! The slots of connections: which connection has one, which must give its own up for a new
//! connection, and how many may have calls under way.
//!
//! A new connection always finds a slot: an eighth of them is never given to connections with calls
//! under way, but kept for connections that are new or idle, and for probes. While slots are short,
//! connections without a call under way are closed: first those none of whose calls was admitted,
//! then the others, each time the one that has been idle for longest.

use super::problem::Problem;
use crate::access;
use crate::actors::common::Common;
use crate::clock;
use crate::room::{Room, Taken};
use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpRequest};
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
const UNKNOWN_FOR: Duration = Duration::from_secs(5);

/// How long a new connection stays at least: its first call may be on its way.
const SPARED_FOR: Duration = Duration::from_secs(1);

/// The bit in the number of a connection's active calls that says that the connection was closed,
/// and that no further call begins.
const ENDED: usize = 1 << (usize::BITS - 1);

/// The slots of all connections to a port.
pub(super) struct Places {
    common: Arc<Common>,
    /// The name of the setting that limits the connections.
    setting: &'static str,
    began: Instant,
    /// Beyond this number of connections, idle ones are closed for new ones. At most as many may
    /// have calls under way.
    usual: usize,
    /// The most connections from one address.
    address_max: usize,
    /// The number of connections that have calls under way.
    busy: AtomicUsize,
    /// Bounds the calls that wait for something that may come late.
    lasting: Room,
    lasting_max: usize,
    taken: Mutex<TakenPlaces>,
}

#[derive(Default)]
struct TakenPlaces {
    next: u64,
    by_number: HashMap<u64, Arc<Place>>,
    by_address: HashMap<IpAddr, usize>,
}

/// The slot of one connection.
pub(super) struct Place {
    /// The address of the client.
    pub(super) address: SocketAddr,
    number: u64,
    places: Arc<Places>,
    entered_ms: u64,
    /// Since when no call has been under way.
    quiet_since_ms: AtomicU64,
    is_known: AtomicBool,
    calls: AtomicUsize,
    begun: AtomicUsize,
    is_ended: AtomicBool,
    reader: AtomicWaker,
}

/// The order in which idle connections are closed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// None of its calls was admitted.
    Unknown,
    /// A call was admitted, and none is under way.
    Idle,
    /// The connection has just been opened.
    New,
}

/// Releases the slot of a connection when it is dropped.
pub(super) struct Seated(pub(super) Arc<Place>);

/// A call under way on a connection, until it is dropped.
pub(super) struct UnderWay(Arc<Place>);

/// The slot of the connection on which a request came. `None` in tests, whose requests come on
/// none.
pub(super) struct Placed(Option<Arc<Place>>);

impl Placed {
    /// Acquires what [`ConnectionSlot::acquire_long_poll`] acquires, if there is a connection.
    pub(super) fn lasts(&self) -> Result<Option<Taken>, Problem> {
        self.0.as_ref().map(|place| place.lasts()).transpose()
    }
}

impl FromRequest for Placed {
    type Error = Infallible;
    type Future = Ready<Result<Placed, Infallible>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(Placed(request.conn_data::<Arc<Place>>().cloned())))
    }
}

impl Places {
    /// Makes `max` slots, of which one address gets at most `address_max`. 0 means all but a
    /// sixteenth, which calls under way alone never take.
    pub(super) fn new(
        common: &Arc<Common>,
        setting: &'static str,
        max: usize,
        address_max: usize,
    ) -> Arc<Places> {
        let usual = max - max / 8;
        let lasting_max = (max - max / 4).max(1);
        Arc::new(Places {
            common: common.clone(),
            setting,
            began: clock::ticks(),
            usual,
            address_max: if address_max == 0 { max - max / 16 } else { address_max },
            busy: AtomicUsize::new(0),
            lasting: Room::of_places(lasting_max),
            lasting_max,
            taken: Mutex::default(),
        })
    }

    /// Acquires a slot for a new connection. Returns `None` if its address has too many
    /// connections, all with calls under way.
    pub(super) fn enter(self: &Arc<Self>, address: SocketAddr) -> Option<Seated> {
        let network = access::network(address.ip());
        let mut taken = self.taken();
        let of_address = taken.by_address.get(&network).copied().unwrap_or_default();
        if of_address >= self.address_max && self.make_room(&mut taken, Some(network)) == 0 {
            self.ended("address", 1);
            if self.common.throttle.may_log("address") {
                tracing::warn!(
                    %address,
                    max = self.address_max,
                    "a connection is refused: its address has as many as it may have, all with \
                     calls under way (http.address_connections_max; logged once a minute)"
                );
            }
            return None;
        }
        if taken.by_number.len() >= self.usual {
            let ended = self.make_room(&mut taken, None);
            if self.common.throttle.may_log(self.setting) {
                tracing::warn!(
                    connections = taken.by_number.len() + ended,
                    ended,
                    "connections are short: those without a call under way end for newcomers \
                     (setting {}; logged once a minute)",
                    self.setting
                );
            }
        }
        taken.next += 1;
        let now = self.now_ms();
        let place = Arc::new(Place {
            address,
            number: taken.next,
            places: self.clone(),
            entered_ms: now,
            quiet_since_ms: AtomicU64::new(now),
            is_known: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            is_ended: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        });
        taken.by_number.insert(place.number, place.clone());
        *taken.by_address.entry(network).or_default() += 1;
        Some(Seated(place))
    }

    /// Closes all connections that have gone unadmitted for too long, or else the idle one that
    /// ranks first. Considers only those of `network`, if it is given. Returns how many were
    /// closed.
    fn make_room(&self, taken: &mut TakenPlaces, network: Option<IpAddr>) -> usize {
        let now = self.now_ms();
        let mut ended = Vec::new();
        let mut spared: Option<(Rank, u64, u64)> = None;
        for place in taken.by_number.values() {
            if network.is_some_and(|network| network != access::network(place.address.ip()))
                || place.calls.load(Ordering::Acquire) > 0
            {
                continue;
            }
            let is_known = place.is_known.load(Ordering::Relaxed);
            let unknown_for = Duration::from_millis(now.saturating_sub(place.entered_ms));
            if !is_known && unknown_for >= UNKNOWN_FOR {
                ended.push(place.number);
            }
            let quiet_since = place.quiet_since_ms.load(Ordering::Relaxed);
            let rank = match is_known {
                true => Rank::Idle,
                false if unknown_for < SPARED_FOR => Rank::New,
                false => Rank::Unknown,
            };
            let candidate = (rank, quiet_since, place.number);
            if spared.is_none_or(|spared| candidate < spared) {
                spared = Some(candidate);
            }
        }
        if ended.is_empty() {
            ended.extend(spared.map(|(_, _, number)| number));
        }
        let before = taken.by_number.len();
        for number in ended {
            if taken.by_number.get(&number).is_some_and(|place| place.end_if_idle()) {
                taken.remove(number);
            }
        }
        let count = before - taken.by_number.len();
        self.ended("room", count);
        count
    }

    /// Counts connections that the manager has closed.
    fn ended(&self, reason: &str, count: usize) {
        let ended = self.common.metrics.connections_ended.with_label_values(&[reason]);
        ended.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    fn now_ms(&self) -> u64 {
        let since = clock::ticks().saturating_duration_since(self.began);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn taken(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TakenPlaces {
    fn remove(&mut self, number: u64) {
        let Some(place) = self.by_number.remove(&number) else { return };
        let network = access::network(place.address.ip());
        if let Some(count) = self.by_address.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&network);
            }
        }
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.0.places.taken().remove(self.0.number);
    }
}

impl Place {
    /// Marks that a call of the connection was admitted, which keeps it longer.
    pub(super) fn admit(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Returns whether a call of the connection was admitted.
    #[cfg(feature = "grpc")]
    pub(super) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Returns how many calls have begun on the connection.
    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns whether a call is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.calls.load(Ordering::Relaxed) & !ENDED > 0
    }

    /// Begins a call, which ends when the returned guard is dropped. Probes are always let in.
    ///
    /// # Errors
    ///
    /// 503: the connection was closed, or too many connections have calls under way.
    pub(super) fn begin(self: &Arc<Self>, is_probe: bool) -> Result<UnderWay, Problem> {
        let before = self.calls.fetch_add(1, Ordering::AcqRel);
        let under_way = UnderWay(self.clone());
        self.begun.fetch_add(1, Ordering::Relaxed);
        let Places { busy, usual, setting, common, .. } = &*self.places;
        let is_first = before & !ENDED == 0;
        let busy = if is_first { busy.fetch_add(1, Ordering::Relaxed) } else { 0 };
        if before & ENDED != 0 {
            return Err(Problem::overloaded(
                "this connection was ended for others: send the call again on a new one".to_owned(),
            ));
        }
        if busy >= *usual && !is_probe {
            if common.throttle.may_log("busy") {
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
        Ok(under_way)
    }

    /// Acquires a permit for a call that waits for something that may come late.
    ///
    /// # Errors
    ///
    /// 503: too many such calls wait.
    pub(super) fn lasts(&self) -> Result<Taken, Problem> {
        let Places { lasting, lasting_max, setting, common, .. } = &*self.places;
        lasting.take(1).ok_or_else(|| {
            if common.throttle.may_log("lasting") {
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
    #[cfg(feature = "grpc")]
    pub(super) fn break_off(&self) {
        self.calls.fetch_or(ENDED, Ordering::AcqRel);
        self.wake_ended();
    }

    /// Closes the connection if it has no call under way. Returns whether it did.
    fn end_if_idle(&self) -> bool {
        let is_idle =
            self.calls.compare_exchange(0, ENDED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_idle {
            self.wake_ended();
        }
        is_idle
    }

    fn wake_ended(&self) {
        tracing::debug!(peer = %self.address, "a connection is ended");
        self.is_ended.store(true, Ordering::Release);
        self.reader.wake();
    }

    /// Returns whether the connection was closed. If not, the task is woken when it is.
    pub(super) fn is_ended(&self, context: &Context<'_>) -> bool {
        self.reader.register(context.waker());
        self.is_ended.load(Ordering::Acquire)
    }

    /// Counts a connection that is closed because the head of a request came too late.
    pub(super) fn is_late(&self) {
        self.places.ended("head", 1);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Place { places, calls, quiet_since_ms, .. } = &*self.0;
        quiet_since_ms.store(places.now_ms(), Ordering::Relaxed);
        if calls.fetch_sub(1, Ordering::AcqRel) & !ENDED == 1 {
            places.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
