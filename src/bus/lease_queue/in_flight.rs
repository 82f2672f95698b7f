//! Messages in flight, and what is reported of their leases.

use super::types::{LeaseRevocation, QueuePosition, RevocationSender, RevokeReason};
use crate::event::BusEvent;
use crate::publication::{Publication, RemainingLease};
use base::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The least time between two reports of a shortened lease of one message.
const SHORTENED_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A message that a worker has.
pub(super) struct InFlight {
    pub(super) queue: Arc<str>,
    pub(super) position: QueuePosition,
    pub(super) message: Publication,
    /// The delivery number that the worker has.
    pub(super) delivery: u32,
    /// How often it was delivered.
    pub(super) deliveries: u32,
    pub(super) lease: Duration,
    pub(super) until: Instant,
    /// The end of the lease that was last reported.
    pub(super) reported_until: Option<Instant>,
    /// When an earlier end than before was reported last.
    pub(super) shortened_at: Option<Instant>,
    /// The worker that has it, by the name that it gave itself.
    pub(super) worker: Option<Arc<str>>,
    /// Notified when the lease is revoked; only of a worker with a session.
    pub(super) revocations: Option<RevocationSender>,
}

impl InFlight {
    /// Creates an in-flight message, of whose worker nothing more is known. Nothing is reported
    /// yet.
    pub(super) fn new(
        message: Publication,
        position: QueuePosition,
        delivery: u32,
        lease: Duration,
        until: Instant,
    ) -> InFlight {
        InFlight {
            queue: message.address.queue.clone(),
            position,
            message,
            delivery,
            deliveries: delivery,
            lease,
            until,
            reported_until: None,
            shortened_at: None,
            worker: None,
            revocations: None,
        }
    }

    /// Returns whether this session has leased it.
    pub(super) fn is_leased_to(&self, session: &RevocationSender) -> bool {
        self.revocations.as_ref().is_some_and(|own| own.same_channel(session))
    }

    /// Returns the event that reports this lease as ending at most `within` after its real end.
    /// Returns `None` if the end reported last is still right (not before the real end, and at most
    /// `within` after it), or if a shorter lease was reported a moment ago.
    pub(super) fn next_report(&mut self, within: Duration) -> Option<BusEvent> {
        let (last, now) = (self.until + within, clock::timer_now());
        if self.reported_until.is_some_and(|reported| (self.until..=last).contains(&reported)) {
            return None;
        }
        // A lease that is shortened again and again is reported only now and then. That never gives
        // the message to another worker too early.
        let is_shorter = self.reported_until.is_some_and(|reported| reported > last);
        if is_shorter
            && self
                .shortened_at
                .is_some_and(|at| now.duration_since(at) < SHORTENED_REPORT_INTERVAL)
        {
            return None;
        }
        self.shortened_at = if is_shorter { Some(now) } else { self.shortened_at };
        self.reported_until = Some(last);
        let left = last.saturating_duration_since(now);
        let lease = RemainingLease { delivery: self.delivery, remaining: left };
        Some(BusEvent::Leased { confirm_token: self.message.confirm_token.try_clone()?, lease })
    }

    /// Notifies the session, if the worker has one, that it no longer has the message.
    pub(super) fn notify_revoked(&self, id: &str, reason: RevokeReason) {
        if let Some(session) = &self.revocations {
            // The channel is closed if the session has ended.
            let _ =
                session.send(LeaseRevocation { id: id.into(), delivery: self.delivery, reason });
        }
    }
}
