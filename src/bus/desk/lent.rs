//! A message that is lent, and what is reported of its lease.

use super::lines::Line;
use super::queues::Place;
use crate::bus::{BusEvent, LeaseLeft, Publication};
use crate::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often a shorter lease of a message is reported at most.
const SHORTENED_EVERY: Duration = Duration::from_secs(1);

/// A message that a worker has.
pub(super) struct Lent {
    pub(super) queue: Arc<str>,
    pub(super) place: Place,
    pub(super) message: Publication,
    /// The number by which its worker knows it.
    pub(super) delivery: u32,
    /// How often it was lent.
    pub(super) deliveries: u32,
    pub(super) lease: Duration,
    pub(super) until: Instant,
    /// When it ends as far as was reported.
    pub(super) reported: Option<Instant>,
    /// When an earlier end than before was reported.
    pub(super) shortened: Option<Instant>,
    /// Who has it, by the name that it gave itself.
    pub(super) worker: Option<Arc<str>>,
    /// Where that worker hears that it no longer has the message.
    pub(super) line: Option<Line>,
}

impl Lent {
    /// A message that is lent as this delivery, to a worker of which no more is known. Nothing is
    /// reported yet.
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

    /// Whether it is lent over this line.
    pub(super) fn is_over(&self, line: &Line) -> bool {
        self.line.as_ref().is_some_and(|own| own.same_channel(line))
    }

    /// The report on this lease, as ending `within` later than it does. None: the end that was last
    /// reported is still right, as it is not before the lease ends and at most `within` after that;
    /// or a shorter lease was reported a moment ago.
    pub(super) fn report(&mut self, within: Duration) -> Option<BusEvent> {
        let (last, now) = (self.until + within, clock::ticks());
        if self.reported.is_some_and(|reported| (self.until..=last).contains(&reported)) {
            return None;
        }
        // A lease that is shortened again and again is reported only now and then. Nobody gets the
        // message too early because of that.
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
