//! Messages in flight, and what is reported of their leases.

use super::lines::Line;
use super::queues::Place;
use crate::bus::{BusEvent, LeaseLeft, Publication};
use crate::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The least time between two reports of a shortened lease of one message.
const SHORTENED_EVERY: Duration = Duration::from_secs(1);

/// A message that a worker has.
pub(super) struct Lent {
    pub(super) queue: Arc<str>,
    pub(super) place: Place,
    pub(super) message: Publication,
    /// The delivery number that the worker has.
    pub(super) delivery: u32,
    /// How often it was delivered.
    pub(super) deliveries: u32,
    pub(super) lease: Duration,
    pub(super) until: Instant,
    /// The end of the lease that was last reported.
    pub(super) reported: Option<Instant>,
    /// When an earlier end than before was reported last.
    pub(super) shortened: Option<Instant>,
    /// The worker that has it, by the name that it gave itself.
    pub(super) worker: Option<Arc<str>>,
    /// Notified when the lease is revoked; only of a worker with a session.
    pub(super) line: Option<Line>,
}

impl Lent {
    /// Creates an in-flight message, of whose worker nothing more is known. Nothing is reported
    /// yet.
    pub(super) fn new(
        message: Publication,
        place: Place,
        delivery: u32,
        lease: Duration,
        until: Instant,
    ) -> Lent {
        Lent {
            queue: message.to.queue.clone(),
            place,
            message,
            delivery,
            deliveries: delivery,
            lease,
            until,
            reported: None,
            shortened: None,
            worker: None,
            line: None,
        }
    }

    /// Returns whether this session has leased it.
    pub(super) fn is_over(&self, line: &Line) -> bool {
        self.line.as_ref().is_some_and(|own| own.same_channel(line))
    }

    /// Returns the event that reports this lease as ending at most `within` after its real end.
    /// Returns `None` if the end reported last is still right (not before the real end, and at most
    /// `within` after it), or if a shorter lease was reported a moment ago.
    pub(super) fn report(&mut self, within: Duration) -> Option<BusEvent> {
        let (last, now) = (self.until + within, clock::ticks());
        if self.reported.is_some_and(|reported| (self.until..=last).contains(&reported)) {
            return None;
        }
        // A lease that is shortened again and again is reported only now and then. That never gives
        // the message to another worker too early.
        let is_shorter = self.reported.is_some_and(|reported| reported > last);
        if is_shorter && self.shortened.is_some_and(|at| now.duration_since(at) < SHORTENED_EVERY) {
            return None;
        }
        self.shortened = if is_shorter { Some(now) } else { self.shortened };
        self.reported = Some(last);
        let left = last.saturating_duration_since(now);
        let lease = LeaseLeft { delivery: self.delivery, left };
        Some(BusEvent::Leased { receipt: self.message.receipt.again()?, lease })
    }
}
