//! Decides which acks to send to the broker. One ack covers several deliveries where possible.

use bus::Disposition;
use std::collections::BTreeMap;

/// An acknowledgement that is sent to the broker, by delivery tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acknowledgement {
    /// Acknowledges this delivery.
    Ack(u64),
    /// Acknowledges this delivery and all earlier ones.
    AckUpTo(u64),
    /// Requeues this delivery.
    Requeue(u64),
}

/// The settlement of the deliveries of one channel. Their tags count from 1 without gaps.
#[derive(Debug)]
pub(super) struct AckWindow {
    /// The tag of the last delivery.
    last_delivered: u64,
    /// Every delivery up to this tag is settled.
    settled_up_to: u64,
    /// The settled deliveries after the first unsettled one, by tag, each with whether its ack is
    /// pending.
    settled_early: BTreeMap<u64, bool>,
    /// The number of pending acks in `settled_early`.
    pending_acks: usize,
    /// The most acks that stay pending after a flush.
    pending_acks_max: usize,
}

impl AckWindow {
    /// Creates a window without deliveries. If more than `pending_acks_max` acks wait behind an
    /// unsettled delivery, they are sent one by one.
    pub(super) fn new(pending_acks_max: usize) -> AckWindow {
        AckWindow {
            last_delivered: 0,
            settled_up_to: 0,
            settled_early: BTreeMap::new(),
            pending_acks: 0,
            pending_acks_max,
        }
    }

    /// Adds the next delivery.
    pub(super) fn record_delivery(&mut self, tag: u64) {
        self.last_delivered = tag;
    }

    /// Returns the number of unsettled deliveries.
    pub(super) fn unsettled(&self) -> usize {
        usize::try_from(self.last_delivered - self.settled_up_to).unwrap_or(usize::MAX)
            - self.settled_early.len()
    }

    /// Returns whether acks wait behind an unsettled delivery.
    pub(super) fn has_pending_acks(&self) -> bool {
        self.pending_acks > 0
    }

    /// Settles a delivery. A requeue is pushed to `acknowledgements`; an ack is pending until
    /// [`AckWindow::flush`].
    pub(super) fn settle(
        &mut self,
        tag: u64,
        disposition: Disposition,
        acknowledgements: &mut Vec<Acknowledgement>,
    ) {
        match disposition {
            Disposition::Ack => {
                self.settled_early.insert(tag, true);
                self.pending_acks += 1;
            }
            Disposition::Requeue => {
                self.settled_early.insert(tag, false);
                acknowledgements.push(Acknowledgement::Requeue(tag));
            }
        }
    }

    /// Ends a burst of settlements: pushes the acks that are sent now to `acknowledgements`. If
    /// `must_send_all`, no ack stays pending.
    pub(super) fn flush(
        &mut self,
        must_send_all: bool,
        acknowledgements: &mut Vec<Acknowledgement>,
    ) {
        let mut last_acked = None;
        while let Some(is_pending) = self.settled_early.remove(&(self.settled_up_to + 1)) {
            self.settled_up_to += 1;
            if is_pending {
                self.pending_acks -= 1;
                // The tag must not be that of a requeued delivery: the broker no longer knows it,
                // and would close the channel.
                last_acked = Some(self.settled_up_to);
            }
        }
        acknowledgements.extend(last_acked.map(Acknowledgement::AckUpTo));
        if must_send_all || self.pending_acks > self.pending_acks_max {
            let pending_acks = self.settled_early.iter_mut().filter(|(_, is_pending)| **is_pending);
            for (tag, is_pending) in pending_acks {
                *is_pending = false;
                acknowledgements.push(Acknowledgement::Ack(*tag));
            }
            self.pending_acks = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a window with this number of deliveries.
    fn window(delivery_count: u64, pending_acks_max: usize) -> AckWindow {
        let mut window = AckWindow::new(pending_acks_max);
        (1..=delivery_count).for_each(|tag| window.record_delivery(tag));
        window
    }

    /// Settles deliveries by their tags, and flushes. Returns what is sent.
    fn settle(
        window: &mut AckWindow,
        dispositions: &[(u64, Disposition)],
        must_send_all: bool,
    ) -> Vec<Acknowledgement> {
        let mut acknowledgements = Vec::new();
        dispositions.iter().for_each(|(tag, disposition)| {
            window.settle(*tag, *disposition, &mut acknowledgements)
        });
        window.flush(must_send_all, &mut acknowledgements);
        acknowledgements
    }

    #[test]
    fn consecutive_deliveries_are_acknowledged_together() {
        let mut window = window(5, 10);
        assert_eq!(
            settle(
                &mut window,
                &[(2, Disposition::Ack), (1, Disposition::Ack), (3, Disposition::Ack)],
                false
            ),
            [Acknowledgement::AckUpTo(3)]
        );
        assert_eq!(window.unsettled(), 2);
    }

    #[test]
    fn acks_behind_an_unsettled_delivery_wait_for_it() {
        let mut window = window(5, 10);
        assert_eq!(settle(&mut window, &[(2, Disposition::Ack), (4, Disposition::Ack)], false), []);
        assert!(window.has_pending_acks());
        assert_eq!(
            settle(&mut window, &[(1, Disposition::Ack)], false),
            [Acknowledgement::AckUpTo(2)]
        );
        assert_eq!(
            settle(&mut window, &[(3, Disposition::Ack)], false),
            [Acknowledgement::AckUpTo(4)]
        );
        assert!(!window.has_pending_acks());
    }

    #[test]
    fn too_many_waiting_acks_are_sent_one_by_one() {
        let mut window = window(5, 2);
        assert_eq!(
            settle(
                &mut window,
                &[(3, Disposition::Ack), (5, Disposition::Ack), (2, Disposition::Ack)],
                false
            ),
            [Acknowledgement::Ack(2), Acknowledgement::Ack(3), Acknowledgement::Ack(5)]
        );
        assert_eq!(
            settle(&mut window, &[(1, Disposition::Ack)], false),
            [Acknowledgement::AckUpTo(1)]
        );
        assert_eq!((window.unsettled(), window.has_pending_acks()), (1, false));
    }

    #[test]
    fn a_requeued_delivery_is_sent_at_once_and_never_acknowledged() {
        let mut window = window(3, 10);
        assert_eq!(
            settle(&mut window, &[(1, Disposition::Ack), (2, Disposition::Requeue)], false),
            [Acknowledgement::Requeue(2), Acknowledgement::AckUpTo(1)]
        );
        assert_eq!(
            settle(&mut window, &[(3, Disposition::Requeue)], false),
            [Acknowledgement::Requeue(3)]
        );
        assert_eq!(window.unsettled(), 0);
    }

    #[test]
    fn a_full_flush_sends_all_acks() {
        let mut window = window(3, 10);
        assert_eq!(settle(&mut window, &[(3, Disposition::Ack)], true), [Acknowledgement::Ack(3)]);
        assert_eq!((window.unsettled(), window.has_pending_acks()), (2, false));
    }
}
