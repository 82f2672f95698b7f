//! Messages in flight, and the reports of their leases to the journal.

use super::types::{LeaseRevocation, QueuePosition, RevocationSender, RevokeReason};
use crate::event::BusEvent;
use crate::publication::{Publication, RemainingLease};
use base::clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The minimum time between two reports that shorten the lease of one message.
const SHORTENED_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A message in flight.
pub(super) struct InFlight {
    /// The name of its queue.
    pub(super) queue: Arc<str>,
    /// Its position in the queue, if it is requeued.
    pub(super) position: QueuePosition,
    pub(super) message: Publication,
    /// The number of the delivery that the worker has.
    pub(super) delivery: u32,
    /// The number of deliveries so far. It may be higher than `delivery`, after an extension of an
    /// earlier delivery.
    pub(super) deliveries: u32,
    /// The duration by which the lease is extended if the worker names none.
    pub(super) lease: Duration,
    /// When the lease ends.
    pub(super) until: Instant,
    /// The end of the lease that was last reported; `None`: nothing was reported.
    pub(super) reported_until: Option<Instant>,
    /// When a shorter lease was last reported; `None`: never.
    pub(super) shortened_at: Option<Instant>,
    /// The name that the worker gave itself; `None` if it gave none.
    pub(super) worker: Option<Arc<str>>,
    /// Notified when the lease is revoked; `None` for a worker without a session.
    pub(super) revocations: Option<RevocationSender>,
}

impl InFlight {
    /// Creates a message in flight to an unknown worker without a session. Nothing is reported yet.
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

    /// Returns whether this session has leased the message.
    pub(super) fn is_leased_to(&self, session: &RevocationSender) -> bool {
        self.revocations.as_ref().is_some_and(|holder| holder.same_channel(session))
    }

    /// Records a report of the lease, and returns its event. The reported end is `slack` after the
    /// real end. Returns `None` if the last reported end is still valid (at or after the real end,
    /// and at most `slack` after it), if a shorter lease was already reported within the last
    /// [`SHORTENED_REPORT_INTERVAL`], or if the message's confirm token cannot be cloned.
    pub(super) fn record_report(&mut self, slack: Duration) -> Option<BusEvent> {
        let (latest_end, now) = (self.until + slack, clock::timer_now());
        let valid_ends = self.until..=latest_end;
        if self.reported_until.is_some_and(|reported_end| valid_ends.contains(&reported_end)) {
            return None;
        }
        // A report of a shorter lease may be skipped: after a restart, the message is then only
        // leased again later than necessary.
        let is_shorter = self.reported_until.is_some_and(|reported_end| reported_end > latest_end);
        if is_shorter
            && self
                .shortened_at
                .is_some_and(|instant| now.duration_since(instant) < SHORTENED_REPORT_INTERVAL)
        {
            return None;
        }
        if is_shorter {
            self.shortened_at = Some(now);
        }
        self.reported_until = Some(latest_end);
        let remaining = latest_end.saturating_duration_since(now);
        let lease = RemainingLease { delivery: self.delivery, remaining };
        Some(BusEvent::Leased { confirm_token: self.message.confirm_token.try_clone()?, lease })
    }

    /// Notifies the worker, if it has a session, that it no longer has the message.
    pub(super) fn notify_revoked(&self, id: &str, reason: RevokeReason) {
        if let Some(session) = &self.revocations {
            // Sending fails if the session has ended.
            let _ =
                session.send(LeaseRevocation { id: id.into(), delivery: self.delivery, reason });
        }
    }
}
