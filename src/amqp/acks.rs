//! Decides which acks to send to the broker: as few as possible, by acknowledging whole prefixes of
//! deliveries at once.

use bus::Disposition;
use std::collections::BTreeMap;

/// What to send to the broker about one delivery, or about a prefix of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acknowledgement {
    /// Acknowledges this delivery.
    Ack(u64),
    /// Acknowledges this delivery and all before it.
    AckUpTo(u64),
    /// Requeues this delivery.
    Requeue(u64),
}

/// The deliveries of one channel. Their tags count from 1 without gaps.
#[derive(Debug)]
pub(super) struct AckWindow {
    delivered: u64,
    /// Every delivery up to this tag is settled at the broker.
    settled_up_to: u64,
    /// Deliveries that were settled after an unsettled one, each with whether its ack is still
    /// pending.
    settled_early: BTreeMap<u64, bool>,
    pending_acks: usize,
    pending_acks_max: usize,
}

impl AckWindow {
    /// Creates a window without deliveries. When more than `pending_acks_max` acks wait behind an
    /// unsettled delivery, they are sent one by one.
    pub(super) fn new(pending_acks_max: usize) -> AckWindow {
        AckWindow {
            delivered: 0,
            settled_up_to: 0,
            settled_early: BTreeMap::new(),
            pending_acks: 0,
            pending_acks_max,
        }
    }

    pub(super) fn record_delivery(&mut self, tag: u64) {
        self.delivered = tag;
    }

    /// Returns how many deliveries are not settled.
    pub(super) fn unsettled(&self) -> usize {
        usize::try_from(self.delivered - self.settled_up_to).unwrap_or(usize::MAX)
            - self.settled_early.len()
    }

    /// Returns whether acks wait behind an unsettled delivery.
    pub(super) fn has_pending_acks(&self) -> bool {
        self.pending_acks > 0
    }

    /// Settles a delivery. What must be sent at once is pushed to `answers`.
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

    /// Ends a burst of settlements, and pushes what must be sent now to `answers`. With `all`, no
    /// ack is held back.
    pub(super) fn flush(&mut self, all: bool, acknowledgements: &mut Vec<Acknowledgement>) {
        let mut acked = None;
        while let Some(owed) = self.settled_early.remove(&(self.settled_up_to + 1)) {
            self.settled_up_to += 1;
            if owed {
                self.pending_acks -= 1;
                // A requeued delivery must never be acknowledged: the broker no longer knows its
                // tag and would close the channel.
                acked = Some(self.settled_up_to);
            }
        }
        acknowledgements.extend(acked.map(Acknowledgement::AckUpTo));
        if all || self.pending_acks > self.pending_acks_max {
            for (tag, owed) in self.settled_early.iter_mut().filter(|(_, owed)| **owed) {
                *owed = false;
                acknowledgements.push(Acknowledgement::Ack(*tag));
            }
            self.pending_acks = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(delivered: u64, owed_max: usize) -> AckWindow {
        let mut window = AckWindow::new(owed_max);
        (1..=delivered).for_each(|tag| window.record_delivery(tag));
        window
    }

    fn settle(
        window: &mut AckWindow,
        dispositions: &[(u64, Disposition)],
        all: bool,
    ) -> Vec<Acknowledgement> {
        let mut answers = Vec::new();
        dispositions
            .iter()
            .for_each(|(tag, disposition)| window.settle(*tag, *disposition, &mut answers));
        window.flush(all, &mut answers);
        answers
    }

    #[test]
    fn a_prefix_is_acknowledged_at_once() {
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
    fn acks_behind_a_gap_wait_for_it_to_close() {
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
    fn too_many_acks_behind_a_gap_go_out_one_by_one() {
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
    fn at_the_end_all_acks_are_sent() {
        let mut window = window(3, 10);
        assert_eq!(settle(&mut window, &[(3, Disposition::Ack)], true), [Acknowledgement::Ack(3)]);
        assert_eq!((window.unsettled(), window.has_pending_acks()), (2, false));
    }
}
